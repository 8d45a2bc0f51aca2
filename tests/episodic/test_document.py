"""The snippets of the document on batches and buffers, call by call, with every result that it prints.

Where it prints `4` for an array of no dimension, `array(4)` is right. White space doesn't count: NumPy pads flags, and
breaks lines, elsewhere from release to release.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_service.episodic import Batch, ReplayBuffer

BATCHES = """
>>> import torch, numpy as np
>>> from replay_service.episodic import Batch
>>> data = Batch(a=4, b=[5, 5], c='2312312', d=('a', -2, -3))
>>> data.b
array([5, 5])
>>> data.b = np.array([3, 4, 5])
>>> print(data)
Batch(
    a: array(4),
    b: array([3, 4, 5]),
    c: '2312312',
    d: array(['a', '-2', '-3'], dtype=object),
)
>>> data = Batch(obs={'index': np.zeros((2, 3))}, act=torch.zeros((2, 2)))
>>> data[:, 1] += 6
>>> print(data[-1])
Batch(
    obs: Batch(
             index: array([0., 6., 0.]),
         ),
    act: tensor([0., 6.]),
)
"""

BUFFERS = """
>>> import pickle, numpy as np
>>> from replay_service.episodic import Batch, ReplayBuffer
>>> buf = ReplayBuffer(size=20)
>>> for i in range(3):
...     buf.add(Batch(obs=i, act=i, rew=i, done=0, obs_next=i + 1, info={}))
>>> buf.obs
array([0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
>>> len(buf.obs)
20
>>> len(buf)
3
>>> pickle.dump(buf, open('buf.pkl', 'wb'))
>>> buf.save_hdf5('buf.hdf5')
>>> buf2 = ReplayBuffer(size=10)
>>> for i in range(15):
...     done = i % 4 == 0
...     buf2.add(Batch(obs=i, act=i, rew=i, done=done, obs_next=i + 1, info={}))
>>> len(buf2)
10
>>> buf2.obs
array([10, 11, 12, 13, 14,  5,  6,  7,  8,  9])
>>> moved = buf.update(buf2)
>>> buf.obs
array([ 0,  1,  2,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14,  0,  0,  0,
        0,  0,  0,  0])
>>> indices = buf.sample_indices(0)
>>> indices
array([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12])
>>> buf.prev(indices)
array([ 0,  0,  1,  2,  3,  4,  5,  7,  7,  8,  9, 11, 11])
>>> buf.next(indices)
array([ 1,  2,  3,  4,  5,  6,  6,  8,  9, 10, 10, 12, 12])
>>> batch_data, indices = buf.sample(batch_size=4)
>>> batch_data.obs == buf[indices].obs
array([ True,  True,  True,  True])
>>> len(buf)
13
>>> buf = pickle.load(open('buf.pkl', 'rb'))
>>> len(buf)
3
>>> buf = ReplayBuffer.load_hdf5('buf.hdf5')
>>> len(buf)
3
"""

STACKED = """
>>> import numpy as np
>>> from replay_service.episodic import Batch, ReplayBuffer
>>> buf = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
>>> for i in range(16):
...     done = i % 5 == 0
...     ptr, ep_rew, ep_len, ep_idx = buf.add(
...         Batch(obs={'id': i}, act=i, rew=i,
...               done=done, obs_next={'id': i + 1}))
...     print(i, ep_len, ep_rew)
0 [1] [0.]
1 [0] [0.]
2 [0] [0.]
3 [0] [0.]
4 [0] [0.]
5 [5] [15.]
6 [0] [0.]
7 [0] [0.]
8 [0] [0.]
9 [0] [0.]
10 [5] [40.]
11 [0] [0.]
12 [0] [0.]
13 [0] [0.]
14 [0] [0.]
15 [5] [65.]
>>> print(buf)
ReplayBuffer(
    obs: Batch(
             id: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),
         ),
    act: array([ 9, 10, 11, 12, 13, 14, 15,  7,  8]),
    rew: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),
    done: array([False, True, False, False, False, False, True, False,
                 False]),
)
>>> index = np.arange(len(buf))
>>> print(buf.get(index, 'obs').id)
[[ 7  7  8  9]
 [ 7  8  9 10]
 [11 11 11 11]
 [11 11 11 12]
 [11 11 12 13]
 [11 12 13 14]
 [12 13 14 15]
 [ 7  7  7  7]
 [ 7  7  7  8]]
>>> abs(buf.get(index, 'obs')['id'] - buf[index].obs.id).sum().sum()
0
>>> print(buf[:].obs_next.id)
[[ 7  7  7  8]
 [ 7  7  8  9]
 [ 7  8  9 10]
 [ 7  8  9 10]
 [11 11 11 12]
 [11 11 12 13]
 [11 12 13 14]
 [12 13 14 15]
 [12 13 14 15]]
>>> full_index = np.array([7, 8, 0, 1, 2, 3, 4, 5, 6])
>>> np.allclose(buf[:].obs_next.id, buf[full_index].obs_next.id)
True
"""


def replayed(transcript: str) -> dict[str, Any]:
    """Runs a transcript, and holds what it shows against what is written there; the names it leaves behind."""
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(transcript):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                value = eval(compile(example.source, "document", "eval"), names)
            except SyntaxError:
                exec(compile(example.source, "document", "exec"), names)
                value = None
        shown = printed.getvalue() if value is None else str(value) if isinstance(value, np.generic) else repr(value)
        if example.want or printed.getvalue():
            assert shown.split() == example.want.split(), example.source
    return names


@pytest.mark.parametrize("transcript", [BATCHES, BUFFERS, STACKED], ids=["batches", "buffers", "stacked"])
def test_every_printed_result(  # E1 E8 E20 E21 E22 E23 E26 E27 E28 E114
    transcript: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the document doesn't close its files
        replayed(transcript)


def test_what_is_printed_is_compared() -> None:
    with pytest.raises(AssertionError, match=r"1 \+ 1"):
        replayed(">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match="print"):
        replayed(">>> print(5)\n>>> 1\n1\n")
    assert replayed(">>> a = 3\n>>> a\n3\n")["a"] == 3


def test_the_seven_entries_are_read() -> None:  # E114
    buf = ReplayBuffer(size=3)
    buf.add(Batch(obs=0, act=0, rew=0, done=0, obs_next=1, info={}))
    assert list(buf[:].keys()) == ["obs", "act", "rew", "done", "obs_next", "info", "policy"]


def test_the_two_step_return_of_the_document_reads_steps_two_slots_on() -> None:  # E83
    buf = ReplayBuffer(10)
    for i in range(5):
        buf.add(Batch(obs=i, act=i, rew=i + 1.0, done=i == 2, obs_next=i + 1))
    indices = np.arange(5)
    batch_2 = buf[(indices + 2) % len(buf)]
    assert batch_2.obs.tolist() == buf.obs[(indices + 2) % len(buf)].tolist() == [2, 3, 4, 0, 1]
    value = np.full(5, 10.0)
    returns = buf[indices].rew + 0.5 * buf.rew[(indices + 1) % len(buf)] + 0.25 * value
    assert returns.tolist() == [4.5, 6.0, 7.5, 9.0, 8.0]
