"""Weights on their way from a learner to collectors: values lie in Ray's object store, a small actor knows the newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from torch import Tensor

from clients.failures import failure_of

__all__ = ["WeightsBoard", "WeightsReader"]

DEFAULT_TIMEOUT_S = 30.0


class NewestWeights:
    """Knows the newest version and where it lies. Older versions are forgotten, so the store keeps one."""

    def __init__(self) -> None:
        self._version = 0
        self._place: list[
            Any
        ] = []  # [ObjectRef]; in a list, so that Ray passes the reference and not what it refers to

    def put(self, version: int, place: list[Any]) -> None:
        """Take note of a newer version; an older one than the newest is ignored."""
        if version > self._version:
            self._version, self._place = version, place

    def newer_than(self, version: int) -> tuple[int, list[Any]] | None:
        """The newest (version, [reference]), or None if that isn't newer."""
        return (self._version, self._place) if self._version > version else None


class WeightsBoard:
    """Where a learner puts its weights; `reader()` is what a collector takes. Whoever made the board closes it.

    Needs a Ray that is initialised. timeout_s: of every call, in seconds.
    """

    def __init__(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        # No CPU of its own: it answers a few small calls per second.
        self._actor: Any = ray.remote(NewestWeights).options(num_cpus=0).remote()
        self._timeout_s = timeout_s
        self.version = 0

    def publish(self, weights: Mapping[str, Tensor]) -> int:
        """Make `weights` the newest; their version, counted from 1.

        Raises ServiceUnavailableError where the board is dead and ReplayTimeoutError where it doesn't answer in time.
        """
        reference = ray.put(dict(weights))
        # Waits for the answer: the reference of the version before is freed only when the board knows the new one.
        _answer(self._actor.put.remote(self.version + 1, [reference]), self._timeout_s)
        self.version += 1
        return self.version

    def reader(self) -> WeightsReader:
        """A picklable reader of this board that has seen nothing yet."""
        return WeightsReader(self._actor, self._timeout_s)

    def close(self) -> None:
        """Stop the board; twice is fine. Readers raise ServiceUnavailableError from then on."""
        if ray.is_initialized():
            ray.kill(self._actor)


class WeightsReader:
    """Gives every newest version once; skips those that were overtaken."""

    def __init__(self, actor: Any, timeout_s: float) -> None:
        self._actor = actor
        self._timeout_s = timeout_s
        self._seen = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightsReader, (self._actor, self._timeout_s)

    def poll(self) -> tuple[int, Mapping[str, Tensor]] | None:
        """The newest (version, weights) if it wasn't given before, else None.

        Raises ServiceUnavailableError where the board is dead and ReplayTimeoutError where it doesn't answer in time.
        """
        newest = _answer(self._actor.newer_than.remote(self._seen), self._timeout_s)
        if newest is None:
            return None
        version, (reference,) = newest
        weights = _answer(reference, self._timeout_s)
        self._seen = version
        return version, weights


def _answer(reference: Any, timeout_s: float) -> Any:
    try:
        return ray.get(reference, timeout=timeout_s)
    except RayError as error:
        raise failure_of("the weights board", error, timeout_s) from error
