"""Names of records in several buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service.buffer.ensemble.members import later_writes, member_index, members_index

PAIR = {"buffer_ids": torch.tensor([[1, 0], [1, 1]]), "index": torch.tensor([[5, 6], [7, 8]])}


@pytest.mark.parametrize("index", [PAIR, TensorDict(PAIR, [2, 2])])
def test_records_are_grouped_by_buffer_in_their_order(index: Any) -> None:
    named = member_index(index, 2)
    assert (named.shape, len(named)) == (torch.Size([2, 2]), 4)
    assert [(member, rows.tolist(), named.local[rows].tolist()) for member, rows in named.groups()] == [
        (0, [1], [6]),
        (1, [0, 2, 3], [5, 7, 8]),
    ]


def test_coordinates_have_one_dimension_more() -> None:
    named = member_index({"buffer_ids": torch.zeros(3, dtype=torch.int64), "index": torch.ones(3, 2).long()}, 1)
    assert named.local.shape == (3, 2)


def test_no_records_have_no_groups() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert member_index(members_index(none, none), 2).groups() == []


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        (torch.tensor([1]), TypeError, r"index \(Tensor\) must be a TensorDict of buffer_ids and index"),
        ({"index": torch.tensor([1])}, TypeError, "buffer_ids"),
        ({**PAIR, "index": torch.tensor([1])}, ValueError, r"index\.index \(\[1\]\)"),
        ({**PAIR, "buffer_ids": PAIR["buffer_ids"] + 1}, IndexError, r"buffer_ids \(2\) must be in \[0, 2\)"),
        ({**PAIR, "buffer_ids": PAIR["buffer_ids"] - 1}, IndexError, r"buffer_ids \(-1\)"),
        ({**PAIR, "index": torch.rand(2, 2)}, TypeError, r"index\.index must be integers; got float32"),
        ({**PAIR, "buffer_ids": torch.ones(2, 2, dtype=torch.bool)}, TypeError, "got bool"),
    ],
)
def test_what_names_no_records_is_refused(index: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        member_index(index, 2)


def test_later_writes_are_counted() -> None:
    assert later_writes(torch.tensor([3, 0, 3, 1, 3, 0])).tolist() == [2, 1, 1, 0, 0, 0]
