"""Other dtypes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.transforms import DtypeCast
from tests.transforms.episode_steps import episode


def test_entries_are_stored_in_half_the_bytes() -> None:
    cast = partial(DtypeCast, torch.float16, torch.float32)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), batch_size=4, transform=cast("observation", in_keys_inv="observation")
    )
    rb.extend(episode(5))
    leaves = {leaf.key: leaf.dtype for leaf in rb.storage.leaves() or ()}
    assert leaves["observation",] == torch.float16
    assert leaves["next", "reward"] == torch.float32
    assert rb.sample()["observation"].dtype == torch.float32
    rb[:] = rb[:]
    assert torch.equal(rb[:]["observation"], episode(5)["observation"])


def test_without_keys_all_of_that_dtype_are_cast_but_for_indices() -> None:
    data = TensorDict(
        {"a": torch.zeros(2, dtype=torch.int64), "n": {"b": torch.zeros(2)}, "index": torch.arange(2)}, [2]
    )
    out = DtypeCast(torch.int64, torch.int32)(data)
    assert (out["a"].dtype, out["n", "b"].dtype, out["index"].dtype) == (torch.int32, torch.float32, torch.int64)


def test_mistakes_are_refused() -> None:
    with pytest.raises(TypeError, match=r"dtype_out .*must be a torch.dtype"):
        DtypeCast(torch.float32, float)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"entries of torch.int64; got one of torch.float32"):
        DtypeCast(torch.int64, torch.int32, "a")(TensorDict({"a": torch.zeros(2)}, [2]))
    with pytest.raises(ValueError, match="out_keys"):
        DtypeCast(torch.int64, torch.int32, out_keys="a")
