from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from replay_service.episodic.hdf5 import read_tree, write_tree
from replay_service.errors import LayoutError
from tests.episodic.steps import filled, listed, tr

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def test_trees_come_back_as_they_were(tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        "z/ with a slash": np.arange(3),
        "a": {"t": torch.ones(2, 3), "h": torch.ones(2, 3, dtype=torch.bfloat16), "empty": {}},
        "o": np.array([{"x": 1}, None], object),
        "numbers": [1, 2],
        "n": None,
        "f": 1.5,
        "s": "text",
        "none": np.empty((0, 3)),
        "scalar": np.array(4),
    }
    write_tree(tmp_path / "f", "Name", tree, "gzip")
    name, found = read_tree(tmp_path / "f", CPU)
    assert (name, list(found)) == ("Name", list(tree))
    assert found["z/ with a slash"].tolist() == [0, 1, 2]
    assert found["a"]["h"].dtype == torch.bfloat16
    assert torch.equal(found["a"]["t"], torch.ones(2, 3))
    assert torch.equal(found["a"]["h"], torch.ones(2, 3, dtype=torch.bfloat16))
    assert found["o"].tolist() == [{"x": 1}, None]
    assert (found["numbers"], found["n"], found["f"], found["s"]) == ([1, 2], None, 1.5, "text")
    assert (found["none"].shape, int(found["scalar"])) == ((0, 3), 4)


def everything() -> ReplayBuffer:
    buffer = ReplayBuffer(4, stack_num=2, random_seed=5)
    for number in range(6):
        info = {"text": f"n{number}", "any": {"k": [number]}}
        buffer.add(tr(number, number == 2, obs={"x": torch.full((2,), number), "y": np.float32(number)}, info=info))
    return buffer


def reloaded(buffer: ReplayBuffer, way: str, folder: Path) -> ReplayBuffer:
    """A copy that went through a file."""
    if way == "hdf5":
        buffer.save_hdf5(folder / "file.hdf5")
        return ReplayBuffer.load_hdf5(folder / "file.hdf5")
    (folder / "file.pkl").write_bytes(pickle.dumps(buffer))
    copy = pickle.loads((folder / "file.pkl").read_bytes())
    assert isinstance(copy, ReplayBuffer)
    return copy


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_e25_a_file_keeps_everything(tmp_path: Path, compression: str | None) -> None:  # E25
    buffer = everything()
    buffer.save_hdf5(tmp_path / "file.hdf5", compression)
    copy = ReplayBuffer.load_hdf5(tmp_path / "file.hdf5")
    assert repr(copy) == repr(buffer)
    for both in (buffer, copy):
        assert listed(both.add(tr(6, True, obs={"x": torch.ones(2), "y": 1.0}))) == [2, 18.0, 4, 3]
    assert copy[:] == buffer[:]
    assert copy.sample(8)[1].tolist() == buffer.sample(8)[1].tolist()


@pytest.mark.parametrize("way", ["pickle", "hdf5"])
def test_e25_totals_of_the_running_episode_survive(tmp_path: Path, way: str) -> None:  # E25
    buffer = filled(20, 3)
    copy = reloaded(buffer, way, tmp_path)
    assert (type(copy), len(copy), copy.maxsize, copy.last_index.tolist()) == (ReplayBuffer, 3, 20, [2])
    assert copy.obs.tolist() == [0, 1, 2] + [0] * 17
    for both in (buffer, copy):
        assert listed(both.add(tr(3, True))) == [3, 6.0, 4, 0]


@pytest.mark.parametrize("way", ["pickle", "hdf5"])
def test_pointer_options_and_random_numbers_survive(tmp_path: Path, way: str) -> None:  # E25
    buffer = filled(5, 8, (2, 6), stack_num=2, ignore_obs_next=True, random_seed=7)
    buffer.sample(3)
    copy = reloaded(buffer, way, tmp_path)
    assert copy.options == buffer.options
    assert copy.sample_indices(0).tolist() == [3, 4, 0, 1, 2]
    assert (copy.last_index.tolist(), copy.unfinished_index().tolist()) == ([2], [2])
    assert copy.sample_indices(9).tolist() == buffer.sample_indices(9).tolist()
    assert copy[:] == buffer[:]
    assert listed(copy.add(tr(8, True))) == [3, 15.0, 2, 2]
    assert copy.obs.tolist() == [5, 6, 7, 8, 4]


