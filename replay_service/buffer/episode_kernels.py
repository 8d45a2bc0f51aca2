"""The loops of `episodes.EpisodeIndex`, compiled.

**A lane.** Its rows form a ring. Every stored row knows the *place* of its fragment in a table that is a ring too,
oldest fragment first. Writing a row lengthens the newest fragment or opens the next place; overwriting the oldest row
takes it off the head of the oldest fragment. Both touch a handful of numbers.

**Long enough for a draw.** Fragments of at least m steps stand in a queue, oldest first. A queue is enough because only
the newest fragment grows and only the oldest shrinks: a fragment enters at the tail when it reaches m and leaves at the
head when it falls below. Fragments do not overlap, so a queue for m never holds more than rows // m of them.

**Invariant.** Everything but the marks follows from the marks, the cursors and the numbers of stored rows: a lane whose
marks were rewritten in place is laid out anew by appending its rows once more, and is then as if they had been written
with those marks. Draws therefore depend on what is stored, not on how it came there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.compiled import compiled

__all__ = [
    "append",
    "draw_slices",
    "fill_queue",
    "fragments_of",
    "list_fragments",
    "rewrite",
    "windows",
]

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Small = NDArray[np.int32]

# What one call of a kernel works on (L lanes, R rows a lane, Q queues):
#   marks  uint8 [L, R]     why the fragment ends with this row, 0 where it goes on: END | CUT
#   table  int32 [3, L, R]  PLACE: of each row's fragment in the next two; START: first stored slot of the fragment
#                           at a place; STEPS: its stored rows
#   lanes  int64 [L, 4]     CURSOR, FILLED, FIRST (place of the oldest fragment), COUNT (of fragments)
#   items  int32 [?]        the places that stand in queues, all queues one after the other
#   queues int64 [Q, L, 5]  MINIMUM steps, BASE and SIZE of the ring in `items`, HEAD in it, number HELD
Ring = tuple[Bytes, Small, Ints, Small, Ints]
RING = "Tuple((uint8[:, ::1], int32[:, :, ::1], int64[:, ::1], int32[::1], int64[:, :, ::1]))"

PLACE, START, STEPS = range(3)
END = 1  # the row's own end flag; or the next row has another trajectory id
CUT = 2  # what comes next belongs to something else, whatever the columns say

CURSOR, FILLED, FIRST, COUNT = range(4)
MINIMUM, BASE, SIZE, HEAD, HELD = range(5)

ALL_FRAGMENTS = -1  # in place of a queue's number: the fragment table itself
ALL_STORED = -1  # in place of the number of a row: there is no such row


@compiled(f"void({RING}, int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def append(ring: Ring, ids: Ints, lane_of: Ints, values: Ints, slots: Ints) -> None:
    """Write row after row, the i-th at the cursor of lane `lane_of[i]`; fills in `slots`.

    `values` are the rows' marks, or their trajectory ids if `ids` `[L, R]` keeps those; `ids` is `[L, 0]` otherwise.
    """
    # One loop without calls: handing arrays on counts references, which costs ten times the work itself.
    marks, table, lanes, items, queues = ring
    rows = marks.shape[1]
    by_ids = ids.shape[1] > 0
    for i in range(lane_of.size):
        lane = lane_of[i]
        slot = lanes[lane, CURSOR]
        newest = slot - 1 if slot > 0 else rows - 1
        if by_ids and lanes[lane, FILLED] > 0 and ids[lane, newest] != values[i]:
            marks[lane, newest] |= END
        goes_on = marks[lane, newest] == 0

        # The oldest row goes first, so that queues never hold more than they have room for.
        if lanes[lane, FILLED] < rows:
            lanes[lane, FILLED] += 1
        else:
            place = lanes[lane, FIRST]
            steps = table[STEPS, lane, place]
            for queue in range(queues.shape[0]):
                # The oldest fragment stands at the head of every queue that it is in.
                if queues[queue, lane, MINIMUM] == steps:
                    queues[queue, lane, HEAD] = (queues[queue, lane, HEAD] + 1) % queues[queue, lane, SIZE]
                    queues[queue, lane, HELD] -= 1
            table[STEPS, lane, place] = steps - 1
            table[START, lane, place] = slot + 1 if slot + 1 < rows else 0
            if steps == 1:
                lanes[lane, FIRST] = place + 1 if place + 1 < rows else 0
                lanes[lane, COUNT] -= 1

        opens = lanes[lane, COUNT] == 0 or not goes_on
        lanes[lane, COUNT] += 1 if opens else 0
        place = lanes[lane, FIRST] + lanes[lane, COUNT] - 1
        place = place - rows if place >= rows else place
        if opens:
            table[START, lane, place] = slot
            table[STEPS, lane, place] = 0
        steps = table[STEPS, lane, place] + 1
        table[STEPS, lane, place] = steps
        table[PLACE, lane, slot] = place
        for queue in range(queues.shape[0]):
            if queues[queue, lane, MINIMUM] == steps:
                tail = (queues[queue, lane, HEAD] + queues[queue, lane, HELD]) % queues[queue, lane, SIZE]
                items[queues[queue, lane, BASE] + tail] = place
                queues[queue, lane, HELD] += 1

        marks[lane, slot] = 0 if by_ids else values[i]
        if by_ids:
            ids[lane, slot] = values[i]
        lanes[lane, CURSOR] = slot + 1 if slot + 1 < rows else 0
        slots[i] = slot


@compiled("int64(int64[:, ::1], int64[::1], int64[::1])")
def _first_unstored(lanes: Ints, lane_of: Ints, slots: Ints) -> int:
    for i in range(slots.size):
        if not (0 <= lane_of[i] < lanes.shape[0] and 0 <= slots[i] < lanes[lane_of[i], FILLED]):
            return i
    return ALL_STORED


@compiled("boolean(uint8[:, ::1], int64[:, ::1], int64, int64, boolean)")
def _set_end(marks: Bytes, lanes: Ints, lane: int, slot: int, end: bool) -> bool:
    """Set or clear END; True if the fragments have to be laid out anew."""
    before = marks[lane, slot]
    marks[lane, slot] = before | END if end else before & CUT
    # The newest row is the last of its fragment with and without a mark.
    is_newest = slot == (lanes[lane, CURSOR] - 1) % marks.shape[1]
    return not is_newest and (before == 0) != (marks[lane, slot] == 0)


@compiled(f"Tuple((int64, boolean))({RING}, int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def rewrite(ring: Ring, ids: Ints, lane_of: Ints, slots: Ints, values: Ints) -> tuple[int, bool]:
    """Give stored rows other end flags or ids (as `append`).

    Returns the number of the first row that is not stored, or -1; and whether a boundary moved: lay out anew then.
    """
    marks, _, lanes, _, _ = ring
    rows = marks.shape[1]
    by_ids = ids.shape[1] > 0
    unstored = _first_unstored(lanes, lane_of, slots)
    stale = False
    for i in range(slots.size if unstored == ALL_STORED and by_ids else 0):
        ids[lane_of[i], slots[i]] = values[i]
    for i in range(slots.size if unstored == ALL_STORED else 0):
        lane, slot = lane_of[i], slots[i]
        if not by_ids:
            stale |= _set_end(marks, lanes, lane, slot, values[i] != 0)
            continue
        newest = (lanes[lane, CURSOR] - 1) % rows
        # A changed id may open or close the boundary on either side of the row.
        for side in ((slot - 1) % rows, slot):
            if side < lanes[lane, FILLED] and side != newest:
                stale |= _set_end(marks, lanes, lane, side, ids[lane, side] != ids[lane, (side + 1) % rows])
    return unstored, stale


@compiled(f"void({RING}, int64)")
def fill_queue(ring: Ring, queue: int) -> None:
    """Put the fragments that are long enough into a new, empty queue."""
    _, table, lanes, items, queues = ring
    for lane in range(lanes.shape[0]):
        for k in range(lanes[lane, COUNT]):
            place = (lanes[lane, FIRST] + k) % table.shape[2]
            if table[STEPS, lane, place] >= queues[queue, lane, MINIMUM]:
                items[queues[queue, lane, BASE] + queues[queue, lane, HELD]] = place
                queues[queue, lane, HELD] += 1


@compiled(f"int64({RING}, int64[::1], int64[::1], int64[:, ::1])")
def fragments_of(ring: Ring, lane_of: Ints, slots: Ints, found: Ints) -> int:
    """Fill `found` `[2, n]` with first slot and steps of each row's fragment; -1, or the number of a row not stored."""
    _, table, lanes, _, _ = ring
    unstored: int = _first_unstored(lanes, lane_of, slots)
    if unstored == ALL_STORED:
        for i in range(slots.size):
            place = table[PLACE, lane_of[i], slots[i]]
            found[0, i] = table[START, lane_of[i], place]
            found[1, i] = table[STEPS, lane_of[i], place]
    return unstored


