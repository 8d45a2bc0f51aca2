"""What every writer keeps to; a test class of an implementation inherits `WriterContract` and makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest
import torch

from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.writers.base import Writer
from replay_service.errors import LayoutError, ReplayError
from tests.contracts.storage import stamps_of
from tests.rows import stamped_rows

CAPACITY = 8


class WriterContract(ABC):
    """Records get slots, and all of a batch is written or nothing."""

    @abstractmethod
    def make(self) -> Writer:
        """A writer that takes rows of `stamped_rows`."""

    @pytest.fixture(params=[LazyTensorStorage, ListStorage])
    def storage(self, request: pytest.FixtureRequest) -> Storage:
        return request.param(CAPACITY)  # type: ignore[no-any-return]

    @pytest.fixture
    def writer(self, storage: Storage) -> Writer:
        writer = self.make()
        writer.register_storage(storage)
        return writer

    def test_must_be_registered(self) -> None:
        with pytest.raises(ReplayError, match="register_storage"):
            self.make().extend(stamped_rows(1))

    def test_extend_gives_slots(self, writer: Writer) -> None:
        slots = writer.extend(stamped_rows(3))
        assert (slots.dtype, slots.shape) == (torch.int64, (3,))
        assert stamps_of(writer.storage.get(slots)) == [0, 1, 2]
        assert writer.write_count == 3

    def test_add_gives_a_slot(self, writer: Writer) -> None:
        slot = writer.add(stamped_rows(1, stamp=4)[0])
        assert isinstance(slot, int)
        assert int(writer.storage.get(slot)["action"]) == 4
        assert writer.write_count == 1

    def test_the_storage_fills_up_and_no_further(self, writer: Writer) -> None:
        for start in range(0, 4 * CAPACITY, 3):
            slots = writer.extend(stamped_rows(3, stamp=start))
            assert int(slots.max()) < CAPACITY
        assert len(writer.storage) == CAPACITY

    def test_no_rows_change_nothing(self, writer: Writer) -> None:
        writer.extend(stamped_rows(2))
        before = writer.state_dict()
        slots = writer.extend(writer.storage.prepare(stamped_rows(2))[:0])
        assert (slots.dtype, slots.shape) == (torch.int64, (0,))
        assert writer.state_dict() == before
        assert len(writer.storage) == 2

    def test_a_refused_batch_changes_nothing(self) -> None:
        writer = self.make()
        writer.register_storage(LazyTensorStorage(CAPACITY))
        writer.extend(stamped_rows(2))
        before = writer.state_dict()
        bad = stamped_rows(3, stamp=10).exclude(("next", "reward"))
        for call in (lambda: writer.extend(bad), lambda: writer.add(bad[0])):
            with pytest.raises(LayoutError, match=r"next\.reward"):
                call()
        assert writer.state_dict() == before
        assert stamps_of(writer.storage.get(slice(None))) == [0, 1]

    @pytest.mark.parametrize("empty_write_count", [True, False])
    def test_empty_starts_over(self, writer: Writer, empty_write_count: bool) -> None:
        writer.extend(stamped_rows(5))
        writer.storage.empty()
        writer.empty(empty_write_count)
        assert writer.write_count == (0 if empty_write_count else 5)
        assert stamps_of(writer.storage.get(writer.extend(stamped_rows(2, stamp=20)))) == [20, 21]
        assert len(writer.storage) == 2

    def test_state_round_trip(self, writer: Writer) -> None:
        self._goes_on_as(writer, lambda other: other.load_state_dict(writer.state_dict()))

    def test_state_goes_through_a_file(self, writer: Writer, tmp_path: Path) -> None:
        def carry(other: Writer) -> None:
            writer.dumps(tmp_path / "new" / "folder")
            other.loads(tmp_path / "new" / "folder")

        self._goes_on_as(writer, carry)

    def test_without_stamps_there_are_none(self, writer: Writer) -> None:
        writer.extend(stamped_rows(2))
        assert not writer.tracks_generations
        assert writer.generations_of(torch.tensor([0, 1, 5])).tolist() == [-1, -1, -1]
        assert int(writer.generations_of(0)) == -1

    def _goes_on_as(self, writer: Writer, carry: Any) -> None:
        writer.extend(stamped_rows(CAPACITY + 3))
        storage = type(writer.storage)(CAPACITY)  # type: ignore[call-arg]
        storage.load_state_dict(writer.storage.state_dict())
        other = self.make()
        other.register_storage(storage)
        carry(other)
        assert other.write_count == writer.write_count
        more = stamped_rows(3, stamp=50)
        assert other.extend(more).tolist() == writer.extend(more).tolist()
        assert stamps_of(other.storage.get(slice(None))) == stamps_of(writer.storage.get(slice(None)))
