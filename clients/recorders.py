"""What turns steps of environments into rows of a buffer: one recorder for each of the two layouts, and one for no buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space
from tensordict import TensorDict

from clients.environments import EnvironmentStep
from clients.outbox import Outbox
from clients.step_block import Path, StepBlock, leaves_of, nested
from clients.transitions import transition_leaves
from replay_service.episodic.batch import Batch

__all__ = ["EpisodeRecorder", "NoRecorder", "Recorder", "StepRows", "TransitionRecorder"]

NO_STARTS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class StepRows:
    """One step of environments `ids` (int `[R]`; None: of all, in order).

    observation: what they showed before, path -> `[R, …]`. action: `[R, …]`, to be stored. policy: what else the policy
    gave. info: of the step. traj_ids: int64 `[R]`. kept: bool `[R]`, whether the row is stored.
    """

    ids: np.ndarray | None
    observation: Mapping[Path, np.ndarray]
    action: np.ndarray
    policy: Mapping[Path, np.ndarray]
    step: EnvironmentStep
    info: Mapping[Path, np.ndarray]
    traj_ids: np.ndarray
    version: int
    kept: np.ndarray


class Recorder(Protocol):
    """Gathers steps and pushes them into a buffer."""

    @property
    def full(self) -> bool:
        """A push is due."""

    def put(self, rows: StepRows) -> None:
        """Gather one step."""

    def push(self) -> None:
        """Send what is gathered; it may still be on its way afterwards."""

    def drain(self) -> np.ndarray:
        """Wait until the buffer has everything; slots where the episodes that ended since the last drain start, if known."""

    def settle(self) -> None:
        """After a failure: send what is gathered and wait for all of it; the first error that is left, but only at the end."""

    def end_episodes(self, ids: np.ndarray) -> None:
        """The environments `ids` were reset in mid-episode: what is stored last of each becomes truncated."""

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer; with `keep_statistics`, totals of running episodes go on."""


