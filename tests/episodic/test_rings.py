from __future__ import annotations

import pickle

import numpy as np
import pytest

from replay_service.episodic.rings import Rings


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def flags(*numbers: int) -> np.ndarray:
    return np.array(numbers, bool)


def two_banks() -> Rings:
    """Slots 0 to 2, then 3 and 4, 5 and 6."""
    return Rings([(3, 1), (2, 2)])


def test_slots_are_numbered_ring_by_ring() -> None:
    rings = two_banks()
    assert (rings.edges.tolist(), rings.number, rings.size) == ([0, 3, 5, 7], 3, 7)
    slots = rings.append(ints(0, 2, 1, 0, 2, 2), flags(0, 0, 1, 0, 0, 0))
    assert slots.tolist() == [0, 5, 3, 1, 6, 5]
    assert (rings.lengths.tolist(), rings.newest.tolist(), rings.total) == ([2, 1, 2], [1, 3, 5], 5)
    assert rings.order().tolist() == [0, 1, 3, 6, 5]
    assert rings.stored().tolist() == [0, 1, 3, 5, 6]
    assert rings.ring_of(slots).tolist() == [0, 2, 1, 0, 2, 2]
    assert rings.prev(ints(0, 1, 3, 5, 6)).tolist() == [0, 0, 3, 6, 6]
    assert rings.next(ints(0, 1, 3, 5, 6)).tolist() == [1, 1, 3, 5, 5]
    assert rings.holds(ints(-1, 2, 4, 6, 7)).tolist() == [False, False, False, True, False]


def test_runs_and_steps_along_a_ring() -> None:
    rings = two_banks()
    rings.append(ints(0, 0, 0, 0, 2), flags(0, 0, 1, 0, 0))
    starts, lengths, positions = rings.runs_of(ints(1, 2, 0, 5))
    assert (starts.tolist(), lengths.tolist(), positions.tolist()) == ([1, 1, 0, 5], [2, 2, 1, 1], [0, 1, 0, 0])
    assert rings.along(ints(2, 6), ints(2, 1)).tolist() == [1, 5]


def test_a_cut_parts_what_an_end_would_not() -> None:
    rings = Rings([(6, 1)])
    rings.append(ints(0, 0), flags(0, 0))
    rings.cut(ints(0))
    rings.append(ints(0, 0), flags(0, 0))
    done = flags(0, 0, 0, 0, 0, 0)
    assert rings.next(ints(0, 1, 2, 3)).tolist() == [1, 1, 3, 3]
    assert rings.unfinished(done).tolist() == [1, 3]
    again: Rings = pickle.loads(pickle.dumps(rings))
    assert again.next(ints(0, 1, 2, 3)).tolist() == [1, 1, 3, 3]
    assert again.unfinished(done).tolist() == [1, 3]
    rings.clear()
    assert (rings.total, rings.has_cuts, rings.unfinished(done).size) == (0, False, 0)


def test_marks_and_rebuilding() -> None:
    rings = Rings([(3, 2)])
    rings.append(ints(0, 1, 0, 1), flags(0, 0, 0, 0))
    rings.mark(ints(0, 4), flags(1, 1))
    assert rings.next(ints(0, 1, 3, 4)).tolist() == [0, 1, 4, 4]
    rings.rebuild(flags(0, 1, 0, 0, 0, 0), ints(3, 2), ints(1, 0))
    assert rings.order().tolist() == [1, 2, 0, 3, 4]
    assert rings.next(ints(1, 2, 0, 3)).tolist() == [1, 0, 0, 4]


def test_nth_step() -> None:
    rings = Rings([(3, 3)])
    rings.append(ints(0, 0, 2), flags(0, 0, 0))
    assert rings.nth(ints(2, 1, 0, 2)).tolist() == [1, 0, 6, 6]
    rings.append(np.repeat(np.arange(3), 3), np.zeros(9, bool))
    assert rings.nth(ints(8, 1, 3)).tolist() == [1, 3, 8]


@pytest.mark.parametrize("banks", [[(3, 1)], [(2, 2)], [(3, 1), (2, 2)]])
@pytest.mark.parametrize("slot", [-1, 2, 99])
def test_slots_that_hold_nothing(banks: list[tuple[int, int]], slot: int) -> None:
    rings = Rings(banks)
    rings.append(ints(0), flags(0))
    with pytest.raises(IndexError, match="stored step"):
        rings.next(ints(0, slot))


def test_rings_without_room() -> None:
    rings = Rings([(0, 1), (2, 1)])
    assert rings.append(ints(1), flags(1)).tolist() == [0]
    assert (rings.order().tolist(), rings.edges.tolist()) == ([0], [0, 0, 2])
    assert Rings([(0, 1)]).order().size == 0
