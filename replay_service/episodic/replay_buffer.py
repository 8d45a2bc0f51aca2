"""Buffers that know their episodes: the ring, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from replay_service.buffer.backends import DIRECT, STEPS, hosted
from replay_service.episodic.checkpoints import BufferCheckpoints
from replay_service.episodic.draws import Draws
from replay_service.episodic.parts import ReadOptions

__all__ = ["SERVICE_SETTINGS", "EpisodicBuffer", "ReplayBuffer", "ring_size", "seed_of"]

Made = TypeVar("Made", bound="EpisodicBuffer")

SERVICE_SETTINGS = ("service_backend", "service_backend_options", "transport", "transport_options")
"""Arguments that every class takes for a hosted buffer, and that mean nothing to a local one."""


class EpisodicBuffer(BufferCheckpoints):
    """What all episodic buffers are: put together from parts, with every call of `parts` to `checkpoints`.

    Args:
        made_with: arguments of the class, besides those in `options`.
        options: how steps are stored and read.
        banks: (capacity, number) of the rings.
        draws: what draws steps; None: all with the same chance.
        service: what the caller said of the service, for whom this buffer is the wrong one.

    Raises:
        TypeError: an argument that nobody knows.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A buffer, or, with another `service_backend` than `"direct"`, the owner of a hosted one."""
        backend = kwargs.pop("service_backend", DIRECT)
        if backend == DIRECT:
            return super().__new__(cls)
        local = {name: value for name, value in kwargs.items() if name not in SERVICE_SETTINGS}
        cls(*args, **local)  # memory is only set aside as steps come: this finds out, here and now, what is wrong
        return hosted(backend, cls, args, kwargs, STEPS)

    def __init__(
        self,
        made_with: dict[str, Any],
        options: ReadOptions,
        banks: Sequence[tuple[int, int]],
        draws: Draws | None = None,
        service: dict[str, Any] | None = None,
    ) -> None:
        unknown = sorted(set(service or ()) - set(SERVICE_SETTINGS))
        if unknown:
            raise TypeError(
                f"{unknown[0]} must be an argument of {type(self).__name__}, or one of {list(SERVICE_SETTINGS)}"
            )
        super().__init__(banks, options, draws or Draws())
        self._made_with = {**made_with, **asdict(options)}

    @classmethod
    def from_data(
        cls: type[Made],
        obs: Any,
        act: Any,
        rew: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        done: ArrayLike,
        obs_next: Any,
        **settings: Any,
    ) -> Made:
        """A full buffer of exactly these steps, in the order of its slots; arrays or open HDF5 data sets `[n, …]`.

        Args:
            settings: further arguments of the class.

        Raises:
            AssertionError: not all of them have `n` rows.
        """
        columns = {"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated, "done": done}
        columns["obs_next"] = obs_next
        arrays = {name: column if _is_whole(column) else np.asarray(column) for name, column in columns.items()}
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) != 1:
            raise AssertionError(f"all columns must have the same number of rows; got {rows}")
        make: Any = cls  # a class of this family, whose first argument is its size
        buffer: Made = make(rows["rew"], **settings)
        if buffer.maxsize:
            buffer.fill(arrays)
        return buffer

    def fill(self, content: dict[str, Any]) -> None:
        """Replaces everything by entries `[maxsize, …]`, in the order of the slots; all count as stored."""
        with self.lock:
            self.set_batch(content)
            lengths = np.diff(self._rings.edges)
            self._rings.rebuild(self.done, lengths, np.zeros_like(lengths))
            self._draws.forgotten(None)
            self._draws.written(np.arange(self.maxsize))
            self._totals.clear(False)


class ReplayBuffer(EpisodicBuffer):
    """The last `size` steps of one environment, in a ring.

    Args:
        size: steps.
        stack_num: `obs`, `obs_next`, `info` and `policy` are read stacked from that many steps of the episode.
        ignore_obs_next: do not store `obs_next`; it is read as the next step's `obs`. At the end of an episode, and of
            what is stored, that is the step's own.
        save_only_last_obs: of an observation that is itself a stack of frames, store the last one.
        sample_avail: draw only steps that have `stack_num - 1` steps of their episode before them.
        random_seed: seed of the draws, or a `torch.Generator` that gives one. Two buffers of the same seed draw alike.
        service: `service_backend="ray"` makes an actor that holds the buffer, and what is returned is its owner
            (`RayEpisodicBuffer`); `service_backend_options`, `transport` and `transport_options` are arguments of that.

    Raises:
        TypeError, ValueError: `size` is not an integer of at least 0, or `stack_num` not one of at least 1.
    """

    def __init__(
        self,
        size: int,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int | torch.Generator = 42,
        **service: Any,
    ) -> None:
        options = ReadOptions(stack_num, ignore_obs_next, save_only_last_obs, sample_avail, seed_of(random_seed))
        EpisodicBuffer.__init__(self, {"size": size}, options, [(ring_size(size), 1)], service=service)

    @property
    def _takes_one(self) -> bool:
        return True


def ring_size(size: Any, name: str = "size") -> int:
    """`size` as an integer of at least 0; `TypeError` or `ValueError` otherwise."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise TypeError(f"{name} ({size!r}) must be an integer; got {type(size).__name__}")
    if size < 0:
        raise ValueError(f"{name} ({size}) must be at least 0")
    return int(size)


def seed_of(seed: int | torch.Generator) -> int:
    """An integer seed; one drawn from a generator."""
    if isinstance(seed, torch.Generator):
        return int(torch.randint(1 << 31, (1,), generator=seed, device="cpu").item())
    return int(seed)


def _is_whole(column: Any) -> bool:
    return isinstance(column, torch.Tensor) or hasattr(column, "items")
