"""States: copies of all that the next draws and writes depend on; stats that wait for nobody."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Storage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.part_models import SAMPLERS, STORAGES, rows_of
from tests.rows import stamped_rows


def _buffer(storage: Any = None, **parts: Any) -> ReplayBuffer:
    parts = {"writer": RoundRobinWriter(track_generations=True), "batch_size": 6, **parts}
    return ReplayBuffer(storage=LazyTensorStorage(8) if storage is None else storage, **parts)


def _future(buffer: ReplayBuffer) -> list[Any]:
    """What the buffer does from here on."""
    seen: list[Any] = []
    for stamp in (50, 60):
        seen.append(buffer.sample()["action"].tolist())
        seen.append(buffer.extend(stamped_rows(3, stamp=stamp)).tolist())
        seen.append(buffer[:]["action"].tolist())
        seen.append(buffer.writer.generations_of(torch.arange(8)).tolist())
        seen.append(buffer.write_count)
    return seen


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("rows", [3, 8, 21])
def test_the_next_draws_and_writes_are_the_same(storage: type, rows: int) -> None:
    buffer, other = _buffer(storage(8)), _buffer(storage(8))
    buffer.extend(stamped_rows(rows))
    buffer.sample()
    other.extend(stamped_rows(5, stamp=90))
    state = buffer.state_dict()
    other.load_state_dict(state)
    third = _buffer(storage(8))
    assert _future(other) == (expected := _future(buffer))
    third.load_state_dict(state)
    assert _future(third) == expected, "neither buffer may have written into the state"


@pytest.mark.filterwarnings("ignore:.* are missing for a whole batch:UserWarning")
@pytest.mark.parametrize(
    ("storage", "sampler"), [*((name, "prioritized") for name in STORAGES), *(("lazy", name) for name in SAMPLERS)]
)
def test_a_state_and_the_buffers_that_gave_and_took_it_share_no_memory(storage: str, sampler: str) -> None:
    def make() -> TensorDictReplayBuffer:
        writer = TensorDictRoundRobinWriter(track_generations=True)
        return TensorDictReplayBuffer(storage=STORAGES[storage](7), sampler=SAMPLERS[sampler](), writer=writer)

    def future(buffer: TensorDictReplayBuffer) -> list[Any]:
        seen = []
        for number in (20, 30):
            for size in (2, 4):
                batch = buffer.sample(size)
                seen.append([batch[name].tolist() for name in ("index", "index_generation", "number", "query")])
            seen.append(buffer.extend(rows_of([number, number + 1])).tolist())
        return [*seen, buffer[:]["number"].tolist(), buffer.write_count]

    giver, taker, third = make(), make(), make()
    giver.extend(rows_of(list(range(10))))
    giver.sample(2)
    state = giver.state_dict()
    third.load_state_dict(copy.deepcopy(state))
    taker.load_state_dict(state)
    assert _wiped(state) > 0
    assert future(giver) == future(taker) == future(third)


def _wiped(state: Any) -> int:
    """Overwrites all memory that a state holds; how much there was of it."""
    if isinstance(state, torch.Tensor | TensorDictBase):
        state.zero_()
        return 1
    if isinstance(state, np.ndarray):
        state.fill(0)
        return 1
    if isinstance(state, dict):
        return sum(map(_wiped, state.values()))
    return sum(map(_wiped, state)) if isinstance(state, list | tuple) else 0


def test_what_the_sampler_keeps_comes_along() -> None:
    class Counting(RandomSampler):
        drawn = 0

        def sample(self, storage: Storage, batch_size: int) -> Any:
            self.drawn += batch_size
            return super().sample(storage, batch_size)

        def state_dict(self) -> dict[str, Any]:
            return {"drawn": self.drawn}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.drawn = state_dict["drawn"]

    buffer, other = _buffer(sampler=Counting), _buffer(sampler=Counting)
    buffer.extend(stamped_rows(3))
    buffer.sample(5)
    other.load_state_dict(buffer.state_dict())
    assert other.sampler.drawn == 5


def test_lanes_go_through_a_state() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2), batch_size=3)
    buffer.extend(TensorDict({"v": torch.arange(6).view(2, 3)}, [2, 3]))
    other = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2), batch_size=3)
    other.load_state_dict(buffer.state_dict())
    more = TensorDict({"v": torch.arange(6, 10).view(2, 2)}, [2, 2])
    assert other.extend(more).tolist() == buffer.extend(more).tolist() == [[3, 0], [3, 1], [0, 0], [0, 1]]
    assert bool((other[:] == buffer[:]).all())


def test_a_state_without_stamps_makes_old_handles_stale() -> None:
    plain, tracking = _buffer(writer=RoundRobinWriter()), _buffer()
    plain.extend(stamped_rows(4))
    tracking.extend(stamped_rows(6))
    _, info = tracking.sample(return_info=True)
    tracking.load_state_dict(plain.state_dict())
    patch = {"action": torch.full((6,), -5)}
    stale = tracking.update_if_present(index=info["index"], generation=info["index_generation"], patch=patch)
    assert stale.stale_count == 6
    _, fresh = tracking.sample(return_info=True)
    taken = tracking.update_if_present(index=fresh["index"], generation=fresh["index_generation"], patch=patch)
    assert taken.updated_count == 6


def test_an_empty_state_empties() -> None:
    buffer = _buffer()
    buffer.extend(stamped_rows(5))
    buffer.load_state_dict(_buffer().state_dict())
    assert (len(buffer), buffer.write_count) == (0, 0)
    assert buffer.extend(stamped_rows(2)).tolist() == [0, 1]


def test_a_state_of_a_smaller_buffer_goes_on() -> None:
    small, large = _buffer(LazyTensorStorage(4)), _buffer(LazyTensorStorage(8))
    small.extend(stamped_rows(6))
    large.load_state_dict(small.state_dict())
    assert sorted(large[:]["action"].tolist()) == [2, 3, 4, 5]
    large.extend(stamped_rows(6, stamp=6))
    assert len(large) == 8


@pytest.mark.parametrize("missing", ["storage", "writer", "sampler"])
def test_half_a_state_loads_nothing(missing: str) -> None:
    buffer, other = _buffer(), _buffer()
    buffer.extend(stamped_rows(3))
    other.extend(stamped_rows(2, stamp=20))
    state = buffer.state_dict()
    del state[missing]
    with pytest.raises(KeyError, match=missing):
        other.load_state_dict(state)
    assert (other[:]["action"].tolist(), other.write_count) == ([20, 21], 2)


def test_a_state_that_does_not_fit_loads_nothing() -> None:
    buffer = _buffer()
    buffer.extend(stamped_rows(8))
    for other in (_buffer(LazyTensorStorage(4)), _buffer()):
        rows = stamped_rows(2, stamp=20)
        if other.storage.max_size == 8:
            rows = rows.exclude("observation")
        other.extend(rows)
        with pytest.raises(LayoutError):
            other.load_state_dict(buffer.state_dict())
        assert (other[:]["action"].tolist(), other.write_count) == ([20, 21], 2)
        assert other.extend(rows).tolist() == [2, 3]


# -- stats ------------------------------------------------------------------------------------------------------------------


def test_stats() -> None:
    buffer = _buffer()
    buffer.extend(stamped_rows(10))
    buffer.empty(empty_write_count=False)
    buffer.extend(stamped_rows(2))
    assert buffer.stats() == {
        "size": 2,
        "write_count": 12,
        "prefetch_queue_size": 0,
        "initialized": True,
        "capacity": 8,
        "utilization": 0.25,
    }
    assert _buffer(ListStorage()).stats()["utilization"] == 0


def test_counts_wait_for_no_other_call() -> None:
    buffer = _buffer()
    buffer.extend(stamped_rows(3))
    got: list[Any] = []
    with buffer.lock:
        thread = threading.Thread(target=lambda: got.extend([buffer.stats()["size"], len(buffer), buffer.write_count]))
        thread.start()
        thread.join(timeout=20)
        assert got == [3, 3, 3]
    buffer.synchronize()
