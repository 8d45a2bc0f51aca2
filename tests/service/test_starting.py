"""Options of a service."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from replay_service.service.starting import (
    DEFAULT_NAMESPACE,
    actor_options,
    default_threads,
    end_actor,
    ensure_ray,
    transport_settings,
)
from tests.service.target import Target


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
    ("transport", "options", "timeout", "match"),
    [
        ("tcp", {}, None, "transport"),
        (["ray"], {}, None, "transport"),
        ("auto", {"backend": "mpi"}, None, "backend"),
        ("auto", {"backend": ["gloo"]}, None, "backend"),
        ("auto", {"timeout": 0}, None, r"transport_options\.timeout \(0\)"),
        ("auto", {"timeout": "5"}, None, r"transport_options\.timeout \('5'\)"),
        ("auto", {}, float("nan"), r"timeout \(nan\)"),
        ("auto", {}, -1, r"timeout \(-1\)"),
        ("auto", {}, True, r"timeout \(True\)"),
        ("auto", {"threads": 0}, None, r"threads \(0\)"),
        ("auto", {"threads": "2"}, None, r"threads \('2'\)"),
        ("auto", {"threads": 1.5}, None, r"threads \(1\.5\)"),
        ("auto", {"speed": 1, 3: 4}, None, "'3', 'speed'"),
        ("auto", "gloo", None, r"transport_options \('gloo'\) must be a dict"),
        ("auto", [1], None, r"transport_options \(\[1\]\) must be a dict"),
    ],
)
def test_what_does_not_exist(transport: Any, options: Any, timeout: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        transport_settings(transport, options, timeout)


@pytest.mark.parametrize("transport", ["auto", "ray", "distributed"])
def test_what_exists(transport: str) -> None:
    assert transport_settings(transport, None, None) == ("gloo", 30.0, default_threads())
    options = {"backend": "gloo", "timeout": 4, "threads": 2}
    assert transport_settings(transport, options, None) == ("gloo", 4.0, 2)
    assert transport_settings(transport, options, 5) == ("gloo", 5.0, 2)
    assert transport_settings(transport, {"timeout": float("inf")}, None)[1] < float("inf")  # clocks count no further


@pytest.mark.parametrize(
    ("given", "named", "match"),
    [
        ("num_cpus=1", {}, "remote_config .* must be a dict"),
        ({"num_cpus": -1}, {}, "remote_config must be options of a Ray actor; .*num_cpus"),
        ({"num_cpus": "x"}, {}, "remote_config must be options of a Ray actor; .*num_cpus"),
        ({"speed": 1}, {}, "remote_config must be options of a Ray actor; .*speed"),
        ({"name": 3}, {}, r"name \(3\) must be a string"),
        ({}, {"name": ""}, r"name \(''\) must not be empty"),
        ({}, {"namespace": ""}, r"namespace \(''\) must not be empty"),
        ({}, {"namespace": b"x"}, r"namespace \(b'x'\) must be a string"),
        ({}, {"lifetime": "forever"}, r"lifetime \('forever'\) must be"),
        ({"lifetime": 3}, {}, r"lifetime \(3\) must be"),
    ],
)
def test_options_that_ray_would_not_take(given: Any, named: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        actor_options(given, named.get("name"), named.get("namespace"), named.get("lifetime"))


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
