"""The main job: collectors, a Ray-owned buffer and a double-DQN learner, until the environment is solved.

With 0 collectors it is the same job in one process, without Ray.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import ray
import torch
from rich.console import Console

from clients.collector_worker import CollectorRecipe
from clients.environments import registered
from clients.policies.dqn import DQNPolicy, EpsilonSchedule
from clients.remote_collector import start_collector
from deploy.curves import LearningCurve, RunFolder
from deploy.errors import ConfigError
from deploy.interruption import Interruption
from deploy.progress import Screen
from deploy.training import EPISODES_PER_EVALUATION, SEED_LIMIT, Evaluation, Parts, Training
from replay_service import LazyTensorStorage, TensorDictReplayBuffer

__all__ = ["DemoOptions", "run_demo"]

SOLVED, NOT_SOLVED, INTERRUPTED = 0, 1, 130

CAPACITY = 100_000
BATCH_SIZE = 128
ENVS_PER_COLLECTOR = 8
STEPS_PER_CALL = 512
LEAD_STEPS = 1024
WARMUP_STEPS = 1000
UPDATES_PER_STEP = 1 / 8
OBJECT_STORE_BYTES = 200_000_000
EXPLORATION = EpsilonSchedule(start=1.0, end=0.05, steps=10_000)


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo. Raises ConfigError for one that cannot work.

    seed: of everything. minutes: give up after so many. env: Gymnasium id with discrete actions and a reward threshold.
    collectors: collecting processes; 0 for everything in this one. runs: folder in which the run gets a folder.
    """

    seed: int = 0
    minutes: float = 5.0
    env: str = "CartPole-v1"
    collectors: int = 2
    runs: Path = Path("runs")

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEED_LIMIT // 2:
            raise ConfigError(f"seed ({self.seed}) must be at least 0 and below {SEED_LIMIT // 2}; got {self.seed}")
        if not self.minutes > 0:
            raise ConfigError(f"minutes ({self.minutes}) must be above 0; got {self.minutes}")
        if self.collectors < 0:
            raise ConfigError(f"collectors ({self.collectors}) must be at least 0; got {self.collectors}")

    def threshold(self) -> float:
        """The mean return that counts as solved; raises ConfigError for an environment without one."""
        try:
            known = registered(self.env).reward_threshold
        except (gymnasium.error.Error, ImportError) as error:
            raise ConfigError(f"env ({self.env!r}) must be an id registered with Gymnasium; got: {error}") from error
        if known is None:
            raise ConfigError(f"env ({self.env!r}) must have a reward threshold, or it is never solved; it has none")
        return known

    def policy(self) -> partial[DQNPolicy]:
        """What makes the policy, in any process; raises ConfigError for spaces that don't fit it."""
        with gymnasium.make(self.env) as one:
            recipe = partial(DQNPolicy.for_spaces, one.observation_space, one.action_space)
        try:
            recipe()
        except TypeError as error:
            raise ConfigError(f"env ({self.env!r}) must suit the policy; {error}") from error
        return recipe


def run_demo(
    *,
    seed: int = 0,
    minutes: float = 5.0,
    env: str = "CartPole-v1",
    collectors: int = 2,
    runs: Path = Path("runs"),
) -> int:
    """Train until the environment is solved; the exit code: 0 solved, 1 not solved in time, 130 interrupted.

    Starts Ray (unless this process has joined one), the service, the collectors and the learner, and stops what it started;
    with 0 collectors, nothing but the learner, which then collects itself.
    Raises ConfigError for options that cannot work, and the library's errors where one of the processes fails.
    """
    started_s = time.monotonic()
    options = DemoOptions(seed=seed, minutes=minutes, env=env, collectors=collectors, runs=runs)
    threshold, policy = options.threshold(), options.policy()
    limit_s = options.minutes * 60
    solved = False
    training: Training | None = None
    with Interruption() as interruption, RunFolder(options.runs) as folder:
        try:
            with ExitStack() as stack, Screen(Console(), limit_s) as screen:
                if options.collectors:
                    screen.say(f"Starting Ray, the buffer and {options.collectors} collectors on {options.env} …")
                parts = _started(options, policy, interruption, stack)
                if parts is not None:
                    place = "on Ray" if options.collectors else "in one process"
                    curve = LearningCurve(f"{options.env}: double DQN through a buffer {place}", threshold)
                    training = Training(
                        parts, folder, curve, screen, seed=options.seed, started_s=started_s, limit_s=limit_s
                    )
                    solved = training.run(interruption)
        except Exception:
            # What breaks while everything is being stopped is a consequence of that, not news.
            if not interruption.requested:
                raise
        if interruption.requested and not solved:
            print("Interrupted. Everything that was started is stopped.", file=sys.stderr)
            return INTERRUPTED
        assert training is not None
        print(_verdict(options, training, threshold, folder), file=sys.stdout if solved else sys.stderr)
    return SOLVED if solved else NOT_SOLVED


