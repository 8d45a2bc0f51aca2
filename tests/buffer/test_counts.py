"""Counts: integers of any kind, nothing else, and not below one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.buffer.counts import positive_integer


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_integers_of_any_kind(value: Any) -> None:
    assert positive_integer(value, "size") == 3
    assert type(positive_integer(value, "size")) is int


@pytest.mark.parametrize("value", [3.0, "3", None, True, False, np.float32(3), [3], torch.tensor(3.0)])
def test_what_is_no_integer(value: Any) -> None:
    with pytest.raises(TypeError, match=r"size .* must be a positive integer"):
        positive_integer(value, "size")


@pytest.mark.parametrize("value", [0, -1, np.int64(0)])
def test_what_is_not_positive(value: Any) -> None:
    with pytest.raises(ValueError, match=r"size \((0|-1)\) must be a positive integer"):
        positive_integer(value, "size")
