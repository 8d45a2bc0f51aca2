"""Compiled kernels: machine code made once, kept on disk, and never a reason to fail.

Compiling takes up to a second a kernel, loading a kept one some milliseconds. numba keeps its files beside the source
(`__pycache__`), or in the user's cache directory where the install is read-only, or in `NUMBA_CACHE_DIR` where that
is set. Where no place can be written, or what lies there cannot be read (a full disk, a file cut short), the kernel
is compiled for this process alone.

Import a module of kernels where the first object that computes with them is made, not at the top of a module that
`import replay_service` runs: loading numba takes time, and compiling more, that a process which never computes should
not pay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

__all__ = ["compiled"]

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(signature: str) -> Callable[[Kernel], Kernel]:
    """Compile the decorated kernel for exactly one `signature` (numba's notation), now; calls of it release the GIL.

    With one signature no later call can stop to compile again; arguments of another dtype or layout are a `TypeError`.
    A kernel may call kernels of its own file only: numba notices changes of the file that it keeps code for, no others.
    """

    def compile_kernel(function: Kernel) -> Kernel:
        # Anything may go wrong with kept files (RuntimeError, OSError, EOFError, UnpicklingError…); none of it matters.
        # An error of the kernel itself comes again without them, and is raised.
        with contextlib.suppress(Exception):
            return cast("Kernel", njit(signature, cache=True, nogil=True)(function))
        return cast("Kernel", njit(signature, nogil=True)(function))

    return compile_kernel
