"""One table of a configuration file: every value is checked as it is read, and every complaint names its key."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from deploy.errors import ConfigError

__all__ = ["Table", "near_match"]

SIZE_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Table:
    """A TOML table whose keys are read one by one.

    Args:
        values: the table as parsed.
        path: dotted name of the table, `""` for the whole file.
        known: the keys that may occur.

    Raises:
        ConfigError: `values` is not a table, or holds a key that is not known.
    """

    def __init__(self, values: Any, path: str, known: Iterable[str]) -> None:
        self.path = path
        self._known = tuple(known)
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path} ({values!r}) must be a table; got {type(values).__name__}")
        self._values = values
        for key, value in values.items():
            if key not in self._known:
                raise self._unknown(key, value)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def name_of(self, key: str) -> str:
        """Dotted name of `key`, as messages show it."""
        return f"{self.path}.{key}" if self.path else key

    def refuse(self, key: str, rule: str) -> ConfigError:
        """The error that says which rule the value of `key` breaks."""
        value = self._values[key]
        return ConfigError(f"{self.name_of(key)} ({value!r}) must be {rule}; got {type(value).__name__}")

    def value(self, key: str) -> Any:
        """The value as parsed, unchecked; None if the key is absent."""
        return self._values.get(key)

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string that is not empty."""
        if key not in self:
            return default
        value = self._values[key]
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(key, "a string that is not empty")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str | None:
        """One of `choices`."""
        if key not in self:
            return default
        value = self._values[key]
        if value not in choices:
            raise self.refuse(key, f"one of {', '.join(choices)}{near_match(value, choices)}")
        return str(value)

    def integer(self, key: str, default: int | None = None, *, least: int = 0, most: int | None = None) -> int | None:
        """An integer of at least `least` and at most `most`."""
        if key not in self:
            return default
        value = self._values[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            raise self.refuse(
                key, f"an integer of at least {least}" + (f" and at most {most}" if most is not None else "")
            )
        return value

    def number(self, key: str, default: float | None = None, *, above: float | None = None) -> float | None:
        """A finite number of at least 0, or above `above` where that is given."""
        if key not in self:
            return default
        value = self._values[key]
        fine = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        if not fine or (value <= above if above is not None else value < 0):
            raise self.refuse(key, f"a number above {above:g}" if above is not None else "a number of at least 0")
        return float(value)

    def boolean(self, key: str, default: bool = False) -> bool:
        """`true` or `false`."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def size_bytes(self, key: str) -> int | None:
        """A number of bytes: a positive integer or a text with a unit, such as `"4GiB"`; None if the key is absent."""
        if key not in self:
            return None
        value = self._values[key]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value) if isinstance(value, str) else None
        if parts is None or parts[2] not in SIZE_UNITS or float(parts[1]) <= 0:
            raise self.refuse(key, f"a positive number of bytes or a text with a unit ({', '.join(SIZE_UNITS)})")
        return int(float(parts[1]) * SIZE_UNITS[parts[2]])

    def amounts(self, key: str) -> dict[str, float]:
        """A table of names and amounts of at least 0; empty if the key is absent."""
        if key not in self:
            return {}
        inner = self._values[key]
        if not isinstance(inner, Mapping):
            raise self.refuse(key, "a table of amounts")
        table = Table(inner, self.name_of(key), inner)
        return {name: table.number(name) or 0.0 for name in inner}

    def _unknown(self, key: str, value: Any) -> ConfigError:
        known = ", ".join(self._known)
        guess = near_match(key, self._known, self.path)
        return ConfigError(f"{self.name_of(key)} ({value!r}) must be a known key ({known}); got an unknown one{guess}")


def near_match(given: Any, known: Iterable[str], path: str = "") -> str:
    """`", did you mean …?"` where one of `known` is close to `given`, else nothing."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(given).lower(), by_lower, n=1, cutoff=0.6)
    if not close:
        return ""
    name = by_lower[close[0]]
    return f", did you mean {f'{path}.{name}' if path else name}?"
