from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tensordict import NestedKey, TensorDict

import replay_service
from deploy.errors import ConfigError
from deploy.kinds import Kind, available_kinds, read_kind
from replay_service import RandomSampler


class FussySampler(RandomSampler):
    """Has a parameter of every type that a file can hold, and some that it cannot."""

    def __init__(
        self,
        max_capacity: int,
        *,
        alpha: float = 0.5,
        key: NestedKey = ("next", "done"),
        keys: list[NestedKey] | None = None,
        dtype: torch.dtype = torch.float,
        device: torch.device | str | None = None,
        mode: Literal["a", "b"] = "a",
        scratch: Path | None = None,
        exact: int | float = 1,
        weight: Any = None,
        hook: torch.nn.Module | None = None,
    ) -> None:
        if alpha < 0:
            raise ValueError(f"alpha ({alpha}) must be at least 0; got a negative number")
        self.given = (max_capacity, alpha, key, keys, dtype, device, mode, scratch, exact, weight)


@pytest.fixture
def fussy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_service, "__all__", [*replay_service.__all__, "FussySampler"])
    monkeypatch.setattr(replay_service, "FussySampler", FussySampler, raising=False)


@pytest.mark.parametrize("role", ["storage", "sampler", "writer"])
def test_every_published_kind_is_available(role: str) -> None:
    kinds = available_kinds(role)
    base = getattr(replay_service, role.capitalize())
    assert base not in kinds.values()
    published = [name for name in replay_service.__all__ if name.endswith(role.capitalize())]
    assert set(kinds) == {name for name in published if name != role.capitalize()}


def test_looking_kinds_up_does_not_import_ray() -> None:
    program = "import sys; from deploy.config import load_config; load_config('small'); sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_capacity_is_a_storages_max_size() -> None:
    kind = read_kind({"kind": "LazyTensorStorage", "capacity": 7}, "storage")
    assert kind == Kind("storage", "LazyTensorStorage", {"max_size": 7})
    assert read_kind({"kind": "LazyTensorStorage", "max_size": 7}, "storage") == kind
    with pytest.raises(ConfigError, match=r"storage\.max_size \(7\) must be left out where storage\.capacity is given"):
        read_kind({"kind": "LazyTensorStorage", "capacity": 7, "max_size": 7}, "storage")


def test_factory_survives_pickling_and_builds() -> None:
    kind = read_kind({"kind": "LazyTensorStorage", "capacity": 3}, "storage")
    storage = pickle.loads(pickle.dumps(kind.factory()))()
    assert isinstance(storage, replay_service.LazyTensorStorage)
    assert storage.max_size == 3


def test_parts_of_a_file_make_a_buffer() -> None:
    parts = {
        "storage": read_kind({"kind": "LazyTensorStorage", "capacity": 4}, "storage"),
        "sampler": read_kind({"kind": "RandomSampler"}, "sampler"),
        "writer": read_kind({"kind": "TensorDictRoundRobinWriter", "track_generations": True}, "writer"),
    }
    built = {role: part.factory()() for role, part in parts.items()}
    buffer = replay_service.TensorDictReplayBuffer(**built, batch_size=2)
    buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
    assert "index_generation" in buffer.sample()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"storage\.kind \(missing\) must be one of .*LazyTensorStorage"),
        (
            {"kind": "LazyTensorStorge"},
            r"storage\.kind \('LazyTensorStorge'\) must .*did you mean LazyTensorStorage\?",
        ),
        ({"kind": "Storage"}, r"storage\.kind \('Storage'\) must be one of"),
        ({"kind": "RandomSampler"}, r"storage\.kind \('RandomSampler'\) must be one of"),
        ({"kind": 3}, r"storage\.kind \(3\) must be one of .*; got int"),
        ({"kind": ["ListStorage"]}, r"storage\.kind \(\['ListStorage'\]\) must be one of .*; got list"),
        ({"kind": "LazyTensorStorage"}, r"storage\.capacity \(missing\) must be given for LazyTensorStorage"),
        ({"kind": "LazyTensorStorage", "capacity": 0}, r"storage\.capacity \(0\) must be a positive integer; got int"),
        ({"kind": "LazyTensorStorage", "capacity": True}, r"storage\.capacity \(True\) must be a positive integer"),
        ({"kind": "LazyTensorStorage", "capacity": 1, "ndim": "a"}, r"storage\.ndim \('a'\) must be int; got str"),
        (
            {"kind": "LazyTensorStorage", "capactiy": 1},
            r"storage\.capactiy \(1\) must be a known key \(kind, capacity, .*did you mean storage\.capacity\?",
        ),
    ],
)
def test_storage_tables_that_cannot_work(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        read_kind(values, "storage")


@pytest.mark.usefixtures("fussy")
def test_values_are_turned_into_what_the_constructor_takes() -> None:
    values = {
        "kind": "FussySampler",
        "alpha": 1,
        "key": ["agents", "done"],
        "keys": [["next", "done"], ["next", "truncated"]],
        "dtype": "float64",
        "device": "cpu",
        "mode": "b",
        "scratch": "somewhere",
        "exact": 3,
        "weight": ["a", "b"],
    }
    kind = read_kind(values, "sampler", capacity=50)
    sampler = kind.factory()()
    keys = [("next", "done"), ("next", "truncated")]
    expected = (50, 1, ("agents", "done"), keys, torch.float64, "cpu", "b", "somewhere", 3, ("a", "b"))
    assert isinstance(sampler, FussySampler)
    assert sampler.given == expected


@pytest.mark.usefixtures("fussy")
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("alpha", "high", r"must be float; got str"),
        ("alpha", True, r"must be float; got bool"),
        ("dtype", "float65", r"must be the name of a torch dtype; got str"),
        ("dtype", "nn", r"must be the name of a torch dtype; got str"),
        ("mode", "c", r"must be 'a' or 'b'; got str"),
        ("key", 3, r"must be a key or an array of its parts; got int"),
        ("hook", "relu", r"must be an object that only Python can build; got str"),
        ("max_capacity", 0, r"must be a positive integer; got int"),
    ],
)
def test_values_of_the_wrong_type(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_kind({"kind": "FussySampler", "max_capacity": 1, key: value}, "sampler")
    assert str(caught.value).endswith(message)
    assert str(caught.value).startswith(f"sampler.{key} ({value!r}) ")


@pytest.mark.usefixtures("fussy")
def test_max_capacity_follows_the_storage_unless_given() -> None:
    assert read_kind({"kind": "FussySampler"}, "sampler", 9).parameters["max_capacity"] == 9
    assert read_kind({"kind": "FussySampler", "max_capacity": 4}, "sampler", 9).parameters["max_capacity"] == 4
    with pytest.raises(ConfigError, match=r"^sampler\.max_capacity \(missing\) must be given for FussySampler$"):
        read_kind({"kind": "FussySampler"}, "sampler")


@pytest.mark.usefixtures("fussy")
def test_trying_out_reports_what_the_constructor_says() -> None:
    Kind("sampler", "FussySampler", {"max_capacity": 10**9}).try_out()
    with pytest.raises(ConfigError, match=r"^sampler\.alpha \(-1\) must be at least 0; got a negative number$"):
        Kind("sampler", "FussySampler", {"max_capacity": 1, "alpha": -1}).try_out()
    with pytest.raises(ConfigError, match=r"^sampler\.kind \('FussySampler'\) cannot be built: .*max_capacity"):
        Kind("sampler", "FussySampler", {}).try_out()
