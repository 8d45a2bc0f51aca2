"""LazyTensorStorage: columns of any dtype and shape, lanes, a layout that the first batch fixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import LayoutError
from replay_service.structure import Leaf
from tests.contracts.storage import CAPACITY, StorageContract
from tests.rows import stamped_rows


class TestLazyTensorStorage(StorageContract):
    def make(self, capacity: int) -> LazyTensorStorage:
        return LazyTensorStorage(capacity)


def test_the_first_batch_fixes_the_layout() -> None:
    storage = LazyTensorStorage(CAPACITY)
    assert (storage.initialized, storage.leaves(), storage.spec(), storage.size_bytes()) == (False, None, None, 0)
    storage.set(range(2), TensorDict({"a": torch.zeros(2, 3), "next": {"b": torch.zeros(2, dtype=torch.uint8)}}, [2]))
    assert storage.initialized
    assert storage.leaves() == (Leaf(("a",), torch.float32, (3,)), Leaf(("next", "b"), torch.uint8, ()))
    assert storage.size_bytes() == CAPACITY * (12 + 1)


BASE = {"a": torch.zeros(2, 3), "next": {"b": torch.zeros(2, dtype=torch.int64)}}
MISFITS: list[tuple[str, Any, str]] = [
    ("missing key", {"a": torch.zeros(2, 3)}, r"missing \['next\.b'\]"),
    ("extra key", {**BASE, "c": torch.zeros(2)}, r"extra \['c'\]"),
    (
        "renamed key",
        {"a": torch.zeros(2, 3), "next": {"x": torch.zeros(2)}},
        r"missing \['next\.b'\] and extra \['next\.x'\]",
    ),
    ("dtype", {**BASE, "next": {"b": torch.zeros(2)}}, r"next\.b must be int64 with row shape \[\]; got float32"),
    ("row shape", {**BASE, "a": torch.zeros(2, 1)}, r"a must be float32 with row shape \[3\]; got float32 with \[1\]"),
    ("row dimensions", {**BASE, "a": torch.zeros(2, 3, 1)}, r"a must be float32 with row shape \[3\]; .*\[3, 1\]"),
    (
        "disagreeing lengths",
        {**BASE, "a": torch.zeros(3, 3)},
        r"next\.b \(2 rows\) must have as many rows as a \(3 rows\)",
    ),
    ("no rows dimension", {**BASE, "a": torch.tensor(1.0)}, r"a must have 1 leading"),
    ("text", {**BASE, "a": ["x", "y"]}, r"a\.0 must be a dense tensor; got str"),
    (
        "sparse",
        {**BASE, "a": torch.zeros(2, 3).to_sparse()},
        r"a must be a dense tensor; got a tensor of layout torch\.sparse",
    ),
    ("bare tensor", torch.zeros(2, 3), r"missing \['a', 'next\.b'\] and extra \['data'\]"),
    ("nothing", {}, r"at least one tensor"),
    ("number key", {**BASE, 3: torch.zeros(2)}, r"key \(3\) must be a string"),
]


@pytest.mark.parametrize(("data", "words"), [case[1:] for case in MISFITS], ids=[case[0] for case in MISFITS])
def test_misfits_are_named_and_change_nothing(data: Any, words: str) -> None:
    storage = LazyTensorStorage(CAPACITY)
    storage.set(range(2), TensorDict(BASE, [2]))
    leaves = storage.leaves()
    for refused in (lambda: storage.prepare(data), lambda: storage.set(range(2), data)):
        with pytest.raises(LayoutError, match=words):
            refused()
    assert (len(storage), storage.leaves()) == (2, leaves)
    assert storage.column("a").abs().sum() == 0


def test_a_refused_first_batch_fixes_nothing() -> None:
    storage = LazyTensorStorage(6, ndim=2)
    with pytest.raises(LayoutError):
        storage.set(range(2), TensorDict({"a": torch.zeros(3, 2)}, [3, 2]))
    with pytest.raises(LayoutError, match="b must have the leading shape"):
        storage.prepare({"a": torch.zeros(3, 2), "b": torch.zeros(3, 5)})
    assert not storage.initialized
    assert tuple(storage.shape) == (6, 0)
    storage.set(range(2), TensorDict({"other": torch.zeros(2, 3)}, [2, 3]))
    assert tuple(storage.shape) == (2, 3)


def test_keys_may_come_in_any_order_and_container() -> None:
    storage = LazyTensorStorage(CAPACITY)
    storage.set(range(1), TensorDict({"a": torch.ones(1), "b": torch.zeros(1, 2)}, [1]))
    storage.set(range(1, 2), {"b": torch.full((1, 2), 5.0), "a": torch.full((1,), 4.0)})
    got = storage.get(1)
    assert isinstance(got, TensorDict)
    assert (got["a"].tolist(), got["b"].tolist()) == (4, [5, 5])


# -- dtypes -----------------------------------------------------------------------------------------------------------

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def _bits(tensor: torch.Tensor) -> list[int]:
    """The tensor's bytes: NaNs compare, and so do dtypes without arithmetic."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()  # type: ignore[no-any-return]


