"""Records as bytes: dense tensors without pickle, everything else with it."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict, tensorclass

from replay_service.buffer.storages.packed_records import pack_record, unpack_record
from replay_service.errors import LayoutError


class Pair(NamedTuple):
    first: Any
    second: Any


@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor


DENSE: list[Any] = [
    torch.arange(6).view(2, 3),
    torch.tensor(2.5, dtype=torch.bfloat16),
    torch.zeros(0, 3),
    torch.arange(12).view(3, 4).t(),
    torch.ones(2, requires_grad=True),
    torch.ones(2, dtype=torch.complex64).conj(),
    TensorDict({"a": torch.ones(3), ("next", "b"): torch.tensor(True)}, []),
    TensorDict({"a": torch.ones(3, 2)}, [3]),
    Point(x=torch.ones(2), y=torch.zeros(()), batch_size=[]),
    {"a": [torch.ones(1), (torch.zeros(2), Pair(torch.ones(1), torch.zeros(0)))]},
]


@pytest.mark.parametrize("record", DENSE, ids=lambda record: type(record).__name__)
def test_dense_records_need_no_pickle(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "dumps", lambda *_, **__: pytest.fail("pickled"))
    monkeypatch.setattr(pickle, "loads", lambda *_, **__: pytest.fail("unpickled"))
    got = unpack_record(pack_record(record))
    assert type(got) is type(record)
    _assert_equal(got, record)


def test_what_comes_back_can_be_written_to() -> None:
    packed = pack_record({"a": torch.zeros(2), "b": torch.zeros(2)})
    got = unpack_record(packed)
    got["a"] += 1
    assert got["b"].tolist() == [0, 0]
    assert unpack_record(packed)["a"].tolist() == [0, 0]


@pytest.mark.parametrize("record", ["text", b"bytes", None, 3, {"a": "b"}, TensorDict({}, [])])
def test_other_objects_are_pickled(record: Any) -> None:
    got = unpack_record(pack_record(record))
    assert type(got) is type(record)
    if not isinstance(record, TensorDict):
        assert got == record


def test_mixed_records_are_pickled() -> None:
    got = unpack_record(pack_record(TensorDict({"a": torch.ones(2), "note": NonTensorData("hello")}, [])))
    assert got["note"] == "hello"
    assert unpack_record(pack_record(np.arange(3))).tolist() == [0, 1, 2]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"data .function. must be made of dense tensors"):
        pack_record(lambda: None)


def test_tensors_go_to_the_device_that_is_asked_for() -> None:
    got = unpack_record(pack_record(TensorDict({"a": torch.ones(2)}, [])), torch.device("meta"))
    assert got["a"].device.type == "meta"


def _assert_equal(got: Any, record: Any) -> None:
    if isinstance(record, torch.Tensor):
        assert (got.dtype, got.shape) == (record.dtype, record.shape)
        assert torch.equal(got, record.detach().resolve_conj())
    elif isinstance(record, dict):
        assert got.keys() == record.keys()
        for name in record:
            _assert_equal(got[name], record[name])
    elif isinstance(record, tuple | list):
        for mine, theirs in zip(got, record, strict=True):
            _assert_equal(mine, theirs)
    else:
        assert got.batch_size == record.batch_size
        assert bool((got == record).all())
