"""The examples of the buffers' documentation, sections "Sample units" to "Detecting overwritten slots": in process, and through handles on
both transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    Sequence,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    traj,
)
from tests.buffer.episode_rows import episode_rows

RECIPES: dict[str, tuple[type[ReplayBuffer], dict[str, Any]]] = {
    "units": (
        ReplayBuffer,
        {
            "storage": partial(LazyTensorStorage, 1000),
            "batch_size": 64,
            "sample_unit": partial(Sequence, length=32, burn_in=8, bootstrap=5, dilation=1, episode_boundary="pad"),
        },
    ),
    "records": (
        TensorDictReplayBuffer,
        {
            "storage": partial(LazyTensorStorage, 1000),
            "writer": partial(TensorDictRoundRobinWriter, track_generations=True),
            "batch_size": 32,
        },
    ),
    "consuming": (ReplayBuffer, {"storage": partial(ListStorage, 8), "batch_size": 2, "consume_after_n_samples": 1}),
    "stamps": (
        ReplayBuffer,
        {"storage": partial(LazyTensorStorage, 8), "writer": partial(RoundRobinWriter, track_generations=True)},
    ),
}
PLACES = ("here", "ray", "distributed", "auto")
Find = Callable[[str], Any]


@pytest.fixture(params=PLACES)
def find(request: pytest.FixtureRequest) -> Iterator[Find]:
    """`find(recipe)`: an empty buffer of that kind: itself, or a handle on a service, whose transport is the parameter."""
    with ExitStack() as handles:

        def found(name: str) -> Any:
            kind, settings = RECIPES[name]
            recipe = partial(kind, **settings)
            if request.param == "here":
                return recipe()
            owner = request.getfixturevalue("guest_house").host(recipe, request.param)
            return handles.enter_context(owner.client())

        yield found


def test_sample_units(find: Find) -> None:
    rb = find("units")
    rb.extend(episode_rows([50, 20, 100]))
    sample, info = rb.sample(return_info=True)
    loss_mask = info["learning_mask"] & info["validity_mask"]
    assert sample.shape == loss_mask.shape == (64 * (8 + 32 + 5),)
    window = slice(0, 45)
    steps, valid = sample["step"].view(64, 45), info["validity_mask"].view(64, 45)
    for row in range(64):
        # Real records of a window are consecutive steps of one episode; padding repeats the first or the last of them.
        real = steps[row][valid[row]].tolist()
        assert real == list(range(real[0], real[0] + len(real)))
        assert set(steps[row][~valid[row]].tolist()) <= {real[0], real[-1]}
    assert info["learning_mask"][window].tolist() == [False] * 8 + [True] * 32 + [False] * 5
    assert torch.equal(info["anchor_index"], info["anchor_index"].view(64, 45)[:, 8].repeat_interleave(45))
    assert torch.equal(info["index"].view(64, 45)[:, 8], info["anchor_index"].view(64, 45)[:, 8])


def test_conditional_record_updates(find: Find) -> None:
    buffer = find("records")
    rows = 1000
    state = torch.zeros(rows, 3)
    buffer.extend(TensorDict({"recurrent_state": state, "state_version": torch.zeros(rows).long()}, [rows]))
    sample = buffer.sample()
    index, generation = sample["index"], sample["index_generation"]
    again = TensorDict({"recurrent_state": state[:400], "state_version": torch.zeros(400).long()}, [400])
    buffer.extend(again)  # recycles the slots below 400
    distinct = index.unique()
    result = buffer.update_if_present(
        index=index, generation=generation, patch={"recurrent_state": sample["recurrent_state"] + 1}
    )
    assert torch.equal(result.updated, index >= 400)
    assert (result.updated_count, result.stale_count) == (int((index >= 400).sum()), int((index < 400).sum()))
    patched = buffer[:]["recurrent_state"].sum(1).nonzero().squeeze(1)
    assert patched.tolist() == distinct[distinct >= 400].tolist()


def test_version_compared_updates(find: Find) -> None:
    buffer = find("records")
    buffer.extend(
        TensorDict({"recurrent_state": torch.zeros(40, 3), "state_version": torch.tensor([5] * 20 + [9] * 20)}, [40])
    )
    sample = buffer.sample()
    late = {
        "index": sample["index"],
        "generation": sample["index_generation"],
        "patch": {"recurrent_state": sample["recurrent_state"] + 1},
        "version_key": "state_version",
        "version": 9,
        "require_newer": True,
    }
    result = buffer.update_if_present(**late)
    older = sample["index"] < 20
    # Of a slot that was drawn twice, one row is applied.
    assert result.updated_count == int(sample["index"][older].unique().numel())
    assert result.version_rejected_count == 32 - result.updated_count
    assert result.stale_count == 0
    before = buffer[:]
    retried = buffer.update_if_present(**late)
    assert (retried.updated_count, retried.version_rejected_count, retried.stale_count) == (0, 32, 0)
    assert bool((buffer[:] == before).all())
    accepted = buffer.update_if_present(**{**late, "require_newer": False})
    assert accepted.updated_count == sample["index"].unique().numel()
    buffer.extend(before.clone())
    buffer.extend(torch.cat([before] * 24))  # around the ring: slots 0 to 39 are others
    assert buffer.update_if_present(**late).stale_count == 32


def test_trajectory_queries(find: Find) -> None:
    rb = find("records")
    rows = episode_rows([60, 40, 80])
    rows["next", "reward"] = torch.where(rows["number"] == 2, 1.0, 2.0)[:, None]
    rows["observation"] = rows["step"][:, None].float()
    rows["action"] = rows["number"]
    rb.extend(rows)
    good = rb.query((traj.reward.sum() > 100) & (traj.length >= 50))
    assert [len(one) for one in good] == [60]
    assert torch.equal(good[0].observation, torch.arange(60.0)[:, None])
    assert torch.equal(good[0].action, torch.zeros(60, dtype=torch.int64))
    assert [one.length for one in rb.query(traj.length >= 50)] == [60, 80]


def test_sampling_and_indexing(find: Find) -> None:
    rb = find("records")
    assert rb.extend(TensorDict({"obs": torch.arange(3)}, [3])).tolist() == [0, 1, 2]
    data = rb.read_all_in_order()
    assert bool((data == rb[:]).all())
    data["target"] = data["obs"] + 1
    rb.write_all(data)
    assert bool((rb[:] == data).all())
    rb.write_all(data[:2].apply(lambda column: column + 10), end=2)
    assert rb[:]["target"].tolist() == [11, 12, 3]
    assert rb.read_all_in_order(end=2)["obs"].tolist() == [10, 11]


def test_consuming_replay_buffers(find: Find) -> None:
    rb = find("consuming")
    assert rb.extend([torch.tensor(i) for i in range(3)]).tolist() == [0, 1, 2]
    batch = rb.sample()
    assert len(batch) == 2
    assert len(rb) == 1
    slots = rb.extend([torch.tensor(3), torch.tensor(4)])
    # Freed slots are reused first.
    assert sorted(slots.tolist()) == sorted(batch.tolist())
    assert len(rb) == 3
    left = sorted(number for _ in range(2) for number in rb.sample(2).tolist())
    assert left == sorted({0, 1, 2, 3, 4} - set(batch.tolist()))
    assert len(rb) == 0


def test_detecting_overwritten_slots(find: Find) -> None:
    rb = find("stamps")
    rb.extend(torch.arange(8))
    data, info = rb.sample(4, return_info=True)
    index, generation = info["index"], info["index_generation"]
    assert torch.equal(data, index)
    assert generation.tolist() == [0, 0, 0, 0]
    rb.extend(torch.arange(8, 11))  # overwrites slots 0, 1, 2
    result = rb.update_priority(index, torch.ones(4), generation=generation)
    assert not bool(result.updated.any()), "a uniform sampler keeps no priorities"
    now = {slot: stamp for _ in range(4) for slot, stamp in _stamps(rb)}
    stale = torch.tensor(
        [now.get(slot, 0) != stamp for slot, stamp in zip(index.tolist(), generation.tolist(), strict=True)]
    )
    if isinstance(rb, ReplayBuffer):
        assert torch.equal(rb.writer.generations_of(index) != generation, index < 3)
    assert torch.equal(stale, index < 3)


def _stamps(rb: Any) -> list[tuple[int, int]]:
    """(slot, stamp) of many draws, which tell of all slots."""
    _, info = rb.sample(100, return_info=True)
    return list(zip(info["index"].tolist(), info["index_generation"].tolist(), strict=True))
