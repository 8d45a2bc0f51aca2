"""Every checkpointer: what it keeps, what it refuses, and that a later save writes what changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    CheckpointError,
    CompressedListStorage,
    LayoutError,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    Storage,
    TensorDictReplayBuffer,
)
from replay_service.buffer.ensemble.replay_buffer_ensemble import ReplayBufferEnsemble
from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase
from replay_service.buffer.persist.checkpointers.compressed import CompressedListStorageCheckpointer
from replay_service.buffer.persist.checkpointers.flat import FlatStorageCheckpointer
from replay_service.buffer.persist.checkpointers.h5 import H5StorageCheckpointer
from replay_service.buffer.persist.checkpointers.list import ListStorageCheckpointer
from replay_service.buffer.persist.checkpointers.nested import NestedStorageCheckpointer
from replay_service.buffer.persist.checkpointers.tensor import TensorStorageCheckpointer
from replay_service.buffer.persist.ted import Flat2TED, TED2Flat
from tests.buffer.persist.buffers import rows, same
from tests.buffer.persist.test_ted import episodes
from tests.buffer.persist.test_ted import same as same_steps

TED: dict[str, Callable[[], StorageCheckpointerBase]] = {
    "flat": FlatStorageCheckpointer,
    "nested": NestedStorageCheckpointer,
    "h5": H5StorageCheckpointer,
}


def of_steps(checkpointer: Any = None, capacity: int = 20, ndim: int = 1, storage: Any = LazyTensorStorage) -> Any:
    return TensorDictReplayBuffer(
        storage=storage(capacity, ndim=ndim),
        checkpointer=checkpointer,
        batch_size=4,
        dim_extend=0,
        generator=torch.Generator().manual_seed(5),
    )


@pytest.mark.parametrize("kind", TED)
@pytest.mark.parametrize("written", [[3, 4], [5, 6, 7, 8, 3]], ids=["not full", "around the ring"])
@pytest.mark.parametrize("lanes", [None, 2])
def test_steps_in_less_space(folder: Path, kind: str, written: list[int], lanes: int | None) -> None:
    ndim = 1 if lanes is None else 2
    buffer = of_steps(TED[kind](), ndim=ndim)
    steps = episodes(written, lanes)
    for at in range(0, steps.shape[0], 5):
        buffer.extend(steps[at : at + 5])
    buffer.dumps(folder / "c")
    loaded = of_steps(TED[kind](), ndim=ndim, storage=LazyMemmapStorage)
    loaded.loads(folder / "c")
    assert same(loaded, buffer)
    assert list(loaded[:].keys()) == list(buffer[:].keys())
    for each in (loaded, buffer):
        each.extend(episodes([2], lanes).zero_())
    loaded.dumps(folder / "c")
    buffer.loads(folder / "c")
    assert same(loaded, buffer)
    with pytest.raises(CheckpointError, match=f"laid out as 'columns'; got '{kind}'"):
        of_steps(TensorStorageCheckpointer(), ndim=ndim).loads(folder / "c")


def test_they_save_space(folder: Path) -> None:
    sizes = {}
    wide = episodes([100] * 10)
    wide["observation"], wide["next", "observation"] = (
        wide[key].repeat(1, 300) for key in ("observation", ("next", "observation"))
    )
    for kind, checkpointer in {"tensor": TensorStorageCheckpointer, **TED}.items():
        buffer = of_steps(checkpointer(), capacity=1000)
        buffer.extend(wide)
        sizes[kind] = buffer.dumps(folder / kind).size_bytes
    assert all(sizes[kind] < 0.55 * sizes["tensor"] for kind in TED)


def test_hooks_are_told_where_the_ring_stands(folder: Path) -> None:
    """The snippet of the format's documentation: hooks registered with the buffer."""
    rb = of_steps(capacity=9)
    rb.register_save_hook(TED2Flat())
    data = episodes([4, 5, 3])
    rb.extend(data[:7])
    rb.extend(data[7:])
    rb.dumps(folder)
    fresh = of_steps(capacity=9)
    fresh.register_load_hook(Flat2TED())
    fresh.load(folder)
    assert same_steps(fresh[:], rb[:])
    with pytest.raises(CheckpointError, match="register those that undo"):
        of_steps(capacity=9).loads(folder)
    plain = of_steps(capacity=9)
    plain.extend(data[:3])
    plain.dumps(folder)
    with pytest.raises(CheckpointError, match="load it without"):
        fresh.loads(folder)
    assert same_steps(fresh[:], rb[:])


