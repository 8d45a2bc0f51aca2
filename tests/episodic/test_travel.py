"""Batches taken apart and put together, and what is read of steps before it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch, PrioritizedReplayBuffer
from replay_service.episodic.travel import ARRAY, TENSOR, apart, tensor_of, together
from replay_service.errors import LayoutError
from tests.episodic.steps import tr


def test_a_batch_comes_out_as_it_went_in() -> None:
    batch = Batch(a=np.arange(3), b=Batch(t=torch.ones(2, dtype=torch.bfloat16), empty=Batch(), n=np.float32(1.5)))
    skeleton, entries = apart(batch)
    assert skeleton == (("a", ARRAY), ("b", (("t", TENSOR), ("empty", ()), ("n", ARRAY))))
    assert [key for key, _ in entries] == [("a",), ("b", "t"), ("b", "n")]
    again = together(skeleton, [tensor for _, tensor in entries])
    assert np.shares_memory(again.a, batch.a)
    assert again.b.t is not None
    assert isinstance(again.b.t, torch.Tensor)
    assert type(again.b.n) is np.float32
    assert list(again.b.keys()) == ["t", "empty", "n"]


@pytest.mark.parametrize(
    "leaf", [np.array(["a"], object), None, "text", {"x": None}, np.array(["2020"], "datetime64[Y]")]
)
def test_what_is_no_number_is_named(leaf: Any) -> None:
    with pytest.raises(LayoutError, match=r"info\.leaf.* must be numbers"):
        apart({"info": {"leaf": leaf}})


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    backwards, frozen = np.arange(3)[::-1], np.arange(3)
    frozen.flags.writeable = False
    for array in (backwards, frozen):
        tensor = tensor_of(array)
        assert tensor is not None
        assert tensor.tolist() == array.tolist()


def test_a_plan_reads_the_same_either_way() -> None:
    buffer = PrioritizedReplayBuffer(6, 0.5, 0.5, stack_num=2)
    for number in range(5):
        buffer.add(tr(number, number == 2, obs=Batch(x=np.full(3, number), t=torch.tensor(float(number)))))
    for index in (0, [4, 1], np.array([[0, 1], [3, 4]])):
        plan = buffer.plan(index)
        described = plan.leaves()
        assert described is not None
        skeleton, leaves = described
        outs = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in leaves]
        plan.fill(outs)
        built = plan.build()
        assert together(skeleton, outs) == built == buffer[index]
    buffer.add(tr(5, info={"word": "x"}, obs=Batch(x=np.zeros(3), t=torch.tensor(0.0))))
    assert buffer.plan(0).leaves() is None
    assert buffer.never_dense()
