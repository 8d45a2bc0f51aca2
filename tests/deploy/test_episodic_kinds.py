"""Episodic buffers from a configuration file."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from deploy.config import read_config
from deploy.errors import ConfigError
from deploy.kinds import Kind, available_kinds, read_kind
from replay_service import episodic
from tests.contracts.episodic_handle import reached

HER = {"kind": "HERReplayBuffer", "size": 10, "horizon": 3}
REACHED = "tests.contracts.episodic_handle:reached"


def sections(**changed: Any) -> dict[str, Any]:
    return {"service": {"name": "replay"}, "episodic": {"kind": "ReplayBuffer", "size": 10}, **changed}


def test_every_published_buffer_can_be_asked_for() -> None:
    assert set(available_kinds("episodic")) == {name for name in episodic.__all__ if name.endswith("ReplayBuffer")}


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({"kind": "ReplayBuffer", "size": 7, "stack_num": 2, "ignore_obs_next": True}, 7),
        ({"kind": "VectorReplayBuffer", "total_size": 10, "buffer_num": 3, "random_seed": 5}, 12),
        ({"kind": "PrioritizedReplayBuffer", "size": 7, "alpha": 1, "beta": 0.5, "weight_norm": False}, 7),
        ({"kind": "CachedReplayBuffer", "main_buffer": 6, "cached_buffer_num": 2, "max_episode_length": 3}, 12),
        ({**HER, "compute_reward_fn": REACHED, "future_k": 4.0}, 10),
    ],
)
def test_a_table_makes_a_buffer(values: dict[str, Any], size: int) -> None:
    kind = read_kind(values, "episodic")
    kind.try_out()
    buffer = pickle.loads(pickle.dumps(kind.factory()))()
    assert (type(buffer).__name__, buffer.maxsize) == (values["kind"], size)


def test_functions_are_named() -> None:
    assert read_kind({**HER, "compute_reward_fn": REACHED}, "episodic").parameters["compute_reward_fn"] is reached
    for wrong in ("reached", "tests.contracts.episodic_handle:nothing", "no_such_module:f", 3, "tests.rows:__name__"):
        with pytest.raises(ConfigError, match=r"compute_reward_fn .* must be the name of a function"):
            read_kind({**HER, "compute_reward_fn": wrong}, "episodic")


def test_a_file_describes_one_or_the_other() -> None:
    config = read_config(sections())
    assert config.episodic == Kind("episodic", "ReplayBuffer", {"size": 10})
    assert config.storage is config.sampler is config.writer is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"storage": {"kind": "ListStorage"}}, r"\[storage\] must be left out with \[episodic\]"),
        ({"writer": {"kind": "RoundRobinWriter"}}, r"\[writer\] must be left out with \[episodic\]"),
        ({"service": {"name": "x", "batch_size": 3}}, r"service\.batch_size \(3\) must be left out with \[episodic\]"),
        ({"episodic": {"kind": "ReplayBufer", "size": 1}}, r"episodic\.kind .*did you mean ReplayBuffer\?"),
        ({"episodic": {"kind": "ReplayBuffer"}}, r"episodic\.size \(missing\) must be given for ReplayBuffer"),
        ({"episodic": {"kind": "ReplayBuffer", "size": 0}}, r"episodic\.size \(0\) must be a positive integer"),
        ({"episodic": {"kind": "ReplayBuffer", "size": 1, "stack": 2}}, r"episodic\.stack \(2\) must be a known key"),
        ({"episodic": {"kind": "ReplayBuffer", "size": 1, "stack_num": 0}}, r"episodic\.stack_num \(0\) must be"),
    ],
)
def test_what_cannot_work_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        read_config(sections(**changed))
