"""Columns: bytes in by contiguous part, bytes out by index."""

from __future__ import annotations

import pickle

import pytest
import torch

from replay_service.buffer.columns import Column, allocate, numpy_view
from replay_service.structure import Leaf

NARROW, WIDE = (3,), (1024,)


def _column(row: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Column:
    return allocate([Leaf(("a",), dtype, row)], 6, torch.device("cpu"))[0]


def _rows(row: tuple[int, ...], *values: float) -> torch.Tensor:
    return torch.stack([torch.full(row, float(value)) for value in values])


@pytest.mark.parametrize("row", [NARROW, WIDE], ids=["narrow", "wide"])
class TestColumn:
    def test_slots_start_as_zeros(self, row: tuple[int, ...]) -> None:
        assert _column(row).tensor.shape == (6, *row)
        assert float(_column(row).tensor.abs().sum()) == 0

    def test_write_a_part(self, row: tuple[int, ...]) -> None:
        column = _column(row)
        column.write(2, _rows(row, 1, 2))
        assert column.tensor[:, 0].tolist() == [0, 0, 1, 2, 0, 0]

    def test_write_scattered(self, row: tuple[int, ...]) -> None:
        column = _column(row)
        column.write_at(torch.tensor([5, 0]), _rows(row, 1, 2))
        assert column.tensor[:, 0].tolist() == [2, 0, 0, 0, 0, 1]

    def test_gather(self, row: tuple[int, ...]) -> None:
        column = _column(row)
        column.write(0, _rows(row, 0, 1, 2, 3, 4, 5))
        index = torch.tensor([4, 4, 1])
        out = torch.empty(3, *row)
        column.gather(index, out)
        assert out[:, 0].tolist() == [4, 4, 1]
        got = column.gathered(index)
        assert torch.equal(got, out)
        got.zero_()
        assert column.tensor[:, 0].tolist() == [0, 1, 2, 3, 4, 5]

    def test_gather_nothing(self, row: tuple[int, ...]) -> None:
        assert _column(row).gathered(torch.zeros(0, dtype=torch.int64)).shape == (0, *row)

    def test_gradients_stay_outside(self, row: tuple[int, ...]) -> None:
        column = _column(row)
        column.write(0, _rows(row, 1).requires_grad_())
        column.write_at(torch.tensor([1]), _rows(row, 2).requires_grad_())
        assert not column.tensor.requires_grad
        assert column.tensor[:2, 0].tolist() == [1, 2]

    def test_a_copy_is_one_column(self, row: tuple[int, ...]) -> None:
        column = pickle.loads(pickle.dumps(_column(row)))
        column.write(0, _rows(row, 7))
        assert float(column.tensor[0, 0]) == 7
        assert float(column.gathered(torch.tensor([0]))[0, 0]) == 7


def test_foreign_dtypes_keep_their_bits() -> None:
    tensor = torch.tensor([[1.5, -2.0], [0.0, 3.0]], dtype=torch.bfloat16)
    assert numpy_view(tensor).dtype.itemsize == 2
    assert torch.from_numpy(numpy_view(tensor)).view(torch.bfloat16).tolist() == tensor.tolist()
    assert torch.from_numpy(numpy_view(tensor.t())).view(torch.bfloat16).tolist() == tensor.t().tolist()


def test_numpy_views_share_memory() -> None:
    tensor = torch.zeros(3)
    numpy_view(tensor)[1] = 5
    assert tensor.tolist() == [0, 5, 0]
