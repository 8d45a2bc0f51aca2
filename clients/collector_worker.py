"""Collectors as Ray actors, and the group of them that a main job drives.

The group asks each worker for one bounded `collect` after another, as far as the main job admits. So collectors never run
ahead of the learner without bound, each answer carries its statistics, and a worker that dies is an error of the next `poll`.
Every request says where the newest weights are, so a collect begins with those that were published before it was asked for, or newer ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from clients.collect_stats import CollectStats
from clients.collector import Collector, WeightSource
from clients.environments import make_environments
from clients.failures import failure_of
from clients.policy import Policy
from clients.weights import WeightsBox
from replay_service.errors import ClosedError, ReplayTimeoutError

__all__ = ["CollectorGroup", "CollectorRecipe", "CollectorWorker", "spread"]

DEFAULT_TIMEOUT_S = 60.0
WEIGHTS = "weights"
SEED_STRIDE = 10_000
"""Between the seeds of two workers; the environments of one take the seeds from there on."""


@dataclass(frozen=True)
class CollectorRecipe:
    """All that is needed to build a collector, here or in a worker; it can be pickled. Parameters not named: see `Collector`.

    policy: makes the policy, in the worker. env: Gymnasium id or factory, with env_options for `gymnasium.make`.
    num_envs: environments of each worker. buffer: a handle, or in one process a buffer. torch_threads: of a worker's process.
    """

    policy: Callable[[], Policy]
    env: str | Callable[[], gymnasium.Env[Any, Any]]
    num_envs: int
    buffer: Any
    env_options: dict[str, Any] = field(default_factory=dict)
    exploration_noise: bool = False
    steps_per_push: int | None = None
    extends_in_flight: int = 4
    worker: int = 0
    first_lane: int = 0
    record_version: bool = False
    seed: int | None = None
    torch_threads: int = 1

    def build(self, weights: WeightSource | None = None, policy: Policy | None = None) -> Collector:
        """The collector, with a source of newer weights; `policy` in the place of a new one. Raises what its parts raise."""
        return Collector(
            self.policy() if policy is None else policy,
            make_environments(self.env, self.num_envs, **self.env_options),
            self.buffer,
            exploration_noise=self.exploration_noise,
            steps_per_push=self.steps_per_push,
            extends_in_flight=self.extends_in_flight,
            worker=self.worker,
            first_lane=self.first_lane,
            weights=weights,
            record_version=self.record_version,
            seed=self.seed,
        )


class CollectorWorker:
    """What runs inside the actor: a `Collector` in the collecting state, built from a recipe.

    `offer` is called in a thread of its own (concurrency group `WEIGHTS`), so that weights arrive while `collect` runs.
    """

    def __init__(self, recipe: CollectorRecipe) -> None:
        torch.set_num_threads(recipe.torch_threads)
        self._box = WeightsBox()
        self._collector = recipe.build(self._box)
        self._collector.policy.train()

    def collect(self, limits: dict[str, int], random: bool, version: int, place: list[Any]) -> CollectStats:
        """As `Collector.collect`, with weights of `version` (as for `offer`) or newer ones; 0 for those of the policy itself."""
        if version:
            self._box.offer(version, place[0])
        return self._collector.collect(**limits, random=random)

    def reset_env(self) -> None:
        """As `Collector.reset_env`."""
        self._collector.reset_env()

    def offer(self, version: int, place: list[Any]) -> None:
        """As `WeightsBox.offer`; the reference is in a list, so that Ray passes it instead of what it refers to."""
        self._box.offer(version, place[0])


@dataclass
class _Call:
    worker: int
    steps: int  # rows that were asked for; 0 where episodes were
    started_s: float


class CollectorGroup:
    """Collector workers that share one buffer; whoever made the group closes it.

    recipes: one per worker, as `spread` makes them. steps_per_call: rows that one call collects (rounded up to whole
    steps of the worker's environments). remote_options: of the actors, as for `ray.remote`. timeout_s: a call that takes
    longer is an error (the first one includes the worker's start); it may be changed later.

    Raises ValueError for no recipes, equal worker numbers or numbers out of range.
    """

    def __init__(
        self,
        recipes: Sequence[CollectorRecipe],
        *,
        steps_per_call: int = 512,
        remote_options: dict[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        workers = [recipe.worker for recipe in recipes]
        if not recipes or len(set(workers)) < len(workers):
            raise ValueError(f"recipes (of workers {workers}) must be at least one, each of another worker number")
        if steps_per_call < 1:
            raise ValueError(f"steps_per_call ({steps_per_call}) must be at least 1; got {steps_per_call}")
        self.steps_per_call = steps_per_call
        self.env_steps = 0
        self.version = 0
        options = {"num_cpus": 1, **(remote_options or {}), "concurrency_groups": {WEIGHTS: 1}}
        actor = ray.remote(**options)(CollectorWorker)
        self._actors: list[Any] = [actor.remote(recipe) for recipe in recipes]
        self._numbers = workers
        self._steps_of = [0] * len(workers)
        self._proven = set[int]()
        self._num_cpus = options["num_cpus"]
        self.timeout_s = timeout_s
        self._calls: dict[Any, _Call] = {}  # ObjectRef of a collect -> whose; at most one per worker
        self._place: list[Any] = []  # of the newest weights

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def steps_under_way(self) -> int:
        """Rows that were asked for and are not reported yet."""
        return sum(call.steps for call in self._calls.values())

    @property
    def busy(self) -> bool:
        """Whether any worker collects."""
        return bool(self._calls)

    def admit(self, most_steps: int) -> None:
        """Let idle workers go on while fewer than `most_steps` rows were asked for in all; each adds one call's rows at most."""
        self._require_open()
        busy = {call.worker for call in self._calls.values()}
        idle = [index for index in range(len(self._actors)) if index not in busy]
        # Whoever has collected least comes first, so that a tight budget isn't spent by one worker.
        for index in sorted(idle, key=self._steps_of.__getitem__):
            if self.env_steps + self.steps_under_way >= most_steps:
                return
            self._ask(index, {"n_step": self.steps_per_call}, False)

    def ask_all(self, *, n_step: int | None = None, n_episode: int | None = None, random: bool = False) -> None:
        """Ask all workers for their shares of one collect, `n_step` rows (rounded up) or `n_episode` episodes.

        Raises RuntimeError while any of them collects.
        """
        self._require_open()
        if self._calls:
            raise RuntimeError(f"workers ({len(self)}) must be idle to be asked together; {len(self._calls)} collect")
        for index in range(len(self)):
            if n_step is not None:
                self._ask(index, {"n_step": -(-n_step // len(self))}, random)
            elif n_episode is not None and (share := (n_episode + len(self) - 1 - index) // len(self)):
                self._ask(index, {"n_episode": share}, random)

    def reset_env(self) -> None:
        """Start new episodes in all environments, after what is under way; waits for it."""
        resets = [actor.reset_env.remote() for actor in self._actors]
        for reference, number in zip(resets, self._numbers, strict=True):
            self._result(reference, number)

    def publish(self, weights: Mapping[str, Tensor]) -> int:
        """Tell all workers of newer acting weights, which each fetches after its next push; their version, counted from 1.

        They are stored once. Nothing is waited for: a worker that died shows at the next `poll`.
        """
        self.version += 1
        self._place = [ray.put(dict(weights))]
        for actor in self._actors:
            actor.offer.options(concurrency_group=WEIGHTS).remote(self.version, self._place)
        return self.version

    def poll(self, timeout_s: float = 0.0) -> list[CollectStats]:
        """Statistics of the calls that ended since; waits up to `timeout_s` seconds for the first one.

        Raises ServiceUnavailableError where a worker died, ReplayTimeoutError where a call takes longer than the group's
        `timeout_s`, and ReplayError where a worker's own code failed; each names the worker.
        """
        if not self._calls:
            return []
        ready, _ = ray.wait(list(self._calls), timeout=timeout_s)
        if ready:
            rest = [reference for reference in self._calls if reference not in ready]
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0] if rest else []
        reports = []
        for reference in ready:
            call = self._calls.pop(reference)
            stats: CollectStats = self._result(reference, self._numbers[call.worker])
            self._proven.add(call.worker)
            self.env_steps += stats.n_collected_steps
            self._steps_of[call.worker] += stats.n_collected_steps
            reports.append(stats)
        for call in self._calls.values():
            if time.monotonic() - call.started_s > self.timeout_s:
                raise ReplayTimeoutError(
                    f"timeout_s ({self.timeout_s}) must be enough for {call.steps or 'such'} steps; "
                    f"got no answer from collector {self._numbers[call.worker]}{self._unstarted(call.worker)}"
                )
        return reports

    def close(self) -> None:
        """Stop the workers at once, without waiting for what they are doing; twice is fine."""
        self._calls.clear()
        actors, self._actors = self._actors, []
        if ray.is_initialized():
            for actor in actors:
                ray.kill(actor)

    def _require_open(self) -> None:
        if not self._actors:
            raise ClosedError("collectors must be running; they were closed: start others")

    def _unstarted(self, index: int) -> str:
        """What else may be wrong with a worker that is late: one that never collected may wait for a processor."""
        if index in self._proven or not self._num_cpus:
            return ""
        free = cast(Callable[[], dict[str, float]], ray.available_resources)().get("CPU", 0.0)
        return (
            f", which has collected nothing yet: its actor needs num_cpus {self._num_cpus:g} of Ray, where {free:g} are free; "
            "give ray.init more, or the collectors less by remote_options"
        )

    def _ask(self, index: int, limits: dict[str, int], random: bool) -> None:
        reference = self._actors[index].collect.remote(limits, random, self.version, self._place)
        self._calls[reference] = _Call(index, limits.get("n_step", 0), time.monotonic())

    def _result(self, reference: Any, worker: int) -> Any:
        try:
            return ray.get(reference, timeout=self.timeout_s)
        except RayError as error:
            raise failure_of(f"collector {worker}", error, self.timeout_s) from error


def spread(recipe: CollectorRecipe, workers: int) -> list[CollectorRecipe]:
    """`recipe` for `workers` workers: numbered from its own number on, each with its own lanes, and seeds that are far apart."""
    return [
        replace(
            recipe,
            worker=recipe.worker + i,
            first_lane=recipe.first_lane + i * recipe.num_envs,
            seed=None if recipe.seed is None else recipe.seed + SEED_STRIDE * i,
        )
        for i in range(workers)
    ]
