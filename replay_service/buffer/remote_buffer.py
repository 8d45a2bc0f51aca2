"""The buffer for people who call it through a remote procedure call of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.buffer.index import Index
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from replay_service.records import UpdateResult

__all__ = ["RemoteTensorDictReplayBuffer"]


class RemoteTensorDictReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` whose results can be sent away as they are.

    Every tensor that a call returns lies in the processor's memory, is contiguous and has memory of its own: pickled, it is as large as
    what it holds, and not as the batch or storage that it is a part of. Where the service of this library carries the calls
    (`service_backend="ray"`), that is so with every buffer.

    Args:
        *args, **kwargs: as `TensorDictReplayBuffer`.
    """

    # The order of parameters that callers by position know this class by.
    def sample(  # type: ignore[override]
        self,
        batch_size: int | None = None,
        include_info: bool | None = None,
        return_info: bool = False,  # type: ignore[override]
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draws a batch; as `TensorDictReplayBuffer.sample`, but for the order of its parameters.

        Args:
            batch_size: size of this draw; None takes the buffer's.
            include_info: False leaves `index` and the like out of the data.
            return_info: return `(data, info)`.
            timeout: seconds to wait for a batch that is drawn ahead.
        """
        return _sendable(super().sample(batch_size, return_info, include_info, timeout=timeout))

    def extend(self, data: Any, *, update_priority: bool | None = None, timeout: float | None = None) -> Tensor:
        """Appends a batch, all of it or nothing; as `TensorDictReplayBuffer.extend`."""
        slots: Tensor = _sendable(super().extend(data, update_priority=update_priority))
        return slots

    def add(self, data: Any, *, timeout: float | None = None) -> int | Tensor:
        """Appends one record; as `TensorDictReplayBuffer.add`."""
        slot: int | Tensor = _sendable(super().add(data))
        return slot

    def update_priority(
        self, index: Index, priority: Any, *, generation: Tensor | None = None, timeout: float | None = None
    ) -> UpdateResult:
        """Sets the priorities of records; as `TensorDictReplayBuffer.update_priority`."""
        return UpdateResult(_sendable(super().update_priority(index, priority, generation=generation).updated))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of a sampled batch from its entry `priority_key`."""
        super().update_tensordict_priority(data)

    def __getitem__(self, index: Index) -> Any:
        """The records at `index`, or, for the name of an entry, that entry of all records."""
        return _sendable(super().__getitem__(index))

    def read_all_in_order(self, end: int | None = None, *, timeout: float | None = None) -> Any:
        """The leading `end` slots (all for None) in storage order."""
        return _sendable(super().read_all_in_order(end))


def _sendable(data: Any) -> Any:
    """`data` with every tensor as a contiguous one of its own in the processor's memory."""
    if isinstance(data, Tensor):
        return _own(data)
    if is_tensor_collection(data):
        made = data.apply(_own)
        # What has left its device must not say that it lies there.
        return made.clear_device_() if made is not None else data
    if isinstance(data, dict):
        return {name: _sendable(part) for name, part in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        make: Callable[..., Any] = type(data)
        return make(*map(_sendable, data))
    return type(data)(map(_sendable, data)) if isinstance(data, tuple | list) else data


def _own(tensor: Tensor) -> Tensor:
    there = tensor.detach()
    if there.device.type != "cpu":
        return there.to("cpu").contiguous()
    return there.clone(memory_format=torch.contiguous_format)
