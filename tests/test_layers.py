"""The rooms of the house: who may import whom, and how large and how private a file may be.

Everything that may change is in the tables at the top. Each rule is a function from one file to its offences, so that
the second half can show that it finds what it should and leaves alone what is fine.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.source_tree import (
    Source,
    imported_modules,
    imported_names,
    is_own,
    is_private,
    module_names,
    source_from,
    sources,
    within,
)

# Small modules without a room, open to everyone.
LEAVES = tuple(
    f"replay_service.{leaf}"
    for leaf in ("errors", "records", "specs", "structure", "info", "payload", "arena", "sources", "arguments")
)

# Room -> what it may import besides itself. The longest matching room counts. A file in no room is an offence.
ROOMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LEAVES, LEAVES),
    "replay_service": ("replay_service",),  # its __init__ gathers the public names
    "replay_service.buffer": LEAVES,
    "replay_service.transforms": ("replay_service.buffer", *LEAVES),
    "replay_service.episodic": ("replay_service.buffer", *LEAVES),
    "replay_service.wire": LEAVES,
    "replay_service.service": (
        "replay_service.buffer",
        "replay_service.episodic",
        "replay_service.wire",
        "clients.handle",
        "clients.episodic_handle",
        *LEAVES,
    ),
    # A collector that writes video extends references to it.
    "clients": ("replay_service.wire", "replay_service.episodic", "replay_service.buffer.video", *LEAVES),
    "deploy": ("replay_service", "clients"),
    "benchmarks": ("replay_service", "clients", "deploy"),
    "tests": ("replay_service", "clients", "deploy", "benchmarks"),
}

# (importing module, imported module) -> why this one import may cross rooms.
SEAMS: dict[tuple[str, str], str] = {
    ("replay_service.buffer.backends", "replay_service.service.owner"): (
        "ReplayBuffer(service_backend='ray') is the owner; named as a string and imported only then"
    ),
    ("replay_service.buffer.backends", "replay_service.service.episodic_owner"): "as above, for episodic buffers",
}

# Library -> the only places that may import it.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "ray": ("replay_service.wire.ray_objects", "replay_service.service", "clients", "deploy", "benchmarks", "tests"),
    "torch.distributed": ("replay_service.wire.tensor_group", "replay_service.wire.rendezvous", "benchmarks", "tests"),
    "gymnasium": ("clients", "deploy", "benchmarks", "tests"),
    "typer": ("deploy", "tests"),
    "rich": ("deploy", "benchmarks", "tests", "replay_service.buffer.prefill", "clients.trainers.progress"),
    "matplotlib": ("deploy", "benchmarks", "tests"),
    "torchcodec": ("replay_service.buffer.video", "clients.video_file", "benchmarks", "tests"),
    "torchrl": ("benchmarks", "examples", "tests"),
    "tianshou": ("clients.adapters", "benchmarks", "examples", "tests"),
    "stable_baselines3": ("clients.adapters", "examples", "tests"),
}

MAX_FILE_LINES = 350
MAX_BODY_LINES = 60  # without signature and docstring
MAX_PRIVATE_PARAMETERS = 7
DRAWERS = ("utils", "common")

# module:qualified name -> why its body may be longer.
LONG_FUNCTIONS: dict[str, str] = {}

# (module, private name of a library's object) -> why nothing public does the same.
LIBRARY_PRIVATES: dict[tuple[str, str], str] = {
    ("replay_service.wire.rendezvous", name): "torch has no public way to bind a gloo group to an address"
    for name in ("_Options", "_devices", "_timeout", "_threads")
}

# Underscored names that their own documentation calls public.
PUBLIC_UNDERSCORES = {"_asdict", "_replace", "_fields", "_make", "_field_defaults"}

Rule = Callable[[Source], Iterator[str]]


def room_of(module: str) -> str | None:
    """The longest room that ``module`` lies in; only the package file itself is in the room ``replay_service``."""
    rooms = [room for room in ROOMS if within(module, room) and (room != "replay_service" or module == room)]
    return max(rooms, key=len, default=None)


def imports_from_other_rooms(source: Source) -> Iterator[str]:
    """The room table."""
    room = room_of(source.module)
    if room is None:
        yield f"{source.module} is in no room"
        return
    for line, target in imported_modules(source):
        allowed = any(within(target, prefix) for prefix in (room, *ROOMS[room]))
        if is_own(target) and not allowed and (source.module, target) not in SEAMS:
            yield f"{source.module}:{line} imports {target}, which {room} may not"


def imports_of_libraries(source: Source) -> Iterator[str]:
    """The library table."""
    for line, target in imported_modules(source):
        for library, places in LIBRARIES.items():
            if within(target, library) and not any(within(source.module, place) for place in places):
                yield f"{source.module}:{line} imports {target}; {library} belongs in {', '.join(places)}"


def private_imports(source: Source) -> Iterator[str]:
    """``from ours import _name`` and ``import ours._module``."""
    for line, module, name in imported_names(source):
        if is_own(module) and any(map(is_private, [*module.split("."), name or ""])):
            yield f"{source.module}:{line} imports the private {module}{'.' + name if name else ''}"


def private_touches(source: Source) -> Iterator[str]:
    """``obj._name`` where ``obj`` is not self, cls or super() and ``_name`` is not defined in this file.

    Names of other projects' modules (``os._exit``) are theirs to judge; those of their objects need a reason above.
    """
    for line, name, text in _foreign_touches(source):
        if (source.module, name) not in LIBRARY_PRIVATES:
            yield f"{source.module}:{line} touches the private {text}"


def large_files(source: Source) -> Iterator[str]:
    """Too many lines in one file."""
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{source.module} has {lines} lines, at most {MAX_FILE_LINES} are allowed"


def drawer_modules(source: Source) -> Iterator[str]:
    """Files named after nothing."""
    if any(part in DRAWERS for part in source.module.split(".")):
        yield f"{source.module} is named after no noun: say what lives there"


def long_functions(source: Source) -> Iterator[str]:
    """Too many lines in one body."""
    for name, function in _functions(source.tree):
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > MAX_BODY_LINES and f"{source.module}:{name}" not in LONG_FUNCTIONS:
            yield f"{source.module}:{name} has a body of {lines} lines, at most {MAX_BODY_LINES} are allowed"


def many_parameters(source: Source) -> Iterator[str]:
    """Too many parameters in a function that is ours alone: it, or the class it is in, has a private name."""
    for name, function in _functions(source.tree):
        given = function.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        count = sum(parameter.arg not in ("self", "cls") for parameter in named)
        if count > MAX_PRIVATE_PARAMETERS and any(map(is_private, name.split("."))):
            yield f"{source.module}:{name} has {count} parameters, at most {MAX_PRIVATE_PARAMETERS} are allowed"


RULES: tuple[Rule, ...] = (
    imports_from_other_rooms,
    imports_of_libraries,
    private_imports,
    private_touches,
    large_files,
    drawer_modules,
    long_functions,
    many_parameters,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_file_breaks(rule: Rule) -> None:
    offences = [offence for source in sources() for offence in rule(source)]
    assert not offences, "\n".join(["", *dict.fromkeys(offences)])


def test_exceptions_are_still_needed() -> None:
    crossings = {(source.module, target) for source in sources() for _, target in imported_modules(source)}
    functions = {f"{source.module}:{name}" for source in sources() for name, _ in _functions(source.tree)}
    touches = {(source.module, name) for source in sources() for _, name, _ in _foreign_touches(source)}
    assert not [touch for touch in LIBRARY_PRIVATES if touch not in touches]
    assert not [seam for seam in SEAMS if seam not in crossings and set(seam) <= module_names()]
    assert not [name for name in LONG_FUNCTIONS if name not in functions]


BUFFER = "replay_service.buffer.ring"
LONG_BODY = "\n".join(["    x = 1"] * 61)
EIGHT = "a, b, c, d, e, f, g, h"

OFFENCES: list[tuple[Rule, str, str]] = [
    (imports_from_other_rooms, BUFFER, "from replay_service.wire import layout"),
    (imports_from_other_rooms, BUFFER, "from replay_service.transforms.frames import CatFrames"),
    (imports_from_other_rooms, BUFFER, "from ..wire.layout import Layout"),
    (imports_from_other_rooms, BUFFER, "import replay_service"),
    (imports_from_other_rooms, BUFFER, "def f():\n    import clients"),
    (imports_from_other_rooms, BUFFER, "importlib.import_module('tests.source_tree')"),
    (imports_from_other_rooms, "replay_service.wire.layout", "from replay_service.buffer import ReplayBuffer"),
    (imports_from_other_rooms, "replay_service.service.owner", "from clients.learner import Learner"),
    (imports_from_other_rooms, "replay_service.stray", ""),
    (imports_from_other_rooms, "clients.handle", "from deploy.config import Config"),
    (imports_of_libraries, BUFFER, "import ray"),
    (imports_of_libraries, BUFFER, "def f():\n    from ray import get"),
    (imports_of_libraries, BUFFER, "import torch.distributed as dist"),
    (imports_of_libraries, "replay_service.wire.packing", "from torch import distributed"),
    (imports_of_libraries, "replay_service.episodic.batch", "from torch.distributed import send"),
    (private_imports, BUFFER, "from replay_service.errors import _key"),
    (private_imports, BUFFER, "from replay_service.buffer import _kernels"),
    (private_touches, BUFFER, "storage._cursor"),
    (private_touches, BUFFER, "self.storage._cursor += 1"),
    (private_touches, BUFFER, "type(storage)._cursor"),
    (private_touches, BUFFER, "getattr(storage, '_cursor', None)"),
    (private_touches, BUFFER, "from replay_service import errors\nerrors._key"),
    (large_files, BUFFER, "x = 1\n" * 351),
    (drawer_modules, "replay_service.buffer.utils", ""),
    (drawer_modules, "clients.common.names", ""),
    (long_functions, BUFFER, f"def f():\n{LONG_BODY}"),
    (many_parameters, BUFFER, f"def _f({EIGHT}): ..."),
    (many_parameters, BUFFER, f"class _Table:\n    def __init__(self, {EIGHT}): ..."),
]

FINE: list[tuple[Rule, str, str]] = [
    (imports_from_other_rooms, BUFFER, "from replay_service.errors import LayoutError\nfrom . import cursor"),
    (imports_from_other_rooms, "replay_service", "from replay_service.service.owner import RayReplayBuffer"),
    (imports_from_other_rooms, "replay_service.service.owner", "from clients.handle import ReplayClient"),
    (imports_from_other_rooms, "deploy.cli", "from clients import connect\nfrom replay_service import ReplayError"),
    (imports_of_libraries, "replay_service.wire.ray_objects", "import ray"),
    (imports_of_libraries, "replay_service.wire.tensor_group", "import torch.distributed as dist"),
    (imports_of_libraries, BUFFER, "import torch\nfrom torch import Tensor\nimport raytracer"),
    (private_imports, BUFFER, "from typing import _GenericAlias\nfrom __future__ import annotations"),
    (private_touches, BUFFER, "class A:\n    def f(self, other):\n        self._x = other._x"),
    (private_touches, BUFFER, "class A:\n    _x: int\n\ndef g(a):\n    return a._x"),
    (private_touches, BUFFER, "class A:\n    __slots__ = ('_x',)\n\ndef g(a):\n    return a._x"),
    (private_touches, BUFFER, "class A(B):\n    def f(self):\n        return super()._f() + type(self)._x + self._y"),
    (private_touches, BUFFER, "import os\nos._exit(1)\npair._replace(a=1)\nx.__class__.__name__"),
    (large_files, BUFFER, "x = 1\n" * 350),
    (long_functions, BUFFER, f'def f():\n    """{"line" * 3}\n{"more" * 9}\n{chr(10) * 70}"""\n    return 1'),
    (many_parameters, BUFFER, f"class Table:\n    def __init__(self, {EIGHT}): ..."),
    (many_parameters, BUFFER, "def _f(self, a, b, c, d, e, f, g, *rest, **named): ..."),
]


@pytest.mark.parametrize(("rule", "module", "text"), OFFENCES)
def test_rule_finds(rule: Rule, module: str, text: str) -> None:
    assert list(rule(source_from(text, module)))


@pytest.mark.parametrize(("rule", "module", "text"), FINE)
def test_rule_leaves_alone(rule: Rule, module: str, text: str) -> None:
    assert not list(rule(source_from(text, module, is_package=module == "replay_service")))


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (qualified name, function), nested ones too."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = f"{prefix}{child.name}" if named else prefix.rstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _functions(child, f"{name}." if name else "")


def _defined_names(tree: ast.Module) -> Iterator[str]:
    """Names that this file itself gives: functions, classes, variables, fields, slots, attributes of self and cls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.Assign) and "__slots__" in map(ast.unparse, node.targets):
            yield from (leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant))