@compiled(f"int64({RING}, int64[::1], int64[::1], int64[::1], boolean, int64[:, ::1], boolean[:, ::1])")
def windows(
    ring: Ring, lane_of: Ints, slots: Ints, offsets: Ints, across: bool, found: Ints, inside: NDArray[np.bool_]
) -> int:
    """Fill `found` `[n, W]` with the rows at `offsets` from each row, held at the bounds of its fragment.

    Bounds are those of the lane's stored rows where `across`. `inside` is False where an offset was held back.
    Returns -1, or the number of a row that is not stored.
    """
    _, table, lanes, _, _ = ring
    rows = table.shape[2]
    unstored: int = _first_unstored(lanes, lane_of, slots)
    if unstored != ALL_STORED:
        return unstored
    for i in range(slots.size):
        lane = lane_of[i]
        if across:
            length = lanes[lane, FILLED]
            first = lanes[lane, CURSOR] if length == rows else 0
        else:
            place = table[PLACE, lane, slots[i]]
            length = np.int64(table[STEPS, lane, place])
            first = np.int64(table[START, lane, place])
        position = (slots[i] - first) % rows
        for j in range(offsets.size):
            wanted = position + offsets[j]
            held = min(max(wanted, 0), length - 1)
            inside[i, j] = wanted == held
            found[i, j] = first + held if first + held < rows else first + held - rows
    return ALL_STORED