def _random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(
        0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    return raw.view(dtype).reshape(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("row", [(), (3,), (40, 40)], ids=str)  # gathered by NumPy, and by torch
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, row: tuple[int, ...]) -> None:
    storage = LazyTensorStorage(6)
    data = _random(dtype, 4, *row)
    storage.set(range(4), data)
    index = torch.tensor([3, 0, 3])
    got = storage.get(index)
    assert (got.dtype, got.shape) == (dtype, (3, *row))
    assert _bits(got) == _bits(torch.stack([data[3], data[0], data[3]]))
    out = torch.empty_like(got)
    storage.read_into(index, [out])
    assert _bits(out) == _bits(got)
    storage.set(index[:2], storage.get(torch.tensor([1, 2])), set_cursor=False)
    assert _bits(storage.get([3, 0])) == _bits(torch.stack([data[1], data[2]]))


@pytest.mark.parametrize("row", [(2,), (400,)], ids=str)
def test_lazy_conjugates_negatives_and_gradients_are_resolved(row: tuple[int, ...]) -> None:
    whole = _random(torch.uint8, 3, *row).to(torch.complex64) * (1 + 2j)
    storage = LazyTensorStorage(3)
    storage.set(range(3), {"c": whole.conj(), "n": whole.conj().imag, "g": torch.ones(3, *row, requires_grad=True)})
    got = storage.get(slice(None))
    assert torch.equal(got["c"], whole.conj())
    assert torch.equal(got["n"], -whole.imag)
    assert not got["g"].requires_grad
    assert not storage.column("g").requires_grad


def test_views_of_any_stride_are_stored() -> None:
    data = torch.arange(24).view(4, 6)
    storage = LazyTensorStorage(4)
    storage.set(range(4), {"t": data[:, ::2], "e": torch.tensor([7]).expand(4), "b": data.to(torch.bfloat16)[:, ::3]})
    got = storage.get(slice(None))
    assert got["t"].tolist() == data[:, ::2].tolist()
    assert got["e"].tolist() == [7] * 4
    assert got["b"].tolist() == data[:, ::3].tolist()


def test_rows_without_numbers() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(2), {"none": torch.zeros(2, 0), "some": torch.ones(2)})
    assert storage.get(slice(None))["none"].shape == (2, 0)


def test_unwritten_slots_read_as_zeros() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(1), torch.ones(1, 2))
    assert storage.column(()).tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


# -- columns ----------------------------------------------------------------------------------------------------------


def test_columns_by_name() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(2), stamped_rows(2))
    assert storage.column("action").tolist() == [0, 1, 0, 0]
    assert storage.column(("next", "reward")).shape == (4, 1)
    with pytest.raises(KeyError, match=r"next\.nothing.*next\.reward"):
        storage.column(("next", "nothing"))
    with pytest.raises(KeyError, match="empty storage"):
        LazyTensorStorage(4).column("action")


