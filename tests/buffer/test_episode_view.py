from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.buffer.episodes import EpisodeIndex
from replay_service.errors import EmptyBufferError

LAST_UNIFORM = math.nextafter(1.0, 0.0)


def episodes(lengths: Sequence[int], capacity: int | None = None) -> EpisodeIndex:
    """Finished episodes of these lengths, one after the other from slot 0."""
    rows = sum(lengths)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    index = EpisodeIndex(capacity or rows)
    index.write(np.arange(rows) % index.capacity, ends=ends)
    return index


def uniforms(rows: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 2, generator=generator, dtype=torch.float64).numpy()


def assert_distributed(seen: Counter[Any], expected: dict[Any, float]) -> None:
    """Chi-square of counts against probabilities, four standard deviations above its mean at most."""
    total = sum(seen.values())
    assert set(seen) <= set(expected)
    statistic = sum((seen[key] - total * p) ** 2 / (total * p) for key, p in expected.items())
    freedom = len(expected) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_strict_draws_are_uniform_over_long_episodes_then_over_starts() -> None:
    drawn = episodes([10, 4, 2, 1]).draw_starts(4, uniforms(20_000))
    assert set(drawn.length.tolist()) == {4}
    expected = dict.fromkeys(range(7), 1 / 14) | {10: 1 / 2}
    assert_distributed(Counter(drawn.start.tolist()), expected)


def test_lenient_draws_admit_short_episodes_as_a_whole() -> None:
    drawn = episodes([10, 4, 2, 1]).draw_starts(4, uniforms(20_000), strict=False)
    expected = {(start, 4): 1 / 4 / 7 for start in range(7)} | {(10, 4): 1 / 4, (14, 2): 1 / 4, (16, 1): 1 / 4}
    assert_distributed(Counter(zip(drawn.start.tolist(), drawn.length.tolist(), strict=True)), expected)


def test_whole_trajectories_are_drawn_equally_often_in_all_lanes() -> None:
    index = EpisodeIndex(20, lanes=3)
    ends = np.zeros((20, 3), bool)
    ends[9, 0] = ends[[1, 5, 11], 2] = True
    index.write(np.arange(20), ends=ends)
    drawn = index.draw_trajectory(uniforms(20_000)[:, 0])
    expected = {(0, 0): 10, (0, 10): 10, (1, 0): 20, (2, 0): 2, (2, 2): 4, (2, 6): 6, (2, 12): 8}
    assert_distributed(
        Counter(zip(drawn.lane.tolist(), drawn.start.tolist(), strict=True)), dict.fromkeys(expected, 1 / 7)
    )
    for lane, start, length in zip(drawn.lane.tolist(), drawn.start.tolist(), drawn.length.tolist(), strict=True):
        assert expected[lane, start] == length
    assert set(index.draw_trajectory(uniforms(200)[:, 0], min_length=10).length.tolist()) == {10, 20}


# (left, right): what is left of a slice of 4 in episodes of 6, 4 and 2 steps, as (episode's first slot, offset, steps).
LEFT_ALL = [
    (0, 0, 1),
    (0, 0, 2),
    (0, 0, 3),
    (0, 0, 4),
    (0, 1, 4),
    (0, 2, 4),
    (6, 0, 1),
    (6, 0, 2),
    (6, 0, 3),
    (6, 0, 4),
]
RIGHT_ALL = [
    (0, 0, 4),
    (0, 1, 4),
    (0, 2, 4),
    (0, 3, 3),
    (0, 4, 2),
    (0, 5, 1),
    (6, 0, 4),
    (6, 1, 3),
    (6, 2, 2),
    (6, 3, 1),
]
SPANS: list[tuple[Any, bool, list[tuple[int, int, int]]]] = [
    ((True, False), True, LEFT_ALL),
    ((False, True), True, RIGHT_ALL),
    ((True, 0), False, [*LEFT_ALL, (10, 0, 1), (10, 0, 2)]),
    ((0, True), False, [*RIGHT_ALL, (10, 0, 2), (10, 1, 1)]),
    (1, True, [(0, 0, 3), (0, 0, 4), (0, 1, 4), (0, 2, 4), (0, 3, 3), (6, 0, 3), (6, 0, 4), (6, 1, 3)]),
    ((0, 2), True, [(0, 0, 4), (0, 1, 4), (0, 2, 4), (0, 3, 3), (0, 4, 2), (6, 0, 4), (6, 1, 3), (6, 2, 2)]),
    ((2, 0), True, [(0, 0, 2), (0, 0, 3), (0, 0, 4), (0, 1, 4), (0, 2, 4), (6, 0, 2), (6, 0, 3), (6, 0, 4)]),
]


