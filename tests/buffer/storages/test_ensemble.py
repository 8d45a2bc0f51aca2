"""StorageEnsemble: several storages, whose records have one name each."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from replay_service import LayoutError, LazyTensorStorage, ListStorage, StorageEnsemble
from tests.rows import stamped_rows


def _filled(*rows: int, **settings: Any) -> StorageEnsemble:
    storages = []
    for place, count in enumerate(rows):
        storage = LazyTensorStorage(10)
        storage.set(range(count), stamped_rows(count, stamp=100 * place))
        storages.append(storage)
    return StorageEnsemble(*storages, **settings)


def test_sizes() -> None:
    storage = _filled(3, 5)
    assert (len(storage), storage.max_size, storage.columnar, storage.ndim) == (8, 20, True, 1)
    assert not StorageEnsemble(LazyTensorStorage(5), ListStorage()).columnar


def test_names_of_records() -> None:
    storage = _filled(3, 5)
    index = {"buffer_ids": torch.tensor([[1, 0], [0, 1]]), "index": torch.tensor([[4, 2], [-1, 0]])}
    records = storage.flat_slots(index)
    members, local = storage.split(records)
    assert (members.tolist(), local.tolist()) == ([1, 0, 0, 1], [4, 2, 2, 0])
    assert torch.stack(storage.coordinates(records), 1).tolist() == [[1, 4], [0, 2], [0, 2], [1, 0]]
    assert storage.contains({**index, "index": torch.tensor([[4, 3], [2, 9]])}).tolist() == [
        [True, False],
        [True, False],
    ]  # type: ignore[union-attr]
    with pytest.raises(IndexError, match=r"index \(3\)"):
        storage.flat_slots({"buffer_ids": torch.tensor([0]), "index": torch.tensor([3])})


def test_lanes_have_coordinates() -> None:
    storages = [LazyTensorStorage(20, ndim=2) for _ in range(2)]
    for storage in storages:
        storage.set(range(4), torch.stack([stamped_rows(2)] * 4))
    both = StorageEnsemble(*storages)
    index = {"buffer_ids": torch.tensor([1, 0]), "index": torch.tensor([[3, 1], [0, 1]])}
    records = both.flat_slots(index)
    assert torch.stack(both.coordinates(records), 1).tolist() == [[1, 3, 1], [0, 0, 1]]


def test_get_gives_a_batch_per_part() -> None:
    storage = _filled(3, 5, transforms=[None, lambda data: data["action"] + 1])
    index = {"buffer_ids": torch.tensor([1, 0]), "index": torch.tensor([[4, 0], [2, 1]])}
    for given in (index, {**index, "buffer_ids": index["buffer_ids"][:, None].expand(2, 2)}):
        (one, first), (zero, second) = storage.get(given)
        assert (one, zero) == (1, 0)
        assert (first.tolist(), second["action"].tolist()) == ([105, 101], [2, 1])
    with pytest.raises(IndexError, match=r"buffer_ids\[0\] must name one storage"):
        storage.get({"buffer_ids": torch.tensor([[1, 0]]), "index": torch.tensor([[0, 0]])})


def test_storages_by_number() -> None:
    storage = _filled(1, 2, 3, transforms=[None, None, abs])
    assert storage[2] is storage.storages[2]
    assert storage[1:].storages == storage.storages[1:]
    assert storage[[0, 2]].transforms == [None, abs]


def test_writing_needs_one_storage() -> None:
    storage = _filled(1, 1)
    calls: list[Any] = [
        lambda: storage.extend(1),
        lambda: storage.add(1),
        lambda: storage.set(0, 1),
        lambda: storage.prepare(1),
        lambda: storage.prepare_one(1),
        lambda: storage.__setitem__(0, 1),
        storage.track_generations,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="must be asked of one storage"):
            call()


def test_all_are_emptied() -> None:
    storage = _filled(3, 5)
    storage.empty()
    assert [len(part) for part in storage.storages] == [0, 0]


def test_states_come_back_all_or_none() -> None:
    storage, other = _filled(3, 5), _filled(1, 1)
    other.load_state_dict(storage.state_dict())
    assert [part.get(slice(None))["action"].tolist() for part in other.storages] == [
        [0, 1, 2],
        [100, 101, 102, 103, 104],
    ]
    small = StorageEnsemble(LazyTensorStorage(10), LazyTensorStorage(4))
    with pytest.raises(LayoutError, match="max_size"):
        small.load_state_dict(storage.state_dict())
    assert len(small) == 0


def test_a_copy_has_a_lock_of_its_own() -> None:
    copy = pickle.loads(pickle.dumps(_filled(3, 5)))
    with copy.lock:
        assert len(copy) == 8


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: StorageEnsemble(), ValueError, "at least one"),
        (lambda: StorageEnsemble(3), TypeError, r"storages\[0\] must be a Storage"),  # type: ignore[arg-type]
        (lambda: StorageEnsemble(*[ListStorage(1)] * 2), ValueError, "comes twice"),
        (lambda: StorageEnsemble(ListStorage(1), LazyTensorStorage(4, ndim=2)), ValueError, r"same ndim; got \[1, 2\]"),
        (
            lambda: StorageEnsemble(ListStorage(1), transforms=[]),
            ValueError,
            r"transforms \(0\) must be one per storage",
        ),
    ],
)
def test_what_is_no_ensemble_is_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
