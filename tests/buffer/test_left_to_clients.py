"""Transforms that a service leaves to its clients."""

from __future__ import annotations

import pickle

import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.buffer.transforming import TransformChain
from replay_service.transforms import CatFrames, Compose, DecodeVideoTransform, RenameKeys, SelectKeys


def _chain() -> TransformChain:
    decode = DecodeVideoTransform("frame", decode="client")
    return TransformChain([RenameKeys("a", "b"), Compose(CatFrames(2, -3), decode), SelectKeys("frame")])


def test_a_buffer_of_ones_own_leaves_nothing() -> None:
    chain = _chain()
    assert (chain.left, bool(chain), len(chain.for_clients())) == (0, True, 0)


def test_a_service_leaves_the_first_that_wants_it_and_all_behind() -> None:
    chain = _chain()
    chain.leave_to_clients()
    assert (chain.left, bool(chain), len(chain)) == (2, True, 3)
    assert set(chain.forward(TensorDict({"a": torch.zeros(2)}, [2])).keys()) == {"b"}
    rest = pickle.loads(pickle.dumps(chain.for_clients()))
    assert [type(transform) for transform in rest] == [Compose, SelectKeys]
    assert rest.left == 0


def test_records_leave_as_they_are_stored_if_all_is_left() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
    buffer.append_transform(DecodeVideoTransform("frame", decode="client"))
    buffer.extend(TensorDict({"x": torch.zeros(3)}, [3]))
    assert buffer.dense_leaves() is None
    buffer.transform.leave_to_clients()
    assert buffer.dense_leaves() is not None
    assert not buffer.transform
    buffer.append_transform(RenameKeys("x", "y"))
    assert buffer.transform.left == 2
    buffer.insert_transform(0, RenameKeys("x", "y"))
    assert buffer.dense_leaves() is None
    assert buffer.transform.left == 2


def test_what_is_said_of_a_sample_follows_its_rows() -> None:
    chain = TransformChain([lambda data: data[1:].exclude("index")])
    info = {"index": torch.arange(3), "other": torch.zeros(())}
    data = TensorDict({"index": torch.arange(3), "x": torch.arange(3)}, [3])
    assert chain.sampled(data, info, merges=True)["x"].tolist() == [1, 2]
    assert "index" not in info
    assert set(chain.sampled(data, {}, merges=False).keys()) == {"x"}
