"""What several buffers that are seen as one do as a whole: states, counts, queries, and what they leave to each buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from tensordict import TensorDictBase

from replay_service.buffer.ensemble.joining import concatenated
from replay_service.buffer.ensemble.loading import load_each
from replay_service.buffer.prefetching import Prefetching
from replay_service.buffer.query import TrajectoryPredicate
from replay_service.buffer.querying import Querying
from replay_service.buffer.record_access import RecordAccess
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.ensemble import SamplerEnsemble
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.ensemble import StorageEnsemble
from replay_service.buffer.trajectories import Matches
from replay_service.buffer.trajectory import Trajectory
from replay_service.buffer.writers.base import Writer
from replay_service.buffer.writers.ensemble import WriterEnsemble

__all__ = ["MemberStates"]

Self = TypeVar("Self", bound="MemberStates")


class MemberStates(RecordAccess, Querying, Prefetching):
    """The calls of a buffer that concern all members, or none of them in particular."""

    members: tuple[Any, ...]
    _names: tuple[str, ...]
    _seeds_members: bool

    def empty(self, empty_write_count: bool = True) -> None:
        """Forgets the records of all buffers.

        Raises:
            RuntimeError: one of them is a fixed data set. Nothing was forgotten.
        """
        with self.lock:
            self._writer.require_writable()
            for member in self.members:
                member.empty(empty_write_count)
            self._drop_ahead()

    def query(
        self,
        predicate: TrajectoryPredicate | Callable[[Trajectory], Any] | None = None,
        *,
        trajectory_key: str | tuple[str, ...] | None = None,
        timeout: float | None = None,
    ) -> list[Trajectory]:
        """The trajectories of all buffers, one after the other, for which `predicate` is true; as `ReplayBuffer.query`."""
        with self.lock:
            found = [member.query(predicate, trajectory_key=trajectory_key) for member in self.members]
        return [trajectory for trajectories in found for trajectory in trajectories]

    def matches(
        self,
        predicate: TrajectoryPredicate | Callable[[Trajectory], Any] | None = None,
        *,
        trajectory_key: str | tuple[str, ...] | None = None,
    ) -> Matches:
        """As `query`, in one piece.

        Raises:
            LayoutError: the trajectories of two buffers have different entries.
        """
        with self.lock:
            found = [member.matches(predicate, trajectory_key=trajectory_key) for member in self.members]
        kept = [(name, each) for name, each in zip(self._names, found, strict=True) if each.lengths]
        if not kept:
            return Matches(found[0].steps, [])
        steps: TensorDictBase = concatenated([each.steps for _, each in kept], [name for name, _ in kept])
        return Matches(steps, [length for _, each in kept for length in each.lengths])

    def set_rng(self, generator: torch.Generator) -> None:
        """Makes `generator` the source of all random numbers here and in every buffer.

        Raises:
            TypeError: it is no `torch.Generator`.
        """
        super().set_rng(generator)
        if self._seeds_members:
            for member in self.members:
                member.set_rng(generator)

    def share(self: Self, shared: bool = True) -> Self:
        """As `ReplayBuffer.share`, for every buffer; which of them are drawn from stays each process's own matter."""
        for member in self.members:
            member.share(shared)
        self._shared = self._shared or bool(shared)  # so that counts are brought up to date
        return self

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next draws and writes depend on, of all buffers."""
        with self.lock:
            self._parts_of_members()
            generators = {str(i): _state_of(member.storage.generator) for i, member in enumerate(self.members)}
            return {**super().state_dict(), "generators": generators}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy; the parts, `batch_size` and `p` stay this buffer's own.

        Raises:
            KeyError: a part of the state is missing. Nothing was loaded.
            LayoutError, ValueError: a saved part does not fit. Nothing was loaded.
        """
        storage, sampler, writer = (state_dict[part] for part in ("storage", "sampler", "writer"))
        generators = state_dict.get("generators", {})
        saved = sum(name.isdigit() for name in writer)
        if saved > len(self.members):
            raise ValueError(f"state ({saved} buffers) must be that of {len(self.members)} buffers")
        is_call = callable(storage)  # records on their way out of a checkpoint, of all buffers at once
        states = {
            name: {
                "storage": _nothing if is_call else storage[name],
                "sampler": sampler[name],
                "writer": writer[name],
                "generator": generators.get(name),
            }
            for name in map(str, range(len(self.members)))
        }
        with self.lock:
            self._parts_of_members()
            if is_call:
                storage()
                for name, member in enumerate(self.members):
                    member.load_state_dict(states[str(name)])
            else:
                load_each(self.members, states)
            self._take_own_state(state_dict)
            self._drop_ahead()
            self._restore_ahead(state_dict.get("drawn_ahead"))

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """As `ReplayBuffer.stats` of all buffers together, and `num_buffers`."""
        return {**super().stats(), "num_buffers": len(self.members)}

    def __getstate__(self) -> dict[str, Any]:
        is_one = all(member.storage.generator is self._storage.generator for member in self.members)
        return {**super().__getstate__(), "_has_one_generator": is_one}

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_one = state["_has_one_generator"]
        super().__setstate__({name: value for name, value in state.items() if name != "_has_one_generator"})
        if is_one and self._storage.generator is not None:
            self.set_rng(self._storage.generator)  # each storage has made a copy of its own

    def _take_own_state(self, state_dict: dict[str, Any]) -> None:
        """Takes over what no member holds."""
        generator, saved = self._storage.generator, state_dict.get("generator")
        if generator is not None and saved is not None:
            generator.set_state(saved)

    def _parts_of_members(self) -> tuple[StorageEnsemble, SamplerEnsemble]:
        """The storages and samplers.

        Raises:
            RuntimeError: a buffer has another storage, sampler or writer than when this one was made of it.
        """
        storage, sampler, writer = self._storage, self._sampler, self._writer
        if not (
            isinstance(storage, StorageEnsemble)
            and isinstance(sampler, SamplerEnsemble)
            and isinstance(writer, WriterEnsemble)
        ):
            raise RuntimeError(f"{type(self).__name__} must keep the parts that it was made of")
        for name, member, *kept in zip(
            self._names, self.members, storage.storages, sampler.samplers, writer.writers, strict=True
        ):
            if any(
                now is not then for now, then in zip((member.storage, member.sampler, member.writer), kept, strict=True)
            ):
                raise RuntimeError(
                    f"{name} must keep the parts that it had when the ensemble was made of it; make a new one"
                )
        return storage, sampler

    def _tell_stored(self, *parts: Any) -> None:
        """Nothing: what the storages hold, each buffer has told its own parts."""

    # -- what each buffer does for itself ---------------------------------------------------------------------------

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> NoReturn:
        """Refuses."""
        self._refuse("set_storage")

    def set_writer(self, writer: Writer) -> NoReturn:
        """Refuses."""
        self._refuse("set_writer")

    def set_sampler(self, sampler: Sampler) -> NoReturn:
        """Refuses."""
        self._refuse("set_sampler")

    def read_all_in_order(self, end: int | None = None, *, timeout: float | None = None) -> NoReturn:
        """Refuses."""
        self._refuse("read_all_in_order")

    def write_all(self, data: Any, end: int | None = None, *, timeout: float | None = None) -> NoReturn:
        """Refuses."""
        self._refuse("write_all")

    def set_at_(self, key: Any, value: Any, index: Any) -> NoReturn:
        """Refuses."""
        self._refuse("set_at_")

    def set_(self, key: Any, value: Any) -> NoReturn:
        """Refuses."""
        self._refuse("set_")

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Sequence[Any] | None = None
    ) -> Any:
        """Refuses."""
        self._refuse("update_")

    def _refuse(self, call: str) -> NoReturn:
        raise TypeError(f"{call} must be asked of one of the buffers: {self._names[0]}.{call}(…)")


def _state_of(generator: torch.Generator | None) -> Any:
    return None if generator is None else generator.get_state()


def _nothing() -> None:
    """Loads no records: they are loaded already."""
