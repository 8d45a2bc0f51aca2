"""What every storage keeps to; a test class of an implementation inherits `StorageContract` and makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service.buffer.storages.base import Storage
from replay_service.errors import LayoutError
from tests.rows import assert_rows_are_whole, stamped_rows

CAPACITY = 8


class StorageContract(ABC):
    """Rows go in by slot and come out as they went in; what is refused changes nothing."""

    @abstractmethod
    def make(self, capacity: int) -> Storage:
        """An empty storage for rows of `stamped_rows`."""

    @pytest.fixture
    def storage(self) -> Storage:
        return self.make(CAPACITY)

    @pytest.fixture
    def five(self, storage: Storage) -> Storage:
        """The storage with the stamps 0 to 4 in its first slots."""
        storage.set(range(5), stamped_rows(5))
        return storage

    def test_starts_empty(self, storage: Storage) -> None:
        assert (len(storage), storage.filled, storage.max_size) == (0, 0, CAPACITY)
        assert not storage.contains(0)
        assert tuple(storage.shape) == (CAPACITY,)

    def test_set_fills_slots(self, five: Storage) -> None:
        assert (len(five), five.filled) == (5, 5)
        assert five.contains(4)
        assert not five.contains(5)
        assert not five.contains(-1)

    @pytest.mark.parametrize(
        ("index", "stamps"),
        [
            (slice(None), [0, 1, 2, 3, 4]),
            (slice(1, 4), [1, 2, 3]),
            (slice(None, None, -2), [4, 2, 0]),
            (slice(-2, None), [3, 4]),
            (slice(3, 3), []),
            (range(1, 3), [1, 2]),
            ([4, 0, 4], [4, 0, 4]),
            ([], []),
            (torch.tensor([2, -1]), [2, 4]),
            (torch.tensor([1], dtype=torch.int32), [1]),
            (np.array([3, 1]), [3, 1]),
            (torch.tensor([True, False, False, True, False]), [0, 3]),
            (Ellipsis, [0, 1, 2, 3, 4]),
        ],
    )
    def test_get_batches(self, five: Storage, index: Any, stamps: list[int]) -> None:
        assert stamps_of(five.get(index)) == stamps

    @pytest.mark.parametrize(
        ("index", "stamp"), [(0, 0), (4, 4), (-1, 4), (-5, 0), (np.int64(2), 2), (torch.tensor(3), 3)]
    )
    def test_get_one(self, five: Storage, index: Any, stamp: int) -> None:
        record = five.get(index)
        assert record["action"].shape == ()
        assert int(record["action"]) == stamp
        assert record["next", "observation"].shape == (4,)

    @pytest.mark.parametrize("index", [5, -6, [0, 5], torch.tensor([-6]), torch.ones(4, dtype=torch.bool)])
    def test_get_outside_is_refused(self, five: Storage, index: Any) -> None:
        with pytest.raises(IndexError, match="index"):
            five.get(index)

    @pytest.mark.parametrize("index", ["0", 1.0, True, torch.tensor([1.0]), None])
    def test_what_is_no_index_is_refused(self, five: Storage, index: Any) -> None:
        with pytest.raises(TypeError, match="index"):
            five.get(index)

    def test_an_empty_storage_has_no_row_0(self, storage: Storage) -> None:
        with pytest.raises(IndexError):
            storage.get(0)

    def test_contains_tells_many_at_once(self, five: Storage) -> None:
        assert five.contains(torch.tensor([[0, 4], [5, -1]])).tolist() == [[True, True], [False, False]]  # type: ignore[union-attr]
        assert five.contains(torch.tensor(3)) is True

    def test_one_dimension_is_flat_already(self, five: Storage) -> None:
        assert five.flatten() is five

    def test_overwriting(self, five: Storage) -> None:
        five.set([3, 1], stamped_rows(2, stamp=40), set_cursor=False)
        assert stamps_of(five.get(slice(None))) == [0, 41, 2, 40, 4]
        assert_rows_are_whole(_batch(five.get(slice(None))))
        assert len(five) == 5

    def test_the_last_of_rows_for_one_slot_stays(self, five: Storage) -> None:
        five.set([2, 0, 2], stamped_rows(3, stamp=50), set_cursor=False)
        assert stamps_of(five.get(slice(None))) == [51, 1, 52, 3, 4]

    def test_overwriting_one(self, five: Storage) -> None:
        five.set(-1, stamped_rows(1, stamp=60)[0], set_cursor=False)
        assert stamps_of(five.get(slice(None))) == [0, 1, 2, 3, 60]

    def test_set_one_appends(self, five: Storage) -> None:
        five.set(5, stamped_rows(1, stamp=70)[0])
        assert stamps_of(five.get(slice(None))) == [0, 1, 2, 3, 4, 70]

    @pytest.mark.parametrize(
        ("cursor", "rows", "error"),
        [
            (range(5, 9), 4, IndexError),  # beyond the capacity
            (range(6, 8), 2, IndexError),  # a gap
            (torch.tensor([7]), 1, IndexError),  # a gap
            (range(5, 8), 2, LayoutError),  # fewer rows than slots
            (torch.tensor([0, 1]), 3, LayoutError),  # more rows than slots
        ],
    )
    def test_refused_cursors_change_nothing(self, five: Storage, cursor: Any, rows: int, error: type) -> None:
        with pytest.raises(error):
            five.set(cursor, stamped_rows(rows, stamp=90))
        assert stamps_of(five.get(slice(None))) == [0, 1, 2, 3, 4]

    def test_overwriting_what_is_not_filled_is_refused(self, five: Storage) -> None:
        with pytest.raises(IndexError):
            five.set([4, 5], stamped_rows(2, stamp=90), set_cursor=False)
        assert stamps_of(five.get(slice(None))) == [0, 1, 2, 3, 4]

    def test_prepare_changes_nothing(self, five: Storage) -> None:
        batch = five.prepare(stamped_rows(3, stamp=20))
        assert len(batch) == 3
        assert stamps_of(five.get(slice(None))) == [0, 1, 2, 3, 4]
        five.set(range(1, 3), batch[1:])
        assert stamps_of(five.get(slice(None))) == [0, 21, 22, 3, 4]

    def test_prepare_one(self, five: Storage) -> None:
        batch = five.prepare_one(stamped_rows(1, stamp=20)[0])
        assert len(batch) == 1
        five.set(range(5, 6), batch)
        assert stamps_of(five.get(slice(None)))[-1] == 20

    def test_what_was_stored_is_not_the_callers(self, storage: Storage) -> None:
        data = stamped_rows(3)
        storage.set(range(3), data)
        data["action"] += 100
        data["next", "observation"].zero_()
        assert stamps_of(storage.get(slice(None))) == [0, 1, 2]
        assert_rows_are_whole(_batch(storage.get(slice(None))))

    @pytest.mark.parametrize("index", [slice(None), slice(0, 2), [0, 1], 0])
    def test_what_was_read_is_the_callers(self, five: Storage, index: Any) -> None:
        got = five.get(index)
        for record in got if isinstance(got, list) else [got]:
            record["action"] += 100
            record["next", "observation"].fill_(-1)
        assert stamps_of(five.get(slice(None))) == [0, 1, 2, 3, 4]
        assert_rows_are_whole(_batch(five.get(slice(None))))

    def test_empty_forgets(self, five: Storage) -> None:
        five.empty()
        assert len(five) == 0
        with pytest.raises(IndexError):
            five.get(0)
        five.set(range(2), stamped_rows(2, stamp=30))
        assert stamps_of(five.get(slice(None))) == [30, 31]

    def test_empty_makes_stamps_stale(self, five: Storage) -> None:
        stamps = five.track_generations()
        stamps.advance_range(0, 5)
        before = stamps.of(torch.arange(6))
        five.empty()
        after = stamps.of(torch.arange(6))
        assert bool((after[:5] > before[:5]).all())
        assert int(after[5]) == -1

    def test_stamps_have_one_home(self, storage: Storage) -> None:
        assert storage.generations is None
        assert storage.track_generations() is storage.track_generations() is storage.generations

    def test_writes_by_index_are_told(self, five: Storage) -> None:
        listener, other = _Listener(), _Listener()
        five.attach(listener)
        five.attach(listener)
        five.attach(other)
        five.detach(other)
        five[[1, 2]] = stamped_rows(2, stamp=80)
        assert stamps_of(five[slice(None)]) == [0, 80, 81, 3, 4]
        assert listener.told == [[1, 2]]
        assert other.told == []

    @pytest.mark.parametrize("max_size", [0, -1])
    def test_capacity_must_be_positive(self, max_size: int) -> None:
        with pytest.raises(ValueError, match="max_size"):
            self.make(max_size)

    def test_state_round_trip(self, five: Storage) -> None:
        five.track_generations().advance_range(0, 5, writes=3)
        state = five.state_dict()
        five.set(range(5), stamped_rows(5, stamp=90))
        five.generations.advance_range(0, 5)  # type: ignore[union-attr]
        other = self.make(CAPACITY)
        other.load_state_dict(state)
        other.set(range(5, 6), stamped_rows(1, stamp=7))
        assert stamps_of(other.get(slice(None))) == [0, 1, 2, 3, 4, 7]
        other.set(range(2), stamped_rows(2, stamp=70))
        assert other.track_generations().of(torch.arange(6)).tolist() == [2, 2, 2, 2, 2, -1]
        again = self.make(CAPACITY)
        again.load_state_dict(state)
        assert stamps_of(again.get(slice(None))) == [0, 1, 2, 3, 4], "loading must not alias the state"

    def test_state_without_stamps_makes_old_handles_stale(self, five: Storage) -> None:
        state = five.state_dict()
        stamps = five.track_generations()
        stamps.advance_range(0, 6)
        before = stamps.of(torch.arange(7))
        five.load_state_dict(state)
        after = stamps.of(torch.arange(7))
        assert bool((after[:6] > before[:6]).all())
        assert int(after[6]) == -1

    def test_state_of_an_empty_storage(self, five: Storage) -> None:
        five.load_state_dict(self.make(CAPACITY).state_dict())
        assert len(five) == 0

    def test_state_that_does_not_fit_is_refused(self, five: Storage) -> None:
        small = self.make(3)
        small.set(range(1), stamped_rows(1, stamp=9))
        with pytest.raises(LayoutError, match="max_size"):
            small.load_state_dict(five.state_dict())
        assert stamps_of(small.get(slice(None))) == [9]


class _Listener:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def mark_update(self, index: Any) -> None:
        self.told.append(index)


def stamps_of(got: Any) -> list[int]:
    """The stamps of a batch, or of a list of records."""
    if isinstance(got, list):
        return [int(record["action"]) for record in got]
    return got["action"].tolist()  # type: ignore[no-any-return]


def _batch(got: Any) -> TensorDict:
    return torch.stack(got) if isinstance(got, list) else got  # type: ignore[call-overload,no-any-return]
