"""Trees: everything that is data comes back as it was, everything that is code stays out."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack, tensorclass

from replay_service import CheckpointError
from replay_service.buffer.persist.trees import Blobs, pack_tree, unpack_tree


class Pair(NamedTuple):
    left: Any
    right: Any


@tensorclass
class Scene:
    frame: torch.Tensor


class Unknown:
    """An object that only pickle knows how to make."""

    def __init__(self) -> None:
        self.value = 3


class Bomb:
    def __reduce__(self) -> Any:
        return os._exit, (3,)


def round_trip(tree: Any, allow_pickle: bool = False, together: bool = False) -> Any:
    blobs = Blobs(together)
    document = json.loads(json.dumps(pack_tree(tree, blobs, allow_pickle)))
    data = [np.concatenate([np.zeros(0, np.uint8), *parts]) for parts in blobs.parts]
    return unpack_tree(document, data, allow_pickle)


PLAIN = [
    None,
    True,
    3,
    -(2**70),
    "text ünd ~",
    1.5,
    float("inf"),
    float("-inf"),
    2 + 3j,
    b"\x00bytes",
    bytearray(b"more"),
    [1, [2, "three"]],
    (1, (2,)),
    {1, 2},
    frozenset({"a"}),
    {"a": {"b": [1]}},
    {("next", "reward"): 1, 3: "x"},
    {"~": "tensor"},
    Pair(1, {"a": 2}),
    torch.Size([2, 3]),
    torch.float32,
    torch.device("cpu"),
]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values(value: Any, together: bool) -> None:
    found = round_trip(value, together=together)
    assert (found, type(found)) == (value, type(value))


def test_nan() -> None:
    found = round_trip([float("nan"), np.float32("nan")])
    assert all(value != value for value in found)
    assert type(found[1]) is np.float32


TENSORS = [
    torch.arange(6).view(2, 3),
    torch.zeros(0, 3),
    torch.tensor(3.5),
    torch.ones(3, dtype=torch.bool),
    torch.randn(4).to(torch.bfloat16),
    torch.randn(4).to(torch.float8_e4m3fn),
    torch.randn(2, dtype=torch.complex64),
    torch.tensor([1, 2], dtype=torch.uint16),
    torch.randn(4, 5).t(),
    torch.randn(40_000),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{list(t.shape)}")
def test_tensors(tensor: torch.Tensor) -> None:
    found = round_trip({"a": tensor})["a"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert found.contiguous().reshape(-1).view(torch.uint8).tolist() == (
        tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    )
    found.zero_()  # its own memory, and writable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5),
        np.array("text"),
        np.array([["a", "bc"]]),
        np.float32(3),
        np.bool_(True),
        np.zeros((0, 2)),
        np.arange(3)[::-1],
    ],
    ids=repr,
)
def test_arrays(array: Any) -> None:
    found = round_trip(array)
    assert (type(found), found.dtype, found.shape) == (type(array), array.dtype, array.shape)
    assert found.tolist() == array.tolist()


def test_tensordicts() -> None:
    data = TensorDict({"a": torch.arange(3), "next": TensorDict({"b": torch.ones(3, 2)}, [3]), "text": "hello"}, [3])
    found = round_trip(data)
    assert type(found) is TensorDict
    assert (found.batch_size, found["next"].batch_size) == (data.batch_size, data["next"].batch_size)
    assert (found["text"], list(found.keys())) == ("hello", list(data.keys()))
    assert bool((found.exclude("text") == data.exclude("text")).all())


def test_stacks_and_texts() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(n), "name": f"record {n}"}) for n in (1, 2)])
    found = round_trip(stack)
    assert isinstance(found, LazyStackedTensorDict)
    assert [part["a"].numel() for part in found.unbind(0)] == [1, 2]
    assert [part["name"] for part in found.unbind(0)] == ["record 1", "record 2"]
    assert round_trip(NonTensorData({"any": [1]}, batch_size=[2])).data == {"any": [1]}


def test_tensorclasses() -> None:
    found = round_trip([Scene(torch.ones(2, 3), batch_size=[2])])[0]
    assert type(found) is Scene
    assert found.frame.tolist() == torch.ones(2, 3).tolist()


@pytest.mark.parametrize(
    "value",
    [Unknown(), {"a": [Unknown()]}, np.array([Unknown()]), lambda: 1],
    ids=["object", "nested", "array", "function"],
)
def test_what_only_pickle_knows_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"must be made of tensors, arrays, .* allow_pickle=True"):
        pack_tree(value, Blobs())


def test_the_place_of_what_is_refused_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"data\.a\[1\] \(Unknown\)"):
        pack_tree({"a": [1, Unknown()]}, Blobs())


def test_pickle_is_for_those_who_ask_for_it_at_both_ends() -> None:
    assert round_trip([Unknown()], allow_pickle=True)[0].value == 3
    blobs = Blobs()
    document = pack_tree(Bomb(), blobs, allow_pickle=True)
    with pytest.raises(CheckpointError, match="runs their code"):
        unpack_tree(document, [np.concatenate(blobs.parts[0])])
    with pytest.raises(CheckpointError, match="can be pickled"):
        pack_tree(lambda: 1, Blobs(), allow_pickle=True)


@pytest.mark.parametrize(
    "document",
    [
        {"~": "nobody"},
        {"~": "tensor", "dtype": "load", "shape": [1], "at": [0, 0]},
        {"~": "tensor", "dtype": "int64", "shape": [100], "at": [0, 0]},
        {"~": "tensor", "dtype": "int64", "shape": [1], "at": [0, -8]},
        {"~": "tensor", "dtype": "int64", "shape": [1], "at": [5, 0]},
        {"~": "array", "dtype": "O", "shape": [1], "at": [0, 0]},
        {"~": "nt", "class": "os:system", "items": ["true"]},
        {"~": "tc", "class": "builtins:eval", "value": {}},
        {"~": "tuple"},
        {"~": ["tuple"]},
    ],
    ids=str,
)
def test_documents_that_nobody_packed(document: Any) -> None:
    with pytest.raises(CheckpointError):
        unpack_tree(document, [np.zeros(64, np.uint8)])
