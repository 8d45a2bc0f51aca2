"""`import` and `export`, without a service: from data files and dumps to checkpoints, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from click.testing import Result
from tensordict import TensorDict
from typer.testing import CliRunner

from deploy.cli import app
from replay_service import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def columns(count: int) -> dict[str, np.ndarray]:
    number = np.arange(count, dtype=np.float32)
    return {
        "observations": np.stack([number, -number], 1),
        "next_observations": np.stack([number + 1, -number - 1], 1),
        "actions": np.arange(count),
        "rewards": number,
        "terminals": number % 5 == 4,
        "timeouts": np.zeros(count, bool),
        "note": number * 2,
    }


def test_from_a_file_to_a_checkpoint_to_files_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **columns(23))
    done = run("import", tmp_path / "data.npz", "--checkpoint", tmp_path / "c", "--chunk", "7")
    assert (done.exit_code, done.stdout) == (0, f"23 records are in {tmp_path / 'c'}.\n")
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(50), batch_size=4)
    buffer.loads(tmp_path / "c")
    assert buffer[:]["action"].tolist() == list(range(23))
    assert buffer[:]["note"].tolist() == [2.0 * number for number in range(23)]
    assert int(buffer[:]["next", "terminated"].sum()) == 4
    for target in ("again.npz", "again.h5", "again"):
        done = run("export", tmp_path / target, "--checkpoint", tmp_path / "c")
        assert (done.exit_code, done.stdout) == (0, f"23 records are in {tmp_path / target}.\n")
        assert run("import", tmp_path / target, "--checkpoint", tmp_path / f"{target}.c").exit_code == 0
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(23), batch_size=4)
        other.loads(tmp_path / f"{target}.c")
        assert bool((other[:] == buffer[:].select(*other[:].keys(True, True))).all())
        assert set(other[:].keys(True, True)) == set(buffer[:].exclude("index").keys(True, True))


def test_the_dump_of_another_replay_buffer(tmp_path: Path) -> None:
    TensorDict({"obs": torch.arange(6.0)[:, None], "next": TensorDict({"reward": torch.ones(6)}, [6])}, [6]).memmap(
        tmp_path / "dump" / "storage"
    )
    assert run("import", tmp_path / "dump", "--checkpoint", tmp_path / "c").exit_code == 0
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=4)
    buffer.loads(tmp_path / "c")
    assert buffer[:]["obs"].tolist() == [[float(number)] for number in range(6)]


def test_failures_are_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", observations=np.zeros((3, 2)))
    np.savez(tmp_path / "data.npz", **columns(5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    assert run("import", tmp_path / "data.npz", "--checkpoint", tmp_path / "c").exit_code == 0
    (tmp_path / "out.npz").write_text("precious")
    for words, told in (
        (("import", tmp_path / "nowhere", "--checkpoint", tmp_path / "d"), "there is none"),
        (("import", tmp_path / "bad.npz", "--checkpoint", tmp_path / "d"), "must have columns for"),
        (("import", tmp_path / "data.npz", "--checkpoint", tmp_path / "mine"), "choose another path"),
        (("export", tmp_path / "out.npz", "--checkpoint", tmp_path / "c"), "must not exist"),
        (("export", tmp_path / "out.csv", "--checkpoint", tmp_path / "c"), "must end with"),
        (("export", tmp_path / "x.npz", "--checkpoint", tmp_path / "nowhere"), "nothing is there"),
        (("save", tmp_path / "c", "--state-dir", tmp_path / "state"), "must be one that `up` brought up"),
    ):
        failed = run(*words)
        assert failed.exit_code == 1, failed.stderr
        assert told in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
    assert not (tmp_path / "d").exists()
