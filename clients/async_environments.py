"""Environments that are slow and uneven: each steps on its own, and whoever asks gets the answers that are there."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, concatenate, create_empty_array

from clients.environments import EnvironmentStep, Observation
from replay_service.errors import ReplayError, ReplayTimeoutError, ServiceUnavailableError

__all__ = ["AsyncEnvironments"]

Factory = Callable[[], gymnasium.Env[Any, Any]]
Answer = tuple[Any, float, bool, bool, dict[str, Any]]
DEFAULT_TIMEOUT_S = 60.0


class AsyncEnvironments:
    """N environments, one of each factory, that step without waiting for each other; nothing resets by itself.

    env_fns: factories. wait_num: `exchange` waits until so many have answered (default: all). timeout_s: and after so many
    seconds for those that have, or for the first one. processes: each in a process of its own, else in a thread.
    answer_timeout_s: an environment that takes longer is an error.

    Raises ValueError for no factory, a wait_num outside [1, N] or a time that isn't positive.
    """

    def __init__(
        self,
        env_fns: Sequence[Factory],
        *,
        wait_num: int | None = None,
        timeout_s: float | None = None,
        processes: bool = True,
        answer_timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        n = len(env_fns)
        if n < 1:
            raise ValueError("env_fns (0 factories) must be at least one; got none")
        wait_num = n if wait_num is None else wait_num
        if not 1 <= wait_num <= n:
            raise ValueError(f"wait_num ({wait_num}) must be at least 1 and at most {n}; got {wait_num}")
        for name, value in (("timeout_s", timeout_s), ("answer_timeout_s", answer_timeout_s)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} ({value}) must be above 0; got {value}")
        self._wait_num = wait_num
        self._timeout_s = timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._hosts: list[Any] = []
        try:
            for make in env_fns:
                self._hosts.append(_ProcessHost(make) if processes else make())
        except BaseException:
            for host in self._hosts:
                host.close()
            raise
        self._pool = ThreadPoolExecutor(n, thread_name_prefix="environment")
        self._under_way: dict[Future[Answer], int] = {}
        self.num_envs = n
        self.everyone = np.arange(n)
        self.observation_space: gymnasium.Space[Any] = self._hosts[0].observation_space
        self.action_space: gymnasium.Space[Any] = self._hosts[0].action_space
        self._batched_actions = batch_space(self.action_space, n)
        self._shown: list[Any] = [None] * n

    @property
    def waiting(self) -> np.ndarray:
        """Environments that wait for an action, in order."""
        busy = set(self._under_way.values())
        return np.array([i for i in range(self.num_envs) if i not in busy], dtype=np.int64)

    def reset(self, *, seed: int | Sequence[int | None] | None = None, mask: np.ndarray | None = None) -> Observation:
        """Start new episodes, in all environments or where `mask` (bool `[N]`) is True; return every current observation.

        Answers that are under way are waited for and dropped. Seeds are as in `VectorEnvironments.reset`.
        """
        chosen = self.everyone if mask is None else np.flatnonzero(mask)
        under_way = [future for future, i in self._under_way.items() if i in set(chosen.tolist())]
        for future in under_way:
            try:
                self._result(future)
            except Exception:
                if future in self._under_way:  # it still steps: nothing else may be asked of it
                    raise
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        resets = {
            i: self._pool.submit(self._hosts[i].reset, seed=None if seeds is None else seeds[i])
            for i in chosen.tolist()
        }
        self._under_way.update({future: i for i, future in resets.items()})
        for i, future in resets.items():
            self._shown[i] = self._result(future)[0]
        return self._together(self._shown)

    def exchange(self, action: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, EnvironmentStep]:
        """Give `ids` their actions `[R, *act]`; (environments that answered, in order, their answers).

        Raises ReplayTimeoutError where none answers in time, ServiceUnavailableError where a process died, and what an
        environment raises.
        """
        for i, act in zip(ids.tolist(), action, strict=True):
            self._under_way[self._pool.submit(self._hosts[i].step, act)] = i
        answers = {self._under_way[future]: self._result(future) for future in self._answered()}
        who = np.array(sorted(answers), dtype=np.int64)
        rows = [answers[i] for i in who.tolist()]
        for i, row in zip(who.tolist(), rows, strict=True):
            self._shown[i] = row[0]
        step = EnvironmentStep(
            self._together([row[0] for row in rows]),
            np.array([row[1] for row in rows], dtype=np.float64),
            np.array([row[2] for row in rows], dtype=np.bool_),
            np.array([row[3] for row in rows], dtype=np.bool_),
            {"env_id": who},
        )
        return who, step

    def render(self) -> Any:
        """What the environments show, as their render modes say."""
        return [host.render() for host in self._hosts]

    def seed_actions(self, seed: int) -> None:
        """Make `sample_actions` repeatable."""
        self._batched_actions.seed(seed)

    def sample_actions(self) -> np.ndarray:
        """One action per environment `[N, *act]`, drawn from the action space."""
        return np.asarray(self._batched_actions.sample())

    def close(self) -> None:
        """Close the environments, after the steps that are under way; twice is fine."""
        hosts, self._hosts = self._hosts, []
        if self._under_way:
            wait(list(self._under_way), timeout=self._answer_timeout_s)
        stuck = {i for future, i in self._under_way.items() if not future.done()}
        self._under_way.clear()
        for i, host in enumerate(hosts):
            if i not in stuck:
                host.close()
            elif isinstance(host, _ProcessHost):
                host.kill()  # a thread cannot be stopped: its environment is left to it
        self._pool.shutdown(wait=not any(not isinstance(hosts[i], _ProcessHost) for i in stuck))

    def _answered(self) -> list[Future[Answer]]:
        """Steps that are done: `wait_num` of them, or all that there are."""
        wanted = min(self._wait_num, len(self._under_way))
        begun = time.monotonic()
        while True:
            done = [future for future in self._under_way if future.done()]
            patience = self._answer_timeout_s
            if self._timeout_s is not None and done:
                patience = self._timeout_s
            left_s = begun + patience - time.monotonic()
            if len(done) >= wanted or (left_s <= 0 and self._timeout_s is not None and done):
                return done
            if left_s <= 0:
                slow = sorted(i for future, i in self._under_way.items() if not future.done())
                raise ReplayTimeoutError(
                    f"answer_timeout_s ({self._answer_timeout_s}) must be enough for a step; got no answer from environments {slow}"
                )
            pending = [future for future in self._under_way if not future.done()]
            wait(pending, timeout=left_s, return_when=FIRST_COMPLETED)

    def _result(self, future: Future[Answer]) -> Answer:
        """The answer, which is then no longer under way; one that does not come in time still is."""
        i = self._under_way[future]
        wait([future], timeout=self._answer_timeout_s)
        if not future.done():
            raise ReplayTimeoutError(
                f"answer_timeout_s ({self._answer_timeout_s}) must be enough for a step; got no answer from environment {i}"
            )
        del self._under_way[future]
        answer: Answer = future.result()
        return answer

    def _together(self, observations: Sequence[Any]) -> Observation:
        space: Any = self.observation_space
        room: Any = create_empty_array(space, n=len(observations))
        return concatenate(space, observations, room)


class _ProcessHost:
    """One environment in a process of its own; its calls wait for the answer."""

    def __init__(self, make: Factory) -> None:
        # Not forked from this process, which may have threads (of torch, of Ray) that a fork would cut in half.
        context = multiprocessing.get_context("forkserver")
        # What every environment's process needs is imported once, by the server from which they are forked.
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, CloudpickleWrapper(make)), daemon=True)
        self._process.start()
        theirs.close()
        self.observation_space, self.action_space = self._call("spaces")

    def reset(self, *, seed: int | None) -> Any:
        return self._call("reset", seed)

    def step(self, action: Any) -> Any:
        return self._call("step", action)

    def render(self) -> Any:
        return self._call("render")

    def close(self) -> None:
        with contextlib.suppress(ServiceUnavailableError):  # it may be gone already
            self._call("close")
        self._process.join()
        self._pipe.close()

    def kill(self) -> None:
        """End the process in the middle of what it does; whoever waits for its answer is told."""
        self._process.kill()
        self._process.join()

    def _call(self, name: str, argument: Any = None) -> Any:
        try:
            self._pipe.send((name, argument))
            failed, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise ServiceUnavailableError(
                f"process of an environment (pid {self._process.pid}) must be alive; it is gone"
            ) from error
        if failed:
            raise answer
        return answer


def _serve(pipe: Connection, make: Any) -> None:
    """Answer calls until `close` or until the other end is gone."""
    environment: Any = None
    while True:
        try:
            name, argument = pipe.recv()
        except EOFError:
            return
        try:
            environment = environment if environment is not None else make()
            answer = _answer(environment, name, argument)
        except Exception as error:
            _tell(pipe, error)
        else:
            pipe.send((False, answer))
        if name == "close":
            return


def _tell(pipe: Connection, error: Exception) -> None:
    try:
        pipe.send((True, error))
    except Exception:  # one that can't be pickled
        pipe.send((True, ReplayError(f"environment failed: {type(error).__name__}: {error}")))


def _answer(environment: gymnasium.Env[Any, Any], name: str, argument: Any) -> Any:
    if name == "spaces":
        return environment.observation_space, environment.action_space
    if name == "reset":
        return environment.reset(seed=argument)
    if name == "step":
        return environment.step(argument)
    if name == "render":
        return environment.render()
    return environment.close()
