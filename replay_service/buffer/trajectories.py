"""From a batch of steps to its trajectories, and to those of them that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from replay_service.buffer.evaluation import truth_of
from replay_service.buffer.query import TrajectoryPredicate, as_predicate
from replay_service.buffer.steps import Steps
from replay_service.buffer.trajectory import Trajectory

__all__ = ["Matches", "Trajectory", "filter_trajectories", "iter_trajectories", "matches_in"]


@dataclass(frozen=True, slots=True)
class Matches:
    """Trajectories before they are handed out one by one.

    Attributes:
        steps: the steps of all of them `[total]`, one trajectory after the other.
        lengths: how many steps each has.
    """

    steps: TensorDictBase
    lengths: list[int]

    def split(self) -> list[Trajectory]:
        """The trajectories, as views of `steps`."""
        return list(Trajectory(self.steps).split(self.lengths)) if self.lengths else []


def matches_in(steps: Steps, predicate: TrajectoryPredicate | None) -> Matches:
    """Copies of the trajectories for which `predicate` is true: lane after lane, the oldest first."""
    segments = steps.segments
    wanted = np.ones(len(segments), np.bool_) if predicate is None else truth_of(predicate.node, steps)
    chosen = segments.in_order(wanted)
    return Matches(steps.copies(chosen), segments.length[chosen].tolist())


def iter_trajectories(data: Any, trajectory_key: str | tuple[str, ...] | None = None) -> Iterator[Trajectory]:
    """Cuts a batch of steps into its trajectories.

    Args:
        data: TensorDict `[T]`, steps in the order in which they were made, one trajectory after the other.
        trajectory_key: the entry with the trajectory ids. None: `("collector", "traj_ids")`, `traj_ids` or `episode`, else the end
            flags `done`, `terminated` and `truncated` under `next`, any of which ends a trajectory; the last step does in any case.

    Yields:
        each trajectory, as a view of `data`.

    Raises:
        KeyError: `trajectory_key` is no entry, or nothing marks trajectories.
        TypeError: `data` has no named entries.
        ValueError: `data` has another number of batch dimensions than one.
    """
    steps = Steps.of_batch(data, trajectory_key)
    return iter(()) if steps is None else map(steps.trajectory, range(len(steps.segments)))


def filter_trajectories(
    data: Any,
    predicate: TrajectoryPredicate | Callable[[Trajectory], Any] | None = None,
    *,
    trajectory_key: str | tuple[str, ...] | None = None,
) -> list[Trajectory]:
    """The trajectories of a batch of steps for which `predicate` is true (all for None), as views of `data`.

    Arguments and errors as those of `iter_trajectories`, and further:

    Raises:
        KeyError: `predicate` reads an entry that `data` has not; what it has is listed.
        TypeError: `predicate` is not true or false of a trajectory.
    """
    asked = as_predicate(predicate)
    steps = Steps.of_batch(data, trajectory_key)
    if steps is None:
        return []
    wanted = range(len(steps.segments)) if asked is None else np.flatnonzero(truth_of(asked.node, steps)).tolist()
    return [steps.trajectory(place) for place in wanted]
