"""Batches drawn ahead: none lost, none twice, in step with everything else that happens to a buffer."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    ReplayTimeoutError,
    SamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.rows import assert_rows_are_whole, stamped_rows

Waiter = Callable[..., Any]


def epochs(prefetch: int, count: int = 10, **settings: Any) -> ReplayBuffer:
    """A buffer of the numbers below `count`, drawn in epochs of batches of 4."""
    rb: ReplayBuffer = ReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=4, prefetch=prefetch,
        generator=torch.Generator().manual_seed(0), **settings,
    )  # fmt: skip
    rb.extend(torch.arange(count))
    return rb


@pytest.fixture(autouse=True)
def no_threads_left(wait_until: Waiter) -> Iterator[None]:
    """The threads of every buffer end when it is forgotten, also after a test that failed half-way."""
    yield
    wait_until(lambda: drawing() == 0 or gc.collect() < 0)


def is_full(rb: ReplayBuffer, batches: int) -> Callable[[], bool]:
    return lambda: rb.stats()["prefetch_queue_size"] == batches


@pytest.mark.parametrize("prefetch", [1, 3, 8])
def test_epochs_are_whole_and_end_where_they_would_without(prefetch: int, wait_until: Waiter) -> None:
    rb, plain = epochs(prefetch), epochs(0)
    for _ in range(20):
        batches = [batch.tolist() for batch in rb]
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert batches == [batch.tolist() for batch in plain]


def test_the_last_batch_is_drawn_ahead_and_nothing_beyond_it(wait_until: Waiter) -> None:
    rb = epochs(8)
    first = rb.sample().tolist()
    wait_until(is_full(rb, 2))
    rb.extend(torch.arange(10, 13))  # for the next epoch, whose order is not drawn yet
    rest = [rb.sample().tolist(), rb.sample().tolist()]
    assert sorted(first + rest[0] + rest[1]) == list(range(10))
    assert rb.next() is None
    assert rb.stats()["prefetch_queue_size"] == 0
    assert sorted(number for batch in rb for number in batch.tolist()) == list(range(13))


def test_the_order_is_that_of_the_draws_whichever_is_ready_first(wait_until: Waiter) -> None:
    gate, calls = threading.Event(), []

    class SlowFirst:
        stateful = False

        def forward(self, data: Any) -> Any:
            calls.append(data)
            if len(calls) == 2:
                assert gate.wait(10)
            return data

    rb, plain = epochs(3, 40, transform=SlowFirst()), epochs(0, 40)
    assert rb.sample().tolist() == plain.sample().tolist()
    wait_until(lambda: len(calls) == 4)
    gate.set()
    for _ in range(9):
        assert rb.sample().tolist() == plain.sample().tolist()


def test_several_takers_share_an_epoch(wait_until: Waiter) -> None:
    rb = epochs(2, 100)
    taken: list[int] = []

    def take() -> None:
        for _ in range(5):
            taken.extend(rb.sample().tolist())

    threads = [threading.Thread(target=take) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(taken) == list(range(100))


def test_emptying_drops_what_was_drawn_ahead(wait_until: Waiter) -> None:
    rb = epochs(2, 40)
    rb.sample()
    wait_until(is_full(rb, 2))
    rb.empty()
    assert rb.stats()["prefetch_queue_size"] == 0
    with pytest.raises(EmptyBufferError):
        rb.sample()
    rb.extend(torch.arange(50, 60))
    assert sorted(number for batch in rb for number in batch.tolist()) == list(range(50, 60))


def test_another_sampler_or_storage_starts_over(wait_until: Waiter) -> None:
    rb = epochs(2, 40)
    rb.sample()
    wait_until(is_full(rb, 2))
    rb.set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert [batch.tolist() for batch in rb][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    rb.sample()
    wait_until(is_full(rb, 2))
    rb.set_storage(LazyTensorStorage(10))
    with pytest.raises(EmptyBufferError):
        rb.sample()


def test_records_changed_in_place_are_read_again(wait_until: Waiter) -> None:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), batch_size=4, prefetch=2,
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )  # fmt: skip
    rb.extend(TensorDict({"x": torch.zeros(8)}, [8]))
    first = rb.sample()
    wait_until(is_full(rb, 2))
    rb.set_("x", 1.0)
    assert rb.sample()["x"].tolist() == [1.0] * 4
    rb.update_if_present(index=first["index"], generation=first["index_generation"], patch={"x": torch.full((4,), 2.0)})
    for _ in range(3):
        batch = rb.sample()
        assert torch.equal(batch["x"], rb[batch["index"]]["x"])
        assert torch.equal(batch["index_generation"], rb.writer.generations_of(batch["index"]))


def test_batches_drawn_ahead_go_through_new_transforms(wait_until: Waiter) -> None:
    rb = epochs(2, 40)
    rb.sample()
    wait_until(is_full(rb, 2))
    rb.append_transform(lambda batch: batch + 1000)
    assert all((rb.sample() >= 1000).all() for _ in range(3))


def test_batches_of_another_size_are_drawn_when_asked_for(wait_until: Waiter) -> None:
    rb = epochs(2, 12)
    numbers = rb.sample().tolist()
    wait_until(is_full(rb, 2))
    assert rb.stats()["prefetch_queue_size"] == 2
    numbers += rb.sample().tolist() + rb.sample().tolist()
    assert sorted(numbers) == list(range(12))
    assert len(rb.sample(3)) == 3
    without = ReplayBuffer(storage=ListStorage(10), prefetch=2)
    without.extend([1, 2, 3])
    assert len(without.sample(5)) == 5
    wait_until(is_full(without, 2))
    assert (len(without.sample(2)), len(without.sample(5))) == (2, 5)


def test_errors_come_out_of_the_call_that_would_have_got_the_batch(wait_until: Waiter) -> None:
    calls = [0]

    def failing(data: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise ZeroDivisionError("second")
        return data

    rb = epochs(1, 12, transform=failing)
    rb.sample()
    wait_until(is_full(rb, 1))
    with pytest.raises(ZeroDivisionError, match="second"):
        rb.sample()
    assert len(rb.sample()) == 4


def test_a_draw_that_failed_ahead_is_tried_again_by_the_call() -> None:
    rb = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, prefetch=2, sampler=SamplerWithoutReplacement(True))
    for _ in range(3):
        with pytest.raises(EmptyBufferError):
            rb.sample()
    rb.extend(torch.arange(2))
    with pytest.raises(ValueError, match="drop_last"):
        rb.sample()
    rb.extend(torch.arange(6))
    assert [len(batch) for batch in rb] == [4, 4]


def test_a_timeout_loses_nothing(wait_until: Waiter) -> None:
    gate, calls = threading.Event(), [0]

    def slow(data: Any) -> Any:
        calls[0] += 1
        if calls[0] > 1:
            assert gate.wait(10)
        return data

    rb = epochs(1, 12, transform=slow)
    numbers = rb.sample().tolist()
    wait_until(is_full(rb, 1))
    with pytest.raises(ReplayTimeoutError, match="drawn ahead"):
        rb.sample(timeout=0.01)
    gate.set()
    numbers += rb.sample(timeout=10).tolist() + rb.sample().tolist()
    assert sorted(numbers) == list(range(12))


def test_a_saved_epoch_goes_on_with_what_was_drawn_ahead(wait_until: Waiter) -> None:
    rb = epochs(2, 18)
    numbers = rb.sample().tolist()
    wait_until(is_full(rb, 2))
    state = rb.state_dict()
    again = epochs(2, 0)
    again.load_state_dict(state)
    for buffer in (rb, again):
        rest = [number for batch in buffer for number in batch.tolist()]
        assert sorted(numbers + rest) == list(range(18))


def test_priorities_and_writes_go_on_meanwhile() -> None:
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.9, storage=LazyTensorStorage(64), batch_size=16, prefetch=3
    )
    rb.extend(stamped_rows(64))
    for step in range(60):
        batch = rb.sample()
        assert_rows_are_whole(batch)
        assert batch["priority_weight"].max() <= 1
        batch["td_error"] = torch.rand(16)
        rb.update_tensordict_priority(batch)
        rb.extend(stamped_rows(8, 64 + 8 * step))


def test_threads_end_with_close_and_start_again(wait_until: Waiter) -> None:
    rb = epochs(2, 18)
    numbers = rb.sample().tolist()
    wait_until(is_full(rb, 2))
    assert drawing() == 2
    rb.close()
    rb.shutdown()
    assert drawing() == 0
    numbers += [number for batch in rb for number in batch.tolist()]
    assert sorted(numbers) == list(range(18))
    rb.close()


def test_threads_end_with_their_buffer(wait_until: Waiter) -> None:
    rb = epochs(2, 40)
    rb.sample()
    known = weakref.ref(rb)
    del rb
    wait_until(lambda: gc.collect() >= 0 and known() is None)
    wait_until(lambda: drawing() == 0)


def test_a_copy_has_threads_of_its_own(wait_until: Waiter) -> None:
    rb = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, prefetch=2, sampler=RandomSampler())
    rb.extend(torch.arange(10))
    rb.sample()
    copy = pickle.loads(pickle.dumps(rb))
    assert copy.stats()["prefetch_queue_size"] == 0
    assert len(copy.sample()) == 4
    wait_until(is_full(copy, 2))
    rb.close()
    copy.close()


def test_a_forked_process_draws_for_itself(wait_until: Waiter) -> None:
    rb = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, prefetch=2, shared=True)
    rb.extend(torch.arange(10))
    rb.sample()
    wait_until(is_full(rb, 2))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_draw_in_child, args=(rb, theirs))
    process.start()
    assert ours.poll(30)
    assert ours.recv() == [4, 4, 4]
    process.join(30)
    rb.close()


def test_a_program_ends_while_threads_draw() -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_draw_and_end)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_depths_that_make_no_sense_are_refused() -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="prefetch"):
            ReplayBuffer(prefetch=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefetch"):
        ReplayBuffer(storage=ListStorage(4), prefetch=2, consume_after_n_samples=1)
    assert ReplayBuffer(prefetch=0).stats()["prefetch_queue_size"] == 0


def drawing() -> int:
    """How many threads of buffers there are."""
    return sum(thread.name.startswith("replay-prefetch") for thread in threading.enumerate())


def _draw_in_child(rb: ReplayBuffer, answer: Any) -> None:
    answer.send([len(rb.sample()) for _ in range(3)])
    rb.close()


def _draw_and_end() -> None:
    rb = epochs(4, 90)
    for _ in range(5):
        rb.sample()
