"""Everything at once: two threads extend, two sample, one sets priorities and one patches late; then all must agree.

The suite makes a few hundred calls of each. `REPLAY_STRESS_SECONDS=30 pytest tests/buffer/test_stress.py` goes on for as long as it says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.at_once import run_at_once, switching_eagerly
from tests.buffer.buffer_invariants import assert_buffer_is_consistent
from tests.rows import assert_rows_are_whole, stamped_rows

SECONDS = float(os.environ.get("REPLAY_STRESS_SECONDS", "0"))
ROUNDS = 120
JOIN_S = 100 + SECONDS
CAPACITY = 256
NOBODY = -1
MOST_STAMPS = 4_000_000


@pytest.fixture(autouse=True)
def _eager_switching() -> Iterator[None]:
    with switching_eagerly():
        yield


def _turns() -> Iterator[int]:
    """Numbers from 0 on, for as long as the test is to go on."""
    end, turn = time.monotonic() + SECONDS, 0
    while turn < ROUNDS or time.monotonic() < end:
        yield turn
        turn += 1


def _brought(stamps: Tensor) -> Tensor:
    """The priority that the record of a stamp comes with."""
    return 1.0 + stamps % 7


def _learned(stamps: Tensor) -> Tensor:
    """The priority that the record of a stamp is given later."""
    return 10.0 ** (stamps % 5) + stamps % 11


def _rows(count: int, stamp: int) -> TensorDict:
    rows = stamped_rows(count, stamp)
    rows["td_error"] = _brought(rows["action"]).float()
    rows["marked_by"] = torch.full((count,), NOBODY)
    rows["version"] = torch.zeros(count, dtype=torch.int64)
    return rows


def _check(data: TensorDictBase) -> None:
    """No row is torn, and none carries a mark that was meant for another."""
    assert_rows_are_whole(data)
    assert bool(((data["marked_by"] == NOBODY) | (data["marked_by"] == data["action"])).all())
    assert bool(((data["marked_by"] == NOBODY) == (data["version"] == 0)).all())


class Load:
    """What the threads do to a buffer, and what came of it."""

    def __init__(self, buffer: TensorDictReplayBuffer) -> None:
        self.buffer = buffer
        self.written = [buffer.extend(_rows(CAPACITY, 0)).numel()]
        self.priorities = self.patched = self.outdated = 0

    def write(self, who: int) -> None:
        first = stamp = CAPACITY + who * MOST_STAMPS
        for turn in _turns():
            count = 1 + (7 * turn + who) % 40
            assert self.buffer.extend(_rows(count, stamp)).numel() == count
            self.written.append(count)
            stamp = stamp + count if stamp + count < first + MOST_STAMPS - 100 else first

    def draw(self) -> None:
        for turn in _turns():
            batch = self.buffer.sample()
            _check(batch)
            assert 0.0 < float(batch["priority_weight"].min()) <= float(batch["priority_weight"].max()) <= 1.0
            if turn % 4 == 0:
                self.check_all()

    def check_all(self) -> None:
        """What a record is worth was set for itself: by the row it came with, or later by somebody who had drawn it.

        Records that were patched have the default priority, the largest of any.
        """
        with self.buffer.lock:
            records, priorities = self.buffer[:], self.buffer.sampler.priorities()  # type: ignore[attr-defined]
        _check(records)
        stamps = records["action"]
        own = (priorities == _brought(stamps)) | (priorities == _learned(stamps).double())
        assert bool((own | (records["marked_by"] != NOBODY)).all()), "a priority that was meant for another record"
        defaults = {float(_learned(torch.tensor(stamp))) for stamp in range(5 * 11)} | {7.0}
        assert set(priorities[~own].tolist()) <= defaults

    def update(self) -> None:
        for _ in _turns():
            batch = self.buffer.sample()
            new = _learned(batch["action"])
            result = self.buffer.update_priority(batch["index"], new, generation=batch["index_generation"])
            self.priorities += result.updated_count

    def patch(self) -> None:
        for turn in _turns():
            batch = self.buffer.sample()
            result = self.buffer.update_if_present(
                index=batch["index"],
                generation=batch["index_generation"],
                patch={"marked_by": batch["action"]},
                version_key="version",
                version=1 + turn % 5,
                require_newer=True,
            )
            self.patched += result.updated_count
            self.outdated += result.version_rejected_count


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("slices", [False, True])
def test_nothing_is_lost_or_torn_and_all_agree_in_the_end(storage: type, slices: bool) -> None:
    settings: dict[str, Any] = {"alpha": 0.6, "beta": 0.4, "eps": 0.0}
    sampler: Any = (
        PrioritizedSliceSampler(CAPACITY, slice_len=4, strict_length=False, truncated_key=None, **settings)
        if slices
        else PrioritizedSampler(CAPACITY, max_priority_within_buffer=True, **settings)
    )
    buffer = TensorDictReplayBuffer(
        storage=storage(CAPACITY),
        sampler=sampler,
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=32,
    )
    load = Load(buffer)
    run_at_once(
        lambda: load.write(0), lambda: load.write(1), load.draw, load.draw, load.update, load.patch, timeout_s=JOIN_S
    )
    assert buffer.write_count == sum(load.written)
    assert_buffer_is_consistent(buffer, _check)
    assert min(load.priorities, load.patched, load.outdated) > 0
    load.check_all()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_epochs_stay_whole_while_threads_extend(prefetch: int) -> None:
    """Of a full ring every slot comes exactly once an epoch, and no row is torn; what fills one waits for the next epoch."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60), sampler=SamplerWithoutReplacement(), batch_size=8, prefetch=prefetch
    )
    buffer.extend(stamped_rows(10))

    def write(who: int) -> None:
        for turn in range(ROUNDS):
            buffer.extend(stamped_rows(1 + turn % 9, 10_000 * (who + 1) + 10 * turn))

    sizes = []

    def learn() -> None:
        for _ in range(15):
            seen: list[int] = []
            for batch in buffer:
                assert_rows_are_whole(batch)
                seen += batch["index"].tolist()
            assert sorted(seen) == list(range(len(seen))), "a slot twice, or one left out"
            sizes.append(len(seen))

    run_at_once(lambda: write(0), lambda: write(1), learn, timeout_s=JOIN_S)
    buffer.close()
    assert sizes == sorted(sizes)
    assert 10 <= sizes[0] <= sizes[-1] <= 60


def test_readiness_waits_for_a_write_that_runs() -> None:
    """Asked without the lock, a buffer could call itself ready, or not, in the middle of a write."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=2)
    answers: list[bool] = []
    asker = threading.Thread(target=lambda: answers.append(buffer.can_sample()))
    with buffer.lock:
        asker.start()
        buffer.extend(stamped_rows(2))
        asker.join(timeout=0.2)
        assert asker.is_alive()
        assert not answers
    asker.join(timeout=20)
    assert answers == [True]
