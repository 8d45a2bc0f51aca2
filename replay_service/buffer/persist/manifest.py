"""The manifest: the one file that says what a checkpoint is made of, and that tells a whole one from anything else.

    {"format": "replay-service checkpoint", "version": 1, "id": "…", "kind": "buffer", "saved_at": "…", "byteorder": "little",
     "libraries": {"torch": "…", …}, "content": {…}, "files": {"storage/…": {"bytes": 8388608, "crc32": "0f3a…"}}, "crc32": "…"}

It is written last. Its own `crc32` covers everything else in it, as JSON with sorted keys and no spaces.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import uuid
import zlib
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from replay_service.buffer.persist.block_files import FileRecord
from replay_service.errors import CheckpointError

__all__ = ["MANIFEST_NAME", "Manifest", "holds_checkpoint", "read_manifest"]

MANIFEST_NAME = "manifest.json"
FORMAT = "replay-service checkpoint"
VERSION = 1
LIBRARIES = ("replay-service", "torch", "tensordict", "numpy")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is made of.

    Attributes:
        kind: what it is the checkpoint of: `"buffer"`, `"buffer of steps"`, `"storage"`, ….
        content: how the parts were saved; whoever wrote them knows what is in it.
        files: size and checksum of every file, by its path within the folder.
        id: names this checkpoint; no other one has it.
        libraries: the versions it was written with.
        saved_at: when, in UTC.
    """

    kind: str
    content: dict[str, Any]
    files: dict[str, FileRecord]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    libraries: dict[str, str] = field(default_factory=lambda: _versions())
    saved_at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(record.size_bytes for record in self.files.values())

    def to_json(self) -> str:
        """The text of the manifest file."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "id": self.id,
            "kind": self.kind,
            "saved_at": self.saved_at,
            "byteorder": sys.byteorder,
            "libraries": self.libraries,
            "content": self.content,
            "files": {
                name: {
                    "bytes": record.size_bytes,
                    "crc32": f"{record.crc32:08x}",
                    **({} if record.digest is None else {"blake2b": record.digest}),
                }
                for name, record in sorted(self.files.items())
            },
        }
        return json.dumps({**body, "crc32": _checksum(body)}, indent=1)


def holds_checkpoint(folder: Path) -> bool:
    """Whether `folder` has a manifest of this format, of any version, whole or not: then it may be replaced by another one."""
    try:
        return bool(json.loads((folder / MANIFEST_NAME).read_text()).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError):
        return False


def read_manifest(folder: Path, kind: str) -> Manifest:
    """The manifest of the checkpoint in `folder`, checked, with the size of every file.

    Raises:
        FileNotFoundError: there is nothing at `folder`.
        CheckpointError: the folder is no checkpoint, one of a newer version, of another kind or machine, damaged, or not complete.
    """
    path = folder / MANIFEST_NAME
    if not folder.exists():
        raise FileNotFoundError(f"path ({folder}) must be a checkpoint; nothing is there")
    try:
        text = path.read_text(errors="replace")  # a damaged one is refused below
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"path ({folder}) must be a checkpoint of replay_service; it has no {MANIFEST_NAME}"
        ) from None
    except OSError as error:
        raise CheckpointError(f"file ({path}) must be readable; {error.strerror}") from error
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"file ({path}) must be JSON; {error}: it was cut short or damaged") from None
    _require_ours(path, found)
    if found["kind"] != kind:
        raise CheckpointError(f"path ({folder}) must be the checkpoint of a {kind}; got one of a {found['kind']}")
    files = {
        name: FileRecord(int(entry["bytes"]), int(entry["crc32"], 16), entry.get("blake2b"))
        for name, entry in found["files"].items()
    }
    _require_files(folder, files)
    return Manifest(kind, found["content"], files, found["id"], found["libraries"], found["saved_at"])


def _require_ours(path: Path, found: Any) -> None:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        said = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise CheckpointError(f"file ({path}) must be the manifest of a {FORMAT}; its format is {said!r}")
    version = found.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(
            f"file ({path}) must have format version {VERSION} or older; got {version}: it was written by a newer replay_service "
            f"({found.get('libraries', {}).get('replay-service', 'unknown')}), load it there"
        )
    said = found.pop("crc32", None)
    if said != _checksum(found):
        raise CheckpointError(
            f"file ({path}) must have the checksum {_checksum(found)}; it says {said}: it was changed"
        )
    if found["byteorder"] != sys.byteorder:
        raise CheckpointError(f"file ({path}) must be of a {sys.byteorder}-endian machine; got {found['byteorder']}")


def _require_files(folder: Path, files: dict[str, FileRecord]) -> None:
    for name, record in files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise CheckpointError(f"file ({name}) must lie within the checkpoint {folder}")
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise CheckpointError(f"file ({folder / name}) must be there; it is missing") from None
        if size != record.size_bytes:
            raise CheckpointError(
                f"file ({folder / name}) must have {record.size_bytes} bytes; got {size}: it was cut short or changed"
            )


def _checksum(body: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"  # run from its source
    return found
