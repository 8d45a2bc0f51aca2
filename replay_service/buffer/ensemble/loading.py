"""States of several parts: all of them are loaded, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["load_each", "states_of"]


class Stateful(Protocol):
    """A part with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, by copy."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, or nothing of it."""


def states_of(parts: Sequence[Stateful]) -> dict[str, Any]:
    """The states of parts by their numbers, `"0"` on."""
    return {str(place): part.state_dict() for place, part in enumerate(parts)}


def load_each(parts: Sequence[Stateful], states: Mapping[str, Any]) -> None:
    """Loads what `states_of` gave; if one part refuses its state, those before it get their old one back.

    Raises:
        KeyError: there is no state for a part. Nothing was loaded.
        ValueError: there are more states than parts. Nothing was loaded.
    """
    wanted = [states[str(place)] for place in range(len(parts))]
    surplus = [name for name in states if name.isdigit() and int(name) >= len(parts)]
    if surplus:
        raise ValueError(f"state ({len(wanted) + len(surplus)} parts) must be that of {len(parts)} parts")
    before: list[dict[str, Any]] = []
    try:
        for place, (part, state) in enumerate(zip(parts, wanted, strict=True)):
            if place + 1 < len(parts):  # the last one that is loaded needs no way back
                before.append(part.state_dict())
            part.load_state_dict(state)
    except Exception:
        for part, state in _loaded(parts, before):
            part.load_state_dict(state)
        raise


def _loaded(parts: Sequence[Stateful], before: list[dict[str, Any]]) -> Iterator[tuple[Stateful, dict[str, Any]]]:
    return zip(parts, before, strict=False)
