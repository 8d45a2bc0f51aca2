"""PromptGroupSampler: whole groups, chosen alike, with the records that the strategy says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.llm import PromptGroupSampler
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from tests.buffer.episode_rows import buffer_of, chi_square
from tests.contracts.sampler import SamplerContract

again = pytest.mark.filterwarnings("ignore:.*drawn again instead")


@again
class TestPromptGroupSampler(SamplerContract):
    def make(self, capacity: int) -> PromptGroupSampler:
        return PromptGroupSampler(num_groups=1, group_key=("next", "done"))


def _rows(prompts: list[int], rewards: list[float] | None = None) -> TensorDict:
    count = len(prompts)
    reward = torch.tensor(rewards if rewards is not None else range(count), dtype=torch.float32)
    return TensorDict(
        {"query": torch.tensor(prompts), "next": TensorDict({"reward": reward[:, None]}, [count])}, [count]
    )


@pytest.mark.parametrize("size", [{"num_groups": 2}, {"samples_per_group": 3}])
def test_batches_are_balanced_groups_without_repeats(size: dict[str, int]) -> None:
    buffer = buffer_of(PromptGroupSampler(**size), _rows([0, 1, 2] * 4))
    for _ in range(20):
        sample = buffer.sample(6)
        groups = sample["query"].view(2, 3)
        assert (groups == groups[:, :1]).all()
        assert groups[0, 0] != groups[1, 0]
        assert sample["index"].unique().numel() == 6


def test_groups_and_records_are_equally_likely() -> None:
    buffer = buffer_of(PromptGroupSampler(num_groups=1), _rows([0] * 3 + [1] * 9 + [2] * 5))
    samples = [buffer.sample(2) for _ in range(3000)]
    draws, queries = (torch.stack([sample[name] for sample in samples]) for name in ("index", "query"))
    queries = queries[:, 0]
    assert chi_square(torch.bincount(queries, minlength=3).to(torch.float64)) < 18.4  # 2 degrees of freedom
    of_second = draws[queries == 1].flatten() - 3
    assert chi_square(torch.bincount(of_second, minlength=9).to(torch.float64)) < 31.8  # 8 degrees of freedom


@pytest.mark.parametrize(
    ("strategy", "rewards", "wanted"),
    [
        ("recency", [5.0, 1.0, 2.0, 3.0, 4.0], {3, 4}),
        ("reward", [5.0, 1.0, 2.0, 3.0, 4.0], {0, 4}),
        ("variance", [5.0, 1.0, 2.0, 3.0, 4.0], {0, 1}),
    ],
)
def test_strategies(strategy: Any, rewards: list[float], wanted: set[int]) -> None:
    buffer = buffer_of(PromptGroupSampler(samples_per_group=2, strategy=strategy), _rows([7] * 5, rewards))
    assert set(buffer.sample(2)["index"].tolist()) == wanted


def test_the_most_varied_subset_is_the_best_of_all() -> None:
    generator = torch.Generator().manual_seed(2)
    for size in (2, 3, 4):
        rewards = torch.randint(0, 4, (7,), generator=generator).to(torch.float64)
        buffer = buffer_of(
            PromptGroupSampler(samples_per_group=size, strategy="variance"), _rows([1] * 7, rewards.tolist())
        )
        drawn = rewards[buffer.sample(size)["index"]]
        subsets = torch.stack([rewards[list(places)] for places in itertools.combinations(range(7), size)])
        scores = [(round(float(one.var(correction=0)), 9), float(one.sum())) for one in subsets]
        assert (round(float(drawn.var(correction=0)), 9), float(drawn.sum())) == max(scores)


def test_recency_follows_the_ring() -> None:
    buffer = buffer_of(PromptGroupSampler(samples_per_group=3, strategy="recency"), capacity=6)
    for start in range(0, 20, 4):
        buffer.extend(_rows([1] * 4, [float(start + i) for i in range(4)]))
        assert buffer.sample(3)["next", "reward"].flatten().tolist() == [start + 3.0, start + 2.0, start + 1.0]
    late = buffer_of(PromptGroupSampler(samples_per_group=3, strategy="recency"), capacity=6)
    late.load_state_dict(buffer.state_dict())
    assert late.sample(3)["next", "reward"].flatten().tolist() == [19.0, 18.0, 17.0]


def test_groups_leave_with_their_last_record() -> None:
    buffer = buffer_of(PromptGroupSampler(num_groups=1), _rows([0, 0, 1, 1]), capacity=4)
    buffer.sample(2)
    buffer.extend(_rows([2, 2]))
    assert {int(buffer.sample(2)["query"][0]) for _ in range(40)} == {1, 2}
    buffer.set_at_("query", torch.tensor([2, 2]), torch.tensor([2, 3]))
    assert {int(buffer.sample(4)["query"][0]) for _ in range(10)} == {2}


def test_groups_that_change_without_a_word() -> None:
    buffer = buffer_of(PromptGroupSampler(num_groups=1, cache_groups=False), _rows([0, 0, 1, 1]))
    buffer.sample(2)
    buffer.storage.column("query")[:4] = 5
    assert buffer.sample(4)["query"].tolist() == [5] * 4


def test_prompts_may_be_text() -> None:
    buffer: ReplayBuffer = ReplayBuffer(
        storage=ListStorage(10), sampler=PromptGroupSampler(num_groups=2, group_key="prompt")
    )
    buffer.extend([{"prompt": text, "answer": i} for i, text in enumerate(["a", "b", "a", "b", "c", "c"])])
    batch = buffer.sample(4)
    prompts = batch["prompt"] if isinstance(batch, dict) else [record["prompt"] for record in batch]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    held: ReplayBuffer = TensorDictReplayBuffer(
        storage=ListStorage(10), sampler=PromptGroupSampler(samples_per_group=2)
    )
    held.extend([TensorDict({"query": text, "x": torch.tensor(i)}) for i, text in enumerate(["a", "b", "a", "b"])])
    numbers = held.sample(4)["x"].view(2, 2)
    assert ((numbers[:, 0] - numbers[:, 1]).abs() == 2).all()


def test_what_is_missing_is_drawn_again_and_said_once() -> None:
    buffer = buffer_of(PromptGroupSampler(num_groups=2), _rows([0, 0, 1, 1]))
    with pytest.warns(UserWarning, match="1 records of group . are missing"):
        sample = buffer.sample(6)
    assert sorted(sample["query"].tolist()) == [0, 0, 0, 1, 1, 1]
    assert buffer.sample(6).shape == (6,)
    few = buffer_of(PromptGroupSampler(num_groups=3), _rows([0, 0, 1, 1]))
    with pytest.warns(UserWarning, match="1 groups are missing"):
        assert few.sample(6).shape == (6,)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, TypeError, "exactly one"),
        ({"num_groups": 1, "samples_per_group": 1}, TypeError, "exactly one"),
        ({"num_groups": 0}, ValueError, r"num_groups \(0\)"),
        ({"num_groups": 1, "strategy": "best"}, ValueError, "strategy"),
        ({"num_groups": 1, "group_key": 3}, TypeError, "group_key"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        PromptGroupSampler(**settings)


def test_a_record_without_a_group_is_found_out_by_draws_not_by_writes() -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=ListStorage(9), sampler=PromptGroupSampler(num_groups=1))
    buffer.extend([{"query": 1}, {"query": 1}])
    buffer.sample(2)
    buffer.extend([{"x": 1}])
    with pytest.raises(KeyError, match="every record"):
        buffer.sample(2)
    buffer[2] = {"query": 1}
    assert len(buffer.sample(3)["query"]) == 3


def test_entries_that_are_missing_are_named() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        buffer_of(PromptGroupSampler(num_groups=1, group_key="nowhere"), _rows([1, 1])).sample(2)
    sampler = PromptGroupSampler(num_groups=1, strategy="reward", reward_key="nowhere")
    with pytest.raises(KeyError, match=r"reward_key \(nowhere\)"):
        buffer_of(sampler, _rows([1, 1])).sample(2)
    with pytest.raises(ValueError, match=r"batch_size \(5\) must be divisible by num_groups \(2\)"):
        buffer_of(PromptGroupSampler(num_groups=2), _rows([1, 1])).sample(5)
