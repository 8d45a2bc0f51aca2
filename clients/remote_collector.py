"""One setting for where collecting happens: in this process, or in Ray actors behind the same calls."""

from __future__ import annotations

import time
from typing import Any

from clients.collect_stats import CollectStats
from clients.collector import Collector
from clients.collector_worker import CollectorGroup, CollectorRecipe, spread
from clients.policy import Policy

__all__ = ["RemoteCollector", "start_collector"]

POLL_S = 0.05


class RemoteCollector:
    """Collectors in Ray actors with the calls of one `Collector`, as trainers use them; whoever made it closes it.

    group: the workers, which share one buffer. policy: the learner's; its acting weights are published before every collect.
    buffer: what the learner reads. lead_steps: rows that the workers may be ahead of what was asked for, while the learner
    learns; with 0 they collect only when asked, with the weights of that moment, as on-policy learning needs it.
    Raises ValueError for negative lead_steps.
    """

    def __init__(self, group: CollectorGroup, policy: Policy, buffer: Any, *, lead_steps: int = 0) -> None:
        if lead_steps < 0:
            raise ValueError(f"lead_steps ({lead_steps}) must be at least 0; got {lead_steps}")
        self.group = group
        self.policy = policy
        self.buffer = buffer
        self._lead_steps = lead_steps
        self.reset_stat()

    def collect(
        self, n_step: int | None = None, n_episode: int | None = None, random: bool = False, render: float | None = None
    ) -> CollectStats:
        """At least `n_step` rows or at least `n_episode` episodes; rows that were collected ahead are part of it.

        Raises ValueError unless exactly one limit of at least 1 is given, or for `render` (workers have no screen), and what
        `CollectorGroup.poll` raises.
        """
        if (n_step is None) == (n_episode is None) or (n_step or n_episode or 0) < 1:
            raise ValueError(
                f"n_step ({n_step}) and n_episode ({n_episode}) must be given one at a time, and at least 1"
            )
        if render is not None:
            raise ValueError(f"render ({render}) must be None for collectors in other processes; got {render}")
        begun = time.monotonic()
        self.group.publish(self.policy.weights())
        if n_step is not None and self._lead_steps and not random:
            parts = self._collect_ahead(n_step)
        else:
            parts = self._finish()
            self.group.ask_all(n_step=n_step, n_episode=n_episode, random=random)
            parts += self._finish()
        stats = CollectStats.together(parts, time.monotonic() - begun)
        self.collect_step += stats.n_collected_steps
        self.collect_episode += stats.n_collected_episodes
        self.collect_time += stats.collect_time_s
        return stats

    def reset(self, reset_buffer: bool = True) -> None:
        """Start everything anew: environments, totals and, unless told otherwise, the buffer."""
        if reset_buffer:
            self.reset_buffer()
        self.reset_env()
        self.reset_stat()

    def reset_env(self) -> None:
        """Start a new episode in every environment, once what is under way is done; its rows stay in the buffer."""
        self._finish()
        self.group.reset_env()

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer, once what is under way is done. Raises TypeError for a buffer that only its owner may empty."""
        self._finish()
        if hasattr(self.buffer, "reset"):
            self.buffer.reset(keep_statistics=keep_statistics)
        elif hasattr(self.buffer, "empty"):
            self.buffer.empty()
        else:
            raise TypeError(
                f"buffer ({type(self.buffer).__name__}) must have reset() or empty() to be emptied by a collector"
            )

    def reset_stat(self) -> None:
        """Set `collect_step`, `collect_episode` and `collect_time` (seconds waited for) back to 0."""
        self.collect_step, self.collect_episode, self.collect_time = 0, 0, 0.0

    def close(self) -> None:
        """Stop the workers; twice is fine. The buffer stays as it is."""
        self.group.close()

    def _collect_ahead(self, n_step: int) -> list[CollectStats]:
        """What is there already, and what is missing of `n_step`; the workers go on afterwards."""
        target = self.group.env_steps + n_step
        parts = self.group.poll()
        while self.group.env_steps < target:
            self.group.admit(target + self._lead_steps)
            parts += self.group.poll(POLL_S)
        self.group.admit(target + self._lead_steps)
        return parts

    def _finish(self) -> list[CollectStats]:
        """Wait until no worker collects; what they report."""
        parts: list[CollectStats] = []
        while self.group.busy:
            parts += self.group.poll(POLL_S)
        return parts


def start_collector(
    recipe: CollectorRecipe,
    policy: Policy,
    *,
    processes: int = 0,
    buffer: Any = None,
    lead_steps: int = 0,
    steps_per_call: int = 512,
    remote_options: dict[str, Any] | None = None,
) -> Collector | RemoteCollector:
    """A collector for `policy`: in this process (`processes` 0), or in so many Ray actors; everything else is the same.

    recipe: what to build; its `buffer` is what the collectors write. policy: what learns; in one process it also acts.
    buffer: what the learner reads, where that is another handle. The rest is of `RemoteCollector` and `CollectorGroup`.
    Raises ValueError for a negative number of processes, and what the parts raise.
    """
    if processes < 0:
        raise ValueError(f"processes ({processes}) must be at least 0 (0: in this process); got {processes}")
    if processes == 0:
        return recipe.build(policy=policy)
    group = CollectorGroup(spread(recipe, processes), steps_per_call=steps_per_call, remote_options=remote_options)
    return RemoteCollector(group, policy, recipe.buffer if buffer is None else buffer, lead_steps=lead_steps)
