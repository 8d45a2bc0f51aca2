"""The loops of `episodes.EpisodeIndex`, compiled.

**A lane.** Its rows form a ring. Every stored row knows the *place* of its fragment in a table that is a ring too, oldest fragment
first. Writing a row lengthens the newest fragment or opens the next place; overwriting the oldest row takes it off the head of the
oldest fragment. Both touch a handful of numbers.

**Long enough for a draw.** Fragments of at least m steps stand in a queue, oldest first. A queue is enough because only the newest
fragment grows and only the oldest shrinks: a fragment enters at the tail when it reaches m and leaves at the head when it falls
below. Fragments do not overlap, so a queue for m never holds more than rows // m of them.

**Invariant.** Everything but the marks follows from the marks, the cursors and the numbers of stored rows: a lane whose marks were
rewritten in place is laid out anew by `build` and ends up as if its rows had been written with those marks. Draws therefore
depend on what is stored, not on how it came there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.compiled import compiled

__all__ = [
    "append_flags",
    "append_ids",
    "build",
    "draw_slices",
    "fill_queue",
    "fragments_of",
    "list_fragments",
    "rewrite_flags",
    "rewrite_ids",
    "windows",
]

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Small = NDArray[np.int32]

# What one call of a kernel works on (L lanes, R rows a lane, Q queues):
#   marks  uint8 [L, R]     why the fragment ends with this row, 0 where it goes on: END | CUT
#   places int32 [L, R]     the row's fragment, as a place in the two tables below
#   starts int32 [L, R]     table: first stored slot of the fragment
#   steps  int32 [L, R]     table: stored steps of the fragment
#   lanes  int64 [L, 4]     CURSOR, FILLED, FIRST (place of the oldest fragment), COUNT (of fragments)
#   items  int32 [?]        the places that stand in queues, all queues one after the other
#   queues int64 [Q, L, 5]  MINIMUM steps, BASE and SIZE of the ring in `items`, HEAD in it, number HELD
Ring = tuple[Bytes, Small, Small, Small, Ints, Small, Ints]
RING = (
    "Tuple((uint8[:, ::1], int32[:, ::1], int32[:, ::1], int32[:, ::1], int64[:, ::1], int32[::1], int64[:, :, ::1]))"
)

END = 1  # the row's own end flag; or the next row has another trajectory id
CUT = 2  # what comes next belongs to something else, whatever the columns say

CURSOR, FILLED, FIRST, COUNT = range(4)
MINIMUM, BASE, SIZE, HEAD, HELD = range(5)

ALL_FRAGMENTS = -1  # in place of a queue's number: the fragment table itself
ALL_STORED = -1  # in place of the number of a row: there is no such row


@compiled(f"void({RING}, int64)")
def _drop_oldest(ring: Ring, lane: int) -> None:
    _, _, starts, steps, lanes, _, queues = ring
    rows = starts.shape[1]
    place = lanes[lane, FIRST]
    for queue in range(queues.shape[0]):
        # The oldest fragment stands at the head of every queue that it is in.
        if queues[queue, lane, MINIMUM] == steps[lane, place]:
            queues[queue, lane, HEAD] = (queues[queue, lane, HEAD] + 1) % queues[queue, lane, SIZE]
            queues[queue, lane, HELD] -= 1
    steps[lane, place] -= 1
    starts[lane, place] = starts[lane, place] + 1 if starts[lane, place] + 1 < rows else 0
    if steps[lane, place] == 0:
        lanes[lane, FIRST] = place + 1 if place + 1 < rows else 0
        lanes[lane, COUNT] -= 1


@compiled(f"void({RING}, int64, int64, boolean)")
def _add_newest(ring: Ring, lane: int, slot: int, opens: bool) -> None:
    _, places, starts, steps, lanes, items, queues = ring
    rows = starts.shape[1]
    if opens:
        lanes[lane, COUNT] += 1
    place = lanes[lane, FIRST] + lanes[lane, COUNT] - 1
    place = place - rows if place >= rows else place
    if opens:
        starts[lane, place] = slot
        steps[lane, place] = 0
    steps[lane, place] += 1
    places[lane, slot] = place
    for queue in range(queues.shape[0]):
        if queues[queue, lane, MINIMUM] == steps[lane, place]:
            tail = (queues[queue, lane, HEAD] + queues[queue, lane, HELD]) % queues[queue, lane, SIZE]
            items[queues[queue, lane, BASE] + tail] = place
            queues[queue, lane, HELD] += 1


@compiled(f"int64({RING}, int64, uint8)")
def _append(ring: Ring, lane: int, mark: int) -> int:
    """Write one row at the lane's cursor; its slot."""
    marks, _, _, _, lanes, _, _ = ring
    rows = marks.shape[1]
    slot: int = lanes[lane, CURSOR]
    goes_on = marks[lane, slot - 1 if slot > 0 else rows - 1] == 0
    # The oldest row goes first, so that queues never hold more than they have room for.
    if lanes[lane, FILLED] == rows:
        _drop_oldest(ring, lane)
    else:
        lanes[lane, FILLED] += 1
    _add_newest(ring, lane, slot, lanes[lane, COUNT] == 0 or not goes_on)
    marks[lane, slot] = mark
    lanes[lane, CURSOR] = slot + 1 if slot + 1 < rows else 0
    return slot


