"""The buffer section of the document: its calls in its order, and every array it prints."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from replay_service.episodic import Batch, ReplayBuffer


def test_store_move_draw_and_reload(tmp_path: Path) -> None:
    buf = ReplayBuffer(size=20)
    for i in range(3):
        buf.add(Batch(obs=i, act=i, rew=i, done=0, obs_next=i + 1, info={}))
    assert buf.obs.tolist() == [0, 1, 2] + [0] * 17
    assert len(buf) == 3
    (tmp_path / "buf.pkl").write_bytes(pickle.dumps(buf))
    buf.save_hdf5(tmp_path / "buf.hdf5")

    buf2 = ReplayBuffer(size=10)
    for i in range(15):
        buf2.add(Batch(obs=i, act=i, rew=i, done=i % 4 == 0, obs_next=i + 1, info={}))
    assert len(buf2) == 10
    assert buf2.obs.tolist() == [10, 11, 12, 13, 14, 5, 6, 7, 8, 9]

    buf.update(buf2)
    assert buf.obs.tolist() == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 0, 0, 0, 0, 0, 0]
    indices = buf.sample_indices(0)
    assert indices.tolist() == list(range(13))
    assert buf.prev(indices).tolist() == [0, 0, 1, 2, 3, 4, 5, 7, 7, 8, 9, 11, 11]
    assert buf.next(indices).tolist() == [1, 2, 3, 4, 5, 6, 6, 8, 9, 10, 10, 12, 12]
    batch, drawn = buf.sample(batch_size=4)
    assert (batch.obs == buf[drawn].obs).tolist() == [True] * 4
    assert len(buf) == 13
    assert list(buf[:].keys()) == ["obs", "act", "rew", "done", "obs_next", "info", "policy"]

    assert len(pickle.loads((tmp_path / "buf.pkl").read_bytes())) == 3
    assert len(ReplayBuffer.load_hdf5(tmp_path / "buf.hdf5")) == 3


STACKED = """\
[[ 7  7  8  9]
 [ 7  8  9 10]
 [11 11 11 11]
 [11 11 11 12]
 [11 11 12 13]
 [11 12 13 14]
 [12 13 14 15]
 [ 7  7  7  7]
 [ 7  7  7  8]]"""

NEXT = """\
[[ 7  7  7  8]
 [ 7  7  8  9]
 [ 7  8  9 10]
 [ 7  8  9 10]
 [11 11 11 12]
 [11 11 12 13]
 [11 12 13 14]
 [12 13 14 15]
 [12 13 14 15]]"""

SHOWN = """\
ReplayBuffer(
    obs: Batch(
             id: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),
         ),
    act: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),
    rew: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),
    done: array([False, True, False, False, False, False, True, False,
                 False]),
)"""


def test_stacked_frames_without_next_observations() -> None:
    buf = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
    printed = []
    for i in range(16):
        done = i % 5 == 0
        _, ep_rew, ep_len, _ = buf.add(Batch(obs={"id": i}, act=i, rew=i, done=done, obs_next={"id": i + 1}))
        printed.append(f"{i} {ep_len} {ep_rew}")
    totals = {0: "[1] [0.]", 5: "[5] [15.]", 10: "[5] [40.]", 15: "[5] [65.]"}
    assert printed == [f"{i} {totals.get(i, '[0] [0.]')}" for i in range(16)]
    # NumPy breaks lines of flags elsewhere from release to release: only the words count.
    assert repr(buf).split() == SHOWN.split()
    index = np.arange(len(buf))
    assert str(buf.get(index, "obs").id) == STACKED
    assert abs(buf.get(index, "obs")["id"] - buf[index].obs.id).sum().sum() == 0
    assert str(buf[:].obs_next.id) == NEXT
    full_index = np.array([7, 8, 0, 1, 2, 3, 4, 5, 6])
    assert np.allclose(buf[:].obs_next.id, buf[full_index].obs_next.id)


def test_the_two_step_return_of_the_document_reads_steps_two_slots_on() -> None:
    buf = ReplayBuffer(10)
    for i in range(5):
        buf.add(Batch(obs=i, act=i, rew=i + 1.0, done=i == 2, obs_next=i + 1))
    indices = np.arange(5)
    batch_2 = buf[(indices + 2) % len(buf)]
    assert batch_2.obs.tolist() == buf.obs[(indices + 2) % len(buf)].tolist() == [2, 3, 4, 0, 1]
    value = np.full(5, 10.0)
    returns = buf[indices].rew + 0.5 * buf.rew[(indices + 1) % len(buf)] + 0.25 * value
    assert returns.tolist() == [4.5, 6.0, 7.5, 9.0, 8.0]
