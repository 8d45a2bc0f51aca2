from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from replay_service.episodic.batch import Batch


def test_tensors_and_arrays_share_memory() -> None:
    batch = Batch(a=[1.0, 2.0], t=torch.arange(2), o=["x", None], z={"k": [1, 2]}, n=None, s="x")
    tensors = batch.to_torch()
    tensors.a[0] = 9
    tensors.z.k[0] = 9
    assert (batch.a.tolist(), batch.z.k.tolist()) == ([9, 2], [9, 2])
    assert (tensors.o.tolist(), tensors.n, tensors.s) == (["x", None], None, "x")
    arrays = tensors.to_numpy()
    arrays.t[0] = 7
    assert isinstance(arrays.t, np.ndarray)
    assert batch.t.tolist() == [7, 1]
    assert isinstance(batch.a, np.ndarray)


def test_dtype_counts_for_arrays_too() -> None:  # [Q] of section 1
    batch = Batch(a=[1.0, 2.0], t=torch.arange(2), i=np.float64(1))
    made = batch.to_torch(dtype=torch.float32)
    assert {made.a.dtype, made.t.dtype, made.i.dtype} == {torch.float32}
    assert batch.to_torch().a.dtype == torch.float64


def test_in_place_conversion() -> None:
    batch = Batch(a=[1.0], z={"k": [1]})
    assert batch.to_torch_() is batch
    assert isinstance(batch.z.k, torch.Tensor)
    assert isinstance(batch.to_numpy_().a, np.ndarray)


def test_arrays_that_torch_cannot_take_are_copied() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    made = Batch(a=frozen, b=np.arange(3)[::-1], c=np.arange(3, dtype=">i4")).to_torch()
    assert [made.a.tolist(), made.b.tolist(), made.c.tolist()] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def test_to_a_tensordict_and_back_on_the_same_memory() -> None:
    batch = Batch(obs={"x": np.zeros((2, 3))}, act=torch.zeros(2), name=["p", None], info={}, n=None)
    data = batch.to_tensordict()
    assert isinstance(data, TensorDict)
    assert data.batch_size == (2,)
    data["obs", "x"][0, 0] = 5
    assert batch.obs.x[0, 0] == 5
    back = Batch.from_tensordict(data)
    assert set(back.keys()) == {"obs", "act", "name"}
    assert back.act.data_ptr() == batch.act.data_ptr()
    assert back.obs.x.data_ptr() == data["obs", "x"].data_ptr()
    assert back.name.tolist() == ["p", None]


def test_scalars_make_a_tensordict_without_rows() -> None:
    data = Batch(a=1, b=[1, 2], s="x").to_tensordict()
    assert data.batch_size == ()
    assert data["s"] == "x"
    assert Batch().to_tensordict().batch_size == ()


def test_from_a_tensordict_with_one_object_for_all() -> None:
    data = TensorDict({"a": torch.zeros(2), "s": NonTensorData("x", batch_size=[2])}, batch_size=[2])
    batch = Batch.from_tensordict(data)
    assert batch.s == "x"
    with pytest.raises(IndexError, match="s "):
        _ = batch[0]
