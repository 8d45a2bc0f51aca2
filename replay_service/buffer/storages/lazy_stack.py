"""A list of TensorDicts whose shapes may differ, read as lazy stacks."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection, lazy_stack

from replay_service.buffer.index import Index, as_slots, is_single
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import LayoutError

__all__ = ["LazyStackStorage"]


class LazyStackStorage(ListStorage):
    """Ragged records: TensorDicts (or tensorclasses) with the same entries, whose shapes may differ from record to record.

    A batch is a lazy stack: its entries are stacked when they are asked for, if their shapes allow it; `batch.unbind(stack_dim)` gives
    the records.

    Args:
        max_size: capacity in records; None for no bound.
        compilable: accepted for drop-in use.
        stack_dim: the dimension of a batch along which records lie.
        device: records are moved there on their way in; None leaves them where they are.

    Raises:
        TypeError, ValueError: `max_size` is not a positive integer, or `stack_dim` is no integer.
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool = False,
        stack_dim: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(max_size, compilable=compilable, device=device)
        if isinstance(stack_dim, bool) or not isinstance(stack_dim, int):
            raise TypeError(f"stack_dim ({stack_dim!r}) must be an integer; got {type(stack_dim).__name__}")
        self.stack_dim = stack_dim

    def get(self, index: Index) -> Any:
        """One record for an int, else a lazy stack of records: `[n, …]` with `n` at `stack_dim`; an empty list for none of none."""
        if is_single(index):
            return super().get(index)
        slots = as_slots(index, len(self))
        records = [self._given_out(self._records[slot]) for slot in slots.tolist()]
        if records:
            return lazy_stack(records, self._dim_of(records[0]))
        if not self._records:
            return []
        # No record still has entries: those of any record, none of them.
        like = self._given_out(self._records[0])
        dim = self._dim_of(like)
        return lazy_stack([like], dim).narrow(dim, 0, 0)

    def check_kept(self, record: Any) -> None:
        """As `ListStorage.check_kept`."""
        self._require_stackable(record)

    def _taken_in(self, record: Any) -> Any:
        self._require_stackable(record)
        return super()._taken_in(record)

    def _require_stackable(self, record: Any) -> None:
        if not isinstance(record, TensorDictBase) and not is_tensor_collection(record):
            raise LayoutError(
                f"data must be made of TensorDicts to be stacked lazily; got {type(record).__name__}: keep such data in a ListStorage"
            )
        self._dim_of(record)

    def _dim_of(self, record: TensorDictBase) -> int:
        """`stack_dim`, counted from the front of a batch of such records."""
        dims = record.ndim + 1
        if not -dims <= self.stack_dim < dims:
            raise LayoutError(
                f"stack_dim ({self.stack_dim}) must be a dimension of a batch of records; got records of batch size "
                f"{list(record.batch_size)}"
            )
        return self.stack_dim % dims
