"""Reading a checkpoint: every byte is checked against the manifest before anybody gets it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.persist.block_files import FileRecord, Staging, read_file
from replay_service.buffer.persist.manifest import Manifest, read_manifest
from replay_service.buffer.persist.renaming import recovered
from replay_service.errors import CheckpointError

__all__ = ["Checkpoint"]

READERS = 4
"""Files read side by side: a direct read keeps its thread waiting."""

Bytes = NDArray[np.uint8]


class Checkpoint:
    """A checkpoint on disk, whose manifest and file sizes were found to be right.

    Args:
        path: its folder.
        kind: what it must be the checkpoint of.

    Attributes:
        folder: where it lies.
        manifest: what it says.

    Raises:
        FileNotFoundError, CheckpointError: as `read_manifest`.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str) -> None:
        self.folder = recovered(Path(os.path.realpath(path)))
        self.manifest: Manifest = read_manifest(self.folder, kind)
        self._staging = Staging()

    def entry(self, *names: str) -> Any:
        """What the manifest's content says under nested `names`.

        Raises:
            CheckpointError: nothing.
        """
        found: Any = self.manifest.content
        for name in names:
            if not isinstance(found, dict) or name not in found:
                raise CheckpointError(
                    f"file ({self.folder / 'manifest.json'}) must tell {'.'.join(names)}; it does not"
                )
            found = found[name]
        return found

    def record(self, name: str) -> FileRecord:
        """Size and checksum of a file.

        Raises:
            CheckpointError: the checkpoint has no such file.
        """
        found = self.manifest.files.get(name)
        if found is None:
            raise CheckpointError(f"file ({self.folder / name}) must be in the manifest; it is not")
        return found

    def read_into(self, name: str, out: Bytes) -> None:
        """Fills `out` uint8 `[size]` with a file's content.

        Raises:
            CheckpointError: the file is damaged, or has another size.
        """
        read_file(self.folder / name, self.record(name), out, self._staging)

    def read(self, name: str) -> Bytes:
        """A file's content, in memory of its own."""
        out = np.empty(self.record(name).size_bytes, np.uint8)
        self.read_into(name, out)
        return out

    def read_json(self, name: str) -> Any:
        """A JSON file's content."""
        try:
            return json.loads(self.read(name).tobytes())
        except ValueError as error:
            raise CheckpointError(f"file ({self.folder / name}) must be JSON; {error}") from None

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Runs tasks side by side, to the end; the first error is raised when all of them have ended."""
        with ThreadPoolExecutor(READERS, thread_name_prefix="replay-load") as pool:
            for future in [pool.submit(task) for task in tasks]:
                future.result()
