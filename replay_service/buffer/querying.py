"""The call of a buffer that asks for whole trajectories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDict, TensorDictBase

from replay_service.buffer.markers import segments_of
from replay_service.buffer.parts import BufferParts
from replay_service.buffer.query import TrajectoryPredicate, as_predicate
from replay_service.buffer.steps import Steps
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.list import stacked
from replay_service.buffer.trajectories import Matches, matches_in
from replay_service.buffer.trajectory import Trajectory, as_steps
from replay_service.structure import build

__all__ = ["Querying"]


class Querying(BufferParts):
    """Regroups stored steps into trajectories and gives those that are wanted."""

    def query(
        self,
        predicate: TrajectoryPredicate | Callable[[Trajectory], Any] | None = None,
        *,
        trajectory_key: str | tuple[str, ...] | None = None,
        timeout: float | None = None,
    ) -> list[Trajectory]:
        """The stored trajectories for which `predicate` is true: lane after lane, the oldest first, as copies.

        Trajectories begin and end where slice samplers see them begin and end, also in a ring that has wrapped around: the newest step
        ends its trajectory, and one of which the first steps are overwritten begins with its oldest stored one. Steps are given as they are
        stored: transforms are not run.

        Args:
            predicate: made of `traj`, and then each column it reads is read once; or any function of a `Trajectory`, which is asked of
                one after the other, under the buffer's lock, and sees the storage's own memory. None: all.
            trajectory_key: as for `iter_trajectories`.
            timeout: accepted as by hosted buffers; nothing here waits.

        Raises:
            KeyError: `predicate` or `trajectory_key` names an entry that is not stored, or nothing marks trajectories.
            TypeError: `predicate` is not true or false of a trajectory, or records have no named entries.
            ValueError: entries that cannot be compared as `predicate` does.
        """
        return self.matches(predicate, trajectory_key=trajectory_key).split()

    def matches(
        self,
        predicate: TrajectoryPredicate | Callable[[Trajectory], Any] | None = None,
        *,
        trajectory_key: str | tuple[str, ...] | None = None,
    ) -> Matches:
        """As `query`, in one piece: all steps and the lengths of the trajectories."""
        asked = as_predicate(predicate)
        with self.lock:
            storage = self._storage
            if not storage.filled:
                return Matches(TensorDict(batch_size=[0]), [])
            data = _stored_steps(storage)
            # Only a writer that goes around a ring has a cursor, and only then does slot 0 follow the last one.
            cursor = getattr(self._writer, "cursor", None)
            at_capacity = cursor is not None and storage.filled == storage.slots
            segments = segments_of(data, trajectory_key, at_capacity=at_capacity, cursor=cursor)
            return matches_in(Steps(data, segments), asked)


def _stored_steps(storage: Storage) -> TensorDictBase:
    """The filled slots `[T, *lanes]` of a storage; of columns as views, else as copies."""
    leaves, spec = storage.leaves(), storage.spec()
    if leaves is None or spec is None:
        records = storage.get(slice(None))
        return as_steps(records if storage.columnar else stacked(records))
    filled = storage.filled
    return as_steps(build(spec, [storage.column(leaf.key)[:filled] for leaf in leaves], (filled, *storage.shape[1:])))
