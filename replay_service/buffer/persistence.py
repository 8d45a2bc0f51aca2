"""Checkpoints of a whole buffer: records, cursor, stamps, priorities, the sampler's progress and the random generator's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_service.buffer.persist.checkpointers.base import saving
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.parts import RECORDS, freeze_records, read_records, require_state
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import read_tree, write_tree
from replay_service.buffer.state import BufferState
from replay_service.records import SaveReceipt

__all__ = ["Persistence"]

KIND, STATE = "buffer", "state"


class Persistence(BufferState):
    """Saving a buffer to disk, while it is used, and loading it."""

    _last_saved: Path | None = None

    def dumps(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> SaveReceipt:
        """Saves the buffer as a checkpoint: a folder, which takes its place at `path` in one step when it is whole.

        Other calls go on meanwhile; what is saved is the moment of the call. Of a columnar storage, only blocks of rows that changed since
        the buffer's last save or load are written, and the others linked.

        Args:
            path: free, an empty folder, or a checkpoint, which is replaced.
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            what was written, and how long other calls were kept waiting.

        Raises:
            CheckpointError: something else lies at `path`, or a record can only be pickled. Nothing was changed there.
            OSError: the disk is full, or cannot be written to. Nothing was changed there.
        """
        storage, begun = self._storage, time.perf_counter()
        meter = LockMeter(self.lock)
        with saving(storage), Draft(path, KIND, self._last_saved) as draft:
            with meter.hold():
                frozen = freeze_records(storage.checkpointer, storage, draft)
                progress = self.progress()
                parts = {"sampler": type(self._sampler).__name__, "writer": type(self._writer).__name__}
            try:
                described = frozen.write(draft, f"{RECORDS}/", meter)
                write_tree(draft, STATE, {**progress, "parts": parts})
                manifest = draft.commit({RECORDS: {**described, "class": type(storage).__name__}, "parts": parts})
                with meter.hold():
                    frozen.saved(manifest.id)
                    self._last_saved = draft.path
            finally:
                with meter.hold():
                    frozen.close()
        return draft.receipt(manifest, begun, meter)

    def loads(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """Loads a checkpoint; the parts, their settings and `batch_size` stay this buffer's own.

        Everything is read and checked before the first change, so that a checkpoint that is refused leaves the buffer as it is. The
        checkpoint of a buffer whose sampler keeps nothing (`RandomSampler`) goes with any sampler, which is told of all records then.

        Args:
            path: a checkpoint that `dumps` wrote.
            timeout: accepted as by hosted buffers; nothing here waits.

        Raises:
            FileNotFoundError: nothing lies at `path`.
            CheckpointError: what lies there is no whole checkpoint of a buffer, or one of other parts, or of a newer version.
            LayoutError: the records do not fit the storage.
        """
        source = Checkpoint(path, KIND)
        state = read_tree(source, STATE)
        with self.lock:
            starts_over = isinstance(state, dict) and state.get("sampler") == {} != self._sampler.state_dict()
            if starts_over:
                state["sampler"] = self._sampler.state_dict()
            require_state(source, {"sampler": self._sampler, "writer": self._writer}, self._storage, state)
        apply = read_records(self._storage.checkpointer, self._storage, source)
        with self.lock:
            self.load_state_dict({**state, RECORDS: apply})
            if starts_over:
                self._sampler.empty()
                self._tell_stored(self._sampler)
            self._last_saved = source.folder

    def dump(self, path: str | os.PathLike[str]) -> SaveReceipt:
        """As `dumps`."""
        return self.dumps(path)

    def save(self, path: str | os.PathLike[str]) -> SaveReceipt:
        """As `dumps`."""
        return self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """As `loads`."""
        self.loads(path)

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Adds `hook(data, path=folder)`, which records go through on their way into a checkpoint."""
        self._storage.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Adds `hook(data)`, which records go through on their way out of a checkpoint."""
        self._storage.register_load_hook(hook)
