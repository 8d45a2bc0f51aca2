"""What every sampler keeps to; a test class of an implementation inherits `SamplerContract` and makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import EmptyBufferError
from tests.rows import stamped_rows

CAPACITY = 32


class SamplerContract(ABC):
    """Draws name filled records, and the same state draws the same."""

    batch_size = 8

    @abstractmethod
    def make(self, capacity: int) -> Sampler:
        """A sampler for up to `capacity` rows of `stamped_rows`."""

    @pytest.fixture(params=[LazyTensorStorage, ListStorage])
    def storage(self, request: pytest.FixtureRequest) -> Storage:
        storage = request.param(CAPACITY)
        storage.generator = torch.Generator().manual_seed(1)
        return storage  # type: ignore[no-any-return]

    @pytest.fixture
    def sampler(self) -> Sampler:
        return self.make(CAPACITY)

    def fill(self, storage: Storage, sampler: Sampler, rows: int) -> None:
        """Appends rows and tells the sampler, as a buffer does."""
        start = len(storage)
        storage.set(range(start, start + rows), stamped_rows(rows, stamp=start))
        sampler.extend(torch.arange(start, start + rows))

    def test_nothing_to_draw(self, storage: Storage, sampler: Sampler) -> None:
        assert not sampler.can_sample(storage, self.batch_size)
        with pytest.raises(EmptyBufferError, match="empty"):
            sampler.sample(storage, self.batch_size)

    def test_draws_name_filled_records(self, storage: Storage, sampler: Sampler) -> None:
        self.fill(storage, sampler, 20)
        assert sampler.can_sample(storage, self.batch_size)
        for _ in range(20):
            records, info = sampler.sample(storage, self.batch_size)
            assert (records.dtype, records.ndim) == (torch.int64, 1)
            assert 0 <= int(records.min()) <= int(records.max()) < 20
            for name, value in info.items():
                assert not isinstance(value, Tensor) or value.shape[:1] == records.shape, name
            if sampler.ran_out:
                break

    def test_new_records_are_drawn(self, storage: Storage, sampler: Sampler) -> None:
        self.fill(storage, sampler, 10)
        sampler.sample(storage, self.batch_size)
        self.fill(storage, sampler, 10)
        seen = torch.cat([sampler.sample(storage, self.batch_size)[0] for _ in range(30)])
        assert int(seen.max()) >= 10

    def test_one_record_may_be_told_alone(self, storage: Storage, sampler: Sampler) -> None:
        storage.set(range(1), stamped_rows(1))
        sampler.add(0)
        assert set(sampler.sample(storage, 1)[0].tolist()) == {0}

    def test_the_seed_decides(self, storage: Storage) -> None:
        draws = []
        for _ in range(2):
            sampler = self.make(CAPACITY)
            if not len(storage):
                self.fill(storage, sampler, 20)
            else:
                sampler.extend(torch.arange(20))
            storage.generator = torch.Generator().manual_seed(7)
            draws.append([sampler.sample(storage, self.batch_size)[0].tolist() for _ in range(5)])
        assert draws[0] == draws[1]

    def test_the_global_generator_is_left_alone(self, storage: Storage, sampler: Sampler) -> None:
        self.fill(storage, sampler, 20)
        before = torch.get_rng_state()
        sampler.sample(storage, self.batch_size)
        assert torch.equal(before, torch.get_rng_state())

    def test_empty_forgets(self, storage: Storage, sampler: Sampler) -> None:
        self.fill(storage, sampler, 20)
        storage.empty()
        sampler.empty()
        assert not sampler.can_sample(storage, self.batch_size)
        self.fill(storage, sampler, 3)
        assert int(sampler.sample(storage, 3)[0].max()) < 3

    def test_state_round_trip(self, storage: Storage, sampler: Sampler) -> None:
        self._draws_alike(storage, sampler, lambda other: other.load_state_dict(sampler.state_dict()))

    def test_state_goes_through_a_file(self, storage: Storage, sampler: Sampler, tmp_path: Path) -> None:
        def carry(other: Sampler) -> None:
            sampler.dumps(tmp_path / "new" / "folder")
            other.loads(tmp_path / "new" / "folder")

        self._draws_alike(storage, sampler, carry)

    def test_changed_records_may_be_told(self, storage: Storage, sampler: Sampler) -> None:
        self.fill(storage, sampler, 20)
        sampler.mark_update(torch.tensor([3, 4]), storage=storage)
        assert sampler.can_sample(storage, self.batch_size)

    def test_priorities_are_kept_or_have_no_effect(self, storage: Storage, sampler: Sampler) -> None:
        self.fill(storage, sampler, 20)
        sampler.update_priority(torch.tensor([3]), torch.tensor([2.0]), storage=storage)
        assert sampler.keeps_priorities == (sampler.default_priority is not None)

    def _draws_alike(self, storage: Storage, sampler: Sampler, carry: Any) -> None:
        self.fill(storage, sampler, 20)
        sampler.sample(storage, self.batch_size)
        other = self.make(CAPACITY)
        other.extend(torch.arange(20))
        carry(other)
        draws = []
        for one in (sampler, other):
            storage.generator = torch.Generator().manual_seed(3)
            draws.append([one.sample(storage, self.batch_size)[0].tolist() for _ in range(3)])
        assert draws[0] == draws[1]
