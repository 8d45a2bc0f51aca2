"""Shared buffers: one ring for several processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.rows import assert_rows_are_whole, stamped_rows

# Newer Pythons warn of forking beside threads; the children here do nothing but buffer calls.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


class Telling(RandomSampler):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.emptied = 0

    def extend(self, index: torch.Tensor) -> None:
        self.told.append(index.tolist())

    def empty(self) -> None:
        self.emptied += 1


def _buffer(capacity: int = 8, rows: int = 2, **parts: Any) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=16,
        shared=True,
        **parts,
    )
    if rows:
        buffer.extend(stamped_rows(rows))
    return buffer


def _in_a_process(context: Any, work: Any, *arguments: Any) -> None:
    process = context.Process(target=work, args=arguments)
    process.start()
    _ended(process)


def _ended(*processes: Any) -> None:
    """Waits for processes, and leaves none behind."""
    for process in processes:
        process.join(timeout=60)
        if process.is_alive():
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def _write(buffer: ReplayBuffer, count: int, stamp: int) -> None:
    torch.set_num_threads(1)
    buffer.extend(stamped_rows(count, stamp))


def _write_and_read(buffer: ReplayBuffer, who: int) -> None:
    torch.set_num_threads(1)
    for turn in range(30):
        buffer.extend(stamped_rows(5, 100_000 * who + 10 * turn))
        assert_rows_are_whole(buffer.sample())


def _empty_and_patch(buffer: ReplayBuffer) -> None:
    buffer.empty()
    buffer.extend(stamped_rows(2, 50))
    index = torch.tensor([0])
    patch = {"action": torch.tensor([-7])}
    buffer.update_if_present(index=index, generation=buffer.writer.generations_of(index), patch=patch)


def test_a_started_process_writes_into_the_same_ring() -> None:
    """Handed over by pickling, with a lock of its own kind."""
    buffer = _buffer(sampler=Telling())
    _, info = buffer.sample(return_info=True)
    _in_a_process(SPAWN, _write, buffer, 9, 10)
    assert (len(buffer), buffer.write_count) == (8, 11)
    assert buffer[:]["action"].tolist() == [16, 17, 18, 11, 12, 13, 14, 15]
    assert_rows_are_whole(buffer[:])
    assert bool((buffer.writer.generations_of(info["index"]) != info["index_generation"]).all())
    assert buffer.extend(stamped_rows(1, 90)).tolist() == [3]
    assert buffer.sampler.told == [[0, 1], [3, 4, 5, 6, 7, 0, 1, 2], [3]]


def test_forked_processes_write_at_once() -> None:
    buffer = _buffer(capacity=64, rows=64)
    workers = [FORK.Process(target=_write_and_read, args=(buffer, who)) for who in (1, 2)]
    for worker in workers:
        worker.start()
    _write_and_read(buffer, 3)
    _ended(*workers)
    assert buffer.write_count == 64 + 3 * 150
    assert_rows_are_whole(buffer[:])
    assert int((buffer.writer.generations_of(torch.arange(64)) + 1).sum()) == buffer.write_count


def test_emptying_and_late_writes_are_seen() -> None:
    buffer = _buffer(rows=5, sampler=Telling())
    _in_a_process(FORK, _empty_and_patch, buffer)
    assert buffer.stats()["size"] == 2
    assert buffer[:]["action"].tolist() == [-7, 51]
    assert (buffer.sampler.emptied, buffer.sampler.told[1:]) == (1, [[0, 1]])


def test_a_layout_made_elsewhere_is_said_not_guessed() -> None:
    buffer = _buffer(rows=0)
    _in_a_process(FORK, _write, buffer, 3, 0)
    for call in (lambda: buffer.extend(stamped_rows(1)), lambda: buffer.sample(), lambda: len(buffer)):
        with pytest.raises(LayoutError, match="must have its layout before processes part"):
            call()


def test_a_shared_buffer_works_alone() -> None:
    buffer = _buffer(rows=3)
    assert buffer.share() is buffer
    buffer[[0]] = stamped_rows(1, 40)
    with pytest.raises(LayoutError):
        buffer.extend(stamped_rows(1).exclude("action"))
    data = buffer[:]
    data["more"] = torch.zeros(3)
    buffer.write_all(data)
    buffer.load_state_dict(buffer.state_dict())
    assert buffer[:]["action"].tolist() == [40, 1, 2]
    buffer.empty()
    assert len(buffer) == 0


def test_sharing_later_keeps_the_records() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    assert buffer.share(False) is buffer
    buffer.extend(stamped_rows(5))
    assert buffer.share() is buffer
    assert buffer[:]["action"].tolist() == [0, 1, 2, 3, 4]
    _in_a_process(FORK, _write, buffer, 2, 5)
    assert buffer[:]["action"].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_what_cannot_be_shared() -> None:
    with pytest.raises(TypeError, match="columnar storage on the CPU; got ListStorage"):
        ReplayBuffer(storage=ListStorage(4), shared=True)
    storage = LazyTensorStorage(4)
    buffers = [ReplayBuffer(storage=storage) for _ in range(2)]
    with pytest.raises(ValueError, match="2 hold it"):
        buffers[0].share()
    assert buffers[0].extend(torch.arange(2)).tolist() == [0, 1]
    shared = _buffer()
    with pytest.raises(RuntimeError, match="take back"):
        shared.share(False)
    for call in ("set_storage", "set_writer"):
        with pytest.raises(RuntimeError, match=f"{call} must come before share"):
            getattr(shared, call)(None)
    with pytest.raises(RuntimeError):
        pickle.dumps(shared)  # a lock between processes goes only to a process that starts


# -- copies ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))], ids=["copy", "pickle"]
)
def test_a_copy_goes_its_own_way(storage: type, copied: Any) -> None:
    buffer = TensorDictReplayBuffer(
        storage=storage(8), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=4
    )
    buffer.extend(stamped_rows(11))
    other = copied(buffer)
    assert other.sample()["action"].tolist() == buffer.sample()["action"].tolist(), "the generator came along"
    other.extend(stamped_rows(3, 50))
    assert buffer[:]["action"].tolist() == [8, 9, 10, 3, 4, 5, 6, 7]
    assert other[:]["action"].tolist() == [8, 9, 10, 50, 51, 52, 6, 7]
    assert other.lock is other.storage.lock is not buffer.lock
    assert (other.storage.attached, buffer.storage.attached) == (1, 1)