class NoRecorder:
    """Stores nothing."""

    full = False

    def put(self, rows: StepRows) -> None:
        """Nothing."""

    def push(self) -> None:
        """Nothing."""

    def drain(self) -> np.ndarray:
        """No slots."""
        return NO_STARTS

    def settle(self) -> None:
        """Nothing."""

    def end_episodes(self, ids: np.ndarray) -> None:
        """Nothing."""

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Nothing."""


class TransitionRecorder:
    """Writes the layout of `clients.transitions` by `extend`, `steps` steps of `num_envs` environments per push."""

    def __init__(
        self,
        buffer: Any,
        spaces: tuple[Space[Any], Space[Any]],
        size: tuple[int, int],
        with_version: bool,
        in_flight: int,
    ) -> None:
        num_envs, steps = size
        self._buffer = buffer
        self._with_version = with_version
        self._block = StepBlock(num_envs, steps, transition_leaves(*spaces, with_version), by_lane=True)
        extend, submit = getattr(buffer, "extend", None), getattr(buffer, "submit_extend", None)
        self._outbox = Outbox(extend, submit, in_flight, self._landed)
        self._newest: dict[int, tuple[int, int]] = {}  # environment -> (slot, trajectory id) of its last stored row

    @property
    def full(self) -> bool:
        """A push is due."""
        return self._block.full

    def put(self, rows: StepRows) -> None:
        """Gather one step; what the policy and the environments gave besides isn't part of the layout."""
        step = rows.step
        values: dict[Path, np.ndarray] = {("observation", *path): leaf for path, leaf in rows.observation.items()}
        values["action",] = rows.action
        values.update(leaves_of(step.next_observation, ("next", "observation")))
        values["next", "reward"] = step.reward[:, None]
        values["next", "done"] = step.done[:, None]
        values["next", "terminated"] = step.terminated[:, None]
        values["next", "truncated"] = step.truncated[:, None]
        values["collector", "traj_ids"] = rows.traj_ids
        if self._with_version:
            values["policy_version",] = np.full(len(rows.traj_ids), rows.version)
        self._block.put(values, rows.ids, rows.kept)

    def push(self) -> None:
        """Send what is gathered."""
        if not len(self._block):
            return
        columns, lanes = self._block.take()
        if not len(lanes):
            return
        data = TensorDict({}, batch_size=[len(lanes)])
        for path, column in columns.items():
            data[path] = torch.from_numpy(column)
        self._outbox.send((lanes, columns["collector", "traj_ids"]), data)

    def drain(self) -> np.ndarray:
        """Wait until the buffer has everything. No slots: episodes of these buffers are known by their ids."""
        self._outbox.drain()
        return NO_STARTS

    def settle(self) -> None:
        """Send and wait for everything."""
        _settle(self.push, self._outbox)

    def end_episodes(self, ids: np.ndarray) -> None:
        """Rewrite the last rows; one that was overwritten meanwhile belongs to another trajectory and is left alone."""
        known = [self._newest.pop(int(i)) for i in ids if int(i) in self._newest]
        if not known:
            return
        slots = torch.tensor([slot for slot, _ in known], device="cpu")
        rows = self._buffer[slots]
        own = rows["collector", "traj_ids"] == torch.tensor([trajectory for _, trajectory in known], device="cpu")
        own &= ~rows["next", "done"].reshape(own.shape)  # an episode that is over stays what it is
        if own.any():
            rows = rows[own].clone()
            for name in ("done", "truncated"):
                rows["next", name] = torch.ones_like(rows["next", name])
            self._buffer[slots[own]] = rows

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer. Raises TypeError for one that only its owner may empty."""
        empty = getattr(self._buffer, "empty", None)
        if empty is None:
            raise TypeError(f"buffer ({type(self._buffer).__name__}) must have empty() to be emptied by a collector")
        empty()
        self._newest.clear()

    def _landed(self, answer: Any, note: tuple[np.ndarray, np.ndarray]) -> None:
        """Remember the slot of the last row of each environment."""
        lanes, trajectories = note
        slots = np.asarray(answer)
        if slots.shape != lanes.shape:  # a writer that keeps only some rows, or slots with several coordinates
            self._newest.clear()
            return
        last = np.flatnonzero(np.append(lanes[1:] != lanes[:-1], True))
        for row in last.tolist():
            self._newest[int(lanes[row])] = (int(slots[row]), int(trajectories[row]))


class EpisodeRecorder:
    """Writes the keys of episodic buffers by `add`: obs, act, rew, terminated, truncated, obs_next, and info and policy if any.

    first_lane: environment i writes lane `first_lane + i`. on_step: called with the rows of every step that are going to be
    stored, as a Batch; columns that it returns are stored with them. on_episode: called with (slots of its steps in order) for
    every episode that ended, as soon as the buffer has it.
    """

    def __init__(
        self,
        buffer: Any,
        size: tuple[int, int],
        in_flight: int,
        first_lane: int = 0,
        *,
        on_step: Callable[[Batch], Mapping[str, Any] | None] | None = None,
        on_episode: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        num_envs, steps = size
        lanes = getattr(buffer, "buffer_num", 1)
        if first_lane + num_envs > lanes:
            raise ValueError(
                f"env ({num_envs} environments, from lane {first_lane} on) must have a lane of the buffer each; the buffer "
                f"has {lanes}. Use VectorReplayBuffer(total_size, buffer_num={first_lane + num_envs})"
            )
        self._buffer = buffer
        self._first_lane = first_lane
        self._on_step = on_step
        self._on_episode = on_episode
        self._block = StepBlock(num_envs, steps, {}, by_lane=False)
        self._outbox = Outbox(buffer.add, getattr(buffer, "submit_add", None), in_flight, self._landed)
        self._starts: list[int] = []
        self._taken_layout: dict[Path, Any] = {}  # of columns that the buffer has taken

    @property
    def full(self) -> bool:
        """A push is due."""
        return self._block.full

    def put(self, rows: StepRows) -> None:
        """Gather one step."""
        step = rows.step
        values: dict[Path, np.ndarray] = {("obs", *path): leaf for path, leaf in rows.observation.items()}
        values["act",] = rows.action
        values["rew",] = step.reward
        values["terminated",] = step.terminated
        values["truncated",] = step.truncated
        values.update(leaves_of(step.next_observation, ("obs_next",)))
        values.update({("info", *path): leaf for path, leaf in rows.info.items()})
        values.update({("policy", *path): leaf for path, leaf in rows.policy.items()})
        ids, kept = rows.ids, rows.kept
        if self._on_step is not None:
            ids = np.flatnonzero(kept) if ids is None else ids[kept]
            if not len(ids):
                return
            values = self._told({path: leaf[kept] for path, leaf in values.items()}, len(ids))
            kept = np.ones(len(ids), np.bool_)
        if not self._block.fits(values):
            self.push()
        self._block.put(values, ids, kept)

    def _told(self, values: dict[Path, np.ndarray], count: int) -> dict[Path, np.ndarray]:
        """The columns `[count]` and those that the hook returns for them."""
        assert self._on_step is not None
        added = leaves_of(self._on_step(Batch(nested(values))) or {})
        for path, leaf in added.items():
            if leaf.shape[:1] != (count,):
                raise ValueError(
                    f"{'.'.join(path)} ({list(leaf.shape)}) of on_step must have one row for each of {count} steps"
                )
        return {**values, **added}

    def push(self) -> None:
        """Send what is gathered."""
        if not len(self._block):
            return
        columns, lanes = self._block.take()
        if len(lanes):
            over = columns["terminated",] | columns["truncated",]
            self._outbox.send(over, Batch(nested(columns)), buffer_ids=lanes + self._first_lane)
            layout = {path: (column.shape[1:], column.dtype) for path, column in columns.items()}
            if layout != self._taken_layout:
                # A buffer may refuse it; and if others were on their way behind it, they would seem to be the next steps.
                self._outbox.drain()
                self._taken_layout = layout

    def drain(self) -> np.ndarray:
        """Wait until the buffer has everything; where each episode that ended starts."""
        self._outbox.drain()
        starts, self._starts = self._starts, []
        return np.asarray(starts, dtype=np.int64)

    def settle(self) -> None:
        """Send and wait for everything."""
        _settle(self.push, self._outbox)
        self._starts = []

    def end_episodes(self, ids: np.ndarray) -> None:
        """Cut the episodes off in the buffer."""
        if len(ids):
            self._buffer.end_episodes(ids + self._first_lane)

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        self._buffer.reset(keep_statistics=keep_statistics)

    def _landed(self, answer: Any, over: np.ndarray) -> None:
        """Note where episodes start that ended in this push."""
        if not over.any():
            return
        ptr, _, ep_len, ep_idx = (np.asarray(column)[over] for column in answer)
        self._starts += ep_idx.tolist()
        if self._on_episode is None:
            return
        for start, last, length in zip(ep_idx.tolist(), ptr.tolist(), ep_len.tolist(), strict=True):
            slots = self._buffer.get_buffer_indices(start, last + 1)
            if len(slots) != length:
                raise ValueError(
                    f"episode ({length} steps) must fit in its lane of the buffer for on_episode_done; got {len(slots)} steps of it"
                )
            self._on_episode(slots)


def _settle(push: Callable[[], None], outbox: Outbox) -> None:
    """Until nothing is left; then raises the first error that was met."""
    failures: list[Exception] = []
    for action in (push, outbox.drain):
        done = False
        while not done:
            try:
                action()
                done = True
            except Exception as error:
                failures.append(error)  # what failed is not kept: the next try meets what comes behind it
    if failures:
        raise failures[0]
