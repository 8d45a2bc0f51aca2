"""Which buffer of an ensemble a record goes to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import LayoutError
from replay_service.buffer.ensemble.routing import Routing


def _rows(ids: Any, *batch: int) -> TensorDict:
    return TensorDict({"who": torch.as_tensor(ids), "x": torch.arange(torch.Size(batch).numel()).view(batch)}, batch)


def test_by_a_key() -> None:
    flat, ids = Routing("who").route(_rows([[1, 0], [2, 1]], 2, 2), 3)
    assert (ids.tolist(), flat["x"].tolist()) == ([1, 0, 2, 1], [0, 1, 2, 3])


def test_by_a_nested_key_with_a_last_dimension_of_one() -> None:
    data = TensorDict({"meta": {"who": torch.tensor([[1], [0]])}}, [2])
    assert Routing(("meta", "who")).route(data, 2)[1].tolist() == [1, 0]


def test_a_dict_of_tensors_will_do() -> None:
    flat, ids = Routing("who").route({"who": torch.tensor([1, 0]), "x": torch.tensor([5, 6])}, 2)
    assert (ids.tolist(), flat.batch_size) == ([1, 0], torch.Size([2]))


@pytest.mark.parametrize(("dim", "expected"), [(0, [0, 0, 0, 1, 1, 1]), (-1, [0, 1, 2, 0, 1, 2]), (1, [0, 1, 2] * 2)])
def test_by_a_place(dim: int, expected: list[int]) -> None:
    flat, ids = Routing(dim=dim).route(_rows([[0] * 3] * 2, 2, 3), 2 if dim == 0 else 3)
    assert ids.tolist() == expected
    assert flat["x"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("routing", "data", "error", "words"),
    [
        (Routing(), _rows([0], 1), RuntimeError, r"routing_key or routing_dim, or write to one buffer, rb\[i\]"),
        (Routing("who"), torch.zeros(3), TypeError, r"data \(Tensor\) must be a TensorDict"),
        (Routing("who"), _rows([0], 1)[0], LayoutError, "leading dimension"),
        (
            Routing("whom"),
            _rows([0], 1),
            LayoutError,
            r"routing_key \(whom\) must be an entry of data; got \['who', 'x'\]",
        ),
        (Routing("who"), _rows([[0, 1]], 1), LayoutError, r"who \(\[1, 2\]\) must hold one number per record"),
        (Routing("who"), _rows([0.0], 1), TypeError, "who must be integers; got float32"),
        (Routing("who"), _rows([True], 1), TypeError, "who must be integers; got bool"),
        (Routing("who"), _rows([0, 2], 2), ValueError, r"who \(2\) must be in \[0, 2\)"),
        (Routing("who"), _rows([0, -1], 2), ValueError, r"who \(-1\)"),
        (
            Routing(dim=1),
            _rows([0, 1], 2),
            LayoutError,
            r"routing_dim \(1\) must be a dimension of the batch; got \[2\]",
        ),
        (Routing(dim=0), _rows([0, 1, 0], 3), LayoutError, r"one place per buffer, 2; got \[3\]"),
    ],
)
def test_what_has_no_route_is_refused(routing: Routing, data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        routing.route(data, 2)


@pytest.mark.parametrize(
    ("settings", "error"),
    [(("who", 0), ValueError), ((None, True), TypeError), ((None, 1.0), TypeError), ((3,), TypeError)],
)
def test_routes_that_are_none_are_refused(settings: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="routing_"):
        Routing(*settings)
