"""Columns: preallocated tensors `[slots, *shape]`, one per leaf, written by contiguous part and gathered into given memory.

Columns on the CPU are moved by NumPy, on the calling thread: its call costs a third of torch's, and torch's threads, which would copy
wide rows in half the time on an idle machine, spin beside those of collectors, learners and the network on a busy one (measured on two
busy cores: an extend of 1.8 MB takes 16 ms with them and 0.3 ms without). NumPy sees dtypes it does not know (bfloat16, float8) as
integers of the same width: only bytes move here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.changes import Watch
from replay_service.payload import view_leaf
from replay_service.structure import Leaf

__all__ = ["Column", "allocate", "allocate_to_fill", "numpy_view"]

UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def numpy_view(tensor: Tensor) -> NDArray[np.generic]:
    """The bytes of a CPU tensor as a NumPy array of the same shape; foreign dtypes as integers of their width."""
    try:
        return tensor.numpy()
    except TypeError:  # a dtype that NumPy has not
        return tensor.view(CARRIERS[tensor.dtype.itemsize]).numpy()
    except RuntimeError:  # lazily conjugated or negated
        return tensor.resolve_conj().resolve_neg().numpy()


class Column:
    """One leaf of the storage, for all slots.

    Attributes:
        watch: who is told before rows are written, or None.
    """

    __slots__ = ("_array", "leaf", "tensor", "watch")

    def __init__(self, leaf: Leaf, tensor: Tensor) -> None:
        self.leaf = leaf
        self.tensor = tensor
        self.watch: Watch | None = None
        on_cpu = tensor.device.type == "cpu" and tensor.is_contiguous()
        self._array = numpy_view(tensor) if on_cpu else None

    def write(self, start: int, rows: Tensor) -> None:
        """Copies `rows` `[n, *shape]` into the slots from `start` on; the caller has validated shape and dtype."""
        stop = start + rows.shape[0]
        if self.watch is not None:
            self.watch.before(start, stop)
        if self._array is not None and rows.device.type == "cpu":
            self._array[start:stop] = numpy_view(rows.detach())
        else:
            self.tensor[start:stop].copy_(rows.detach())

    def write_at(self, index: Tensor, rows: Tensor) -> None:
        """Copies `rows` `[n, *shape]` into the slots `index` `[n]`; among duplicates the last row wins."""
        if self.watch is not None:
            self.watch.before_at(index)
        if self._array is not None and rows.device.type == "cpu":
            self._array[index.numpy()] = numpy_view(rows.detach())
        else:
            target, device = _movable(self.tensor), self.tensor.device
            target[index.to(device)] = _movable(rows.detach().to(device))

    def gather(self, index: Tensor, out: Tensor) -> None:
        """Copies the slots `index` `[n]` (in range: the caller has checked) into `out` `[n, *shape]`."""
        if self._array is not None and out.device.type == "cpu":
            self._array.take(index.numpy(), 0, numpy_view(out), "clip")
        elif out.device == self.tensor.device:
            torch.index_select(self.tensor, 0, index.to(self.tensor.device), out=out)
        else:
            out.copy_(self.tensor[index.to(self.tensor.device)])

    def shared(self) -> Column:
        """The same records in memory that processes started from this one see, too."""
        tensor: Tensor = self.tensor.share_memory_()  # type: ignore[no-untyped-call]
        return Column(self.leaf, tensor)

    def __reduce__(self) -> tuple[Any, ...]:
        # The NumPy view is made again: a copy of it would be memory of its own.
        return Column, (self.leaf, self.tensor)

    def gathered(self, index: Tensor) -> Tensor:
        """The slots `index` `[n]` as a new tensor `[n, *shape]`."""
        if self._array is not None:
            taken = torch.from_numpy(self._array.take(index.numpy(), 0))
            return taken if taken.dtype == self.leaf.dtype else taken.view(self.leaf.dtype)
        return self.tensor.index_select(0, index.to(self.tensor.device))


def _movable(tensor: Tensor) -> Tensor:
    """The same bytes in a dtype for which torch has scattered writes."""
    return tensor.view(CARRIERS[tensor.dtype.itemsize]) if tensor.dtype in UNSIGNED else tensor


def allocate(leaves: Sequence[Leaf], slots: int, device: torch.device) -> list[Column]:
    """Zeroed columns for `slots` rows: slots nobody wrote read as zeros."""
    return [Column(leaf, torch.zeros(slots, *leaf.shape, dtype=leaf.dtype, device=device)) for leaf in leaves]


def allocate_to_fill(leaves: Sequence[Leaf], slots: int, filled: int) -> list[Column]:
    """As `allocate`, on the CPU, for columns whose first `filled` rows are written next.

    Those are zeroed by the system, when they are touched first, and in large pages where it has such: that takes a quarter of the time.
    """
    columns = []
    for leaf in leaves:
        memory = np.zeros(max(1, leaf.row_bytes * slots), np.uint8)
        tensor = view_leaf(memory, leaf.dtype, (slots, *leaf.shape), 0)
        # Memory that is not there should be missed now, not at some write.
        tensor[filled:].zero_()
        columns.append(Column(leaf, tensor))
    return columns