def test_cells_are_validated_before_they_are_written() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(3), {"a": torch.zeros(3, 2)})
    cells = torch.tensor([2, 0])
    for wrong in (torch.ones(2, 3), torch.ones(1, 2), torch.ones(2), torch.ones(2, 2, dtype=torch.int64)):
        with pytest.raises(LayoutError, match=r"a must be float32\[2, 2\]; got"):
            storage.write_cells("a", wrong, cells)
    assert storage.column("a").abs().sum() == 0
    storage.write_cells("a", torch.tensor([[1.0, 1.0], [2.0, 2.0]]), cells)
    assert storage.get(slice(None))["a"].tolist() == [[2, 2], [0, 0], [1, 1]]


# -- lanes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lanes() -> LazyTensorStorage:
    """Three of four slots of two lanes; record (t, l) holds 10 t + l."""
    storage = LazyTensorStorage(8, ndim=2)
    values = torch.tensor([[0, 1], [10, 11], [20, 21]])
    storage.set(range(3), TensorDict({"v": values, "w": values[..., None].float()}, [3, 2]))
    return storage


def test_lanes_count_as_records(lanes: LazyTensorStorage) -> None:
    assert (len(lanes), lanes.filled, lanes.lanes, lanes.slots) == (6, 3, 2, 4)
    assert tuple(lanes.shape) == (4, 2)


@pytest.mark.parametrize(
    ("index", "values"),
    [
        (slice(None), [[0, 1], [10, 11], [20, 21]]),
        (1, [10, 11]),
        (-1, [20, 21]),
        ([2, 0], [[20, 21], [0, 1]]),
        (torch.tensor([[2, 0], [0, 1]]), [20, 1]),
        ((torch.tensor([2, 0]), torch.tensor([0, 1])), [20, 1]),
        ((1, 0), 10),
        ((slice(None), 1), [1, 11, 21]),
        ((slice(0, 2), slice(None)), [[0, 1], [10, 11]]),
    ],
)
def test_lanes_are_read_by_slot_and_by_coordinates(lanes: LazyTensorStorage, index: Any, values: Any) -> None:
    got = lanes.get(index)
    assert got["v"].tolist() == values
    assert got.batch_size == got["v"].shape
    assert got["w"].shape == (*got["v"].shape, 1)


@pytest.mark.parametrize("index", [3, (0, 2), (3, 0), torch.tensor([[3, 0]]), (torch.tensor([0]), torch.tensor([-3]))])
def test_coordinates_outside_are_refused(lanes: LazyTensorStorage, index: Any) -> None:
    with pytest.raises(IndexError, match="index"):
        lanes.get(index)


def test_flat_numbers_and_coordinates_are_inverse(lanes: LazyTensorStorage) -> None:
    records = torch.tensor([5, 0, 2])
    coordinates = lanes.coordinates(records)
    assert [part.tolist() for part in coordinates] == [[2, 0, 1], [1, 0, 0]]
    assert lanes.flat_slots(coordinates).tolist() == [5, 0, 2]
    assert lanes.flat_slots(torch.stack(coordinates, 1)).tolist() == [5, 0, 2]
    assert lanes.flat_slots(torch.tensor([1])).tolist() == [2, 3], "a 1-D index names whole slots"
    assert lanes.all_cells(torch.tensor([2, 0])).tolist() == [[2, 0], [2, 1], [0, 0], [0, 1]]


def test_single_cells_are_overwritten(lanes: LazyTensorStorage) -> None:
    new = TensorDict({"v": torch.tensor([-1, -2]), "w": torch.zeros(2, 1)}, [2])
    lanes.set(torch.tensor([[0, 1], [2, 0]]), new, set_cursor=False)
    lanes.set((1, 1), new[1], set_cursor=False)
    assert lanes.get(slice(None))["v"].tolist() == [[0, -1], [10, -2], [-2, 21]]
    with pytest.raises(LayoutError, match="rows"):
        lanes.set(torch.tensor([[0, 1]]), new, set_cursor=False)


