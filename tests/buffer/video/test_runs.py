"""What is read of a file in one go."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay_service.buffer.video.runs import Reading, readings


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_every_frame_is_read_once_and_finds_its_place(wanted: list[int]) -> None:
    reading = Reading(np.array(wanted))
    assert reading.frames.tolist() == sorted(set(wanted))
    assert reading.frames[reading.place].tolist() == wanted
    covered = [frame for first, behind in reading.runs() for frame in range(first, behind)]
    assert covered == reading.frames.tolist()
    assert len(reading.runs()) == 1 + int((np.diff(reading.frames) > 1).sum())


@given(st.lists(st.integers(0, 5), max_size=40))
def test_files_come_in_order_with_their_rows(files: list[int]) -> None:
    found = readings(np.array(files, np.int64))
    assert [number for number, _ in found] == list(dict.fromkeys(files))
    for number, rows in found:
        assert rows.tolist() == [row for row, file in enumerate(files) if file == number]


def test_a_slice_is_one_run() -> None:
    assert Reading(np.arange(16, 32)).runs() == [(16, 32)]
    assert Reading(np.array([5])).runs() == [(5, 6)]
