"""A handle on a buffer of TensorDicts for TorchRL: its collectors take it as `replay_buffer=`, its loops draw from it."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from clients.handle import ReplayClient
from clients.outbox import Outbox

__all__ = ["TorchRLBuffer"]


class TorchRLBuffer:
    """The calls of a TorchRL buffer that collectors and trainers use, made of those of a handle; it can be pickled.

    Batches `[environments, time]` are stored as rows, environment by environment, so that the steps of each are neighbours.
    extends_in_flight: pushes that may travel while collecting goes on; what one of them raises, a later call raises.
    """

    def __init__(self, client: ReplayClient, *, extends_in_flight: int = 4) -> None:
        self.client = client
        self._in_flight = extends_in_flight
        self._outbox = Outbox(client.extend, client.submit_extend, extends_in_flight, lambda slots, note: None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.client, self._in_flight)

    def extend(self, data: TensorDictBase) -> None:
        """Appends a batch `[…]`, every entry of it one record."""
        # A copy: collectors write over what they gave while it may still be on its way.
        self._outbox.send(None, data.reshape(-1).contiguous().clone())

    def add(self, data: TensorDictBase) -> None:
        """Appends one step: a record, or a batch `[environments]` of them."""
        self.extend(data)

    def sample(self, batch_size: int | None = None, **options: Any) -> Any:
        """Draws a batch, after all that was appended here."""
        self._outbox.drain()
        return self.client.sample(batch_size, **options)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of a sampled batch."""
        self.client.update_tensordict_priority(data)

    def update_priority(self, index: Any, priority: Any) -> None:
        """Sets the priorities of records."""
        self.client.update_priority(index, priority)

    def __len__(self) -> int:
        self._outbox.drain()
        return len(self.client)

    @property
    def write_count(self) -> int:
        """Records appended so far, by everyone."""
        self._outbox.drain()
        return self.client.write_count

    @property
    def batch_size(self) -> int | None:
        """Default size of a sample."""
        return self.client.batch_size


def _again(client: ReplayClient, in_flight: int) -> TorchRLBuffer:
    return TorchRLBuffer(client, extends_in_flight=in_flight)
