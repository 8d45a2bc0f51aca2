"""Between arrays, tensors and TensorDicts, on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.episodic.batch_leaves import NUMERIC_KINDS, Nested, as_leaf

__all__ = ["content_of_tensordict", "numpy_leaf", "tensordict_of", "torch_leaf"]

Content = dict[str, Any]


def numpy_leaf(leaf: Any) -> Any:
    """An array on the memory of a tensor, or a copy from another device; everything else as it is."""
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf


def torch_leaf(leaf: Any, dtype: torch.dtype | None = None, device: str | torch.device | None = None) -> Any:
    """A tensor on the memory of an array of numbers, where dtype and device allow it; objects as they are."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in NUMERIC_KINDS:
        array = np.asarray(leaf)
        if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))  # what torch cannot take as it is
        leaf = torch.from_numpy(array)
    return leaf.to(device=device, dtype=dtype) if isinstance(leaf, Tensor) else leaf


def tensordict_of(batch: Nested, batch_size: list[int]) -> TensorDict:
    """A TensorDict on the memory of the leaves; None and empty nested batches are left out."""
    content: Content = {}
    for name, value in batch.items():
        if isinstance(value, Nested):
            inner = tensordict_of(value, batch_size)
            if len(inner.keys()):
                content[name] = inner
            continue
        tensor = torch_leaf(value)
        if isinstance(tensor, np.ndarray) and batch_size:
            content[name] = NonTensorStack(*[NonTensorData(entry) for entry in tensor])
        elif tensor is not None:
            content[name] = tensor if isinstance(tensor, Tensor) else NonTensorData(tensor, batch_size=batch_size)
    return TensorDict(content, batch_size=batch_size)


def content_of_tensordict(data: TensorDictBase, wrap: Callable[[Content], Nested]) -> Content:
    """The entries of `data`: tensors by reference, nested ones as batches, non-tensor data as objects."""
    content: Content = {}
    for name in data.keys():  # noqa: SIM118 -- a TensorDict iterates over its rows
        value = data.get(name)
        if isinstance(value, NonTensorStack):
            content[name] = as_leaf(value.tolist())
        elif isinstance(value, NonTensorData):
            content[name] = value.data
        elif is_tensor_collection(value):
            content[name] = wrap(content_of_tensordict(value, wrap))
        else:
            content[name] = value
    return content
