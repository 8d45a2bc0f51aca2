"""The writer of data sets: it writes nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from replay_service.buffer.writers.base import Writer

__all__ = ["ImmutableDatasetWriter"]


class ImmutableDatasetWriter(Writer):
    """Refuses to add records to what the storage holds, and to forget them.

    Entries of stored records can be changed in place all the same (`buffer[index] = …`, `update_`, new columns for targets).

    Args:
        compilable: accepted for drop-in use.
    """

    def require_writable(self) -> None:
        """Refuses.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "writer (ImmutableDatasetWriter) must allow writing for records to be added or forgotten; this data set is fixed: use a "
            "RoundRobinWriter (set_writer)"
        )

    def add(self, data: Any) -> int | Tensor:
        """Refuses, as `extend`."""
        return self.extend(data)

    def extend(self, data: Any) -> Tensor:
        """Refuses.

        Raises:
            RuntimeError: always.
        """
        self.require_writable()
        raise AssertionError("require_writable returned")

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes nothing over: what was written once is the storage's."""