@compiled("int64(float64, int64)")
def _choice(uniform: float, count: int) -> int:
    """One of `0..count-1`, all equally likely; 0 for what is no uniform, so that nothing leads out of an array."""
    # A product may round up to `count` itself.
    return min(int(uniform * count), count - 1) if 0.0 <= uniform < 1.0 else 0


@compiled(f"int64({RING}, int64, UniTuple(int64, 3), float64[:, ::1], int64[:, ::1])")
def draw_slices(
    ring: Ring, queue: int, window: tuple[int, int, int], uniforms: NDArray[np.float64], drawn: Ints
) -> int:
    """Draw fragments of a queue, all equally likely, and a window in each, all its places equally likely.

    `window` is (steps, steps that may hang over the left end, over the right end); what hangs over is cut off, one step
    at least stays. `uniforms` `[n, 2]` choose fragment and place. Fills `drawn` `[3, n]` with start, steps and lane.
    Returns the number of fragments that there were to choose from; if 0, nothing was drawn.
    """
    _, table, lanes, items, queues = ring
    rows = table.shape[2]
    counts = lanes[:, COUNT] if queue == ALL_FRAGMENTS else queues[queue, :, HELD]
    upto = np.cumsum(counts)
    total: int = upto[-1]
    for i in range(uniforms.shape[0] if total > 0 else 0):
        pick = _choice(uniforms[i, 0], total)
        lane = np.searchsorted(upto, pick, side="right") if lanes.shape[0] > 1 else 0
        k = pick - (upto[lane] - counts[lane])
        if queue == ALL_FRAGMENTS:
            place = (lanes[lane, FIRST] + k) % rows
        else:
            ring_at = (queues[queue, lane, HEAD] + k) % queues[queue, lane, SIZE]
            place = np.int64(items[queues[queue, lane, BASE] + ring_at])
        length = int(table[STEPS, lane, place])
        width = min(window[0], length)
        lowest = -min(window[1], width - 1)
        highest = length - width + min(window[2], width - 1)
        chances = highest - lowest + 1
        offset = lowest + _choice(uniforms[i, 1], chances)
        begin = max(offset, 0)
        drawn[0, i] = (table[START, lane, place] + begin) % rows
        drawn[1, i] = min(offset + width, length) - begin
        drawn[2, i] = lane
    return total


@compiled(f"void({RING}, int64[:, ::1])")
def list_fragments(ring: Ring, found: Ints) -> None:
    """Fill `found` `[3, n]` with start, steps and lane of every fragment, lane after lane, oldest first."""
    _, table, lanes, _, _ = ring
    at = 0
    for lane in range(lanes.shape[0]):
        for k in range(lanes[lane, COUNT]):
            place = (lanes[lane, FIRST] + k) % table.shape[2]
            found[0, at] = table[START, lane, place]
            found[1, at] = table[STEPS, lane, place]
            found[2, at] = lane
            at += 1
