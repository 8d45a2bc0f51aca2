"""Moving in and out: data files and the dumps of other replay buffers into a service or a checkpoint, and back."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.connection import joined
from deploy.errors import DeployError
from deploy.state import ServiceRecord
from replay_service import LayoutError, LazyMemmapStorage, TensorDictReplayBuffer
from replay_service.buffer.offline_files.offline_file import OfflineFile
from replay_service.buffer.offline_files.opening import open_offline_file
from replay_service.buffer.persist.exporting import export_columns, export_format
from replay_service.buffer.persist.stored_columns import opened_checkpoint
from replay_service.buffer.prefill import prefill_replay_buffer

__all__ = ["export_checkpoint", "export_service", "import_into_checkpoint", "import_into_service"]

EXPORT_TIMEOUT_S = 600.0


def import_into_checkpoint(source: Path, checkpoint: Path, chunk_rows: int, shows: bool) -> int:
    """Makes a checkpoint of a data file, which any buffer with room for it can load; the number of records.

    Raises:
        FileNotFoundError, LayoutError: as `open_offline_file`.
        CheckpointError: something else lies at `checkpoint`.
        DeployError: the file is empty.
    """
    with _opened(source) as file:
        count = len(file)
        if not count:
            raise DeployError(f"source ({source}) must hold a record; got none")
        storage = LazyMemmapStorage(count)
        try:
            buffer = TensorDictReplayBuffer(storage=storage)
            prefill_replay_buffer(buffer, file, chunk_size=chunk_rows, progress=shows)
            buffer.dumps(checkpoint)
        finally:
            storage.cleanup()
    return count


def import_into_service(source: Path, record: ServiceRecord, chunk_rows: int, shows: bool) -> int:
    """Appends the records of a data file to a service's buffer; their number.

    Raises:
        FileNotFoundError, LayoutError: as `open_offline_file`; or the records do not fit the buffer, and none was written.
        ServiceUnavailableError: the service is not there.
    """
    from clients import connect

    with (
        _opened(source) as file,
        joined(record.address),
        connect(record.name, namespace=record.namespace) as client,
    ):
        prefill_replay_buffer(client, file, chunk_size=chunk_rows, progress=shows)
        return len(file)


def export_checkpoint(checkpoint: Path, target: Path, chunk_rows: int, shows: bool) -> int:
    """Writes the records of a checkpoint, the oldest first, as `.npz`, HDF5, or a folder of memory-mapped columns; their number.

    Raises:
        FileNotFoundError, CheckpointError: as `opened_checkpoint`.
        FileExistsError, ValueError, LayoutError: as `export_columns`.
    """
    export_format(target)
    with opened_checkpoint(checkpoint) as stored:
        total = sum(column.nbytes for column in stored.columns.values())
        with _bar(f"writing {target.name}", total, shows) as advance:
            export_columns(stored, target, chunk_rows, advance)
        return len(stored)


def export_service(record: ServiceRecord, target: Path, chunk_rows: int, shows: bool) -> int:
    """As `export_checkpoint`, of a running service as it is now: it saves a checkpoint beside `target`, which is removed again.

    Raises:
        ServiceUnavailableError: the service is not there.
        DeployError: the service is on another machine, and its checkpoint cannot be read here; or it holds steps of episodes.
    """
    from clients import connect

    export_format(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".checkpoint", dir=target.parent))
    try:
        with joined(record.address), connect(record.name, namespace=record.namespace) as client:
            if not hasattr(client, "extend"):
                raise DeployError(
                    f"name ({record.name!r}) must be a service of records to be exported; got an episodic buffer: keep it with "
                    "`replay-service save`"
                )
            client.dumps(place / "saved", timeout=EXPORT_TIMEOUT_S)
        if not (place / "saved").exists():
            raise DeployError(
                f"target ({target}) must be on the service's node, or in a folder that both machines see; got one that {record.name!r} "
                f"does not write to"
            )
        return export_checkpoint(place / "saved", target, chunk_rows, shows)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _opened(source: Path) -> OfflineFile:
    """A data file with all of its columns: also those that no step needs."""
    try:
        return open_offline_file(source, extra=True)
    except ValueError as error:
        if isinstance(error, LayoutError):
            raise
        return open_offline_file(source)  # of a kind that is always read whole


@contextlib.contextmanager
def _bar(words: str, total: int, shows: bool) -> Iterator[Callable[[int], Any]]:
    """A progress bar of bytes on the error output."""
    if not shows:
        yield lambda count: None
        return
    columns = (TextColumn(words), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("move", total=total)
        yield lambda count: progress.advance(task, count)