def _foreign_modules(source: Source) -> set[str]:
    """Local names bound by ``import other`` or ``from other import x`` where ``other`` is not ours."""
    names = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names if not is_own(a.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and not is_own(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _foreign_touches(source: Source) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name, expression) where the file uses a private name of an object that it does not define."""
    defined = set(_defined_names(source.tree)) | PUBLIC_UNDERSCORES
    foreign = _foreign_modules(source)
    for node in ast.walk(source.tree):
        touched = _touched(node)
        if touched is None:
            continue
        holder, name = touched
        if is_private(name) and name not in defined and not _is_self(holder) and _root_name(holder) not in foreign:
            yield node.lineno, name, f"{ast.unparse(holder)}.{name}"


def _touched(node: ast.AST) -> tuple[ast.expr, str] | None:
    """(holder, attribute) of ``holder.attribute`` and of ``getattr(holder, "attribute")`` and its kin."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
        name = node.args[1]
        if node.func.id in ("getattr", "setattr", "hasattr", "delattr") and isinstance(name, ast.Constant):
            return node.args[0], str(name.value)
    return None


def _is_self(node: ast.expr) -> bool:
    """Whether ``node`` is self, cls, super() or type(self)."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "super" or (node.func.id == "type" and _is_self(node.args[0]))
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