def test_objects_are_pickled_and_tensors_stay_tensors(tmp_path: Path) -> None:
    buffer = ReplayBuffer(3)
    buffer.add(tr(0, obs=torch.ones(2), info={"s": "x", "o": {"k"}, "n": None}))
    copy = reloaded(buffer, "hdf5", tmp_path)
    assert isinstance(copy.obs, torch.Tensor)
    assert copy.info.s.tolist() == ["x", None, None]
    assert copy.info.o.tolist() == [{"k"}, None, None]
    assert copy.info.n.tolist() == [None] * 3
    assert copy[:] == buffer[:]


def test_compression_makes_a_smaller_file(tmp_path: Path) -> None:
    buffer = ReplayBuffer(50)
    for number in range(50):
        buffer.add(tr(number, obs=np.zeros(1000)))
    buffer.save_hdf5(tmp_path / "plain.hdf5")
    buffer.save_hdf5(tmp_path / "small.hdf5", compression="gzip")
    sizes = [(tmp_path / name).stat().st_size for name in ("plain.hdf5", "small.hdf5")]
    assert sizes[1] < sizes[0] / 5
    assert ReplayBuffer.load_hdf5(tmp_path / "small.hdf5")[:] == buffer[:]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    everything().save_hdf5(tmp_path / "file.hdf5")
    with pytest.raises(LayoutError, match="must hold a VectorReplayBuffer; got ReplayBuffer"):
        VectorReplayBuffer.load_hdf5(tmp_path / "file.hdf5")
    import h5py

    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["a"] = 1
    with pytest.raises(LayoutError, match="another kind of file"):
        ReplayBuffer.load_hdf5(tmp_path / "other.hdf5")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file.hdf5"
    buffer = ReplayBuffer(3)
    buffer.add(tr(0))
    buffer.save_hdf5(path)
    old = path.read_bytes()
    buffer.add(tr(1, info={"no": lambda: 0}))
    with pytest.raises(Exception, match=r"pickle|local"):
        buffer.save_hdf5(path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.hdf5"]


def test_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match="hdf5"):
        everything().save_hdf5(tmp_path / "file.hdf5")


def test_states_of_other_buffers_are_refused() -> None:
    with pytest.raises(LayoutError, match="missing"):
        ReplayBuffer(3).load_state_dict({"columns": {}})
    before = PrioritizedReplayBuffer(3, 0.5, 0.5)
    before.add(Batch(obs=1, act=1, rew=1, done=0))
    with pytest.raises(ValueError, match="state"):
        before.load_state_dict(everything().state_dict())
    assert before[:].obs.tolist() == [1]


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
import numpy as np
from replay_service.episodic import ReplayBuffer
buffer = ReplayBuffer(200)
for number in range(200):
    buffer.add({"obs": np.full(300, number), "act": 0, "rew": 0.0, "done": False})
    if number == 1:
        buffer.save_hdf5(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    buffer.save_hdf5(sys.argv[1])
except OSError:
    print("refused")
"""
    file = tmp_path / "b.h5"
    done = subprocess.run([sys.executable, "-c", code, file], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused\n", done.stderr
    assert len(ReplayBuffer.load_hdf5(file)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.h5"]


def test_threads_that_save_one_file(tmp_path: Path) -> None:
    buffer = filled(30, 30)
    with ThreadPoolExecutor(3) as pool:
        for saved in [pool.submit(buffer.save_hdf5, tmp_path / "b.h5") for _ in range(12)]:
            saved.result()
    assert len(ReplayBuffer.load_hdf5(tmp_path / "b.h5")) == 30
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.h5"]
