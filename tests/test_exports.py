"""What the packages publish: ``__all__`` tells the truth, and ``import replay_service`` stays light."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.source_tree import PACKAGES, ROOT, Source, is_private, module_names, source_from, sources, within

PUBLISHED = [
    name
    for name in ("replay_service", "replay_service.episodic", "replay_service.transforms", "clients")
    if name in module_names()
]


def test_the_buffer_package_is_there() -> None:
    assert "replay_service" in PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_name_in_all_exists_once(name: str) -> None:
    module = importlib.import_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    assert not missing


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_import_of_a_package_is_in_its_all(name: str) -> None:
    source = next(source for source in sources() if source.module == name)
    assert set(_imported(source.tree.body)) <= set(importlib.import_module(name).__all__)


def test_package_files_hold_nothing_but_imports_and_all() -> None:
    offences = [offence for source in _packages() if source.is_package for offence in extra_statements(source)]
    assert not offences, "\n".join(["", *offences])


def test_every_public_module_says_what_it_publishes() -> None:
    offences = []
    for source in _packages():
        listed = _listed(source)
        if not source.is_package and listed is None and not _is_entry_or_private(source):
            offences.append(f"{source.module} has no __all__")
        elif not source.is_package and (lacking := sorted((listed or set()) - _bound(source))):
            offences.append(f"{source.module} lists in __all__ what it does not define: {', '.join(lacking)}")
    assert not offences, "\n".join(["", *offences])


def test_importing_the_buffer_does_not_import_ray() -> None:
    program = "import sys, replay_service; sys.exit(' '.join(sorted({'ray', 'gymnasium', 'torchcodec'} & set(sys.modules))) or 0)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_marked_as_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_extra_statements_are_found() -> None:
    for text in ("x = 1", "def make(): ...", "class A: ...", "print('hello')", "if True:\n    x = 1", "T = {'a': 'b'}"):
        assert list(extra_statements(source_from(text, "replay_service", is_package=True))), text
    fine = (
        '"""What it is."""\n'
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from replay_service.service.owner import RayReplayBuffer\n"
        "__all__ = ['RayReplayBuffer']\n"
        "HOSTED = {'RayReplayBuffer': 'replay_service.service.owner'}\n"
        '"""Where they live."""\n'
        "def __getattr__(name):\n    return HOSTED[name]\n"
    )
    assert not list(extra_statements(source_from(fine, "replay_service", is_package=True)))


def extra_statements(source: Source) -> Iterator[str]:
    """Statements that a package file should not hold.

    A module ``__getattr__`` may bring names that need Ray, and read them from a table of strings.
    """
    lazy = [node for node in source.tree.body if _is_lazy_import(node)]
    read = {leaf.id for node in lazy for leaf in ast.walk(node) if isinstance(leaf, ast.Name)}
    for node in source.tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        table = _table_name(node)
        if not (is_text or node in lazy or _is_import(node) or _is_all(node) or table in read):
            yield f"{source.module}:{node.lineno} holds {ast.unparse(node).splitlines()[0]}"


def _packages() -> Iterator[Source]:
    return (source for source in sources() if any(within(source.module, package) for package in PACKAGES))


def _is_import(node: ast.stmt) -> bool:
    typing_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and not node.orelse
    if typing_only and isinstance(node, ast.If):
        return all(map(_is_import, node.body))
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_all(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [ast.unparse(target) for target in targets] == ["__all__"]


def _table_name(node: ast.stmt) -> str | None:
    """The name that a dict of constants is given."""
    if not (isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)):
        return None
    constant = all(isinstance(leaf, ast.Constant) for leaf in [*node.value.keys, *node.value.values])
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return ast.unparse(target) if constant else None


def _is_lazy_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    """Public names that the imports of a package file bind, ``from __future__`` and ``typing`` apart."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _imported(node.body)
        elif isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing"):
            yield from (alias.asname or alias.name for alias in node.names if not is_private(alias.name))


def _listed(source: Source) -> set[str] | None:
    for node in source.tree.body:
        if _is_all(node) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    return None


def _is_entry_or_private(source: Source) -> bool:
    last = source.module.rpartition(".")[2]
    return last == "__main__" or is_private(last)


def _bound(source: Source) -> set[str]:
    """Every name that the module's top level gives, also inside ``if`` and ``try``."""
    names = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names
