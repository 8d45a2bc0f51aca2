"""The state of a buffer: what the next draws and writes depend on, and what an operator looks at."""

from __future__ import annotations

import threading
from typing import Any

from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.writers.base import Writer

__all__ = ["BufferState"]


class BufferState:
    """Saving, loading and describing a buffer; each under its lock."""

    lock: threading.RLock
    _storage: Storage
    _sampler: Sampler
    _writer: Writer
    _batch_size: int | None

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next draws and writes depend on."""
        with self.lock:
            generator = self._storage.generator
            return {
                "storage": self._storage.state_dict(),
                "sampler": self._sampler.state_dict(),
                "writer": self._writer.state_dict(),
                "generator": None if generator is None else generator.get_state(),
                "batch_size": self._batch_size,
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy."""
        with self.lock:
            self._storage.load_state_dict(state_dict["storage"])
            self._writer.load_state_dict(state_dict["writer"])
            self._sampler.load_state_dict(state_dict["sampler"])
            if self._storage.generator is not None and state_dict["generator"] is not None:
                self._storage.generator.set_state(state_dict["generator"])

    def stats(self) -> dict[str, Any]:
        """A snapshot: size, write_count, prefetch_queue_size, initialized, capacity, utilization."""
        with self.lock:
            size, capacity = len(self._storage), self._storage.max_size
            return {
                "size": size,
                "write_count": self._writer.write_count,
                "prefetch_queue_size": 0,
                "initialized": True,
                "capacity": capacity,
                "utilization": size / capacity,
            }