@pytest.mark.parametrize(("span", "strict", "slices"), SPANS)
def test_slices_may_hang_over_an_end_and_are_cut_off_there(
    span: Any, strict: bool, slices: list[tuple[int, int, int]]
) -> None:
    index = episodes([6, 4, 2])
    drawn = index.draw_starts(4, uniforms(20_000), strict=strict, span=span)
    firsts = index.start_of(drawn.start)
    seen = Counter(zip(firsts.tolist(), (drawn.start - firsts).tolist(), drawn.length.tolist(), strict=True))
    in_episode = Counter(first for first, _, _ in slices)
    assert_distributed(seen, {key: 1 / len(in_episode) / in_episode[key[0]] for key in slices})


def test_the_last_step_of_a_short_episode_is_drawn() -> None:
    index = episodes([3, 1, 2])
    assert set(index.draw_starts(1, uniforms(500)).start.tolist()) == set(range(6))
    assert set(index.draw_starts(3, uniforms(50)).stop.tolist()) == {2}


def test_slices_go_over_the_ring_edge_and_never_over_the_newest_row() -> None:
    index = episodes([2, 9, 4], capacity=10)  # slots 5..9, 0 hold the rest of the second, 1..4 the third
    drawn = index.draw_starts(3, uniforms(2_000))
    assert set(zip(drawn.start.tolist(), drawn.stop.tolist(), strict=True)) == {
        (5, 7),
        (6, 8),
        (7, 9),
        (8, 0),
        (1, 3),
        (2, 4),
    }


def test_unwritten_slots_are_never_drawn() -> None:
    index = episodes([3, 2], capacity=1000)
    drawn = index.draw_starts(2, uniforms(2_000), span=True)
    assert set(drawn.start.tolist()) | set(drawn.stop.tolist()) == set(range(5))


def test_edges_of_the_uniforms_lead_to_the_first_and_the_last_slice() -> None:
    index = episodes([5, 3])
    drawn = index.draw_starts(2, [[0.0, 0.0], [LAST_UNIFORM, LAST_UNIFORM], [math.nan, 2.0]])
    assert drawn.start.tolist()[:2] == [0, 6]
    assert 0 <= drawn.start[2] <= drawn.stop[2] < 8


def test_more_slice_lengths_than_are_kept_at_hand_stay_exact() -> None:
    rng = np.random.default_rng(1)
    index, rows = EpisodeIndex(300), 0
    for _ in range(5):
        index.write((rows + np.arange(90)) % 300, ends=rng.random(90) < 0.04)
        rows += 90
        lengths = index.trajectories().length
        for slice_len in [*range(1, 40), 7, 30]:
            assert index.count(slice_len) == (lengths >= slice_len).sum()


def test_equal_contents_draw_equal_slices_whatever_their_history() -> None:
    written = EpisodeIndex(50)
    written.count(4)
    written.write(np.arange(70) % 50, ends=np.arange(70) % 7 == 6)
    loaded = EpisodeIndex(50)
    loaded.load_state_dict(written.state_dict())
    for index in (written, loaded):
        index.write([20, 21], ends=[True, False])
    for a, b in zip(written.draw_starts(4, uniforms(100)), loaded.draw_starts(4, uniforms(100)), strict=True):
        assert (a == b).all()


