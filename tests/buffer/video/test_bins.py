"""Bins of frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_service.buffer.video.bins import binned


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 5))
def test_bins_part_the_frames_in_order(frames: int, bins: int, kept: int) -> None:
    centers, stacks = binned(frames, bins), binned(frames, bins, kept)
    assert centers.shape == (bins,)
    assert stacks.shape == (bins, kept)
    assert np.all(np.diff(centers) >= 0)
    assert np.all(np.diff(stacks, axis=1) >= 0)
    assert stacks.min() >= 0
    assert stacks.max() < frames
    assert np.all((stacks[:, 0] <= centers) & (centers <= stacks[:, -1]))
    if bins <= frames:
        assert np.all(stacks[1:, 0] == stacks[:-1, -1] + 1)  # no overlap, no gap
        assert (stacks[0, 0], stacks[-1, -1]) == (0, frames - 1)


def test_more_and_fewer_bins_than_frames() -> None:
    assert binned(100, 4).tolist() == [12, 37, 62, 87]
    assert binned(4, 8).tolist() == [0, 0, 1, 2, 2, 2, 3, 3]
    assert binned(6, 2, 1).tolist() == [[0], [3]]


def test_refused() -> None:
    with pytest.raises(ValueError, match="num_bins"):
        binned(4, 0)
    with pytest.raises(ValueError, match="without frames"):
        binned(0, 1)
    with pytest.raises(TypeError, match="frames_per_bin"):
        binned(4, 1, 1.5)  # type: ignore[arg-type]
