"""Many threads on one buffer: every row that is read is one that was written, whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    ListStorage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.at_once import run_at_once, switching_eagerly
from tests.rows import assert_rows_are_whole, stamped_rows

WRITERS, READERS, ROUNDS = 3, 3, 60


@pytest.fixture(autouse=True)
def _eager_switching() -> Iterator[None]:
    with switching_eagerly():
        yield


def _rows(count: int, stamp: int) -> TensorDict:
    """Stamped rows with an image each, so that a write takes a while."""
    rows = stamped_rows(count, stamp)
    return rows.set("pixels", (rows["action"] % 251).to(torch.uint8)[:, None].repeat(1, 4000))


def _check(rows: TensorDict) -> None:
    assert_rows_are_whole(rows)
    assert bool((rows["pixels"] == (rows["action"] % 251).to(torch.uint8)[:, None]).all())


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_rows_are_whole_while_threads_write(storage: type) -> None:
    buffer = TensorDictReplayBuffer(
        storage=storage(64), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=16
    )
    buffer.extend(_rows(64, 0))
    written = [64] * WRITERS

    def write(who: int) -> None:
        for turn in range(ROUNDS):
            count = 1 + (7 * turn + who) % 40
            slots = buffer.extend(_rows(count, 100_000 * (who + 1) + 100 * turn))
            assert slots.numel() == count
            written[who] += count

    def read() -> None:
        for turn in range(ROUNDS):
            _check(buffer.sample())
            _check(buffer[turn % 64 : turn % 64 + 3])
            if turn % 10 == 0:
                _check(buffer.read_all_in_order())

    run_at_once(*(lambda who=who: write(who) for who in range(WRITERS)), *[read] * READERS)
    assert buffer.write_count == 64 + sum(count - 64 for count in written)
    assert len(buffer) == 64
    stamps = buffer.writer.generations_of(torch.arange(64))
    assert int((stamps + 1).sum()) == buffer.write_count, "every write was stamped"


def test_extends_of_threads_do_not_interleave() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4096))
    batches: dict[int, list[int]] = {}

    def write(who: int) -> None:
        for turn in range(20):
            stamp = 10_000 * (who + 1) + 100 * turn
            batches[stamp] = buffer.extend(stamped_rows(1 + turn, stamp)).tolist()

    run_at_once(*(lambda who=who: write(who) for who in range(4)))
    for stamp, slots in batches.items():
        assert slots == list(range(slots[0], slots[0] + len(slots)))
        assert buffer[slots]["action"].tolist() == list(range(stamp, stamp + len(slots)))
    assert sum(map(len, batches.values())) == len(buffer) == buffer.write_count


def test_late_writes_never_touch_a_later_record() -> None:
    """A patch marks the record that was sampled with its own stamp; a record that came later must never carry the mark of another."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(32), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=16
    )

    def rows(stamp: int) -> TensorDict:
        return TensorDict({"own": torch.arange(stamp, stamp + 8), "mark": torch.full((8,), -1)}, [8])

    for stamp in range(0, 32, 8):
        buffer.extend(rows(stamp))
    outcome = {"updated": 0, "stale": 0}

    def write() -> None:
        for turn in range(200):
            buffer.extend(rows(1000 + 8 * turn))

    def patch() -> None:
        for _ in range(150):
            sample = buffer.sample()
            result = buffer.update_if_present(
                index=sample["index"], generation=sample["index_generation"], patch={"mark": sample["own"]}
            )
            outcome["updated"] += result.updated_count
            outcome["stale"] += result.stale_count
            got = buffer[:]
            assert bool(((got["mark"] == got["own"]) | (got["mark"] == -1)).all())

    run_at_once(write, patch, patch)
    assert outcome["updated"] > 0


def test_emptying_and_filling_while_reading() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), batch_size=8)

    def write() -> None:
        for turn in range(ROUNDS):
            buffer.extend(stamped_rows(40, 100 * turn))
            if turn % 5 == 4:
                buffer.empty()

    def read() -> None:
        for _ in range(ROUNDS):
            try:
                assert_rows_are_whole(buffer.sample())
            except EmptyBufferError:
                assert buffer.stats()["capacity"] == 64

    run_at_once(write, read, read)


def test_two_buffers_on_one_storage() -> None:
    storage = LazyTensorStorage(64)
    buffers = [TensorDictReplayBuffer(storage=storage, batch_size=16) for _ in range(2)]
    buffers[0].extend(_rows(64, 0))

    def work(which: int) -> None:
        for turn in range(ROUNDS):
            buffers[which].extend(_rows(33, 100_000 * (which + 1) + 100 * turn))
            _check(buffers[1 - which].sample())

    run_at_once(lambda: work(0), lambda: work(1))
