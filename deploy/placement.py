"""What the service's process takes from Ray and where it runs, checked against the nodes that are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from deploy.errors import ConfigError
from deploy.settings import ResourceConfig

__all__ = ["actor_options", "shortage"]


def actor_options(config: ResourceConfig) -> dict[str, Any]:
    """Ray's options for the actor. Needs a Ray that was joined.

    Raises:
        ConfigError: no such node, or none that offers as much. Ray itself would wait for one forever.
    """
    import ray

    nodes = [node for node in cast(Callable[[], list[Any]], ray.nodes)() if node["Alive"]]
    wanted = _wanted(config)
    if config.node is not None:
        named = [node for node in nodes if config.node in (node["NodeID"], node["NodeManagerAddress"])]
        if not named:
            known = ", ".join(f"{node['NodeManagerAddress']} ({node['NodeID']})" for node in nodes)
            raise ConfigError(f"resources.node ({config.node!r}) must be a node of this Ray; it has {known}")
        candidates = nodes if config.soft else named
    else:
        named, candidates = [], nodes
    for resource, (key, amount) in wanted.items():
        most = max((node["Resources"].get(resource, 0.0) for node in candidates), default=0.0)
        if amount > most:
            raise ConfigError(
                f"resources.{key} ({amount:g}) must be at most what one node of this Ray has; got {most:g}"
            )
    options: dict[str, Any] = {
        "num_cpus": config.num_cpus,
        "num_gpus": config.num_gpus,
        "memory": config.memory_bytes,
        "resources": dict(config.custom) or None,
        "scheduling_strategy": config.strategy,
    }
    if named:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(named[0]["NodeID"], soft=config.soft)
    return {key: value for key, value in options.items() if value is not None}


def shortage(config: ResourceConfig) -> str:
    """What is asked for and not free at this moment, such as `"num_cpus 1 (free: 0)"`; `""` if all is free."""
    import ray

    free = cast(Callable[[], dict[str, float]], ray.available_resources)()
    lacking = {key: (amount, free.get(name, 0.0)) for name, (key, amount) in _wanted(config).items()}
    return ", ".join(f"{key} {amount:g} (free: {left:g})" for key, (amount, left) in lacking.items() if amount > left)


def _wanted(config: ResourceConfig) -> dict[str, tuple[str, float]]:
    """Ray's name of each resource that is asked for -> (key in the file, amount)."""
    asked: dict[str, tuple[str, float | None]] = {
        # A service takes one processor unless told otherwise.
        "CPU": ("num_cpus", 1.0 if config.num_cpus is None else config.num_cpus),
        "GPU": ("num_gpus", config.num_gpus),
        "memory": ("memory", config.memory_bytes),
        **{name: (f"custom.{name}", amount) for name, amount in config.custom.items()},
    }
    return {name: (key, amount) for name, (key, amount) in asked.items() if amount is not None}
