"""What happens to a column between and during saves: which blocks of rows were written, and what they held before.

A column has no watch before the first save, so that a buffer that is never saved pays nothing. With one, a write costs one store per block
that it touches; only while a save runs, the first write to a block that is still to be saved copies it aside first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Watch", "rows_per_block"]

MOST_BLOCKS = 128
LEAST_BLOCK_BYTES = 1 << 20
LARGEST_BLOCK_BYTES = 1 << 26

Flags = NDArray[np.bool_]


def rows_per_block(row_bytes: int, records: int) -> int:
    """Rows of one block of a column: a power of two, for about `MOST_BLOCKS` blocks that are neither tiny nor huge."""
    wanted = min(max(row_bytes * records // MOST_BLOCKS, LEAST_BLOCK_BYTES), LARGEST_BLOCK_BYTES)
    rows = max(1, wanted // max(1, row_bytes))
    return int(1 << (rows.bit_length() - 1))


class Watch:
    """The blocks of one column. All calls come under the buffer's lock, but for `held`.

    Args:
        tensor: the column, `[records, *shape]`.
        row_bytes: bytes of one row.
    """

    def __init__(self, tensor: Tensor, row_bytes: int) -> None:
        self._tensor = tensor
        records = int(tensor.shape[0])
        self.rows = rows_per_block(row_bytes, records)
        self._shift = self.rows.bit_length() - 1
        blocks = max(1, -(-records // self.rows))
        self._now = 1
        self._stamps = np.zeros(blocks, np.int64)
        self._waiting: Flags | None = None
        self._aside: dict[int, Tensor] = {}
        self._known: tuple[str, int] | None = None

    # -- for writers ------------------------------------------------------------------------------------------------

    def before(self, start: int, stop: int) -> None:
        """Is told of a write to the rows `[start, stop)` that comes next."""
        if start < stop:
            first, end = start >> self._shift, ((stop - 1) >> self._shift) + 1
            self._stamps[first:end] = self._now
            if self._waiting is not None:
                self._keep(np.flatnonzero(self._waiting[first:end]) + first)

    def before_at(self, index: Tensor) -> None:
        """Is told of a write to the rows `index` int64 `[n]` that comes next."""
        blocks = index.cpu().numpy() >> self._shift
        self._stamps[blocks] = self._now
        if self._waiting is not None:
            self._keep(np.unique(blocks[self._waiting[blocks]]))

    # -- for saves --------------------------------------------------------------------------------------------------

    def freeze(self, rows: int, since: int | None) -> tuple[int, Flags]:
        """Begins a save of the first `rows` rows as they are now.

        Args:
            rows: how many.
            since: the moment of an earlier save; None for none.

        Returns:
            the moment of this save, and which blocks were written since that one (all for None), bool `[blocks]`.
        """
        blocks = -(-rows // self.rows)
        changed = np.ones(blocks, np.bool_) if since is None else self._stamps[:blocks] > since
        self._waiting = np.zeros(self._stamps.size, np.bool_)
        self._waiting[:blocks] = True
        self._aside = {}
        return self.pass_moment(), changed

    def moment_of(self, checkpoint_id: str | None) -> int | None:
        """The moment that is in a checkpoint; None if it is not the one that was saved, or loaded, last."""
        return self._known[1] if self._known is not None and self._known[0] == checkpoint_id else None

    def remember(self, checkpoint_id: str, moment: int) -> None:
        """Is told which checkpoint a moment is in."""
        self._known = (checkpoint_id, moment)

    def pass_moment(self) -> int:
        """The moment now; whatever is written from here on comes after it."""
        moment, self._now = self._now, self._now + 1
        return moment

    def held(self, block: int, rows: int) -> Tensor:
        """The rows `[n, *shape]` of a block as they are in the column; torn, if somebody writes to them meanwhile."""
        start = block * self.rows
        return self._tensor[start : min(start + self.rows, rows)]

    def release(self, block: int, rows: int) -> Tensor | None:
        """Ends the save of one block: its rows as they were when the save began, if they were written to since; else None."""
        if self._waiting is not None:
            self._waiting[block] = False
        kept = self._aside.pop(block, None)
        return None if kept is None else kept[: max(0, rows - block * self.rows)]

    def thaw(self) -> None:
        """Ends the save."""
        self._waiting = None
        self._aside = {}

    def _keep(self, blocks: NDArray[np.int64]) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        for block in blocks.tolist():
            start = block * self.rows
            self._aside[block] = self._tensor[start : start + self.rows].clone()
            waiting[block] = False
