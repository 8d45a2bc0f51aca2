"""Checkpoints that are cut short, damaged, foreign, newer or of something else: file and reason are named, nothing is loaded."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from replay_service import (
    CheckpointError,
    LayoutError,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from tests.buffer.persist.buffers import make, rows, same
from tests.rows import stamped_rows


def saved(folder: Path) -> Path:
    buffer = make(capacity=600)
    buffer.extend(rows(600))
    buffer.dumps(folder / "c")
    return folder / "c"


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any], sign: bool = True) -> None:
    """Changes a manifest, and makes it look whole again."""
    body = json.loads(path.read_text())
    change(body)
    if sign:
        body.pop("crc32", None)
        words = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        body["crc32"] = f"{zlib.crc32(words):08x}"
    path.write_text(json.dumps(body))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "no manifest": ("manifest.json", Path.unlink, "has no manifest.json"),
    "half a manifest": (
        "manifest.json",
        lambda p: p.write_text(p.read_text()[:500]),
        "manifest.json.* must be JSON.*cut short",
    ),
    "another format": ("manifest.json", lambda p: rewrite(p, lambda m: m.update(format="x")), "its format is 'x'"),
    "a list": ("manifest.json", lambda p: p.write_text("[1]"), "its format is 'list'"),
    "newer": (
        "manifest.json",
        lambda p: rewrite(p, lambda m: m.update(version=2)),
        "got 2: it was written by a newer replay_service",
    ),
    "changed manifest": (
        "manifest.json",
        lambda p: rewrite(p, lambda m: m.update(id="y"), sign=False),
        "it was changed",
    ),
    "other bytes": ("manifest.json", lambda p: rewrite(p, lambda m: m.update(byteorder="big")), "little-endian"),
    "other kind": (
        "manifest.json",
        lambda p: rewrite(p, lambda m: m.update(kind="storage")),
        "checkpoint of a buffer; got one of a storage",
    ),
    "path outside": (
        "manifest.json",
        lambda p: rewrite(p, lambda m: m["files"].update({"../../secret": {"bytes": 1, "crc32": "00"}})),
        "must lie within",
    ),
    "cut block": ("storage/000-observation/00001.bin", cut, "00001.bin.* must have 1048576 bytes; got 1048575"),
    "missing block": ("storage/000-observation/00001.bin", Path.unlink, "00001.bin.* it is missing"),
    "damaged block": ("storage/000-observation/00001.bin", flip, "00001.bin.* must have the checksum .* damaged"),
    "damaged state": ("state.json", flip, "state.json.* must have the checksum"),
    "damaged stamps": ("storage/generations.json", flip, "generations.json.* must have the checksum"),
    "no such dtype": (
        "manifest.json",
        lambda p: rewrite(p, lambda m: m["content"]["storage"]["columns"][0].update(dtype="float1")),
        "float1",
    ),
    "other layout": (
        "manifest.json",
        lambda p: rewrite(p, lambda m: m["content"]["storage"].update(layout="stone")),
        "laid out as 'columns'; got 'stone'",
    ),
    "no content": ("manifest.json", lambda p: rewrite(p, lambda m: m.update(content={})), "must tell storage"),
}


@pytest.mark.parametrize("is_new", [True, False], ids=["into an empty buffer", "into a filled one"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_ones(folder: Path, damage: str, is_new: bool) -> None:
    name, hurt, words = DAMAGE[damage]
    path = saved(folder)
    buffer, twin = make(capacity=600, seed=4), make(capacity=600, seed=4)
    if not is_new:
        for each in (buffer, twin):
            each.extend(rows(300, stamp=7))
    hurt(path / name)
    with pytest.raises(CheckpointError, match=words) as caught:
        buffer.loads(path)
    assert str(path) in str(caught.value)
    assert same(buffer, twin)
    for each in (buffer, twin):
        each.extend(rows(5))
    assert same(buffer, twin)


def test_nothing_there(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path \(.*nowhere\) must be a checkpoint; nothing is there"):
        make().loads(folder / "nowhere")
    (folder / "other").mkdir()
    with pytest.raises(CheckpointError, match=r"has no manifest\.json"):
        make().loads(folder / "other")


OTHERS: dict[str, tuple[Callable[[], TensorDictReplayBuffer], type[Exception], str]] = {
    "other columns": (lambda: filled(make(capacity=600), stamped_rows(5)), LayoutError, "keys must be"),
    "other dtype": (
        lambda: filled(make(capacity=600), rows(5).apply(lambda t: t.double())),
        LayoutError,
        "observation must be float64 .* got float32",
    ),
    "too small": (lambda: make(capacity=599), LayoutError, r"max_size \(599\) must hold the saved 600 slots"),
    "lanes": (lambda: make(LazyTensorStorage(600, ndim=2), 600), LayoutError, "saved lanes"),
    "other storage": (lambda: make(ListStorage(600), 600), CheckpointError, "laid out as 'records'; got 'columns'"),
    "other sampler": (
        lambda: make(capacity=600, sampler=RandomSampler()),
        CheckpointError,
        r"sampler \(RandomSampler\) must be of the kind that was saved; got the state of PrioritizedSampler",
    ),
    "another sampler": (lambda: make(capacity=600, sampler=SamplerWithoutReplacement()), CheckpointError, "sampler"),
    "other writer": (
        lambda: make(capacity=600, writer=TensorDictMaxValueWriter("number")),
        CheckpointError,
        r"writer \(TensorDictMaxValueWriter\) must be of the kind that was saved; got the state of RoundRobinWriter",
    ),
}


def filled(buffer: TensorDictReplayBuffer, data: Any) -> TensorDictReplayBuffer:
    buffer.extend(data)
    return buffer


@pytest.mark.parametrize("other", OTHERS)
def test_into_something_else(folder: Path, other: str) -> None:
    recipe, kind, words = OTHERS[other]
    path = saved(folder)
    buffer, twin = recipe(), recipe()
    with pytest.raises(kind, match=words):
        buffer.loads(path)
    assert same(buffer, twin)


def test_a_refused_load_leaves_no_memory_mapped_files(folder: Path) -> None:
    path = saved(folder)
    flip(path / "storage" / "000-observation" / "00002.bin")
    buffer = make(LazyMemmapStorage(600, scratch_dir=folder / "scratch"), 600)
    with pytest.raises(CheckpointError, match="checksum"):
        buffer.loads(path)
    assert list((folder / "scratch").iterdir() if (folder / "scratch").exists() else []) == []
    buffer.extend(rows(3))
    assert len(buffer) == 3


def test_a_state_that_the_sampler_refuses_loads_nothing(folder: Path) -> None:
    path = saved(folder)
    state = json.loads((path / "state.json").read_text())
    state["tree"]["sampler"]["alpha"] = -1.0
    text = json.dumps(state).encode()
    (path / "state.json").write_bytes(text)
    entry = {"bytes": len(text), "crc32": f"{zlib.crc32(text):08x}"}
    rewrite(path / "manifest.json", lambda m: m["files"].update({"state.json": entry}))
    buffer, twin = make(capacity=600), make(capacity=600)
    with pytest.raises(CheckpointError, match=r"sampler \(PrioritizedSampler\) must be able to take over .*alpha"):
        buffer.loads(path)
    assert same(buffer, twin)


def test_a_checkpointer_that_is_none() -> None:
    with pytest.raises(TypeError, match="checkpointer must be a StorageCheckpointerBase; got str"):
        make(checkpointer="fast")
    with pytest.raises(TypeError, match="pass an instance"):
        LazyTensorStorage(3).checkpointer = dict  # type: ignore[assignment]


def test_manifests_say_what_made_them(folder: Path) -> None:
    manifest = json.loads((saved(folder) / "manifest.json").read_text())
    assert manifest["libraries"]["torch"] == torch.__version__.partition("+")[0] or torch.__version__
    assert {"replay-service", "torch", "tensordict", "numpy", "python"} == set(manifest["libraries"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", manifest["saved_at"])
    assert manifest["content"]["parts"] == {"sampler": "PrioritizedSampler", "writer": "RoundRobinWriter"}
    for name, entry in manifest["files"].items():
        data = (folder / "c" / name).read_bytes()
        assert (entry["bytes"], entry["crc32"]) == (len(data), f"{zlib.crc32(data):08x}")
