"""The time axis: exchanged in every leaf, and back."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import LayoutError, LazyTensorStorage, ListStorage, ReplayBuffer
from replay_service.buffer.time_axis import swapped
from replay_service.structure import Rows, flatten_rows

Pair = namedtuple("Pair", ["left", "right"])


def test_every_leaf_is_exchanged() -> None:
    leaf = torch.zeros(2, 3, 4)
    data = {"td": TensorDict({"a": leaf}, [2, 3]), "pair": Pair(leaf, [leaf, (leaf,)])}
    got = swapped(data, 1)
    assert got["td"].batch_size == (3, 2)
    assert got["td"]["a"].shape == (3, 2, 4)
    assert isinstance(got["pair"], Pair)
    assert got["pair"].right[1][0].shape == (3, 2, 4)
    assert swapped(got, 1)["td"].batch_size == (2, 3)
    assert swapped(data, 0) is data


def test_rows_are_exchanged() -> None:
    rows = swapped(flatten_rows({"a": torch.zeros(2, 3), "b": torch.zeros(2, 3, 4)}, leading=2), 1)
    assert isinstance(rows, Rows)
    assert (rows.count, [tuple(tensor.shape) for tensor in rows.tensors]) == (3, [(3, 2), (3, 2, 4)])


@pytest.mark.parametrize("data", [torch.zeros(3), TensorDict({"a": torch.zeros(3, 2)}, [3]), {"a": "text"}])
def test_what_has_no_such_dimension(data: Any) -> None:
    with pytest.raises(LayoutError, match="set dim_extend=0"):
        swapped(data, 1)


# -- dim_extend of a buffer -------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    assert ReplayBuffer(storage=LazyTensorStorage(8)).dim_extend == 0
    assert ReplayBuffer(storage=LazyTensorStorage(8, ndim=2)).dim_extend == 1
    assert ReplayBuffer(storage=LazyTensorStorage(8, ndim=3)).dim_extend == 2
    assert ReplayBuffer(storage=LazyTensorStorage(8, ndim=2), dim_extend=0).dim_extend == 0


def test_three_dimensions() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(48, ndim=3))
    data = TensorDict({"v": torch.arange(24).view(2, 3, 4)}, [2, 3, 4])
    buffer.extend(data)
    assert tuple(buffer.storage.shape) == (8, 3, 2)
    assert bool((buffer[:] == data).all())


def test_time_first() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=0)
    buffer.extend(torch.arange(6).view(3, 2))
    assert buffer[:].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("storage", [LazyTensorStorage(8), ListStorage(8)], ids=lambda storage: type(storage).__name__)
def test_one_dimension_may_have_time_second(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage, dim_extend=1)
    assert buffer.extend(torch.arange(6).view(2, 3)).tolist() == [0, 1, 2]
    assert buffer[:].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert buffer[1].tolist() == [1, 4]
    buffer[1:] = torch.tensor([[7, 8], [9, 9]])
    assert buffer[:].tolist() == [[0, 7, 8], [3, 9, 9]]


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_what_is_no_dimension(value: Any, error: type) -> None:
    with pytest.raises(error, match="dim_extend"):
        ReplayBuffer(dim_extend=value)


def test_set_before_the_first_record() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2))
    buffer.dim_extend = 0
    buffer.extend(torch.zeros(3, 2))
    buffer.dim_extend = 0
    with pytest.raises(RuntimeError, match=r"dim_extend \(1\) must be set before the first record"):
        buffer.dim_extend = 1
    assert buffer.dim_extend == 0
