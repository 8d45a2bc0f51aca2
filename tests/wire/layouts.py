"""Layouts and messages of any kind, for hypothesis."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from replay_service.payload import NUMPY_DTYPES
from replay_service.structure import Leaf
from replay_service.wire.layout import DTYPES, Axis, Layout
from replay_service.wire.message import ARGUMENTS, Message
from replay_service.wire.verbs import Verb

__all__ = ["filled", "layouts", "messages", "same_bits"]

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(min_size=1, max_size=6)
KEYS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
LEAVES = st.builds(Leaf, KEYS, st.sampled_from(list(DTYPES.values())), SHAPES)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A layout of up to six leaves with different keys."""
    leaves = draw(st.lists(LEAVES, max_size=6, unique_by=lambda leaf: leaf.key))
    axes = draw(st.lists(st.sampled_from(Axis), min_size=len(leaves), max_size=len(leaves)))
    static = draw(st.sampled_from(["{}", '{"spec":"t"}', '{"a":[1,"\\u00e9"]}']))
    return Layout(tuple(leaves), tuple(axes), static)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A message with a random layout, random counts and random bits in its tensors."""
    layout = draw(layouts())
    rows, items = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    counts = layout.counts(rows, items)
    tensors = [
        filled(leaf.dtype, leaf.shape if axis is Axis.ONE else (count, *leaf.shape), generator)
        for leaf, axis, count in zip(layout.leaves, layout.axes, counts, strict=True)
    ]
    return Message(
        draw(st.sampled_from(Verb)),
        layout,
        tensors,
        rows,
        items,
        tuple(draw(st.lists(INT64, max_size=ARGUMENTS))),
        status=draw(st.integers(0, 100)),
        request_id=draw(INT64),
        known_reply=draw(INT64),
    )


def filled(dtype: torch.dtype, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A tensor of random bits (a bool has only two that mean something)."""
    if dtype is torch.bool:
        return torch.randint(0, 2, size, generator=generator).bool()
    bits = torch.randint(0, 256, (*size, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(size)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit agree; NaN equals the same NaN."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype in NUMPY_DTYPES:
        return bool(first.numpy().tobytes() == second.numpy().tobytes())
    carrier = {1: torch.uint8, 2: torch.int16}[first.dtype.itemsize]
    return torch.equal(first.view(carrier), second.view(carrier))