def test_results_take_the_shape_of_the_slots() -> None:
    index = episodes([4, 4])
    slots = torch.tensor([[0, 3], [4, 7]])
    assert index.next(slots).tolist() == [[1, 3], [5, 7]]
    assert index.bounds_of(slots).position.shape == (2, 2)
    assert index.window(slots, [0, 1, 2])[0].shape == (2, 2, 3)
    assert int(index.stop_of(5)) == 7
    assert index.prev([]).shape == (0,)


def test_rows_may_be_given_in_arrays_that_are_read_only_strided_or_misaligned() -> None:
    index = episodes([4, 4])
    slots = np.broadcast_to(np.array([3, 4]), (2, 2))
    misaligned = np.frombuffer(b"-" + np.array([[0.0, 0.0], [0.9, 0.9]]).tobytes(), np.uint8)[1:].view(np.float64)
    assert not misaligned.flags.aligned
    assert index.next(slots).tolist() == [[3, 5], [3, 5]]
    assert index.prev(np.arange(8)[::-2]).tolist() == [6, 4, 2, 0]
    assert index.draw_starts(4, misaligned.reshape(2, 2)).start.tolist() == [0, 4]


def test_one_lane_for_all_slots() -> None:
    index = EpisodeIndex(4, lanes=2)
    index.write([0, 1], ends=[[1, 0], [0, 0]])
    assert index.start_of([0, 1], lanes=0).tolist() == [0, 1]
    assert index.start_of([0, 1], lanes=1).tolist() == [0, 0]


REFUSED: list[tuple[type[Exception], str, Callable[[EpisodeIndex], Any]]] = [
    (IndexError, r"slot \(6\) must be that of a stored row, 0 <= slot < 6", lambda i: i.next([0, 6])),
    (IndexError, r"slot \(-1\)", lambda i: i.bounds_of([-1])),
    (IndexError, r"slot \(8\)", lambda i: i.window([8], [0])),
    (IndexError, r"lane \(1\)", lambda i: i.start_of([0], lanes=[1])),
    (TypeError, "slots .* must be integers", lambda i: i.next([True])),
    (TypeError, "slots .* must be integers", lambda i: i.next([0.0])),
    (ValueError, r"slice_len \(0\)", lambda i: i.draw_starts(0, [[0.5, 0.5]])),
    (ValueError, r"uniforms must be \[n, 2\]", lambda i: i.draw_starts(1, [0.5, 0.5])),
    (ValueError, r"uniforms must be \[n\]", lambda i: i.draw_trajectory([[0.5, 0.5]])),
    (ValueError, r"left span \(2\)", lambda i: i.draw_starts(2, [[0.5, 0.5]], span=2)),
    (ValueError, r"right span \(-1\)", lambda i: i.draw_starts(2, [[0.5, 0.5]], span=(0, -1))),
    (EmptyBufferError, r"slice length \(5\) must be at most the 4 steps", lambda i: i.draw_starts(5, [[0.5, 0.5]])),
    (EmptyBufferError, r"slice length \(99\)", lambda i: i.draw_trajectory([0.5], min_length=99)),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSED)
def test_what_cannot_be_answered_is_refused(
    error: type[Exception], message: str, call: Callable[[EpisodeIndex], Any]
) -> None:
    with pytest.raises(error, match=message):
        call(episodes([4, 2], capacity=8))


def test_nothing_is_drawn_from_an_empty_index() -> None:
    index = EpisodeIndex(4)
    assert index.trajectories().start.size == 0
    assert index.unfinished()[0].size == 0
    with pytest.raises(EmptyBufferError, match="got an empty one"):
        index.draw_starts(1, [[0.5, 0.5]])


def test_lanes_must_be_named_where_there_are_several() -> None:
    index = EpisodeIndex(4, lanes=2)
    index.write([0], ends=[[0, 0]])
    with pytest.raises(ValueError, match="lanes must be given"):
        index.next([0])
