"""Reading episode bounds: queries and draws. Rules, interface and costs are written down in `episodes.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_service.buffer.episode_columns import Kind, as_integers, flat_integers, span_steps
from replay_service.buffer.episode_table import EpisodeTable
from replay_service.errors import EmptyBufferError

__all__ = ["Bounds", "EpisodeView", "Slices"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PREVIOUS, FOLLOWING = np.array([-1]), np.array([1])


class Bounds(NamedTuple):
    """Of each asked row: first and last slot of its fragment, its stored steps, and steps from the first to the row."""

    start: Ints
    stop: Ints
    length: Ints
    position: Ints


class Slices(NamedTuple):
    """Runs of rows that each lie in one fragment, int64 `[n]` each: first and last slot (inclusive), steps, lane."""

    start: Ints
    stop: Ints
    length: Ints
    lane: Ints


class EpisodeView:
    """What is stored in an `EpisodeIndex`, to be asked and drawn from but not changed.

    Slots are int64 of any shape, `lanes` the lane of each (or one lane for all); None where there is one lane. Every
    call that takes slots raises TypeError for slots that are not integers, ValueError where lanes are missing, and
    IndexError for a row that is not stored, negative numbers included.
    """

    def __init__(self, table: EpisodeTable) -> None:
        self._table = table
        self._marked_by: Kind | None = None

    @property
    def capacity(self) -> int:
        """Rows that each lane can hold."""
        return self._table.capacity

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self._table.lanes

    @property
    def cursors(self) -> Ints:
        """Next slot to write of each lane, int64 `[lanes]`."""
        return self._table.cursors

    @property
    def lengths(self) -> Ints:
        """Stored rows of each lane, int64 `[lanes]`."""
        return self._table.lengths

    @property
    def cursor(self) -> int:
        """Next slot to write, the same in every lane; ValueError where lanes are written apart."""
        return self._same_for_all("cursor", self._table.cursors)

    @property
    def length(self) -> int:
        """Stored rows of a lane, the same in every lane; ValueError where lanes are written apart."""
        return self._same_for_all("length", self._table.lengths)

    @property
    def marked_by(self) -> Kind | None:
        """What bounds are made of, "ends" or "ids"; None as long as nothing was written."""
        return self._marked_by

    def bounds_of(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Bounds:
        """All bounds of the fragments that rows belong to, in one look-up; shapes as `slots`."""
        flat, lane_of, shape = self._address(slots, lanes)
        self._table.settle()
        found = np.empty((2, flat.size), np.int64)
        self._refuse_unstored(self._table.fragments_of(lane_of, flat, found), lane_of, flat)
        start, length = found[0].reshape(shape), found[1].reshape(shape)
        # Smaller rows than `capacity` are allocated only where nothing goes over the edge.
        position = (flat.reshape(shape) - start) % self.capacity
        return Bounds(start, (start + length - 1) % self.capacity, length, position)

    def start_of(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Ints:
        """First stored slot of each row's fragment."""
        return self.bounds_of(slots, lanes).start

    def stop_of(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Ints:
        """Last slot (inclusive) of each row's fragment."""
        return self.bounds_of(slots, lanes).stop

    def length_of(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Ints:
        """Stored steps of each row's fragment."""
        return self.bounds_of(slots, lanes).length

    def position_of(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Ints:
        """Steps from the first stored row of the fragment to each row."""
        return self.bounds_of(slots, lanes).position

    def is_first(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Bools:
        """Whether nothing of its fragment is stored before each row."""
        is_first: Bools = self.position_of(slots, lanes) == 0
        return is_first

    def is_last(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Bools:
        """Whether nothing of its fragment is stored after each row; true for the newest row, ended or not."""
        bounds = self.bounds_of(slots, lanes)
        is_last: Bools = bounds.position == bounds.length - 1
        return is_last

    def prev(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Ints:
        """The row before each row in its fragment, or itself."""
        return self.window(slots, PREVIOUS, lanes)[0][..., 0]

    def next(self, slots: ArrayLike, lanes: ArrayLike | None = None) -> Ints:
        """The row after each row in its fragment, or itself."""
        return self.window(slots, FOLLOWING, lanes)[0][..., 0]

    def window(
        self, slots: ArrayLike, offsets: ArrayLike, lanes: ArrayLike | None = None, *, across: bool = False
    ) -> tuple[Ints, Bools]:
        """The rows at `offsets` (int64 `[W]`, steps, any sign) from each row, held at the bounds of its fragment.

        `across` holds them at the oldest and newest row of the lane instead: over the ends of fragments, still in write
        order.

        Returns:
            Slots, int64 `[*slots.shape, W]`; and False where an offset led out of the bounds, bool of that shape.
        """
        flat, lane_of, shape = self._address(slots, lanes)
        steps = flat_integers(as_integers("offsets", offsets))
        self._table.settle()
        found = np.empty((flat.size, steps.size), np.int64)
        inside = np.empty(found.shape, np.bool_)
        self._refuse_unstored(self._table.windows(lane_of, flat, steps, across, found, inside), lane_of, flat)
        return found.reshape(*shape, steps.size), inside.reshape(*shape, steps.size)

    def unfinished(self) -> tuple[Ints, Ints]:
        """The newest row of each lane unless its end flag is set: (slots `[k]`, lanes `[k]`).

        Trajectory ids do not tell the end of the newest episode; with them every newest row is given.
        """
        return self._table.unfinished()

    def trajectories(self) -> Slices:
        """All fragments, lane after lane, oldest first within a lane."""
        self._table.settle()
        return self._slices(self._table.list_fragments())

    def count(self, min_length: int = 1) -> int:
        """How many fragments of at least `min_length` steps are stored."""
        self._table.settle()
        return self._table.count(min_length)

    def draw_starts(
        self,
        slice_len: int,
        uniforms: ArrayLike,
        *,
        strict: bool = True,
        span: bool | int | tuple[bool | int, bool | int] = False,
    ) -> Slices:
        """Draws slices: a fragment, all that are eligible equally likely, then a start in it, all equally likely.

        A long fragment is therefore drawn as often as a short one, and each of its starts less often. Equal uniforms
        draw equal slices from equal contents, however these came about.

        Args:
            slice_len: steps of a slice.
            uniforms: float64 `[n, 2]` in [0, 1), one for the fragment, one for the start.
            strict: only fragments of `slice_len` steps or more are eligible. Otherwise all are, and a shorter one is a
                slice as a whole.
            span: how far a slice may hang over the (left, right) end of its fragment, one value for both: False not at
                all, i so that `slice_len - i` steps are left, True so that one step is left. What hangs over is cut
                off. With False the first `slice_len - 1` steps and the last ones are in fewer slices than others.

        Raises:
            EmptyBufferError: no fragment is eligible.
            ValueError: `slice_len` below one, a span out of range, uniforms of another shape.
        """
        if slice_len < 1:
            raise ValueError(f"slice_len ({slice_len}) must be at least 1")
        left, right = span_steps(span, slice_len)
        chances = np.require(uniforms, np.float64, ("C", "A", "W"))
        if chances.ndim != 2 or chances.shape[1] != 2:
            raise ValueError(f"uniforms must be [n, 2]; got the shape {list(chances.shape)}")
        return self._draw(slice_len if strict else 1, (slice_len, left, right), chances)

    def draw_trajectory(self, uniforms: ArrayLike, min_length: int = 1) -> Slices:
        """Draws whole fragments of at least `min_length` steps, all equally likely; `uniforms` float64 `[n]` in [0, 1).

        Raises:
            EmptyBufferError: no fragment is that long.
            ValueError: uniforms of another shape.
        """
        chances = np.zeros((np.size(uniforms), 2))
        if np.ndim(uniforms) != 1:
            raise ValueError(f"uniforms must be [n]; got the shape {list(np.shape(uniforms))}")
        chances[:, 0] = uniforms
        return self._draw(min_length, (self.capacity, 0, 0), chances)

    def _draw(self, min_length: int, window: tuple[int, int, int], uniforms: NDArray[np.float64]) -> Slices:
        self._table.settle()
        drawn = self._table.draw_slices(min_length, window, uniforms)
        if drawn is None:
            longest = int(self._table.list_fragments()[1].max(initial=0))
            raise EmptyBufferError(
                f"slice length ({min_length}) must be at most the {longest} steps of the longest stored trajectory; "
                "draw shorter slices, allow shorter trajectories (strict_length=False), or store more"
                if longest
                else "the buffer must hold rows before slices are drawn; got an empty one"
            )
        return self._slices(drawn)

    def _slices(self, found: Ints) -> Slices:
        """From rows start, steps and lane."""
        start, length, lane = found
        return Slices(start, (start + length - 1) % self.capacity, length, lane)

    def _address(self, slots: ArrayLike, lanes: ArrayLike | None) -> tuple[Ints, Ints, tuple[int, ...]]:
        """Contiguous slots `[n]`, the lane of each, and the shape that results take."""
        numbers = as_integers("slots", slots)
        flat = flat_integers(numbers)
        if lanes is None:
            if self.lanes > 1:
                raise ValueError(f"lanes must be given where there are {self.lanes}; got slots alone")
            return flat, np.zeros(flat.size, np.int64), numbers.shape
        lane_of = np.broadcast_to(as_integers("lanes", lanes), numbers.shape)
        return flat, flat_integers(lane_of), numbers.shape

    def _refuse_unstored(self, row: int, lane_of: Ints, slots: Ints) -> None:
        """Raises IndexError for the row of that number; -1: there is none."""
        if row < 0:
            return
        lane, slot = int(lane_of[row]), int(slots[row])
        if not 0 <= lane < self.lanes:
            raise IndexError(f"lane ({lane}) must be at least 0 and below {self.lanes}")
        stored = int(self._table.lengths[lane])
        raise IndexError(f"slot ({slot}) must be that of a stored row, 0 <= slot < {stored} in lane {lane}")

    @staticmethod
    def _same_for_all(name: str, numbers: Ints) -> int:
        if numbers.size > 1 and (numbers != numbers[0]).any():
            raise ValueError(f"{name} must be asked as {name}s where lanes are written apart; got {numbers.tolist()}")
        return int(numbers[0])