def test_hooks_of_ones_own(folder: Path) -> None:
    seen: list[Path] = []

    def halve(data: TensorDict, path: Path) -> TensorDict:
        seen.append(path)
        (path / "notes.txt").write_text("by a hook")
        return data.apply(lambda tensor: tensor // 2 if tensor.dtype == torch.int64 else tensor)

    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)
    buffer.extend(rows(4))
    buffer.register_save_hook(halve)
    buffer.dumps(folder / "c")
    loaded = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)
    loaded.register_load_hook(lambda data: data)
    loaded.loads(folder / "c")
    assert loaded[:]["number"].tolist() == [0, 0, 1, 1]
    assert (folder / "c" / "storage" / "notes.txt").read_text() == "by a hook"
    assert "storage/notes.txt" in json.loads((folder / "c" / "manifest.json").read_text())["files"]
    for storage in (ListStorage(3), CompressedListStorage(3)):
        other = ReplayBuffer(storage=storage, batch_size=2)
        other.extend([torch.zeros(2)])
        other.register_save_hook(halve)
        with pytest.raises(CheckpointError, match="save hooks must be for columns"):
            other.dumps(folder / "d")
    assert not (folder / "d").exists()


def test_the_hdf5_file_is_one_for_everybody(folder: Path) -> None:
    made = H5StorageCheckpointer(checkpoint_file="steps.h5", h5_kwargs={"compression": "gzip"})
    buffer = of_steps(made)
    data = episodes([3, 4])
    buffer.extend(data)
    buffer.dumps(folder / "c")
    with h5py.File(folder / "c" / "storage" / "steps.h5") as file:
        assert sorted(file) == ["traj_0", "traj_1"]
        assert file["traj_1"]["observation"].shape == (5, 3)
        assert file["traj_1"]["observation"].compression == "gzip"
        assert file["traj_0"]["reward"][:].tolist() == data["next", "reward"][:3].tolist()
    with pytest.raises(LayoutError, match="must hold a step"):
        of_steps(H5StorageCheckpointer()).dumps(folder / "d")
    with pytest.raises(ValueError, match="checkpoint_file"):
        H5StorageCheckpointer(checkpoint_file="../x.h5")


class Thing:
    """Only pickle knows it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment]


RECORDS: list[Any] = [
    "text",
    {"a": torch.arange(3), "b": ["x", None, 2.5]},
    TensorDict({"a": torch.zeros(2), "s": "say"}),
    (1, b"bytes"),
    torch.randn(2, 2),
]


def test_records_of_any_kind(folder: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), batch_size=2, collate_fn=list)
    buffer.extend(RECORDS)
    buffer.dumps(folder / "c")
    loaded = ReplayBuffer(storage=ListStorage(10), batch_size=2, collate_fn=list)
    loaded.loads(folder / "c")
    found = loaded.storage.get(range(5))
    assert [found[0], found[1]["b"], found[2]["s"], found[3]] == ["text", ["x", None, 2.5], "say", (1, b"bytes")]
    assert torch.equal(found[4], RECORDS[4])


@pytest.mark.parametrize("storage", [ListStorage, CompressedListStorage])
def test_objects_need_a_word(folder: Path, storage: type[ListStorage]) -> None:
    allowing = (
        ListStorageCheckpointer(allow_pickle=True)
        if storage is ListStorage
        else CompressedListStorageCheckpointer(allow_pickle=True)
    )
    settings: dict[str, Any] = {"batch_size": 1, "collate_fn": list}
    buffer = ReplayBuffer(storage=storage(5), **settings)
    buffer.extend([Thing(), torch.zeros(3)])
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        buffer.dumps(folder / "c")
    assert not (folder / "c").exists()
    buffer.storage.checkpointer = allowing
    buffer.dumps(folder / "c")
    cautious = ReplayBuffer(storage=storage(5), **settings)
    cautious.extend([torch.ones(3)])
    with pytest.raises(CheckpointError, match="trust"):
        cautious.loads(folder / "c")
    assert (len(cautious), cautious[0].tolist()) == (1, [1, 1, 1])
    trusting = ReplayBuffer(storage=storage(5), checkpointer=allowing, **settings)
    trusting.loads(folder / "c")
    assert trusting.storage.get(0) == Thing()


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage, CompressedListStorage])
def test_lists_write_the_blocks_that_changed(folder: Path, storage: Any) -> None:
    def record(number: int) -> TensorDict:
        noise = torch.Generator().manual_seed(number)
        return TensorDict({"a": torch.randint(256, (20_000,), dtype=torch.uint8, generator=noise)})

    buffer = ReplayBuffer(storage=storage(500), batch_size=2, collate_fn=list)
    buffer.extend([record(number) for number in range(400)])
    first = buffer.dumps(folder / "c")
    assert first.written_bytes > 8_000_000
    buffer.storage.set([3], [record(1000)], set_cursor=False)
    buffer.extend([record(1001)])
    second = buffer.dumps(folder / "c")
    assert second.written_bytes < 0.5 * first.written_bytes
    loaded = ReplayBuffer(storage=storage(500), batch_size=2, collate_fn=list)
    loaded.loads(folder / "c")
    for slot, number in ((0, 0), (3, 1000), (399, 399), (400, 1001)):
        assert torch.equal(loaded.storage.get(slot)["a"], record(number)["a"])
    small = ReplayBuffer(storage=storage(400), batch_size=2, collate_fn=list)
    with pytest.raises(LayoutError, match=r"max_size \(400\) must hold the saved 401 records"):
        small.loads(folder / "c")


def test_compressed_records_of_another_compression(folder: Path) -> None:
    buffer = ReplayBuffer(storage=CompressedListStorage(5), batch_size=1)
    buffer.extend([torch.zeros(100)])
    buffer.dumps(folder / "c")
    other = CompressedListStorage(5, compression_fn=lambda data: data, decompression_fn=lambda data: data[5:])
    with pytest.raises((CheckpointError, LayoutError), match="must be"):
        ReplayBuffer(storage=other, batch_size=1).loads(folder / "c")


def test_stacks_take_only_what_can_be_stacked(folder: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(5), batch_size=1)
    buffer.extend(["text"])
    buffer.dumps(folder / "c")
    with pytest.raises(LayoutError, match="stacked lazily"):
        ReplayBuffer(storage=LazyStackStorage(5), batch_size=1).loads(folder / "c")


class Own(ListStorage):
    """A storage of somebody's own, with a state and no checkpointer."""

    def default_checkpointer(self) -> StorageCheckpointerBase:
        return Storage.default_checkpointer(self)


