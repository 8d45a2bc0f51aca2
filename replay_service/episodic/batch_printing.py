"""How batches, and buffers that are like them, are printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["described"]

INDENT = 4


def described(title: str, items: Iterable[tuple[str, Any]]) -> str:
    """`title(` and one line `name: value,` each; further lines of a value start below its first character."""
    lines = []
    for name, value in items:
        indent = "\n" + " " * (INDENT + len(name) + 2)
        lines.append(f"{' ' * INDENT}{name}: {indent.join(repr(value).splitlines())},\n")
    return f"{title}(\n{''.join(lines)})" if lines else f"{title}()"
