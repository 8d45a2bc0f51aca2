"""Checkpoints of every class of episodic buffer: what goes on after a load, what is refused, and that kill -9 costs nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replay_service import LazyTensorStorage
from replay_service import ReplayBuffer as RecordBuffer
from replay_service.buffer.persist.tree_files import write_tree
from replay_service.episodic import (
    Batch,
    CachedReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from replay_service.errors import CheckpointError, LayoutError
from tests.episodic.every_class import CLASSES, entries, grow, life, told
from tests.episodic.steps import filled, rows, tr

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("steps", [1, 3, 14])
def test_after_a_load_everything_goes_on_as_in_the_buffer_that_was_saved(name: str, steps: int, folder: Path) -> None:
    buffer, other, third = (CLASSES[name]() for _ in range(3))
    grow(buffer, 0, steps)
    if hasattr(buffer, "update_weight"):
        buffer.update_weight(buffer.sample_indices(0)[:1], [3.0])
        buffer.update_weight(buffer.sample_indices(0)[-1:], [0.25])
        buffer.set_beta(0.7)
    if name != "ReplayBuffer" or steps > 1:
        buffer.sample(3)
    receipt = buffer.dumps(folder / "c")
    assert (receipt.path, receipt.written_bytes) == (str(folder / "c"), receipt.size_bytes)
    assert 0 < receipt.longest_lock_s == receipt.locked_s < receipt.took_s
    grow(other, 50, 6)
    other.sample(4)
    other.loads(folder / "c")
    third.load(folder / "c")
    if name == "ReplayBuffer" and steps == 1:  # nothing may be drawn yet
        for one in (buffer, other, third):
            grow(one, steps, 2)
    expected = life(buffer, steps + 2)
    assert life(other, steps + 2) == expected
    assert life(third, steps + 2) == expected


@pytest.mark.parametrize("name", CLASSES)
def test_buffers_without_steps(name: str, folder: Path) -> None:
    """One that never had any, and one that forgot them: shapes and dtypes stay, as in the buffer itself."""
    fresh, forgetful, loaded = (CLASSES[name]() for _ in range(3))
    fresh.dumps(folder / "fresh")
    grow(loaded, 0, 5)
    loaded.loads(folder / "fresh")
    assert (len(loaded), loaded.write_count) == (0, 0)
    assert grow(loaded, 0, 3) == grow(fresh, 0, 3)
    grow(forgetful, 0, 5)
    forgetful.reset(keep_statistics=True)
    forgetful.save(folder / "forgetful")
    loaded.loads(folder / "forgetful")
    for buffer in (forgetful, loaded):
        with pytest.raises(LayoutError, match=r"act \(shape \[2\]\)"):
            buffer.add(rows([0], **{**entries([0]), "act": np.zeros((1, 2))}), [0])
    assert told(loaded[:]) == told(forgetful[:])
    assert grow(loaded, 5, 4) == grow(forgetful, 5, 4)
    assert life(loaded, 9) == life(forgetful, 9)


def test_a_goal_in_hindsight_is_not_what_is_saved(folder: Path) -> None:
    buffer, other = CLASSES["HERReplayBuffer"](), CLASSES["HERReplayBuffer"]()
    grow(buffer, 0, 6)
    buffer.sample(6)
    assert (buffer.obs.desired_goal[:6] != 99).any()
    buffer.dumps(folder / "c")
    other.loads(folder / "c")
    assert buffer.obs.desired_goal[:6].tolist() == other.obs.desired_goal[:6].tolist() == [99] * 6


def test_rewards_of_several_kinds_and_cuts_between_runs(folder: Path) -> None:
    buffer, source = ReplayBuffer(8), ReplayBuffer(8)
    for number in range(3):
        reward = np.array([number, 2.0 * number])
        source.add(tr(number, rew=reward))
        buffer.add(tr(10 + number, rew=reward))
    buffer.update(source, apart=True)
    buffer.dumps(folder / "c")
    other = ReplayBuffer(8)
    other.loads(folder / "c")
    assert other.unfinished_index().tolist() == buffer.unfinished_index().tolist() == [2, 5]
    assert other.prev([3]).tolist() == [3]
    step = tr(20, True, rew=np.array([1.0, 1.0]))
    assert told(other.add(step)) == told(buffer.add(step))


def test_settings_of_reading_stay_those_of_the_buffer_that_loads(folder: Path) -> None:
    filled(8, 5).dump(folder / "c")
    stacked = ReplayBuffer(8, stack_num=3)
    stacked.loads(folder / "c")
    assert stacked[4].obs.tolist() == [2, 3, 4]


def test_a_later_save_writes_the_pieces_that_changed(folder: Path) -> None:
    buffer = VectorReplayBuffer(4096, 2)
    wide = np.arange(2.0 * 2048 * 128).reshape(2048 * 2, 128)
    flags = np.zeros(4096, bool)
    columns = {"act": np.arange(4096), "rew": np.zeros(4096), "terminated": flags, "truncated": flags, "done": flags}
    buffer.fill({"obs": wide, **columns})
    first = buffer.dumps(folder / "c")
    buffer.add(Batch(obs=-wide[:2], act=[0, 1], rew=[0.0, 0.0], done=[False, False]))
    second = buffer.dumps(folder / "c")
    assert second.written_bytes < 0.7 * second.size_bytes < 0.7 * 1.1 * first.size_bytes
    elsewhere = buffer.dumps(folder / "d")
    assert elsewhere.written_bytes < 0.1 * elsewhere.size_bytes
    for name in ("c", "d"):
        other = VectorReplayBuffer(4096, 2)
        other.loads(folder / name)
        assert told(other[:]) == told(buffer[:])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_objects_that_can_only_be_pickled_are_named(folder: Path) -> None:
    buffer = filled(4, 2)
    buffer.dumps(folder / "c")
    before = contents(folder)
    buffer.add(tr(2, info={"deep": {"thing": [{"x": [object()]}, 1]}}))
    with pytest.raises(
        CheckpointError, match=r"info\.deep\.thing\[4\]\.x\[0\] \(object\) must be .* save_hdf5, or pickle"
    ):
        buffer.dumps(folder / "c")
    assert contents(folder) == before
    assert [path.name for path in folder.iterdir()] == ["c"]


WRONG: list[tuple[Callable[[], Any], Callable[[], Any], type[Exception], str]] = [
    (lambda: VectorReplayBuffer(4, 1), lambda: ReplayBuffer(4), CheckpointError, "of a ReplayBuffer; got one of a Vec"),
    (
        lambda: PrioritizedReplayBuffer(4, 0.5, 0.5),
        lambda: ReplayBuffer(4),
        CheckpointError,
        "must be the checkpoint of a ReplayBuffer; got one of a PrioritizedReplayBuffer",
    ),
    (
        lambda: ReplayBuffer(5),
        lambda: ReplayBuffer(4),
        LayoutError,
        r"rings \(1 of 4 steps, \[4\]\) must .* \[5\]: make",
    ),
    (lambda: VectorReplayBuffer(4, 2), lambda: VectorReplayBuffer(4, 4), LayoutError, r"\[1, 1, 1, 1\]\).*\[2, 2\]"),
    (
        lambda: VectorReplayBuffer(9, 9),
        lambda: VectorReplayBuffer(8, 8),
        LayoutError,
        r"\[1, 1, 1, 1\]…\).*got 9 of 9 steps",
    ),
    (
        lambda: CachedReplayBuffer(4, 2, 2),
        lambda: CachedReplayBuffer(4, 1, 4),
        LayoutError,
        r"rings \(2 of 8 steps, \[4, 4\]\).*\[4, 2, 2\]",
    ),
    (
        lambda: ReplayBuffer(4, ignore_obs_next=True),
        lambda: ReplayBuffer(4),
        LayoutError,
        r"ignore_obs_next \(False\) must be as when .* got True",
    ),
    (
        lambda: PrioritizedReplayBuffer(4, 0.5, 0.5),
        lambda: PrioritizedReplayBuffer(4, 1, 0.5),
        LayoutError,
        r"alpha \(1\) must be as when .* got 0",
    ),
    (
        lambda: RecordBuffer(storage=LazyTensorStorage(4)),
        lambda: ReplayBuffer(4),
        CheckpointError,
        "got one of a buffer$",
    ),
    (
        lambda: ReplayBuffer(4),
        lambda: RecordBuffer(storage=LazyTensorStorage(4)),
        CheckpointError,
        "one of a buffer of steps",
    ),
]


@pytest.mark.parametrize(("saved", "loading", "kind", "words"), WRONG)
def test_the_checkpoint_of_another_buffer_is_refused(
    saved: Callable[[], Any], loading: Callable[[], Any], kind: type[Exception], words: str, folder: Path
) -> None:
    source, buffer = saved(), loading()
    source.dumps(folder / "c")
    is_episodic = not isinstance(buffer, RecordBuffer)
    if is_episodic:
        buffer.add(rows([7]), [0])
        before = told(buffer.state_dict())
    with pytest.raises(kind, match=words):
        buffer.loads(folder / "c")
    if is_episodic:
        assert told(buffer.state_dict()) == before


def test_damage_is_refused_and_changes_nothing(folder: Path) -> None:
    saved = PrioritizedReplayBuffer(4, 0.5, 0.5)
    saved.add(tr(1, info={"word": "a"}))
    saved.dumps(folder / "c")
    buffer = PrioritizedReplayBuffer(4, 0.5, 0.5)
    buffer.add(tr(7))
    before = told(buffer.state_dict())
    for path in sorted(path for path in (folder / "c").rglob("*") if path.is_file()):
        good = path.read_bytes()
        for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:-1], None):
            path.unlink()
            if bad is not None:
                path.write_bytes(bad)
            with pytest.raises(CheckpointError, match=r"file|manifest"):
                buffer.loads(folder / "c")
        path.write_bytes(good)
    with pytest.raises(FileNotFoundError):
        buffer.loads(folder / "nothing")
    (folder / "file").write_text("precious")
    for wrong in ("file", "."):
        with pytest.raises(CheckpointError):
            buffer.loads(folder / wrong)
    with pytest.raises(CheckpointError, match="choose another path"):
        buffer.dumps(folder / "file")
    assert told(buffer.state_dict()) == before
    buffer.loads(folder / "c")
    assert told(buffer.state_dict()) == told(saved.state_dict())


@pytest.mark.parametrize("part", ["columns", "rings", "totals", "draws", "random", "written"])
def test_a_state_of_another_program_is_refused_whole(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums are right, but what is in the files is none of ours."""
    saved, buffer = (PrioritizedReplayBuffer(4, 0.5, 0.5) for _ in range(2))
    buffer.add(tr(7))
    buffer.set_beta(1.0)
    saved.add(tr(1))
    state = saved.state_dict()
    state[part] = {"columns": {'["obs"]': np.arange(3)}, "draws": {**state["draws"], "extremes": []}}.get(part, {})
    monkeypatch.setattr(saved, "state_dict", lambda: state)
    saved.dumps(folder / "c")
    before = told(buffer.state_dict())
    with pytest.raises(CheckpointError, match="must hold the state of a PrioritizedReplayBuffer"):
        buffer.loads(folder / "c")
    assert told(buffer.state_dict()) == before


