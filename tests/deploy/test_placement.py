from __future__ import annotations

from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deploy.errors import ConfigError
from deploy.placement import actor_options, shortage
from deploy.settings import ResourceConfig

pytestmark = pytest.mark.usefixtures("ray_session")


def node() -> dict[str, Any]:
    (only,) = ray.nodes()
    return dict(only)


def test_nothing_asked_is_nothing_passed() -> None:
    assert actor_options(ResourceConfig()) == {}


def test_amounts_become_actor_options() -> None:
    config = ResourceConfig(num_cpus=0.5, num_gpus=0.0, memory_bytes=1000, strategy="SPREAD")
    assert actor_options(config) == {
        "num_cpus": 0.5,
        "num_gpus": 0.0,
        "memory": 1000,
        "scheduling_strategy": "SPREAD",
    }


@pytest.mark.parametrize("key", ["NodeID", "NodeManagerAddress"])
def test_a_node_is_found_by_id_and_by_address(key: str) -> None:
    strategy = actor_options(ResourceConfig(node=node()[key], soft=True))["scheduling_strategy"]
    assert isinstance(strategy, NodeAffinitySchedulingStrategy)
    assert strategy.node_id == node()["NodeID"]
    assert strategy.soft is True


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            ResourceConfig(num_cpus=64),
            r"resources\.num_cpus \(64\) must be at most what one .* has; got 4",
        ),
        (ResourceConfig(num_gpus=512), r"resources\.num_gpus \(512\) must be at most"),
        (ResourceConfig(memory_bytes=2**50), r"resources\.memory \(.*\) must be at most"),
        (ResourceConfig(custom={"moon": 1.0}), r"resources\.custom\.moon \(1\) must be at most .*; got 0"),
        (
            ResourceConfig(node="203.0.113.7"),
            r"resources\.node \('203\.0\.113\.7'\) must be a node of",
        ),
        (
            ResourceConfig(node="203.0.113.7", soft=True),
            r"resources\.node \('203\.0\.113\.7'\) must be",
        ),
    ],
)
def test_what_no_node_has_is_refused(config: ResourceConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        actor_options(config)


def test_shortage_names_what_is_not_free() -> None:
    assert shortage(ResourceConfig(num_cpus=1.0, num_gpus=0.0)) == ""
    assert shortage(ResourceConfig(num_cpus=512.0, custom={"moon": 1.0})).startswith("num_cpus 512 (free: ")
    assert shortage(ResourceConfig(num_cpus=0.0, custom={"moon": 1.0})) == "custom.moon 1 (free: 0)"
