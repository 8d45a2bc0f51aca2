"""Page-locked batches."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.buffer.pinning import pinned, require_cuda


class Pair(NamedTuple):
    first: torch.Tensor
    second: str


def test_without_cuda_it_is_refused_at_construction() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(RuntimeError, match=r"pin_memory \(True\) must find a CUDA device"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(4), pin_memory=True)
    assert require_cuda(False) is False


def test_what_is_no_tensor_stays() -> None:
    assert pinned("text") == "text"
    assert pinned([1, ("a",)]) == [1, ("a",)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_are_pinned_whatever_they_are_made_of() -> None:
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4, pin_memory=True, prefetch=2)
    rb.extend(TensorDict({"x": torch.zeros(8, 3), "n": {"y": torch.zeros(8)}}, [8]))
    for _ in range(3):
        batch = rb.sample()
        assert all(batch[key].is_pinned() for key in ("x", ("n", "y"), "index"))
    pair = pinned({"p": [Pair(torch.zeros(2), "a")]})["p"][0]
    assert (pair.first.is_pinned(), pair.second) == (True, "a")
