"""Putting a folder into the place of another one, in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path
from typing import Any

__all__ = ["exchange", "recovered", "settle"]

AT_FDCWD = -100
RENAME_EXCHANGE = 2
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(folder: Path, path: Path) -> None:
    """Renames `folder` to `path`; a folder that is there gets the name of the other one.

    Where the system cannot exchange names, there is a moment without anything at `path`; who is killed in it leaves the old folder under
    the name that `recovered` finds.
    """
    try:
        os.rename(folder, path)  # nothing, or an empty folder, is there
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    code = _renameat2(folder, path)
    if code == 0:
        return
    if code not in NO_EXCHANGE:
        raise OSError(code, os.strerror(code), str(path))
    old = _old_name(path)
    os.rename(path, old)
    os.rename(folder, path)
    os.rename(old, folder)


def recovered(path: Path) -> Path:
    """`path`, or the folder that was there before a process was killed while it exchanged names."""
    old = _old_name(path)
    return old if not path.exists() and old.exists() else path


def settle(path: Path) -> None:
    """Finishes what a killed process began: the old folder gets its name back, or goes if the new one has it."""
    old = _old_name(path)
    if not old.exists():
        return
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(old, path)


def _renameat2(folder: Path, path: Path) -> int:
    """0, or the number of the error."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameat2", None)
    if call is None:
        return errno.ENOSYS
    done = call(AT_FDCWD, os.fsencode(folder), AT_FDCWD, os.fsencode(path), RENAME_EXCHANGE)
    return 0 if done == 0 else ctypes.get_errno()


def _old_name(path: Path) -> Path:
    return path.parent / f".{path.name}.old"
