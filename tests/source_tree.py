"""The project's own source as syntax trees: what the rule tests (layers, exports) read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("replay_service", "clients", "deploy")
OWN = (*PACKAGES, "tests", "benchmarks")


@dataclass(frozen=True)
class Source:
    """One file: dotted ``module``, whether it is a package's ``__init__``, its text and its tree."""

    module: str
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """What a relative import starts from."""
        return self.module if self.is_package else self.module.rpartition(".")[0]


def source_from(text: str, module: str, is_package: bool = False) -> Source:
    """Parse ``text`` as the content of ``module``."""
    return Source(module, is_package, text, ast.parse(text))


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the project; folders that do not exist yet are left out."""
    found = []
    for top in OWN:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            found.append(source_from(path.read_text(encoding="utf-8"), module, is_package))
    return tuple(found)


@cache
def module_names() -> frozenset[str]:
    """Dotted names of all files, to tell ``from package import module`` from ``from module import name``."""
    return frozenset(source.module for source in sources())


def within(module: str, prefix: str) -> bool:
    """Whether ``module`` is ``prefix`` or lies under it."""
    return module == prefix or module.startswith(prefix + ".")


def is_own(module: str) -> bool:
    """Whether ``module`` belongs to this project."""
    return module.split(".", 1)[0] in OWN


def is_private(name: str) -> bool:
    """Whether ``name`` starts with one underscore (``__dunder__`` and plain ``_`` are not private)."""
    return name.startswith("_") and not name.endswith("__") and name != "_"


def imported_names(source: Source) -> Iterator[tuple[int, str, str | None]]:
    """Yield (line, module, name or None) for each import; a string that is one of our modules' names counts too.

    Such a string is what ``import_module`` is given, directly or through a table.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, source.package)
            for alias in node.names:
                yield node.lineno, base, alias.name
        elif isinstance(node, ast.Constant) and node.value in module_names() and "." in str(node.value):
            yield node.lineno, str(node.value), None


def imported_modules(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each import; ``from p import m`` counts as ``p.m`` where that is a module."""
    for line, module, name in imported_names(source):
        longer = f"{module}.{name}"
        is_module = longer in module_names() or not is_own(module)
        yield line, longer if name is not None and is_module else module


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])
