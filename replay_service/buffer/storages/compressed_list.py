"""A list of compressed records: for images and other data that shrink a lot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase
from replay_service.buffer.persist.checkpointers.compressed import CompressedListStorageCheckpointer
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.storages.packed_records import pack_record, unpack_record
from replay_service.errors import LayoutError

__all__ = ["CompressedListStorage"]

COMPRESSED = "compressed"


class CompressedListStorage(ListStorage):
    """Records as compressed bytes, one by one; any record that `ListStorage` takes.

    What is made of dense tensors is kept as a description and raw bytes; other objects (strings, arrays, ragged or sparse tensors) are
    pickled, so load only states that come from a program of one's own.

    Args:
        max_size: capacity in records.
        compression_fn: compresses: gets the bytes of a record as a uint8 tensor `[n]` and gives a uint8 tensor `[m]` (or `bytes`).
            None: zstd.
        decompression_fn: gets such a tensor `[m]` and gives the tensor `[n]` (or `bytes`) back. None: zstd. Both or neither.
        compression_level: of zstd, from 1 (fast) to 22 (small).
        device: where the tensors of records that were read lie; what is stored is on the CPU.
        compilable: accepted for drop-in use.

    Raises:
        TypeError: `max_size` or `compression_level` is no integer, or one function was given without the other.
        ValueError: `max_size` is not positive, or `compression_level` is none of zstd's.
    """

    def __init__(
        self,
        max_size: int,
        *,
        compression_fn: Callable[[Tensor], Any] | None = None,
        decompression_fn: Callable[[Tensor], Any] | None = None,
        compression_level: int = 3,
        device: torch.device | str = "cpu",
        compilable: bool = False,
    ) -> None:
        super().__init__(max_size, compilable=compilable)
        if (compression_fn is None) != (decompression_fn is None):
            missing = "compression_fn" if compression_fn is None else "decompression_fn"
            raise TypeError(f"{missing} (None) must be given where the other one is: one undoes what the other did")
        self._read_device = torch.device(device)
        self._compress, self._decompress = _zstd(compression_level)
        if compression_fn is not None and decompression_fn is not None:
            self._compress, self._decompress = partial(_through, compression_fn), partial(_through, decompression_fn)

    def size_bytes(self) -> int:
        """Bytes of all records as they are kept."""
        return sum(map(len, self._records))

    def state_dict(self) -> dict[str, Any]:
        """All records, compressed as they are."""
        return {**super().state_dict(), "form": COMPRESSED}

    def default_checkpointer(self) -> StorageCheckpointerBase:
        """Records as they are kept."""
        return CompressedListStorageCheckpointer()

    def packed(self, record: bytes) -> bytes:
        """What a kept record was before it was compressed: see `packed_records`.

        Raises:
            LayoutError: it cannot be decompressed.
        """
        try:
            return self._decompress(record)
        except Exception as error:  # a function of the user's may raise anything
            raise LayoutError(f"record ({len(record)} bytes) must be what this storage compressed; {error}") from error

    def _kept(self, records: Sequence[Any]) -> list[Any]:
        return [self._compress(pack_record(record)) for record in records]

    def _given_out(self, record: Any) -> Any:
        return unpack_record(self._decompress(record), self._read_device)

    def _require_form(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("form") != COMPRESSED:
            raise LayoutError("state_dict must be that of a CompressedListStorage; got records that are not compressed")


def _zstd(level: int) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Compression and its inverse; without a context that is kept, so that threads need no lock and the storage can be pickled."""
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"compression_level ({level!r}) must be an integer; got {type(level).__name__}")
    if not 1 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise ValueError(f"compression_level ({level}) must be from 1 to {zstandard.MAX_COMPRESSION_LEVEL}")
    return partial(zstandard.compress, level=level), zstandard.decompress


def _through(function: Callable[[Tensor], Any], data: bytes) -> bytes:
    """`data` through a user's function of tensors."""
    result = function(torch.from_numpy(np.frombuffer(bytearray(data), np.uint8)))
    if isinstance(result, bytes | bytearray):
        return bytes(result)
    if not isinstance(result, Tensor) or result.dtype != torch.uint8:
        kind = result.dtype if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(f"compression_fn and decompression_fn must give a uint8 tensor or bytes; got {kind}")
    return result.detach().cpu().contiguous().numpy().tobytes()
