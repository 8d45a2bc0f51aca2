"""The state of a buffer: what the next draws and writes depend on, and what an operator looks at."""

from __future__ import annotations

from typing import Any

from replay_service.buffer.parts import BufferParts

__all__ = ["BufferState"]


class BufferState(BufferParts):
    """Saving, loading and describing a buffer."""

    _leaves_records_out: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next draws and writes depend on."""
        with self.lock:
            generator = self._storage.generator
            return {
                "storage": {} if self._leaves_records_out else self._storage.state_dict(),
                "sampler": self._sampler.state_dict(),
                "writer": self._writer.state_dict(),
                "generator": None if generator is None else generator.get_state(),
                "batch_size": self._batch_size,
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy; the parts and `batch_size` stay this buffer's own.

        Raises:
            KeyError: a part of the state is missing. Nothing was loaded.
            LayoutError: the saved records do not fit the storage. Nothing was loaded.
        """
        storage, writer, sampler = (state_dict[part] for part in ("storage", "writer", "sampler"))
        with self.lock:
            if callable(storage):  # records on their way out of a checkpoint
                storage()
            else:
                self._storage.load_state_dict(storage)
            self._writer.load_state_dict(writer)
            self._sampler.load_state_dict(sampler)
            self._sampler.settle(self._storage)
            if self._sample_unit is not None:
                self._sample_unit.empty()
                self._tell_stored(self._sample_unit)
            if self._storage.generator is not None and state_dict.get("generator") is not None:
                self._storage.generator.set_state(state_dict["generator"])

    def progress(self) -> dict[str, Any]:
        """What `state_dict` says of everything but the records."""
        with self.lock:
            self._leaves_records_out = True
            try:
                state = self.state_dict()
            finally:
                self._leaves_records_out = False
        del state["storage"]
        return state

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """A snapshot: size, write_count, prefetch_queue_size, initialized, capacity, utilization. Waits for no other call."""
        size, capacity = len(self), self._storage.max_size
        return {
            "size": size,
            "write_count": self._writer.write_count,
            "prefetch_queue_size": 0,
            "initialized": True,
            "capacity": capacity,
            "utilization": size / capacity,
        }

    def synchronize(self) -> None:
        """Waits for what was submitted: nothing, every call here is over when it returns."""
