"""From arguments to requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from clients.requests import (
    end_arguments,
    extend_request,
    query_request,
    records_request,
    sample_request,
)
from replay_service import traj
from replay_service.structure import row_of
from replay_service.wire.verbs import Verb
from tests.rows import stamped_rows


def test_a_batch_of_tensors_travels_as_leaves() -> None:
    data = stamped_rows(3)
    request = extend_request(data, None)
    assert (request.verb, request.rows, request.objects, request.obstacle) == (Verb.EXTEND, 3, None, "")
    assert (request.records().build() == data).all()
    assert [extend_request(data, flag).argument(0) for flag in (None, False, True)] == [-1, 0, 1]


@pytest.mark.parametrize(
    ("data", "obstacle"),
    [
        (["a", "b"], "0"),
        ("a", "data"),
        (None, "data"),
        ({"a": torch.zeros(2), "b": {"c": "text"}}, "b.c"),
        (TensorDict({"a": torch.zeros(2), "b": NonTensorStack("x", "y")}, [2]), "b"),
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, "b (3 rows)"),
        (torch.tensor(3.0), "data"),
    ],
)
def test_what_is_no_batch_of_tensors_travels_as_an_object_that_is_named(data: Any, obstacle: str) -> None:
    request = extend_request(data, None)
    assert request.objects == (data,)
    assert request.obstacle == obstacle
    assert not request.tensors


@pytest.mark.parametrize(
    "data",
    [
        [torch.tensor(3), torch.tensor(4)],
        [stamped_rows(3)[row] for row in range(3)],
        [TensorDict({"a": {"b": torch.zeros(2, 3)}}, []), TensorDict({"a": {"b": torch.ones(2, 3)}}, [])],
    ],
)
def test_a_list_of_records_that_look_alike_travels_as_rows(data: list[Any]) -> None:
    request = extend_request(data, True)
    assert (request.objects, request.rows, request.arguments[:2]) == (None, len(data), (1, 1))
    for sent, record in zip(request.records().build().unbind(0), data, strict=True):
        assert bool((sent == record).all())


@pytest.mark.parametrize(
    "data",
    [
        [torch.tensor(3), torch.tensor(4.0)],
        [torch.tensor(3), "four"],
        [torch.tensor(3), TensorDict({"a": torch.zeros(1)}, [])],
        [TensorDict({"a": torch.zeros(1)}, []), TensorDict({"b": torch.zeros(1)}, [])],
        [TensorDict({"a": torch.zeros(1)}, []), TensorDict({"a": torch.zeros(2)}, [])],
        (torch.tensor(3), torch.tensor(4)),
        [],
    ],
)
def test_other_lists_travel_as_objects(data: Any) -> None:
    request = extend_request(data, None)
    assert request.objects == (data,)
    assert request.argument(1) == 0


def test_one_record() -> None:
    request = records_request(Verb.ADD, row_of(stamped_rows(2)[1]))
    assert request.rows == 1
    assert request.records().build()["action"].tolist() == [1]


def test_batch_sizes() -> None:
    assert sample_request(None, False).arguments == (0, 0)
    assert sample_request(7, True).arguments == (7, 1)
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=rf"batch_size \({wrong}\)"):
            sample_request(wrong, False)
    for kind in (True, 2.0, "3", np.float32(2)):
        with pytest.raises(TypeError, match="batch_size"):
            sample_request(kind, False)


def test_ends() -> None:
    assert [end_arguments(end) for end in (None, 0, 3, -1)] == [(0, 0), (1, 0), (1, 3), (1, -1)]
    for wrong in (True, 1.5, "1", 2**64):
        with pytest.raises(ValueError, match="end"):
            end_arguments(wrong)  # type: ignore[arg-type]


def test_predicates() -> None:
    assert query_request(None, None).objects is None
    assert query_request(traj.length > 2, ("a", "b")).objects is None
    assert query_request(len, None).objects == (len,)
    for key in (3, (), ("a", 1)):
        with pytest.raises(TypeError, match="trajectory_key"):
            query_request(None, key)
    with pytest.raises(TypeError, match="predicate"):
        query_request(3, None)
