"""Files of recorded steps: every kind gives the same steps, in the layout of collectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service import LayoutError, iter_trajectories, open_offline_file
from tests.buffer.offline_files.recorded import as_columns, cartpole, write_hdf5, write_minari, write_npz


def _expected() -> TensorDict:
    episodes = cartpole()
    columns = {name: torch.from_numpy(column) for name, column in as_columns().items()}
    rows = columns["action"].shape[0]
    terminated, truncated = columns["next/terminated"].view(-1, 1), columns["next/truncated"].view(-1, 1)
    following = {
        "observation": columns["next/observation"],
        "reward": columns["next/reward"].float().view(-1, 1),
        "done": terminated | truncated,
        "terminated": terminated,
        "truncated": truncated,
    }
    ids = torch.repeat_interleave(torch.arange(len(episodes)), torch.tensor([len(e.rewards) for e in episodes]))
    return TensorDict(
        {
            "observation": columns["observation"],
            "action": columns["action"],
            "next": following,
            "collector": {"traj_ids": ids},
        },
        [rows],
    )


def _files(folder: Path) -> dict[str, Path]:
    return {
        "hdf5": write_hdf5(folder / "own.hdf5", as_columns()),
        "d4rl": write_hdf5(folder / "d4rl.h5", as_columns("d4rl")),
        "npz": write_npz(folder / "own.npz", as_columns()),
        "short": write_npz(folder / "short.npz", as_columns("short")),
    }


@pytest.mark.parametrize("kind", ["hdf5", "d4rl", "npz", "short"])
def test_columns(kind: str, tmp_path: Path) -> None:
    expected = _expected()
    with open_offline_file(_files(tmp_path)[kind]) as file:
        steps = file[:]
        assert len(file) == len(expected)
        assert (file[5:9] == expected[5:9]).all()
        assert set(file.keys()) == set(expected.keys(True, True)) - {"observation", "action"} | {
            ("observation",),
            ("action",),
        }
    assert set(steps.keys(True, True)) == set(expected.keys(True, True))
    assert (steps == expected).all()
    for key in expected.keys(True, True):
        assert (steps[key].dtype, steps[key].shape) == (expected[key].dtype, expected[key].shape), key


def test_episodes_of_minari(tmp_path: Path) -> None:
    expected = _expected()
    # The last episode was cut off by whoever recorded it.
    expected["next", "truncated"][-1] = expected["next", "done"][-1] = True
    (tmp_path / "data").mkdir()
    path = write_minari(tmp_path / "data" / "main_data.hdf5")
    for given in (path, str(path), tmp_path, tmp_path / "data"):
        with open_offline_file(given) as file:
            assert len(file) == len(expected)
            assert (file[:] == expected).all()
            for start, stop in ((0, 3), (3, 40), (len(file) - 2, len(file)), (7, 7), (5, 999), (-3, None)):
                assert (file[start:stop] == expected[start:stop]).all(), (start, stop)
            assert set(file.keys()) >= {("observation",), ("next", "reward"), ("collector", "traj_ids")}
    lengths = [trajectory.length for trajectory in iter_trajectories(expected)]
    assert lengths == [len(episode.rewards) for episode in cartpole()]


def test_what_is_read_is_the_callers(tmp_path: Path) -> None:
    for path in (write_minari(tmp_path / "a.hdf5"), *_files(tmp_path).values()):
        with open_offline_file(path) as file:
            before = file[:]
            for leaf in file[:].values(True, True):
                leaf.zero_()
            one = file[:]
            one["observation"].fill_(5)
            assert not (one["next", "observation"] == 5).all()
            assert (file[:] == before).all()


def test_nested_observations(tmp_path: Path) -> None:
    expected = _expected()
    minari = write_minari(tmp_path / "nested.hdf5", nested=True)
    columns = as_columns()
    for name in ("observation", "next/observation"):
        whole = columns.pop(name)
        columns[f"{name}/cart"], columns[f"{name}/pole"] = whole[:, :2], whole[:, 2:]
    for path in (minari, write_hdf5(tmp_path / "own.hdf5", columns), write_npz(tmp_path / "own.npz", columns)):
        with open_offline_file(path) as file:
            steps = file[:]
        assert torch.equal(steps["observation", "cart"], expected["observation"][:, :2])
        assert torch.equal(steps["next", "observation", "pole"], expected["next", "observation"][:, 2:])


def test_other_names_and_further_columns(tmp_path: Path) -> None:
    columns = as_columns()
    rows = len(columns["action"])
    columns["pixels"] = columns.pop("observation")
    columns["who"], columns["infos/speed"], columns["metadata/version"] = (
        np.arange(rows),
        np.ones(rows),
        np.float64(3.0),
    )
    path = write_hdf5(tmp_path / "own.hdf5", columns)
    with pytest.raises(LayoutError, match=r"must have columns for \['observation'\]; it has \[.*'pixels'"):
        open_offline_file(path)
    names = {"observation": "pixels"}
    with open_offline_file(path, columns=names) as file:
        assert "who" not in file[:]
        assert torch.equal(file[:]["observation"], torch.from_numpy(columns["pixels"]))
    with open_offline_file(path, columns=names, extra=["infos/speed"]) as file:
        assert ("infos", "speed") in set(file.keys())
        assert "who" not in file[:]
    with open_offline_file(path, columns={**names, "speed": "infos/speed"}) as file:
        assert file[:]["speed"].sum() == rows
    with open_offline_file(path, columns=names, extra=True) as file:
        assert file[:2]["who"].tolist() == [0, 1]
        assert "metadata" not in file[:]


def test_ids_of_trajectories_may_be_stored(tmp_path: Path) -> None:
    ids = np.arange(len(as_columns()["action"])) // 7
    for name in ("episode", "collector/traj_ids", "traj_ids"):
        with open_offline_file(write_npz(tmp_path / "own.npz", {**as_columns(), name: ids})) as file:
            assert torch.equal(file[3:]["collector", "traj_ids"], torch.from_numpy(ids[3:]))


@pytest.mark.parametrize(
    ("given", "terminated", "truncated"),
    [
        ({"done": [0, 1, 0, 1]}, [0, 1, 0, 1], [0, 0, 0, 0]),
        ({"dones": [0, 1, 0, 1], "timeouts": [0, 0, 0, 1]}, [0, 1, 0, 0], [0, 0, 0, 1]),
        ({"done": [0, 1, 0, 1], "terminals": [0, 1, 0, 0]}, [0, 1, 0, 0], [0, 0, 0, 1]),
        ({"terminals": [0.0, 1.0, 0.0, 0.0]}, [0, 1, 0, 0], [0, 0, 0, 0]),
        ({"timeouts": [[0], [0], [1], [0]]}, [0, 0, 0, 0], [0, 0, 1, 0]),
    ],
)
def test_ends(given: dict[str, Any], terminated: list[int], truncated: list[int], tmp_path: Path) -> None:
    columns = {
        name: column[:4] for name, column in as_columns("short").items() if name not in ("terminated", "truncated")
    }
    path = write_npz(tmp_path / "own.npz", {**columns, **{name: np.array(flags) for name, flags in given.items()}})
    with open_offline_file(path) as file:
        following = file[:]["next"]
    assert following["terminated"].flatten().tolist() == terminated
    assert following["truncated"].flatten().tolist() == truncated
    assert torch.equal(following["done"], following["terminated"] | following["truncated"])


def test_missing_columns_are_named_with_those_that_are_there(tmp_path: Path) -> None:
    columns = as_columns("d4rl")
    for name in ("next_observations", "terminals", "timeouts"):
        del columns[name]
    for path in (write_hdf5(tmp_path / "a.hdf5", columns), write_npz(tmp_path / "a.npz", columns)):
        words = (
            rf"{path.name} must have columns for \['next.observation', 'next.terminated, next.truncated or next.done'\]; "
            r"it has \['actions', 'observations', 'rewards'\]"
        )
        with pytest.raises(LayoutError, match=words):
            open_offline_file(path)


def _broken_minari(path: Path) -> Path:
    import h5py

    write_minari(path)
    with h5py.File(path, "a") as file:
        del file["episode_2/truncations"]
    return path


def _short_minari(path: Path) -> Path:
    import h5py

    write_minari(path)
    with h5py.File(path, "a") as file:
        actions = file["episode_3/actions"][:-1]
        del file["episode_3/actions"]
        file["episode_3/actions"] = actions
    return path


def _truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda d: _broken_minari(d / "a.hdf5"),
            r"episode_2 of .*a.hdf5 must have \['truncations'\]; it has \['actions', 'infos'",
        ),
        (lambda d: _short_minari(d / "a.hdf5"), r"actions of episode_3 in .* must have \d+ rows; got \[\d+\]"),
        (
            lambda d: write_npz(d / "a.npz", {**as_columns(), "action": np.zeros(3)}),
            r"action of .*a.npz \(3 rows\) must have",
        ),
        (
            lambda d: write_npz(d / "a.npz", {**as_columns(), "action": np.array(3)}),
            "one row per step; got a single value",
        ),
        (
            lambda d: write_npz(
                d / "a.npz", {**as_columns(), "next/terminated": np.zeros((len(as_columns()["action"]), 2))}
            ),
            "one flag",
        ),
        (
            lambda d: write_npz(d / "a.npz", {**as_columns(), "episode": np.zeros((len(as_columns()["action"]), 2))}),
            "one number",
        ),
        (lambda d: _truncated(write_hdf5(d / "a.hdf5", as_columns())), r"a.hdf5 must be a whole HDF5 file"),
        (lambda d: _truncated(write_npz(d / "a.npz", as_columns())), r"a.npz must be a whole .npz archive"),
        (
            lambda d: write_npz(d / "a.npz", {"observation": np.array([None, 1], dtype=object)}),
            "whole .npz archive of numbers",
        ),
    ],
)
def test_files_that_are_not_whole_are_refused(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=words):
        open_offline_file(make(tmp_path))


def test_words_and_rewards_that_are_none_are_refused(tmp_path: Path) -> None:
    columns = as_columns()
    rows = len(columns["action"])
    for wrong in ({"action": np.array(["left"] * rows)}, {"next/reward": np.zeros((rows, 2))}):
        path = write_npz(tmp_path / "a.npz", {**columns, **wrong})
        with open_offline_file(path) as file, pytest.raises(LayoutError, match=r"action|next.reward"):
            file[:]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(
        LayoutError, match=r"a.parquet must be an HDF5 file or an .npz archive; its first bytes are b'PAR1"
    ):
        open_offline_file(tmp_path / "a.parquet")
    with pytest.raises(FileNotFoundError, match="download it first"):
        open_offline_file("minari:cartpole/random-v0")
    with pytest.raises(FileNotFoundError, match="folder of a Minari data set"):
        open_offline_file(tmp_path)
    with pytest.raises(ValueError, match="columns and extra"):
        open_offline_file(write_minari(tmp_path / "a.hdf5"), extra=True)
    path = write_npz(tmp_path / "a.npz", as_columns())
    with pytest.raises(LayoutError, match=r"nothing \(for observation\) must be a column"):
        open_offline_file(path, columns={"observation": "nothing"})
    with pytest.raises(TypeError, match="extra"):
        open_offline_file(path, extra="who")
    with open_offline_file(path) as file:
        for index in (3, slice(0, 9, 2)):
            with pytest.raises(TypeError, match="slice of steps"):
                file[index]  # type: ignore[index]


def test_without_h5py_one_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_minari(tmp_path / "a.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"h5py must be installed to read .*a.hdf5: pip install 'replay-service\[hdf5\]'"
    ):
        open_offline_file(path)
