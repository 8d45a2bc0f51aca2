"""Options of a service."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from replay_service.service.starting import (
    DEFAULT_NAMESPACE,
    actor_options,
    check_transport,
    default_threads,
    end_actor,
    ensure_ray,
)


def test_names_are_given_generated_or_taken_from_the_actors_options() -> None:
    first, second = actor_options(None, None, None, None), actor_options(None, None, None, None)
    assert first["name"] != second["name"]
    assert first["namespace"] == DEFAULT_NAMESPACE
    assert "lifetime" not in first
    given = {"name": "a", "namespace": "b", "num_cpus": 3, "resources": {"x": 1}}
    assert actor_options(given, None, None, None) == given
    assert actor_options(given, "c", "d", "detached") == {
        **given,
        "name": "c",
        "namespace": "d",
        "lifetime": "detached",
    }
    assert given["name"] == "a"


def test_torch_leaves_cores_to_the_network() -> None:
    assert default_threads() >= 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("tcp", "gloo", 1.0, {}), "transport"),
        (("auto", "mpi", 1.0, {}), "backend"),
        (("auto", "gloo", 0.0, {}), "timeout"),
        (("auto", "gloo", float("nan"), {}), "timeout"),
        (("auto", "gloo", 1.0, {"speed": 1}), "speed"),
    ],
)
def test_what_does_not_exist(arguments: tuple[Any, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check_transport(*arguments)


@pytest.mark.parametrize("transport", ["auto", "ray", "distributed"])
def test_what_exists(transport: str) -> None:
    check_transport(transport, "gloo", 1.0, {})


class Target:
    def drained(self) -> bool:
        return True


def test_an_actor_is_gone_when_its_end_was_waited_for(ray_session: Any) -> None:
    ensure_ray({"address": "nowhere:1"})  # without an effect: this process has joined one
    options = {"name": "target", "namespace": ray_session.namespace, "num_cpus": 0}
    for _ in range(2):  # the name is free again at once
        actor_class: Any = ray.remote(Target)
        actor = actor_class.options(**options).remote()
        assert ray.get(actor.drained.remote(), timeout=60)
        end_actor(actor)
        with pytest.raises(ValueError, match="target"):
            ray.get_actor("target", namespace=ray_session.namespace)