@compiled(f"void({RING}, int64[::1], uint8[::1], int64[::1])")
def append_flags(ring: Ring, lane_of: Ints, ends: Bytes, slots: Ints) -> None:
    """Write row after row, the i-th to lane `lane_of[i]` with the end flag `ends[i]`; fills in `slots`."""
    for i in range(lane_of.size):
        slots[i] = _append(ring, lane_of[i], END if ends[i] else 0)


@compiled(f"void({RING}, int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def append_ids(ring: Ring, ids: Ints, lane_of: Ints, values: Ints, slots: Ints) -> None:
    """Write row after row, the i-th to lane `lane_of[i]` with the trajectory id `values[i]`; fills in `slots`."""
    marks, _, _, _, lanes, _, _ = ring
    for i in range(lane_of.size):
        lane = lane_of[i]
        newest = (lanes[lane, CURSOR] - 1) % marks.shape[1]
        if lanes[lane, FILLED] > 0 and ids[lane, newest] != values[i]:
            marks[lane, newest] |= END
        slots[i] = _append(ring, lane, 0)
        ids[lane, slots[i]] = values[i]


@compiled(f"int64({RING}, int64[::1], int64[::1])")
def _first_unstored(ring: Ring, lane_of: Ints, slots: Ints) -> int:
    _, _, _, _, lanes, _, _ = ring
    for i in range(slots.size):
        if not (0 <= lane_of[i] < lanes.shape[0] and 0 <= slots[i] < lanes[lane_of[i], FILLED]):
            return i
    return ALL_STORED


@compiled(f"boolean({RING}, int64, int64, boolean)")
def _set_end(ring: Ring, lane: int, slot: int, end: bool) -> bool:
    """Set or clear END; True if the fragments have to be laid out anew."""
    marks, _, _, _, lanes, _, _ = ring
    before = marks[lane, slot]
    marks[lane, slot] = before | END if end else before & CUT
    # The newest row is the last of its fragment with and without a mark.
    is_newest = slot == (lanes[lane, CURSOR] - 1) % marks.shape[1]
    return not is_newest and (before == 0) != (marks[lane, slot] == 0)


@compiled(f"Tuple((int64, boolean))({RING}, int64[::1], int64[::1], uint8[::1])")
def rewrite_flags(ring: Ring, lane_of: Ints, slots: Ints, ends: Bytes) -> tuple[int, bool]:
    """Give stored rows other end flags: number of the first row that is not stored, or -1; whether to `build`."""
    unstored = _first_unstored(ring, lane_of, slots)
    stale = False
    if unstored == ALL_STORED:
        for i in range(slots.size):
            stale |= _set_end(ring, lane_of[i], slots[i], ends[i] != 0)
    return unstored, stale


@compiled(f"Tuple((int64, boolean))({RING}, int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def rewrite_ids(ring: Ring, ids: Ints, lane_of: Ints, slots: Ints, values: Ints) -> tuple[int, bool]:
    """Give stored rows other trajectory ids; returns what `rewrite_flags` does."""
    _, _, _, _, lanes, _, _ = ring
    rows = ids.shape[1]
    unstored = _first_unstored(ring, lane_of, slots)
    stale = False
    if unstored == ALL_STORED:
        for i in range(slots.size):
            ids[lane_of[i], slots[i]] = values[i]
        for i in range(slots.size):
            lane = lane_of[i]
            newest = (lanes[lane, CURSOR] - 1) % rows
            # A changed id may open or close the boundary on either side of the row.
            for slot in ((slots[i] - 1) % rows, slots[i]):
                if slot < lanes[lane, FILLED] and slot != newest:
                    stale |= _set_end(ring, lane, slot, ids[lane, slot] != ids[lane, (slot + 1) % rows])
    return unstored, stale


@compiled(f"void({RING})")
def build(ring: Ring) -> None:
    """Lay out fragments and queues of every lane anew from its marks, cursor and number of rows."""
    marks, _, _, _, lanes, _, queues = ring
    rows = marks.shape[1]
    queues[:, :, HEAD] = 0
    queues[:, :, HELD] = 0
    for lane in range(lanes.shape[0]):
        lanes[lane, FIRST] = 0
        lanes[lane, COUNT] = 0
        slot = lanes[lane, CURSOR] if lanes[lane, FILLED] == rows else 0
        opens = True
        for _ in range(lanes[lane, FILLED]):
            _add_newest(ring, lane, slot, opens)
            opens = marks[lane, slot] != 0
            slot = slot + 1 if slot + 1 < rows else 0


@compiled(f"void({RING}, int64)")
def fill_queue(ring: Ring, queue: int) -> None:
    """Put the fragments that are long enough into a new, empty queue."""
    _, _, _, steps, lanes, items, queues = ring
    for lane in range(lanes.shape[0]):
        for k in range(lanes[lane, COUNT]):
            place = (lanes[lane, FIRST] + k) % steps.shape[1]
            if steps[lane, place] >= queues[queue, lane, MINIMUM]:
                items[queues[queue, lane, BASE] + queues[queue, lane, HELD]] = place
                queues[queue, lane, HELD] += 1


@compiled(f"int64({RING}, int64[::1], int64[::1], int64[:, ::1])")
def fragments_of(ring: Ring, lane_of: Ints, slots: Ints, found: Ints) -> int:
    """Fill `found` `[2, n]` with first slot and steps of each row's fragment; -1, or the number of a row not stored."""
    _, places, starts, steps, _, _, _ = ring
    unstored: int = _first_unstored(ring, lane_of, slots)
    if unstored == ALL_STORED:
        for i in range(slots.size):
            place = places[lane_of[i], slots[i]]
            found[0, i] = starts[lane_of[i], place]
            found[1, i] = steps[lane_of[i], place]
    return unstored


@compiled(f"int64({RING}, int64[::1], int64[::1], int64[::1], boolean, int64[:, ::1], boolean[:, ::1])")
def windows(
    ring: Ring, lane_of: Ints, slots: Ints, offsets: Ints, across: bool, found: Ints, inside: NDArray[np.bool_]
) -> int:
    """Fill `found` `[n, W]` with the rows at `offsets` from each row, held at the bounds of its fragment.

    Bounds are those of the lane's stored rows where `across`. `inside` is False where an offset was held back.
    Returns -1, or the number of a row that is not stored.
    """
    marks, places, starts, steps, lanes, _, _ = ring
    rows = marks.shape[1]
    unstored: int = _first_unstored(ring, lane_of, slots)
    if unstored != ALL_STORED:
        return unstored
    for i in range(slots.size):
        lane = lane_of[i]
        if across:
            length = lanes[lane, FILLED]
            first = lanes[lane, CURSOR] if length == rows else 0
        else:
            length = steps[lane, places[lane, slots[i]]]
            first = starts[lane, places[lane, slots[i]]]
        position = (slots[i] - first) % rows
        for j in range(offsets.size):
            wanted = position + offsets[j]
            held = min(max(wanted, 0), length - 1)
            inside[i, j] = wanted == held
            found[i, j] = first + held if first + held < rows else first + held - rows
    return ALL_STORED


@compiled(f"int64({RING}, int64, UniTuple(int64, 3), float64[:, ::1], int64[:, ::1])")
def draw_slices(
    ring: Ring, queue: int, window: tuple[int, int, int], uniforms: NDArray[np.float64], drawn: Ints
) -> int:
    """Draw fragments of a queue, all equally likely, and a window in each, all its places equally likely.

    `window` is (steps, steps that may hang over the left end, over the right end); what hangs over is cut off, one step
    at least stays. `uniforms` `[n, 2]` choose fragment and place. Fills `drawn` `[3, n]` with start, steps and lane.
    Returns the number of fragments that there were to choose from; if 0, nothing was drawn.
    """
    _, _, starts, steps, lanes, items, queues = ring
    rows = starts.shape[1]
    counts = lanes[:, COUNT] if queue == ALL_FRAGMENTS else queues[queue, :, HELD]
    upto = np.cumsum(counts)
    total: int = upto[-1]
    for i in range(uniforms.shape[0] if total > 0 else 0):
        # Held within what there is, so that a uniform that is not one (NaN, 1.0) cannot lead out of the arrays.
        pick = max(0, min(np.int64(uniforms[i, 0] * total), total - 1))
        lane = np.searchsorted(upto, pick, side="right") if lanes.shape[0] > 1 else 0
        k = pick - (upto[lane] - counts[lane])
        if queue == ALL_FRAGMENTS:
            place = (lanes[lane, FIRST] + k) % rows
        else:
            ring_at = (queues[queue, lane, HEAD] + k) % queues[queue, lane, SIZE]
            place = np.int64(items[queues[queue, lane, BASE] + ring_at])
        length = np.int64(steps[lane, place])
        width = min(window[0], length)
        lowest = -min(window[1], width - 1)
        highest = length - width + min(window[2], width - 1)
        chances = highest - lowest + 1
        offset = lowest + max(0, min(np.int64(uniforms[i, 1] * chances), chances - 1))
        begin = max(offset, 0)
        drawn[0, i] = (starts[lane, place] + begin) % rows
        drawn[1, i] = min(offset + width, length) - begin
        drawn[2, i] = lane
    return total


@compiled(f"void({RING}, int64[:, ::1])")
def list_fragments(ring: Ring, found: Ints) -> None:
    """Fill `found` `[3, n]` with start, steps and lane of every fragment, lane after lane, oldest first."""
    _, _, starts, steps, lanes, _, _ = ring
    at = 0
    for lane in range(lanes.shape[0]):
        for k in range(lanes[lane, COUNT]):
            place = (lanes[lane, FIRST] + k) % steps.shape[1]
            found[0, at] = starts[lane, place]
            found[1, at] = steps[lane, place]
            found[2, at] = lane
            at += 1
