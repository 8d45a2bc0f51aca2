"""A file of frames, and how it is read."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from replay_service.sources import SOURCES

__all__ = ["Source", "path_of", "source_of", "source_word"]


class Source(NamedTuple):
    """One file, and what a reference says of how its frames are read.

    Attributes:
        path: the file, as it was given.
        stream: which of its streams; None for the best video stream.
        auto_decode: whether indexing a reference decodes it.
        device, dtype: where and as what frames come out, unless the caller of `decode` says; None: on the CPU, as uint8.
    """

    path: str
    stream: int | None = None
    auto_decode: bool = False
    device: str | None = None
    dtype: str | None = None

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """`dtype` itself."""
        return None if self.dtype is None else getattr(torch, self.dtype)


def source_word(source: Source) -> str:
    """The words that name a source: JSON, without what is as usual."""
    parts = list(source)
    while parts[-1] is None or parts[-1] is False:
        parts.pop()
    return json.dumps(parts, separators=(",", ":"))


def source_of(number: int) -> Source:
    """The source of that number.

    Raises:
        LookupError: this process has not met it.
    """
    words = SOURCES.words(number)
    if words is None:
        raise LookupError(
            f"file_number ({number}) must be that of a file this process was told of: references must come through a buffer of this "
            f"library, a checkpoint, or pickle, which bring the names of files along"
        )
    return _parsed(words)


def path_of(path: Any) -> str:
    """A path as a string.

    Raises:
        TypeError: it is none.
    """
    if isinstance(path, bytes) or not isinstance(path, str | os.PathLike):
        raise TypeError(f"path ({path!r}) must be a string or an os.PathLike; got {type(path).__name__}")
    return os.fspath(path)


@lru_cache(maxsize=4096)
def _parsed(words: str) -> Source:
    return Source(*json.loads(words))
