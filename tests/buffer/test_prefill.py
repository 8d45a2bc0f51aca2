"""prefill_replay_buffer: recorded steps, copied in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictReplayBuffer,
    iter_trajectories,
    open_offline_file,
    prefill_replay_buffer,
    traj,
)
from tests.buffer.ensembles import member
from tests.buffer.offline_files.recorded import as_columns, cartpole, write_minari, write_npz
from tests.rows import stamped_rows


def test_the_document_says() -> None:
    dataset = ReplayBuffer(storage=LazyTensorStorage(500))
    dataset.extend(TensorDict({"obs": torch.randn(500, 4)}, [500]))
    online = ReplayBuffer(storage=LazyTensorStorage(10_000))
    assert prefill_replay_buffer(online, dataset, n_samples=200) is online
    assert len(online) == 200


@pytest.mark.parametrize(("n_samples", "chunk_size", "calls"), [(None, 7, 3), (5, 100, 1), (99, 10, 2), (20, 20, 1)])
def test_steps_keep_their_order(n_samples: int | None, chunk_size: int, calls: int) -> None:
    rb = member(0, 0, capacity=50)
    extended: list[int] = []
    extend = rb.extend
    rb.extend = lambda data, **settings: (extended.append(len(data)), extend(data, **settings))[1]  # type: ignore[method-assign]
    prefill_replay_buffer(rb, stamped_rows(20), n_samples, chunk_size)
    assert rb[:]["action"].tolist() == list(range(min(n_samples or 20, 20)))
    assert len(extended) == calls


def test_a_full_ring_begins_with_its_oldest_step() -> None:
    source = member(0, 0)
    source.extend(stamped_rows(14))
    rb = prefill_replay_buffer(member(1, 0), source, chunk_size=3)
    assert rb[:]["action"].tolist() == list(range(4, 14))


def test_lanes_are_copied_side_by_side() -> None:
    source = TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    source.extend(torch.stack([stamped_rows(6), stamped_rows(6, stamp=100)]))
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    prefill_replay_buffer(rb, source, n_samples=5, chunk_size=2)
    assert rb[:]["action"].tolist() == [[0, 1, 2, 3, 4], [100, 101, 102, 103, 104]]


def test_files_are_read_as_they_are_copied(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "cartpole.hdf5")
    with open_offline_file(path) as file:
        steps = file[:]
        whole = prefill_replay_buffer(TensorDictReplayBuffer(storage=LazyTensorStorage(500)), file, chunk_size=11)
    by_path = prefill_replay_buffer(TensorDictReplayBuffer(storage=LazyTensorStorage(500)), str(path), chunk_size=1)
    for rb in (whole, by_path):
        assert (rb[:] == steps).all()
        assert [t.length for t in rb.query(traj.length > 0)] == [len(episode.rewards) for episode in cartpole()]
    npz = prefill_replay_buffer(
        TensorDictReplayBuffer(storage=LazyTensorStorage(500)), write_npz(tmp_path / "a.npz", as_columns()), n_samples=9
    )
    assert len(list(iter_trajectories(npz[:]))) == 1


def test_a_bar_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    prefill_replay_buffer(member(0, 0), stamped_rows(5), chunk_size=2, progress=True)
    shown = capsys.readouterr()
    assert "copying steps" in shown.err
    assert "5/5" in shown.err
    prefill_replay_buffer(member(0, 0), stamped_rows(5))
    assert capsys.readouterr() == ("", "")


def test_nothing_to_copy() -> None:
    assert len(prefill_replay_buffer(member(0, 0), member(1, 0))) == 0


@pytest.mark.parametrize(
    ("dataset", "settings", "error", "words"),
    [
        (stamped_rows(3), {"n_samples": 0}, ValueError, "n_samples"),
        (stamped_rows(3), {"chunk_size": 0}, ValueError, "chunk_size"),
        (stamped_rows(3), {"chunk_size": 1.5}, TypeError, "chunk_size"),
        (stamped_rows(3)[0], {}, ValueError, "leading dimension"),
        (3, {}, TypeError, r"dataset \(int\)"),
        ("nowhere.npz", {}, FileNotFoundError, "nowhere.npz"),
        (ReplayBufferEnsemble(member(0, 1)), {}, TypeError, "several buffers"),
        (stamped_rows(3).exclude("action"), {}, LayoutError, "action"),
    ],
)
def test_what_is_no_data_set_is_refused(dataset: Any, settings: Any, error: type[Exception], words: str) -> None:
    rb = member(0, 1)
    with pytest.raises(error, match=words):
        prefill_replay_buffer(rb, dataset, **settings)
    assert len(rb) == 1
