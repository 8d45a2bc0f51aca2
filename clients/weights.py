"""Newer weights on their way to a collector: the values lie in Ray's object store, the box says where the newest ones are."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from torch import Tensor

from clients.failures import failure_of

__all__ = ["WeightsBox"]

DEFAULT_TIMEOUT_S = 30.0


class WeightsBox:
    """A `WeightSource` into which one thread puts references and from which another takes the newest weights.

    Versions that were overtaken are never fetched. timeout_s: of a fetch, in seconds.
    """

    def __init__(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._newest_version = 0
        self._reference: Any = None  # of the newest version, until it is fetched

    def offer(self, version: int, reference: Any) -> None:
        """`reference` (an ObjectRef) is where `version` lies; without an effect where that isn't newer than all before."""
        with self._lock:
            if version > self._newest_version:
                self._newest_version, self._reference = version, reference

    def poll(self) -> tuple[int, Mapping[str, Tensor]] | None:
        """The newest (version, weights) if they weren't given before, else None.

        Raises ServiceUnavailableError where the process that made them is gone, ReplayTimeoutError where they don't come in time.
        """
        with self._lock:
            version, reference = self._newest_version, self._reference
            self._reference = None
        if reference is None:
            return None
        try:
            weights: Mapping[str, Tensor] = ray.get(reference, timeout=self._timeout_s)
        except RayError as error:
            raise failure_of("the learner that published weights", error, self._timeout_s) from error
        return version, weights