def test_slots_are_overwritten(lanes: LazyTensorStorage) -> None:
    new = TensorDict({"v": torch.tensor([[-1, -2]]), "w": torch.zeros(1, 2, 1)}, [1, 2])
    lanes.set([2], new, set_cursor=False)
    lanes.set(0, new[0], set_cursor=False)
    assert lanes.get(slice(None))["v"].tolist() == [[-1, -2], [10, 11], [-1, -2]]


def test_other_lanes_are_refused(lanes: LazyTensorStorage) -> None:
    for wrong in (
        TensorDict({"v": torch.zeros(1, 3), "w": torch.zeros(1, 3, 1)}, [1, 3]),
        TensorDict({"v": torch.zeros(1)}, [1]),
    ):
        with pytest.raises(LayoutError):
            lanes.prepare(wrong)
    other = LazyTensorStorage(9, ndim=2)
    other.set(range(1), TensorDict({"v": torch.zeros(1, 3, dtype=torch.int64), "w": torch.zeros(1, 3, 1)}, [1, 3]))
    flat = LazyTensorStorage(9)
    for target in (other, flat):
        with pytest.raises(LayoutError, match="lanes"):
            target.load_state_dict(lanes.state_dict())


def test_lanes_go_through_a_state(lanes: LazyTensorStorage) -> None:
    other = LazyTensorStorage(20, ndim=2)
    other.load_state_dict(lanes.state_dict())
    assert tuple(other.shape) == (10, 2)
    assert other.get(slice(None))["v"].tolist() == [[0, 1], [10, 11], [20, 21]]


def test_three_dimensions() -> None:
    storage = LazyTensorStorage(12, ndim=3)
    storage.set(range(1), TensorDict({"v": torch.arange(6).view(1, 2, 3)}, [1, 2, 3]))
    assert tuple(storage.shape) == (2, 2, 3)
    assert storage.get((0, 1, 2))["v"].tolist() == 5
    assert storage.get(slice(None)).shape == (1, 2, 3)


@pytest.mark.parametrize(("ndim", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_ndim_must_be_positive(ndim: Any, error: type) -> None:
    with pytest.raises(error, match="ndim"):
        LazyTensorStorage(4, ndim=ndim)


# -- states -----------------------------------------------------------------------------------------------------------


def test_a_state_of_other_columns_is_refused() -> None:
    storage, other = LazyTensorStorage(4), LazyTensorStorage(4)
    storage.set(range(2), {"a": torch.ones(2)})
    other.set(range(1), {"a": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(LayoutError, match="a must be int64"):
        other.load_state_dict(storage.state_dict())
    assert (len(other), other.get(0)["a"].tolist()) == (1, 0)


def test_sizes_of_other_kinds() -> None:
    assert type(LazyTensorStorage(np.int64(4)).max_size) is int
    for storage_class in (LazyTensorStorage, ListStorage):
        for wrong in (4.0, "4", True):
            with pytest.raises(TypeError, match="max_size"):
                storage_class(wrong)


def test_flatten_is_a_view_of_one_dimension() -> None:
    storage = LazyTensorStorage(6, ndim=2)
    assert len(storage.flatten()) == 0
    storage.set(range(2), TensorDict({"a": torch.arange(4).view(2, 2), "b": torch.zeros(2, 2, 3)}, [2, 2]))
    flat = storage.flatten()
    assert (flat.ndim, len(flat), flat.max_size) == (1, 4, 6)
    assert flat.get(slice(None)).batch_size == (4,)
    assert flat.get([3, 0])["a"].tolist() == [3, 0]
    flat.set([2], TensorDict({"a": torch.tensor([9]), "b": torch.ones(1, 3)}, [1]), set_cursor=False)
    assert storage.get((1, 0))["a"] == 9
    assert storage.contains(torch.tensor([1, 2])).tolist() == [True, False]  # type: ignore[union-attr]
