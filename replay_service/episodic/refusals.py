"""Errors for what Python code has long checked by `assert` in episodic buffers and batches.

They are the usual TypeError and ValueError, and AssertionErrors besides, so that code which catches those goes on working.
"""

from __future__ import annotations

__all__ = ["RefusedTypeError", "RefusedValueError"]


class RefusedTypeError(TypeError, AssertionError):
    """An argument is of a kind that cannot be taken."""


class RefusedValueError(ValueError, AssertionError):
    """An argument is of the right kind but not within its bounds."""
