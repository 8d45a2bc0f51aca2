"""The checkpointer of episodes in one HDF5 file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase

from replay_service.buffer.persist.checkpointers.base import Apply, Frozen, StagedCheckpointer
from replay_service.buffer.persist.checkpointers.converted import FrozenRecords, read_records
from replay_service.buffer.persist.checkpointers.flat import naming
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.h5_tree import h5py_module, read_h5, write_h5
from replay_service.buffer.persist.nested_ted import H5Combine, H5Split, Nested2TED, TED2Nested
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.errors import CheckpointError, LayoutError
from replay_service.specs import Key

__all__ = ["H5StorageCheckpointer"]


class H5StorageCheckpointer(StagedCheckpointer):
    """Saves steps of episodes as a group per episode in one HDF5 file, with every observation once. Every save writes everything.

    Args:
        checkpoint_file: the name of the file within the checkpoint.
        done_keys, reward_keys: as `TED2Flat`; None takes its defaults.
        h5_kwargs: arguments of h5py's `create_dataset`: `compression="gzip"` and the like.
        **kwargs: further arguments of `TED2Nested` and `Nested2TED`: `shift_key`, `is_full_key`.

    Raises:
        ModuleNotFoundError: h5py is not installed.
        ValueError: `checkpoint_file` is no plain name.
    """

    layout = "h5"

    def __init__(
        self,
        *,
        checkpoint_file: str = "checkpoint.h5",
        done_keys: Sequence[str | Key] | None = None,
        reward_keys: Sequence[str | Key] | None = None,
        h5_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        h5py_module()
        if not checkpoint_file or "/" in checkpoint_file or checkpoint_file == "manifest.json":
            raise ValueError(
                f"checkpoint_file ({checkpoint_file!r}) must be a plain name; got one that leads elsewhere"
            )
        names = {**naming(done_keys, reward_keys), **kwargs}
        self.checkpoint_file = checkpoint_file
        self.h5_kwargs = dict(h5_kwargs or {})
        self.save_hooks += [TED2Nested(**names), H5Split()]
        self.load_hooks += [H5Combine(), Nested2TED(**names)]

    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Copies the records.

        Raises:
            LayoutError: there is none: an empty storage has no episodes.
        """
        if storage.table is None or not storage.filled:
            raise LayoutError("storage must hold a step to be saved as HDF5; got an empty one")
        return FrozenRecords(storage, self.save_hooks, self._write)

    def read(self, storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
        """Reads the file."""
        return read_records(storage, source, prefix, described, self.load_hooks, self._read)

    def _write(self, draft: Draft, prefix: str, data: Any) -> None:
        if not isinstance(data, TensorDictBase):
            raise CheckpointError(f"save hooks must give a TensorDict to be saved as HDF5; got {type(data).__name__}")
        write_h5(draft.place_of(f"{prefix}{self.checkpoint_file}"), data, self.h5_kwargs)

    def _read(self, source: Checkpoint, prefix: str) -> Any:
        name = f"{prefix}{self.checkpoint_file}"
        source.read(name)  # compares the checksum
        return read_h5(source.folder / name)
