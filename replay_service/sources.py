"""Files that records refer to, and the numbers that stand for them in rows.

A number is computed from the words of its source alone, so that every process gives one source one number: rows that refer to files are
integers wherever they lie, are stacked or travel, and all that another process has to be told are the words of numbers that it has not met.
A process keeps the words of every source it has met, some hundred bytes each, for as long as it lives.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.errors import LayoutError
from replay_service.specs import Key, Spec

__all__ = [
    "NUMBER_FIELD",
    "REFERENCE_CLASS",
    "SOURCES",
    "SOURCES_KEY",
    "SourceTable",
    "learn",
    "number_keys",
    "source_entries",
    "words_leaf",
    "words_of_numbers",
    "words_of_rows",
]

NUMBER_FIELD = "file_number"
"""The leaf of a reference that holds the number of its file."""

REFERENCE_CLASS = "replay_service.buffer.video.clip:VideoClipRef"
"""How the class of references is named in specs."""

SOURCES_KEY: Key = ("sources",)
"""The leaf of a message that says what the numbers in it stand for."""

LONGEST_WORDS = 1 << 16


class SourceTable:
    """The sources that a process has met, in the order in which it met them.

    It may be used by several threads, and goes on in a forked process with all that it knows.
    """

    def __init__(self) -> None:
        self._words: dict[int, str] = {}
        self.restart()

    @property
    def token(self) -> int:
        """Names this table: positions in it mean nothing in another one."""
        return self._token

    def add(self, words: Iterable[str]) -> list[int]:
        """The numbers, 63 bits each and never 0, of sources, which are remembered.

        Raises:
            LayoutError: two sources have the same number (which chance brings about once in a billion tables of a million files).
        """
        numbers = []
        for name in words:
            number = _number_of(name)
            known = self._words.get(number)
            if known is None:
                with self._lock:
                    known = self._words.setdefault(number, name)
                    if known is name:
                        self._order.append(name)
            if known != name:
                raise LayoutError(f"source ({name!r}) must differ in its number from {known!r}: rename the file")
            numbers.append(number)
        return numbers

    def words(self, number: int) -> str | None:
        """The words of a source; None if this process has not met it."""
        return self._words.get(number)

    def since(self, position: int) -> list[str]:
        """The sources from `position` on."""
        return self._order[position:]

    def __len__(self) -> int:
        return len(self._order)

    def restart(self) -> None:
        """A new lock and token for a forked process: the lock may have been held by a thread that it has not."""
        self._lock = threading.Lock()
        self._token = secrets.randbits(62) | 1
        # That thread may have been between the two.
        self._order = list(self._words.values())


SOURCES = SourceTable()
"""The sources that this process has met."""

os.register_at_fork(after_in_child=SOURCES.restart)


@lru_cache(maxsize=1024)
def number_keys(spec: Spec, prefix: Key = ()) -> tuple[Key, ...]:
    """The nested keys of the leaves that hold numbers of files; empty for most specs."""
    if isinstance(spec, str):
        return ()
    if spec[0] == "tc" and spec[2] == REFERENCE_CLASS:
        return ((*prefix, NUMBER_FIELD),)
    return tuple(key for name, part in spec[-1] for key in number_keys(part, (*prefix, name)))


def words_of_rows(spec: Spec, keys: Sequence[Key], tensors: Sequence[Tensor]) -> list[str]:
    """The words of all sources that rows refer to, each once; those that this process itself has not met are left out."""
    wanted = number_keys(spec)
    if not wanted:
        return []
    numbers = [tensor for key, tensor in zip(keys, tensors, strict=True) if key in wanted]
    return words_of_numbers(*numbers)


def words_of_numbers(*numbers: Tensor) -> list[str]:
    """The words that int64 tensors of numbers stand for, each once; those that this process itself has not met are left out."""
    found = {number for tensor in numbers for number in _unlike(tensor.detach().reshape(-1).cpu().numpy())}
    words = (SOURCES.words(number) for number in sorted(found))
    return [name for name in words if name is not None]


def source_entries(spec: Spec, keys: Sequence[Key], tensors: Sequence[Tensor]) -> list[tuple[Key, Tensor]]:
    """What rows that refer to files bring along in a message: the words of their sources; nothing with other rows."""
    return [(SOURCES_KEY, words_leaf(words_of_rows(spec, keys, tensors)))] if number_keys(spec) else []


def words_leaf(words: Sequence[str]) -> Tensor:
    """Words as they travel: JSON, as uint8 `[n]`."""
    text = json.dumps(list(words), separators=(",", ":")).encode() if words else b""
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())


def learn(leaf: Tensor) -> None:
    """Meets the sources that came as such a leaf.

    Raises:
        LayoutError: it is none.
    """
    if leaf.dtype != torch.uint8:
        raise LayoutError(f"sources must be text as uint8; got {leaf.dtype}")
    if leaf.numel() == 0:
        return
    try:
        words = json.loads(leaf.cpu().numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"sources must be a list of words; {error}") from error
    if not isinstance(words, list) or not all(isinstance(name, str) and len(name) <= LONGEST_WORDS for name in words):
        raise LayoutError(f"sources must be a list of words; got {type(words).__name__}")
    SOURCES.add(words)


def _unlike(numbers: NDArray[np.int64]) -> list[int]:
    """The numbers, each once. Rows of one file are neighbours nearly always, so runs are found first: a million rows take a millisecond."""
    heads = numbers[np.flatnonzero(np.diff(numbers, prepend=~numbers[:1]))]
    return list(dict.fromkeys(heads.tolist()))


@lru_cache(maxsize=4096)
def _number_of(words: str) -> int:
    digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1
