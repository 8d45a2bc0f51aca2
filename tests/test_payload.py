"""Payloads: aligned blocks in one flat buffer, for every dtype."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from replay_service.arena import ALIGNMENT
from replay_service.payload import payload_bytes, views
from replay_service.structure import Leaf

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def test_blocks_are_aligned_and_apart() -> None:
    leaves = [Leaf((str(place),), dtype, (3,)) for place, dtype in enumerate(DTYPES)]
    flat = np.zeros(payload_bytes(leaves, 5), np.uint8)
    assert flat.nbytes % ALIGNMENT == 0
    spans = []
    for leaf, view in zip(leaves, views(flat, leaves, 5), strict=True):
        assert (view.dtype, view.shape) == (leaf.dtype, (5, 3))
        assert view.is_contiguous()
        start = view.data_ptr() - flat.ctypes.data
        assert start % ALIGNMENT == 0
        spans.append((start, start + view.nbytes))
    assert spans == sorted(spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= flat.nbytes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_write_into_the_buffer(dtype: torch.dtype) -> None:
    leaves = [Leaf(("a",), dtype, ())]
    flat = np.zeros(payload_bytes(leaves, 2) + ALIGNMENT, np.uint8)
    (view,) = views(flat, leaves, 2, offset=ALIGNMENT)
    view.copy_(torch.tensor([0, 1]).to(dtype))
    assert flat[:ALIGNMENT].sum() == 0
    (again,) = views(flat, leaves, 2, offset=ALIGNMENT)
    assert again.view(torch.uint8).tolist() == torch.tensor([0, 1]).to(dtype).view(torch.uint8).tolist()


def test_views_keep_the_buffer_alive() -> None:
    leaves = [Leaf(("a",), torch.int64, (1000,))]
    (view,) = views(np.full(payload_bytes(leaves, 1), 1, np.uint8), leaves, 1)
    assert int(view.view(torch.uint8).sum()) == 8000


def test_nothing_takes_no_room() -> None:
    leaves = [Leaf(("a",), torch.float32, (0,)), Leaf(("b",), torch.float32, (2,))]
    assert payload_bytes(leaves, 0) == 0
    assert [tuple(view.shape) for view in views(np.zeros(0, np.uint8), leaves, 0)] == [(0, 0), (0, 2)]
    assert [tuple(view.shape) for view in views(np.zeros(64, np.uint8), leaves, 3)] == [(3, 0), (3, 2)]
