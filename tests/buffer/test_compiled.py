"""Compiled kernels come up whatever happens to the files they are kept in."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from replay_service.buffer.compiled import compiled

SOURCE = """
from replay_service.buffer.compiled import compiled

@compiled("int64(int64)")
def doubled(number):
    return 2 * number
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[object], int]]:
    """Imports a module with one kernel, as a new process would; its kept files lie in `tmp_path/__pycache__`."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", "")
    path = tmp_path / "kept_kernel.py"
    path.write_text(SOURCE)

    def load() -> Callable[[object], int]:
        spec = importlib.util.spec_from_file_location("kept_kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.doubled  # type: ignore[no-any-return]

    return load


def test_a_kernel_is_kept_on_disk_and_found_again(tmp_path: Path, load: Callable[[], Callable[[object], int]]) -> None:
    first = load()
    assert first(21) == 42
    kept = list((tmp_path / "__pycache__").glob("*.nbc"))
    assert len(kept) == 1
    again = load()
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", ["nbc", "nbi"])
@pytest.mark.parametrize("content", [b"", b"not what was written"])
def test_kept_files_that_cannot_be_read_do_not_matter(
    tmp_path: Path, load: Callable[[], Callable[[object], int]], ending: str, content: bytes
) -> None:
    load()
    for kept in (tmp_path / "__pycache__").glob(f"*.{ending}"):
        kept.write_bytes(content)
    assert load()(21) == 42


def test_a_kernel_that_can_be_kept_nowhere_is_compiled_all_the_same() -> None:
    # Source that lies in no file stands for an install and a home that nobody may write.
    space: dict[str, Callable[[int], int]] = {}
    exec(compile(SOURCE, "<no file>", "exec"), space)
    assert space["doubled"](21) == 42


def test_an_error_of_the_kernel_itself_is_raised() -> None:
    from numba.core.errors import TypingError

    with pytest.raises(TypingError):

        @compiled("int64(int64)")
        def broken(number: int) -> int:
            return number.nothing  # type: ignore[attr-defined, no-any-return]


def test_arguments_of_another_kind_are_refused_and_not_compiled_for(
    load: Callable[[], Callable[[object], int]],
) -> None:
    with pytest.raises(TypeError, match="No matching definition"):
        load()("text")
