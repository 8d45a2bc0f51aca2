"""What happens to a column between and during saves: which blocks of rows were written, and what they held before.

A column has no watch before the first save, so that a buffer that is never saved pays nothing. With one, a write costs one store per block
that it touches; only while a save runs, the first write to a page that is still to be saved copies it aside first. Blocks are what files
hold, and pages, parts of blocks, what a writer copies: about as much as it writes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Watch", "rows_per_block"]

MOST_BLOCKS = 128
LEAST_BLOCK_BYTES = 1 << 20
LARGEST_BLOCK_BYTES = 1 << 26
PAGE_BYTES = 1 << 19

Flags = NDArray[np.bool_]


def rows_per_block(row_bytes: int, records: int) -> int:
    """Rows of one block of a column: a power of two, for about `MOST_BLOCKS` blocks that are neither tiny nor huge."""
    wanted = min(max(row_bytes * records // MOST_BLOCKS, LEAST_BLOCK_BYTES), LARGEST_BLOCK_BYTES)
    return _rows_of(wanted, row_bytes)


def _rows_of(size: int, row_bytes: int) -> int:
    """Rows in `size` bytes, as a power of two."""
    return int(1 << (max(1, size // max(1, row_bytes)).bit_length() - 1))


class Watch:
    """The blocks of one column. All calls come under the buffer's lock; only what `held` gives is read without it.

    Args:
        tensor: the column, `[records, *shape]`.
        row_bytes: bytes of one row.

    Attributes:
        rows: rows of one block.
    """

    def __init__(self, tensor: Tensor, row_bytes: int) -> None:
        self._tensor = tensor
        records = int(tensor.shape[0])
        self.rows = rows_per_block(row_bytes, records)
        self._page_rows = min(self.rows, _rows_of(PAGE_BYTES, row_bytes))
        self._block_shift, self._page_shift = self.rows.bit_length() - 1, self._page_rows.bit_length() - 1
        self._pages_per_block = self.rows // self._page_rows
        blocks = max(1, -(-records // self.rows))
        self._now = 1
        self._stamps = np.zeros(blocks, np.int64)
        self._waiting: Flags | None = None  # by page, while a save runs
        self._aside: dict[int, Tensor] = {}  # by page
        self._known: tuple[str, int] | None = None

    # -- for writers ------------------------------------------------------------------------------------------------

    def before(self, start: int, stop: int) -> None:
        """Is told of a write to the rows `[start, stop)` that comes next."""
        if start < stop:
            self._stamps[start >> self._block_shift : ((stop - 1) >> self._block_shift) + 1] = self._now
            if self._waiting is not None:
                first = start >> self._page_shift
                self._keep(np.flatnonzero(self._waiting[first : ((stop - 1) >> self._page_shift) + 1]) + first)

    def before_at(self, index: Tensor) -> None:
        """Is told of a write to the rows `index` int64 `[n]` that comes next."""
        rows = index.cpu().numpy()
        self._stamps[rows >> self._block_shift] = self._now
        if self._waiting is not None:
            pages = rows >> self._page_shift
            self._keep(np.unique(pages[self._waiting[pages]]))

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
        self._waiting = np.zeros(self._stamps.size * self._pages_per_block, np.bool_)
        self._waiting[: blocks * self._pages_per_block] = True
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

    def held(self, block: int, rows: int) -> list[Tensor]:
        """A block as it was when the save began, in pieces `[n, *shape]`: what was written to since comes from the copies.

        The rest is the column's own memory. What is read of it without the lock is right if `kept` is as large afterwards as before.
        """
        end = min((block + 1) * self.rows, rows)
        pieces: list[Tensor] = []
        start = live = block * self.rows
        for page in range(block * self._pages_per_block, (block + 1) * self._pages_per_block):
            aside = self._aside.get(page)
            if aside is not None and start < end:
                if live < start:
                    pieces.append(self._tensor[live:start])
                pieces.append(aside[: end - start])
                live = start + self._page_rows
            start += self._page_rows
        if live < end:
            pieces.append(self._tensor[live:end])
        return pieces

    def kept(self, block: int) -> int:
        """How many pages of a block were copied aside."""
        first = block * self._pages_per_block
        return sum(page in self._aside for page in range(first, first + self._pages_per_block))

    def release(self, block: int) -> None:
        """Ends the save of one block."""
        first = block * self._pages_per_block
        if self._waiting is not None:
            self._waiting[first : first + self._pages_per_block] = False
        for page in range(first, first + self._pages_per_block):
            self._aside.pop(page, None)

    def thaw(self) -> None:
        """Ends the save."""
        self._waiting = None
        self._aside = {}

    def _keep(self, pages: NDArray[np.int64]) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        for page in pages.tolist():
            start = page * self._page_rows
            self._aside[page] = self._tensor[start : start + self._page_rows].clone()
            waiting[page] = False
