"""Arguments as users pass them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.arguments import entry_key, flag_of, index_array, numbers_of, positive_seconds


@pytest.mark.parametrize("given", [True, 1, np.bool_(True)])
def test_flags(given: Any) -> None:
    assert flag_of("shared", given) is True


@pytest.mark.parametrize("given", ["yes", "", None, 2, 1.0, float("nan"), [True], torch.ones(2)])
def test_what_is_no_flag(given: Any) -> None:
    with pytest.raises(TypeError, match=r"shared \(.*\) must be True or False"):
        flag_of("shared", given)


@pytest.mark.parametrize("given", ["a", ("a",), ["a"], (("a",),)])
def test_names_of_entries(given: Any) -> None:
    assert entry_key("key", given) == ("a",)
    assert entry_key("key", ("next", ("a",))) == ("next", "a")


@pytest.mark.parametrize("given", [None, 3, (), [], ("a", 3), {"a"}, torch.ones(2), b"a"])
def test_what_names_no_entry(given: Any) -> None:
    with pytest.raises(TypeError, match=r"key \(.*\) must be the name of an entry"):
        entry_key("key", given)


def test_seconds() -> None:
    assert positive_seconds(None, 3.0) == 3.0
    assert positive_seconds(2, 3.0) == 2.0
    for forever in (float("inf"), 1e300, 10**400):
        assert positive_seconds(forever, 3.0) == positive_seconds(float("inf"), 3.0) < 1e9


@pytest.mark.parametrize("given", [0, -1, float("nan"), True, "3", [3], -(10**400)])
def test_what_is_no_time(given: Any) -> None:
    with pytest.raises(ValueError, match=r"limit \(.*\) must be a positive number of seconds"):
        positive_seconds(given, 3.0, "limit")


NUMBERS: list[tuple[Any, list[float]]] = [
    (3, [3]),
    ([1, 2], [1, 2]),
    ((0.5,), [0.5]),
    (range(2), [0, 1]),
    (np.float64(0.1), [0.1]),
    (np.arange(3, dtype=">i8"), [0, 1, 2]),
    (np.arange(3)[::-1], [2, 1, 0]),
    (np.broadcast_to(np.int64(1), (2,)), [1, 1]),
    ([torch.tensor(1.0), torch.tensor(2.0)], [1, 2]),
    (torch.ones(1, requires_grad=True), [1]),
    ([], []),
]


@pytest.mark.parametrize(("given", "expected"), NUMBERS)
def test_numbers(given: Any, expected: list[float]) -> None:
    found = numbers_of("priority", given)
    assert found.reshape(-1).tolist() == expected
    assert not found.requires_grad


def test_the_width_of_numbers() -> None:
    assert numbers_of("priority", [0.1]).dtype == torch.float32
    assert numbers_of("priority", [0.1], torch.float64).item() == 0.1
    assert numbers_of("priority", np.array([0.1])).dtype == torch.float64


@pytest.mark.parametrize(
    "given",
    [None, "a", ["a"], [None], {"a": 1}, {1}, object(), 1j, torch.ones(2) * 1j, torch.ones(2, device="meta"), slice(2)],
)
def test_what_is_no_number(given: Any) -> None:
    with pytest.raises(TypeError, match="priority must be"):
        numbers_of("priority", given)


@pytest.mark.parametrize("given", [2**70, [1, -(2**80)], [[1], [1, 2]]])
def test_numbers_that_cannot_be_held(given: Any) -> None:
    with pytest.raises(ValueError, match="priority must be"):
        numbers_of("priority", given)


@pytest.mark.parametrize(
    "given",
    [[0, 2], (0, 2), np.array([0, 2], ">i4"), np.array([0, 2], np.uint64), torch.tensor([0, 2]), range(0, 3, 2)],
)
def test_indices(given: Any) -> None:
    found = index_array(given)
    assert (found.dtype, found.tolist()) == (torch.int64, [0, 2])


def test_indices_of_nothing_and_flags() -> None:
    assert index_array([]).dtype == torch.int64
    assert index_array(np.zeros(0)).dtype == torch.int64
    assert index_array([True, False]).dtype == torch.bool
    assert index_array(3).shape == ()


@pytest.mark.parametrize(
    "given",
    [None, "a", ["a"], [None], [0.5], 1.5, True, {1}, np.array(["2020"], "M8[D]"), torch.eye(2).to_sparse(), [1j]],
)
def test_what_is_no_index(given: Any) -> None:
    with pytest.raises(TypeError, match="index must be"):
        index_array(given)


@pytest.mark.parametrize("given", [[2**70], np.array([2**63], np.uint64), [-(2**64), 0]])
def test_indices_beyond_64_bits(given: Any) -> None:
    with pytest.raises(IndexError, match="64 bits"):
        index_array(given)
