"""The time axis: users hand over batches in which time is the dimension `dim_extend`; storages have it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import is_tensor_collection
from torch import Tensor

from replay_service.errors import LayoutError
from replay_service.structure import Rows

__all__ = ["swapped"]


def swapped(data: Any, dim: int) -> Any:
    """`data` with its dimensions 0 and `dim` exchanged in every leaf, as views; the same call is its own inverse.

    Args:
        data: tensor, TensorDict, tensorclass, `Rows`, or dict, tuple, list of those.
        dim: `dim_extend`; 0 gives `data` as it is.

    Raises:
        LayoutError: a leaf has not so many dimensions, or is no tensor.
    """
    if dim == 0:
        return data
    if isinstance(data, Rows):
        tensors = [_swapped_leaf(tensor, dim) for tensor in data.tensors]
        return Rows(data.keys, tensors, data.spec, tensors[0].shape[0])
    return _mapped(data, lambda leaf: _swapped_leaf(leaf, dim))


def _mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(data, Tensor) or is_tensor_collection(data):
        return change(data)
    if isinstance(data, dict):
        return {name: _mapped(part, change) for name, part in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_mapped(part, change) for part in data))
    if isinstance(data, tuple | list):
        return type(data)(_mapped(part, change) for part in data)
    raise LayoutError(
        f"data must be made of tensors to have a time dimension; got {type(data).__name__}: set dim_extend=0"
    )


def _swapped_leaf(leaf: Any, dim: int) -> Any:
    if leaf.ndim <= dim:
        raise LayoutError(
            f"data (batch shape {list(leaf.shape)}) must have more than {dim} dimensions, time is dimension {dim}; "
            f"set dim_extend=0 if time comes first"
        )
    return leaf.transpose(0, dim)