def test_storages_of_ones_own_are_saved_by_their_state(folder: Path) -> None:
    buffer = ReplayBuffer(storage=Own(5), batch_size=1, collate_fn=list)
    buffer.extend(["a", "b"])
    buffer.dumps(folder / "c")
    loaded = ReplayBuffer(storage=Own(5), batch_size=1, collate_fn=list)
    loaded.loads(folder / "c")
    assert loaded.storage.get(range(2)) == ["a", "b"]


class Textual(StorageCheckpointerBase):
    """A checkpointer of somebody's own: two calls, and files as it likes."""

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        (Path(path) / "rows.json").write_text(json.dumps(storage.get(slice(None)).tolist()))

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        storage.empty()
        held = json.loads((Path(path) / "rows.json").read_text())
        storage.set(range(len(held)), torch.tensor(held))


def test_checkpointers_of_ones_own(folder: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), checkpointer=Textual(), batch_size=2)
    buffer.extend(torch.arange(4))
    buffer.dumps(folder / "c")
    assert (folder / "c" / "storage" / "rows.json").read_text() == "[0, 1, 2, 3]"
    loaded = ReplayBuffer(storage=LazyTensorStorage(5), checkpointer=Textual(), batch_size=2)
    loaded.loads(folder / "c")
    assert loaded[:].tolist() == [0, 1, 2, 3]
    (folder / "c" / "storage" / "rows.json").write_text("[0, 1, 2, 4]")
    with pytest.raises(CheckpointError, match="checksum"):
        loaded.loads(folder / "c")
    with pytest.raises(CheckpointError, match="laid out as 'columns'; got 'own'"):
        ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2).loads(folder / "c")
    plain = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)
    plain.extend(torch.arange(3))
    plain.dumps(folder / "d")
    with pytest.raises(CheckpointError, match="saved by a Textual"):
        loaded.loads(folder / "d")


@pytest.mark.parametrize("name", ["dumps", "dump", "save"])
def test_a_storage_alone(folder: Path, name: str) -> None:
    storage, other = LazyTensorStorage(300), LazyTensorStorage(300)
    storage.set(range(300), rows(300))
    getattr(storage, name)(folder / "c")
    getattr(other, {"dumps": "loads", "dump": "load", "save": "load"}[name])(folder / "c")
    assert bool((other.get(slice(None)) == rows(300)).all())
    with pytest.raises(CheckpointError, match="checkpoint of a buffer; got one of a storage"):
        ReplayBuffer(storage=other, batch_size=2).loads(folder / "c")


def ensemble() -> ReplayBufferEnsemble:
    return ReplayBufferEnsemble(
        ReplayBuffer(storage=LazyTensorStorage(300), sampler=RandomSampler()),
        ReplayBuffer(storage=LazyMemmapStorage(300)),
        batch_size=4,
        generator=torch.Generator().manual_seed(2),
    )


def test_ensembles(folder: Path) -> None:
    buffer = ensemble()
    buffer[0].extend(rows(300))
    buffer[1].extend(rows(20, stamp=1000))
    first = buffer.dumps(folder / "c")
    buffer[1].extend(rows(2, stamp=2000))
    second = buffer.dumps(folder / "c")
    assert second.written_bytes < 0.2 * first.written_bytes
    loaded = ensemble()
    loaded.loads(folder / "c")
    assert [len(loaded[0]), len(loaded[1])] == [300, 22]
    for _ in range(20):
        assert bool((loaded.sample()["number"] == buffer.sample()["number"]).all())
    (folder / "c" / "storage" / "1" / "001-number" / "00000.bin").write_bytes(b"x" * 176)
    twin = ensemble()
    with pytest.raises(CheckpointError, match="checksum"):
        twin.loads(folder / "c")
    assert len(twin) == 0
    single = ReplayBufferEnsemble(ReplayBuffer(storage=LazyTensorStorage(300)), batch_size=4)
    with pytest.raises(CheckpointError, match=r"sampler \(SamplerEnsemble\) must be of the kind that was saved"):
        single.loads(folder / "c")
