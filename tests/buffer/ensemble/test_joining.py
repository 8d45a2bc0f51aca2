"""From batches of several buffers to one."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from replay_service import LayoutError
from replay_service.buffer.ensemble.joining import concatenated, joined_values, stacked_batches, unify_entries
from tests.rows import stamped_rows

NAMES = ("rbs[0]", "rbs[1]")
Pair = namedtuple("Pair", "a b")


def test_tensordicts_are_stacked() -> None:
    batch = stacked_batches([stamped_rows(3), stamped_rows(3, stamp=10)], NAMES)
    assert batch.batch_size == (2, 3)
    assert batch["next"].batch_size == (2, 3)
    assert batch["action"].tolist() == [[0, 1, 2], [10, 11, 12]]


def test_tensordicts_are_concatenated() -> None:
    batch = concatenated([stamped_rows(3), stamped_rows(1, stamp=10)], NAMES)
    assert batch.batch_size == (4,)
    assert batch["next", "reward"].flatten().tolist() == [0, 1, 2, 10]


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: {"a": x, "b": (x, x)}, lambda x: [x, {"c": x}], lambda x: Pair(x, x)]
)
def test_other_records_are_joined_leaf_by_leaf(make: Any) -> None:
    parts = [make(torch.zeros(2, 3)), make(torch.ones(2, 3))]
    stacked, flat = stacked_batches(parts, NAMES), concatenated(parts, NAMES)
    assert type(stacked) is type(parts[0])
    leaves = torch.utils._pytree.tree_leaves
    assert all(leaf.shape == (2, 2, 3) for leaf in leaves(stacked))
    assert all(leaf.shape == (4, 3) for leaf in leaves(flat))


def test_records_that_are_no_tensors_stay_by_themselves() -> None:
    assert stacked_batches([["a", "b"], ["c"]], NAMES) == [["a", "b"], ["c"]]


@pytest.mark.parametrize("join", [stacked_batches, concatenated])
def test_other_entries_are_refused(join: Any) -> None:
    other = stamped_rows(2).exclude(("next", "reward"))
    other["bonus"] = torch.zeros(2)
    with pytest.raises(LayoutError, match=r"rbs\[1\] .* lacks \['next.reward'\] and has \['bonus'\] besides"):
        join([stamped_rows(2), other], NAMES)
    wide = stamped_rows(2)
    wide["observation"] = torch.zeros(2, 5)
    with pytest.raises(LayoutError, match=r"observation: float32\[4\]; got observation: float32\[5\]"):
        join([stamped_rows(2), wide], NAMES)


def test_parts_of_different_sizes_cannot_be_stacked() -> None:
    with pytest.raises(LayoutError, match=r"rbs\[1\] \(3 rows\) must give as many rows as rbs\[0\]"):
        stacked_batches([stamped_rows(2), stamped_rows(3)], NAMES)


def test_entries_of_some_samplers_are_left_out() -> None:
    batches = [stamped_rows(2), stamped_rows(2)]
    weights = torch.ones(2)
    batches[0]["weight"], batches[0]["collector", "mask"] = weights, weights
    unify_entries(batches, [{"weight": weights, ("collector", "mask"): weights, "action": weights}, {}])
    assert set(batches[0].keys(True, True)) == set(batches[1].keys(True, True))


def test_values_of_all_parts() -> None:
    one, two = torch.zeros(2), torch.ones(2)
    assert joined_values([one, two], [2, 2], stacks=True).tolist() == [[0, 0], [1, 1]]  # type: ignore[union-attr]
    assert joined_values([one, two[:1]], [2, 1], stacks=False).tolist() == [0, 0, 1]  # type: ignore[union-attr]
    coordinates = (torch.tensor([1, 2]), torch.tensor([3, 4]))
    assert joined_values([coordinates], [2], stacks=False).tolist() == [[1, 3], [2, 4]]  # type: ignore[union-attr]
    for values, rows in (([one, two.long()], [2, 2]), ([one, two], [2, 3]), ([one, 5], [2, 2])):
        assert joined_values(values, rows, stacks=False) is None
