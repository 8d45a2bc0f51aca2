"""What every handle on an episodic buffer keeps to: the same calls on a local buffer and on a handle give the same results, or
the same errors.

A test class of a way to reach a buffer inherits `EpisodicHandleContract` and says how to host one.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clients.episodic_handle import EpisodicClient
from replay_service.episodic import (
    Batch,
    CachedReplayBuffer,
    HERReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from replay_service.errors import CheckpointError, ClosedError, LayoutError, TransportUnavailableError
from replay_service.records import SaveReceipt
from replay_service.wire.failures import code_of, words_of
from replay_service.wire.verbs import STEP_VERBS
from tests.episodic.steps import rows, tr

__all__ = ["EpisodicHandleContract"]

Recipe = Callable[[], Any]
Call = Callable[[Any], Any]


def plain() -> ReplayBuffer:
    return ReplayBuffer(8, stack_num=2, ignore_obs_next=True)


def vector() -> VectorReplayBuffer:
    return VectorReplayBuffer(8, 2)


def prioritized() -> PrioritizedVectorReplayBuffer:
    return PrioritizedVectorReplayBuffer(8, 2, alpha=0.6, beta=0.4)


def cached() -> CachedReplayBuffer:
    return CachedReplayBuffer(ReplayBuffer(6), 2, 3)


def reached(achieved: Any, desired: Any) -> Any:
    return (achieved == desired).astype(float)


def goals() -> HERReplayBuffer:
    return HERReplayBuffer(8, reached, horizon=4)


def steps(count: int, *ends: int, **entries: Any) -> Call:
    """Adds steps to both rings."""
    numbers = [number for step in range(count) for number in (step, 100 + step)]
    batch = rows(numbers, [number in ends for number in numbers])
    batch.update(entries)
    return lambda b: b.add(batch, [0, 1] * count)


def one(number: int, end: bool = False, **entries: Any) -> Call:
    return lambda b: b.add(tr(number, end, **entries))


def goal_step(number: int, end: bool) -> Call:
    seen = {"observation": number, "achieved_goal": number, "desired_goal": 9}
    after = {name: value + 1 if name != "desired_goal" else value for name, value in seen.items()}
    return lambda b: b.add(tr(number, end, obs=seen, obs_next=after))


TENSORS = Batch(
    obs=Batch(a=torch.arange(6.0).reshape(2, 3), b=np.ones((2, 2), np.uint8)),
    act=torch.tensor([1, 2], dtype=torch.bfloat16),
    rew=np.array([[1.0, 2.0], [3.0, 4.0]]),
    done=np.array([False, True]),
    info=Batch(x=Batch(y=np.array([1.0, np.nan]))),
)
WORDS = {"word": np.array(["a", None], object), "n": np.array([1, 2])}

EVERYTHING: list[Call] = [
    lambda b: b[:],
    lambda b: b[0],
    lambda b: b[-1],
    lambda b: b[[1, 0]],
    lambda b: b[np.array([[0, 1], [1, 1]])],
    lambda b: b[0:1],
    lambda b: b[np.zeros(8, bool)],
    lambda b: b.get(0, "obs"),
    lambda b: b.get([0, 1], "obs", stack_num=3),
    lambda b: b.get([0, 1], ("info", "nothing"), 7),
    lambda b: b.get([0, 1], "nothing"),
    lambda b: b.sample_indices(0),
    lambda b: b.sample_indices(None),
    lambda b: b.sample_indices(-1),
    lambda b: b.sample_indices(5),
    lambda b: b.sample(6),
    lambda b: b.sample(0),
    lambda b: b.sample(4, n_step=2, gamma=0.5),
    lambda b: b.prev([0, 1]),
    lambda b: b.next([[0, 1]]),
    lambda b: b.next(0),
    lambda b: b.unfinished_index(),
    lambda b: b.column("rew"),
    lambda b: b.column("obs"),
    lambda b: b.hasnull(),
    lambda b: len(b),
    lambda b: b.write_count,
    lambda b: (b.maxsize, b.buffer_num, b.stack_num),
    lambda b: b.episodic_return(None, gae_lambda=1.0, gamma=0.5),
    lambda b: b.episodic_return([0, 1], [1.0, 2.0], torch.tensor([0.5, 1.5]), gamma=0.9, gae_lambda=0.8),
]

ERRORS: list[Call] = [
    lambda b: b[99],
    lambda b: b["obs"],
    lambda b: b.next(99),
    lambda b: b.column("nothing"),
    lambda b: b.sample("all"),
    lambda b: b.sample(2, n_step=0),
    lambda b: b.sample(2, n_step=1, gamma=1.5),
    lambda b: b.add(Batch(obs=1, act=1, rew=1.0)),
    lambda b: b.add(rows([1, 2, 3])),
    lambda b: b.add(rows([1]), [7]),
    lambda b: b.add(rows([1]), [0.5]),
    lambda b: b.add(rows([1, 2], obs=np.zeros((2, 5))), [0, 0]),
    lambda b: b.end_episodes([9]),
    lambda b: b.episodic_return(None),
    lambda b: b.set_array_at_key(np.array([1]), "count", index=[0]),
    lambda b: b.set_array_at_key(np.array([1.0]), "done", index=[0]),
]

CASES: list[Any] = [
    pytest.param(vector, [*EVERYTHING, *ERRORS], id="nothing is stored"),
    pytest.param(vector, [steps(3, 1, 102), *EVERYTHING, *ERRORS, lambda b: b[:]], id="rings"),
    pytest.param(plain, [one(0), one(1, True), one(2), *EVERYTHING, *ERRORS], id="stacked, without next observations"),
    pytest.param(cached, [steps(4, 1, 102, 3), *EVERYTHING, *ERRORS], id="cached"),
    pytest.param(vector, [lambda b: b.add(TENSORS), *EVERYTHING], id="tensors, numbers and flags"),
    pytest.param(vector, [steps(1, info=WORDS), steps(1), *EVERYTHING], id="words"),
    pytest.param(goals, [*(goal_step(n, n % 3 == 2) for n in range(8)), *EVERYTHING, *EVERYTHING], id="goals"),
    pytest.param(
        prioritized,
        [
            steps(4, 1),
            lambda b: b.update_weight([0, 5, 0], torch.tensor([3.0, 0.5, 2.0])),
            lambda b: b.get_weight([[0, 5]]),
            lambda b: b.get_weight(0),
            *EVERYTHING,
            lambda b: b.set_beta(1.0),
            lambda b: b.sample(8),
            lambda b: b.update_weight([0, 1], np.array([1.0, np.nan])),
            lambda b: b.update_weight([99], [1.0]),
            lambda b: b.update_weight([0, 1], [2.0, 3.0], generation=[0, 7]),
            lambda b: b.update_weight([0, 99], [2.0, 3.0], generation=b[[0, 1]].generation),
            lambda b: b.update_weight([0], [2.0], generation=[0.5]),
            lambda b: b.set_beta(-1.0),
            *EVERYTHING,
        ],
        id="priorities",
    ),
    pytest.param(
        vector,
        [
            steps(3, 1),
            lambda b: b.end_episodes([1]),
            lambda b: b.unfinished_index(),
            steps(1),
            lambda b: b.set_array_at_key(np.array([1.0, 2.0]), "ret", index=[0, 4]),
            lambda b: b.hasnull(),
            lambda b: b.set_array_at_key(torch.arange(8.0), "all"),
            lambda b: b.set_array_at_key(np.array([5]), "count", index=[4], default_value=-1),
            lambda b: b.set_array_at_key(np.array(["x"], object), "word", index=[4]),
            lambda b: b[:],
            lambda b: b.reset(keep_statistics=True),
            lambda b: len(b),
            steps(2, 1, 101),
            lambda b: b.end_episodes(),
            lambda b: b[:],
            lambda b: b.reset(),
            *EVERYTHING,
        ],
        id="ends, columns and resets",
    ),
]


def compared(value: Any) -> Any:
    """A value in a form that can be compared and printed."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), list(value.shape), str(value.float().tolist()))
    if isinstance(value, np.ndarray | np.generic):
        return ("array", str(value.dtype), list(value.shape), str(value.tolist()))
    if isinstance(value, Batch):
        return ("Batch", [(name, compared(part)) for name, part in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [compared(part) for part in value])
    return (type(value).__name__, value)


def outcome(call: Call, buffer: Any) -> Any:
    """What a call returns or raises."""
    try:
        return compared(call(buffer))
    except Exception as error:
        # Where a handle knows better at once it may explain it in other words, but of the same thing.
        return (code_of(error), words_of(error).partition(" must ")[0])


class EpisodicHandleContract(ABC):
    """The whole table of calls, against a local buffer of the same recipe and seed."""

    carries_objects = True

    @abstractmethod
    def hosted(self, recipe: Recipe) -> AbstractContextManager[EpisodicClient]:
        """A handle on a buffer made by `recipe`, wherever that runs."""

    @pytest.fixture
    def client(self) -> Iterator[EpisodicClient]:
        with self.hosted(vector) as client:
            yield client

    @pytest.mark.parametrize(("recipe", "calls"), CASES)
    def test_calls_do_what_they_do_on_a_local_buffer(self, recipe: Recipe, calls: list[Call]) -> None:
        local = recipe()
        with self.hosted(recipe) as client:
            for number, call in enumerate(calls):
                expected, found = outcome(call, local), outcome(call, client)
                if not self.carries_objects and found[0] == code_of(TransportUnavailableError()):
                    return  # words cannot go this way, and nothing was sent
                assert found == expected, f"call {number}"

    def test_results_are_writable_and_the_callers_own(self, client: EpisodicClient) -> None:
        steps(4, 1)(client)
        first, slots = client.sample(0)
        for batch in (first, client[:], client[[0, 1]]):
            for array in (batch.obs, batch.rew, batch.done):
                array[...] = 0
        slots[...] = 0
        assert client[:].obs.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]

    def test_futures_are_answered_in_order(self, client: EpisodicClient) -> None:
        waiting = [client.submit_add(rows([number]), [0]) for number in range(40)]
        assert [int(future.result(20.0)[0][0]) for future in waiting] == [number % 4 for number in range(40)]
        batch, slots = client.submit_sample(3).result(20.0)
        assert batch.obs.tolist() == client.get(slots, "obs").tolist()

    def test_prefetch_goes_on_until_it_is_closed(self, client: EpisodicClient) -> None:
        steps(4)(client)
        with client.prefetch(5, depth=3, n_step=2, gamma=0.5) as batches:
            for _ in range(6):
                batch, slots = next(batches)
                assert batch.obs.shape == slots.shape == batch.n_step.rew.shape == (5,)
        with pytest.raises(StopIteration):
            next(batches)

    def test_it_is_saved_and_loaded_where_it_lives(self, tmp_path: Path) -> None:
        local, twin = prioritized(), prioritized()
        with self.hosted(prioritized) as client:
            for one in (local, client):
                steps(4, 1)(one)
                one.update_weight([0, 5], [3.0, 0.5])
            receipt = client.dumps(tmp_path / "c")
            assert type(receipt) is SaveReceipt
            assert (receipt.path, receipt.written_bytes) == (str(tmp_path / "c"), receipt.size_bytes)
            steps(2)(client)
            client.sample(3)
            client.loads(tmp_path / "c")
            twin.loads(tmp_path / "c")
            for call in (lambda b: b[:], lambda b: b.sample(6), steps(1, 0), lambda b: b.sample(4, n_step=2)):
                assert outcome(call, client) == outcome(call, twin) == outcome(call, local)
            vector().dumps(tmp_path / "other")
            PrioritizedVectorReplayBuffer(6, 2, alpha=0.6, beta=0.4).dumps(tmp_path / "small")
            for path, kind, words in (
                ("nothing", OSError, "nothing is there"),
                ("other", CheckpointError, "of a PrioritizedVectorReplayBuffer; got one of a VectorReplayBuffer"),
                ("small", LayoutError, "rings .* got 2 of 6 steps"),
            ):
                with pytest.raises(kind, match=words):
                    client.loads(tmp_path / path)
            assert outcome(lambda b: b.sample(0), client) == outcome(lambda b: b.sample(0), local)

    def test_stats_count_every_verb(self, client: EpisodicClient) -> None:
        steps(2)(client)
        with pytest.raises(LayoutError):
            client.add(rows([1], obs=np.zeros((1, 4))), [0])
        client.sample(3)
        stats = client.stats(timeout=20.0)
        assert (stats["size"], stats["capacity"], stats["write_count"]) == (4, 8, 4)
        verbs = stats["service"]["verbs"]
        assert (verbs["add_steps"]["calls"], verbs["add_steps"]["rows"], verbs["add_steps"]["errors"]) == (1, 4, 1)
        assert (verbs["sample_steps"]["calls"], verbs["sample_steps"]["rows"]) == (1, 3)
        assert set(verbs) <= {verb.name.lower() for verb in STEP_VERBS}

    def test_priorities_are_there_only_if_the_buffer_has_them(self, client: EpisodicClient) -> None:
        for name in ("update_weight", "get_weight", "set_beta"):
            assert not hasattr(client, name)
        with self.hosted(prioritized) as other:
            assert callable(other.update_weight)

    @pytest.mark.parametrize("name", ["shutdown", "dropnull", "set_batch", "update", "extend"])
    def test_what_a_handle_cannot_do(self, client: EpisodicClient, name: str) -> None:
        assert not hasattr(client, name)

    def test_a_closed_handle_refuses_calls(self, client: EpisodicClient) -> None:
        client.close()
        client.close()
        assert client.closed
        for call in (lambda: client.sample(1), lambda: len(client), lambda: client.submit_add(rows([1]), [0])):
            with pytest.raises(ClosedError, match="handle must be open"):
                call()

    def test_a_timeout_is_a_positive_number(self, client: EpisodicClient) -> None:
        with pytest.raises(ValueError, match="timeout"):
            client.sample(1, timeout=0)

    def test_it_pickles_as_an_address(self, client: EpisodicClient) -> None:
        copy = pickle.loads(pickle.dumps(client))
        assert (copy.address, copy.maxsize, copy.buffer_num) == (client.address, 8, 2)
        assert client.address.name in repr(client)
        assert client
