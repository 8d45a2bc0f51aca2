"""Ray's token, shown by every process that holds a handle."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["present_token"]


def present_token() -> None:
    """Lets this process show Ray's token, if the user has one; what the environment already says is kept.

    A Ray that was started on its own asks for the token in `~/.ray/auth_token`, but a process that joins it shows none unless told to.
    """
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if "ray" in sys.modules:
        return  # Ray has read its environment already; what it starts from now on must not be told something else
    if "RAY_AUTH_MODE" not in os.environ and (named or (Path.home() / ".ray" / "auth_token").is_file()):
        os.environ["RAY_AUTH_MODE"] = "token"


# Ray reads its environment once, when it is imported; the package imports this module first.
present_token()
