"""Priorities and used up records of a buffer that lives in a Ray actor, through its handles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    PrioritizedSampler,
    PriorityError,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.conftest import RaySession
from tests.wire.serving import House

SETTINGS: dict[str, Any] = {
    "storage": partial(LazyTensorStorage, 8),
    "writer": partial(TensorDictRoundRobinWriter, track_generations=True),
    "batch_size": 64,
}


@pytest.fixture(params=["ray", "distributed"])
def client(request: pytest.FixtureRequest, ray_session: RaySession) -> Iterator[Any]:
    """A handle on a buffer whose class brings the sampler, in an actor of its own, or whose sampler is given."""
    if request.param == "ray":
        with TensorDictPrioritizedReplayBuffer(
            alpha=1.0,
            beta=1.0,
            eps=0.0,
            reduction="mean",
            transport="ray",
            service_backend="ray",
            service_backend_options={"namespace": ray_session.namespace, "remote_config": {"num_cpus": 0}},
            **SETTINGS,
        ) as owner:  # type: ignore[attr-defined]
            yield owner.client()
        return
    house: House = request.getfixturevalue("guest_house")
    sampler = partial(PrioritizedSampler, 8, 1.0, 1.0, eps=0.0, reduction="mean")
    with house.host(partial(TensorDictReplayBuffer, sampler=sampler, **SETTINGS), "distributed").client() as client:
        yield client


def _rows(*priorities: float) -> TensorDict:
    errors = torch.tensor(priorities)[:, None] * torch.tensor([0.5, 1.5])
    return TensorDict({"x": torch.arange(len(priorities)), "td_error": errors}, [len(priorities)])


def test_priorities_of_a_hosted_buffer(client: Any) -> None:
    client.extend(_rows(1.0, 2.0, 0.0, 4.0))
    sample = client.sample()
    drawn = sample["index"]
    assert set(drawn.tolist()) == {0, 1, 3}
    assert torch.equal(sample["priority_weight"], 1 / torch.tensor([1.0, 2.0, torch.inf, 4.0])[drawn])

    sample["td_error"] = torch.where(drawn == 3, 8.0, 0.0)[:, None].repeat(1, 2)
    assert client.update_tensordict_priority(sample).updated_count == 64
    assert set(client.sample()["index"].tolist()) == {3}

    client.extend(_rows(*range(1, 8)), update_priority=False)  # overwrites slots 0, 1 and 2; all of them at 8.0
    late = client.sample(200)
    client.extend(_rows(5.0, 5.0))  # overwrites slots 3 and 4
    result = client.update_priority(late["index"], torch.zeros(200), generation=late["index_generation"])
    assert torch.equal(result.updated, (late["index"] != 3) & (late["index"] != 4))
    assert set(client.sample()["index"].tolist()) == {3, 4}

    with pytest.raises(PriorityError, match="finite and not negative"):
        client.update_priority(torch.tensor([0, 1]), torch.tensor([1.0, float("nan")]))
    with pytest.raises(PriorityError):
        client.extend(_rows(float("inf")))
    assert (len(client), client.write_count) == (8, 13)
    client.update_priority(torch.arange(8), torch.zeros(8))
    with pytest.raises(PriorityError, match="must not all be zero"):
        client.sample()


def test_records_of_a_hosted_buffer_are_used_up(guest_house: House) -> None:
    recipe = partial(TensorDictReplayBuffer, consume_after_n_samples=1, **SETTINGS)
    with guest_house.host(recipe).client() as client:
        client.extend(_rows(1.0, 2.0, 3.0))
        used = client.sample(2)
        assert len(client) == 1
        assert client.extend(_rows(4.0, 5.0)).tolist() == used["index"].tolist()
        assert len(client) == client.stats()["size"] == 3
        assert set(client.sample()["index"].tolist()) == {0, 1, 2}
        with pytest.raises(EmptyBufferError, match="empty buffer"):
            client.sample()
