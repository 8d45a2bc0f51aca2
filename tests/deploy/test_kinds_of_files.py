"""Every published storage and writer that a file can describe, from TOML to the built part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import replay_service
from deploy.config import load_config
from deploy.errors import ConfigError
from deploy.kinds import available_kinds

STORAGES = {
    "ListStorage": "capacity = 9",
    "LazyTensorStorage": "capacity = 9\ndevice = 'cpu'\nndim = 1\nconsolidated = true",
    "LazyMemmapStorage": "capacity = 9\nscratch_dir = 'SCRATCH'\nexistsok = true\nauto_cleanup = true",
    "LazyStackStorage": "capacity = 9\nstack_dim = 0\ndevice = 'cpu'",
    "CompressedListStorage": "capacity = 9\ncompression_level = 7\ndevice = 'cpu'",
}
WRITERS = {
    "RoundRobinWriter": "track_generations = true",
    "TensorDictRoundRobinWriter": "track_generations = true",
    "TensorDictMaxValueWriter": "rank_key = ['next', 'reward']\nreduction = 'max'\ntrack_generations = true",
    "ImmutableDatasetWriter": "",
}


def _buffer(folder: Path, storage: str, settings: str, writer: str, writer_settings: str) -> Any:
    file = folder / "replay.toml"
    settings = settings.replace("SCRATCH", str(folder / "columns"))
    file.write_text(
        f"[service]\nname = 'replay'\nbatch_size = 4\n[storage]\nkind = '{storage}'\n{settings}\n"
        f"[writer]\nkind = '{writer}'\n{writer_settings}\n"
    )
    config = load_config(file)
    assert config.writer is not None
    return replay_service.TensorDictReplayBuffer(
        storage=config.storage.factory(), writer=config.writer.factory(), batch_size=4
    )


def _rows(*rewards: float) -> TensorDict:
    return TensorDict({("next", "reward"): torch.tensor(rewards, dtype=torch.float32)[:, None]}, [len(rewards)])


def test_every_kind_but_those_around_tensors_is_here() -> None:
    assert set(available_kinds("storage")) - {"TensorStorage"} == set(STORAGES)
    assert set(available_kinds("writer")) == set(WRITERS)


@pytest.mark.parametrize("storage", sorted(STORAGES))
def test_storages_are_built_and_work(tmp_path: Path, storage: str) -> None:
    writer = "TensorDictRoundRobinWriter"
    buffer = _buffer(tmp_path, storage, STORAGES[storage], writer, WRITERS[writer])
    assert type(buffer.storage).__name__ == storage
    buffer.extend(_rows(*map(float, range(12))))
    assert len(buffer) == buffer.storage.max_size == 9
    assert buffer.sample()["index_generation"].shape == (4,)
    assert (tmp_path / "columns").exists() is (storage == "LazyMemmapStorage")


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_writers_are_built_and_work(tmp_path: Path, writer: str) -> None:
    buffer = _buffer(tmp_path, "LazyTensorStorage", "capacity = 2", writer, WRITERS[writer])
    assert type(buffer.writer).__name__ == writer
    if writer == "ImmutableDatasetWriter":
        with pytest.raises(RuntimeError, match="ImmutableDatasetWriter"):
            buffer.extend(_rows(1.0))
        return
    buffer.extend(_rows(5.0, 3.0, 1.0))
    kept = [5.0, 3.0] if writer == "TensorDictMaxValueWriter" else [1.0, 3.0]
    assert buffer[:]["next", "reward"].flatten().tolist() == kept


@pytest.mark.parametrize(
    ("storage", "settings", "writer", "message"),
    [
        ("LazyMemmapStorage", "capacity = 9\ndevice = 'cuda:0'", "", r"storage\.device \(cuda:0\) must be cpu"),
        ("LazyMemmapStorage", "capacity = 9\nexistsok = 1", "", r"storage\.existsok \(1\) must be bool"),
        (
            "CompressedListStorage",
            "capacity = 9\ncompression_level = 0",
            "",
            r"storage\.compression_level \(0\) must be",
        ),
        (
            "CompressedListStorage",
            "capacity = 9\ncompression_fn = 'zlib'",
            "",
            r"storage\.compression_fn \('zlib'\) must be",
        ),
        ("LazyStackStorage", "stack_dim = 'a'", "", r"storage\.stack_dim \('a'\) must be int"),
        ("ListStorage", "capacity = 9", "rank_key = 3", r"writer\.rank_key \(3\) must be"),
        ("ListStorage", "capacity = 9", "reduction = 'product'", r"writer\.reduction \('product'\) must be one of sum"),
    ],
)
def test_values_that_cannot_work_are_named(
    tmp_path: Path, storage: str, settings: str, writer: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _buffer(tmp_path, storage, settings, "TensorDictMaxValueWriter", writer)


def test_a_folder_that_the_running_service_uses_does_not_matter_here(tmp_path: Path) -> None:
    """`status` and `down` read the same file as `up`."""
    (tmp_path / "columns").mkdir()
    (tmp_path / "columns" / "meta.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"scratch_dir .* must not hold columns already"):
        _buffer(tmp_path, "LazyMemmapStorage", "capacity = 9\nscratch_dir = 'SCRATCH'", "RoundRobinWriter", "")
    load_config(tmp_path / "replay.toml")