def _verdict(options: DemoOptions, training: Training, threshold: float, folder: RunFolder) -> str:
    totals = training.throughput()
    if training.proven is None:
        best = "none was measured" if training.best_return is None else f"the best was {training.best_return:.1f}"
        return (
            f"Not solved: {options.env} needs a greedy mean return of {threshold:g} within {options.minutes:g} minutes; "
            f"{best} ({totals['env_steps']:,} env steps, see {folder.path})"
        )
    return (
        f"Solved: {options.env}, greedy mean return {training.proven:.1f} over {EPISODES_PER_EVALUATION} episodes with "
        f"unseen seeds (needs {threshold:g}), after {totals['elapsed_s']:.0f} s.\n"
        f"Throughput: {totals['env_steps']:,} env steps ({totals['env_steps_per_s']:,.0f}/s), {totals['updates']:,} "
        f"gradient steps of {BATCH_SIZE} ({totals['updates_per_s']:,.0f}/s).\n"
        f"Written: {folder.path}/learning_curve.png, metrics.jsonl, policy.pt"
    )


def _started(
    options: DemoOptions, policy: partial[DQNPolicy], interruption: Interruption, stack: ExitStack
) -> Parts | None:
    """Start everything, leaving its end on `stack`; None if interrupted meanwhile."""
    stack.enter_context(_one_torch_thread())
    if options.collectors:
        stack.enter_context(_ray(options.collectors))
        interruption.take()  # Ray has put a handler of its own in the place of one of ours
        if interruption.requested:
            return None
    # Any: a local buffer, or handles on a hosted one; what uses them needn't know.
    written, read = _buffers(options, stack)
    learner_policy = policy(seed=options.seed)
    recipe = CollectorRecipe(
        policy=partial(policy, seed=options.seed),
        env=options.env,
        num_envs=ENVS_PER_COLLECTOR,
        buffer=written,
        record_version=True,
        seed=options.seed,
    )
    collector = start_collector(
        recipe,
        learner_policy,
        processes=options.collectors,
        buffer=read,
        lead_steps=LEAD_STEPS,
        steps_per_call=STEPS_PER_CALL,
    )
    stack.callback(collector.close)
    evaluation = Evaluation(options.env, learner_policy)
    stack.callback(evaluation.close)
    return Parts(
        buffer=read,
        collector=collector,
        policy=learner_policy,
        evaluation=evaluation,
        exploration=EXPLORATION,
        warmup_steps=WARMUP_STEPS,
        updates_per_step=UPDATES_PER_STEP,
        batch_size=BATCH_SIZE,
    )


def _buffers(options: DemoOptions, stack: ExitStack) -> tuple[Any, Any]:
    """What the collectors write and what the learner reads: two handles on one service, or twice the same local buffer."""
    generator = torch.Generator().manual_seed(options.seed)
    if not options.collectors:
        local = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH_SIZE, generator=generator)
        return local, local
    # Any: with this backend the constructor gives the owner of a hosted buffer.
    owner: Any = TensorDictReplayBuffer(
        storage=partial(LazyTensorStorage, CAPACITY),
        batch_size=BATCH_SIZE,
        generator=generator,
        service_backend="ray",
        service_backend_options={"name": f"demo-{os.getpid()}", "remote_config": {"num_cpus": 1}},
    )
    stack.enter_context(owner)
    return owner.client(), stack.enter_context(owner.client())


@contextmanager
def _ray(collectors: int) -> Iterator[None]:
    """Ray in this process's own embedded cluster; one that this process has joined before is used and left as it is."""
    if ray.is_initialized():
        yield
        return
    ray.init(
        address="local",
        # What the actors ask for; there may be fewer cores, which they then share.
        num_cpus=collectors + 1,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """One core for the learner: threads that spin for a small network would take the collectors' cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