def test_tensors_of_a_device_that_is_not_here_come_to_the_processor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(draft: Any, name: str, tree: Any) -> None:
        assert tree["columns"]['["obs"]']["device"] == "cpu"
        tree["columns"]['["obs"]']["device"] = "cuda:63"
        write_tree(draft, name, tree)

    monkeypatch.setattr("replay_service.episodic.checkpoints.write_tree", elsewhere)
    buffer, fresh, used = (ReplayBuffer(4) for _ in range(3))
    buffer.add(tr(1, obs=torch.ones(3)))
    buffer.dumps(folder / "c")
    used.add(tr(1, obs=torch.zeros(3)))
    for other in (fresh, used):
        other.loads(folder / "c")
        assert told(other[:]) == told(buffer[:])


def test_others_go_on_while_it_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds come through between the copy and the last byte, and are not in the checkpoint."""
    buffer, is_writing, may_go_on = filled(8, 3), threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        is_writing.set()
        assert may_go_on.wait(30)
        write_tree(*arguments)

    monkeypatch.setattr("replay_service.episodic.checkpoints.write_tree", slow)
    saver = threading.Thread(target=lambda: buffer.dumps(folder / "c"))
    saver.start()
    assert is_writing.wait(30)
    buffer.add(tr(3))
    buffer.obs[:] = -1
    may_go_on.set()
    saver.join()
    other = ReplayBuffer(8)
    other.loads(folder / "c")
    assert other[:].obs.tolist() == [0, 1, 2]


def test_kill_9_in_the_middle_of_saves(folder: Path) -> None:
    """At random moments: the newest whole checkpoint loads, and is what was saved."""
    command = [sys.executable, "-m", "tests.episodic.killing", str(folder / "c"), "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["8", "kills"]
    filled(2048, 1).dumps(folder / "c")
    assert [entry.name for entry in folder.iterdir()] == ["c"], "leftovers of the killed are gone"


def test_a_manifest_of_other_bytes_is_refused(tmp_path: Path) -> None:
    buffer = filled(4, 3)
    buffer.dumps(tmp_path / "c")
    manifest = tmp_path / "c" / "manifest.json"
    whole = manifest.read_bytes()
    for place in range(0, len(whole), 7):
        manifest.write_bytes(whole[:place] + bytes([whole[place] | 0x80]) + whole[place + 1 :])
        with pytest.raises(CheckpointError):
            buffer.loads(tmp_path / "c")
    assert len(buffer) == 3
