"""Rings of steps side by side in one numbering of slots: `| ring 0 | ring 1 | … |`.

Rings of equal capacity form a bank, which is one `EpisodeIndex`: it knows which steps belong together, this file only
translates. A slot of ring `r` is `edges[r]` and the slot within that ring. Every call is made under the buffer's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.episodes import EpisodeIndex

__all__ = ["Rings"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PREVIOUS, FOLLOWING = np.array([-1]), np.array([1])


class Bank(NamedTuple):
    """Rings `first` to `first + bounds.lanes - 1`, whose slots begin at `offset`."""

    bounds: EpisodeIndex
    first: int
    offset: int


class Rings:
    """The bounds of all episodes in all rings.

    Args:
        banks: (capacity, number of rings) of each bank; a capacity of 0 makes rings that hold nothing.

    Attributes:
        edges: int64 `[rings + 1]`: ring `r` has the slots `edges[r]` to `edges[r + 1] - 1`.
        lengths: int64 `[rings]`: stored steps.
        newest: int64 `[rings]`: slot of the newest step, or the ring's first slot.
    """

    def __init__(self, banks: Sequence[tuple[int, int]]) -> None:
        self._shape = [(int(capacity), int(rings)) for capacity, rings in banks]
        capacities = np.repeat(*np.array(self._shape, np.int64).reshape(-1, 2).T)
        self.edges: Ints = np.concatenate([[0], np.cumsum(capacities)]).astype(np.int64)
        self._capacities: Ints = capacities
        self._banks: list[Bank] = []
        first = 0
        for capacity, rings in self._shape:
            if capacity:
                self._banks.append(Bank(EpisodeIndex(capacity, rings), first, int(self.edges[first])))
            first += rings
        self._is_one_bank = len(self._banks) == 1 and self._banks[0].bounds.lanes == self.number
        self.has_cuts = False
        self._recount()

    def _recount(self) -> None:
        self.lengths: Ints = np.zeros(self.number, np.int64)
        self.newest: Ints = self.edges[:-1].copy()
        for index, first, _ in self._banks:
            mine = slice(first, first + index.lanes)
            self.lengths[mine] = lengths = index.lengths
            self.newest[mine] += np.where(lengths > 0, (index.cursors - 1) % index.capacity, 0)
        self.total = int(self.lengths.sum())

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self._shape, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Rings.__init__(self, state["shape"])
        self.load_state_dict(state["state"])

    def like(self) -> Rings:
        """Empty rings of the same shape."""
        return Rings(self._shape)

    @property
    def number(self) -> int:
        """How many rings there are."""
        return self.edges.size - 1

    @property
    def size(self) -> int:
        """Slots of all rings."""
        return int(self.edges[-1])

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, ring_of: Ints, ends: Bools) -> Ints:
        """Takes a step into each of the rings `ring_of` int64 `[n]` (in range; one named several times gets its steps
        in this order), `ends` telling which are the last of their episode; the slots int64 `[n]`."""
        if self._is_one_bank:
            index = self._banks[0].bounds
            slots = index.append(ring_of, ends=ends)
            if index.lanes > 1:
                slots += ring_of * index.capacity
            self.newest[ring_of] = slots
            self.lengths = index.lengths
            self.total = int(self.lengths.sum())
        else:
            slots = np.full(ring_of.size, -1, np.int64)
            for index, first, offset in self._banks:
                mine = np.flatnonzero((ring_of >= first) & (ring_of < first + index.lanes))
                lanes = ring_of[mine] - first
                slots[mine] = index.append(lanes, ends=ends[mine]) + offset + lanes * index.capacity
            self._recount()
        return slots

    def mark(self, slots: Ints, ends: Bools) -> None:
        """Changes the end flags of stored steps."""
        for bank, mine, lanes, local in self._split(slots):
            bank.bounds.rewrite(local, ends=ends[mine], lanes=lanes)

    def cut(self, rings: Ints) -> None:
        """Ends the run of each ring's newest step, whatever its flag says: what comes next belongs to something else."""
        for index, first, _ in self._banks:
            index.cut(rings[(rings >= first) & (rings < first + index.lanes)] - first)
        self.has_cuts = True

    def is_cut(self) -> Bools:
        """Whether there is a cut behind the newest step of each ring, bool `[rings]`."""
        found = np.zeros(self.number, np.bool_)
        for index, first, _ in self._banks:
            found[first : first + index.lanes] = index.is_cut()
        return found

    def clear(self, rings: Ints | None = None) -> None:
        """Forgets all steps, of these rings or of all."""
        for index, first, _ in self._banks:
            index.clear(None if rings is None else rings[(rings >= first) & (rings < first + index.lanes)] - first)
        self.has_cuts = self.has_cuts and rings is not None
        self._recount()

    def rebuild(self, ends: Bools, lengths: Ints, cursors: Ints | None = None) -> None:
        """Replaces everything: end flags `[size]` by slot; `lengths` and `cursors` (None: as never wrapped) `[rings]`."""
        cursors = lengths % self._capacities if cursors is None else cursors
        for index, first, offset in self._banks:
            mine = slice(first, first + index.lanes)
            flags = ends[offset : offset + index.lanes * index.capacity].reshape(index.lanes, index.capacity).T
            index.rebuild(ends=flags, cursor=_cursor(cursors[mine], lengths[mine], index), length=lengths[mine])
        self.has_cuts = False
        self._recount()

    # -- asking -----------------------------------------------------------------------------------------------------

    def window(self, slots: Ints, offsets: Ints) -> Ints:
        """The slots at `offsets` int64 `[W]` from each of `slots` int64 of any shape, `[*shape, W]`; held at the first
        and last stored step of the same episode.

        Raises:
            IndexError: a slot that holds no step.
        """
        try:
            if not self._is_one_bank:
                found = np.empty((slots.size, offsets.size), np.int64)
                for bank, mine, lanes, local in self._split(slots.reshape(-1)):
                    held, _ = bank.bounds.window(local, offsets, lanes)
                    found[mine] = held + (bank.offset + lanes * bank.bounds.capacity)[:, None]
                return found.reshape(*slots.shape, offsets.size)
            index = self._banks[0].bounds
            if index.lanes == 1:
                return index.window(slots, offsets)[0]
            lanes = slots // index.capacity
            starts = lanes * index.capacity
            found, _ = index.window(slots - starts, offsets, lanes)
            found += starts[..., None]
            return found
        except IndexError:
            raise self._not_stored(slots) from None

    def prev(self, slots: Ints) -> Ints:
        """The step before each in its episode, or itself."""
        return self.window(slots, PREVIOUS)[..., 0]

    def next(self, slots: Ints) -> Ints:
        """The step after each in its episode, or itself."""
        return self.window(slots, FOLLOWING)[..., 0]

    def positions(self, slots: Ints) -> Ints:
        """Stored steps of the same episode before each of `slots` int64 `[n]`."""
        return self.runs_of(slots)[2]

    def runs_of(self, slots: Ints) -> tuple[Ints, Ints, Ints]:
        """Of each of `slots` int64 `[n]`: the first stored slot of its episode, stored steps of it, and those before."""
        starts, lengths, positions = (np.empty(slots.size, np.int64) for _ in range(3))
        for bank, mine, lanes, local in self._split(slots):
            bounds = bank.bounds.bounds_of(local, lanes)
            starts[mine] = bounds.start + bank.offset + lanes * bank.bounds.capacity
            lengths[mine], positions[mine] = bounds.length, bounds.position
        return starts, lengths, positions

    def along(self, slots: Ints, steps: Ints) -> Ints:
        """The slots `steps` int64 `[n]` behind each of `slots` int64 `[n]`, over the edges of their rings."""
        ring = self.ring_of(slots)
        first = self.edges[ring]
        return first + (slots - first + steps) % self._capacities[ring]

    def unfinished(self, done: Bools) -> Ints:
        """Steps that nothing follows though they do not end their episode: the newest of each ring, and those before a
        cut; by ring. `done` are the end flags `[size]`."""
        if self.has_cuts:
            return np.concatenate([np.empty(0, np.int64), *(stops[~done[stops]] for stops in self._stops())])
        open_rings = np.flatnonzero(self.lengths)
        newest = self.newest[open_rings]
        return newest[~done[newest]]

    def order(self, ring: int | None = None) -> Ints:
        """All stored slots, ring by ring (or those of one ring), oldest to newest."""
        if ring is None:
            return np.concatenate([np.empty(0, np.int64), *(self.order(ring) for ring in range(self.number))])
        start, length = self.edges[ring], self.lengths[ring]
        if length == 0 or length < self._capacities[ring]:
            return np.arange(start, start + length)
        oldest = self.newest[ring] + 1
        return np.concatenate([np.arange(oldest, start + length), np.arange(start, oldest)])

    def stored(self) -> Ints:
        """All stored slots in the order of their numbers."""
        if self.number == 1 or self.total == self.size:
            return np.arange(self.total)
        return np.concatenate([np.arange(start, start + n) for start, n in zip(self.edges, self.lengths, strict=False)])

    def holds(self, slots: Ints) -> Bools:
        """Which of `slots` hold a step."""
        ring = self.ring_of(slots)
        inside = (slots >= 0) & (slots < self.size)
        ring = np.where(inside, ring, 0)
        held: Bools = inside & (slots - self.edges[ring] < self.lengths[ring])
        return held

    def is_dense(self, last: int) -> bool:
        """Whether all slots up to `last` hold steps for sure; `False` says nothing."""
        return self.total == self.size or (self.number == 1 and last < self.total)

    def ring_of(self, slots: Ints) -> Ints:
        """The ring of each slot."""
        return np.searchsorted(self.edges, slots, side="right") - 1

    def nth(self, numbers: Ints) -> Ints:
        """The stored slot of each number int64 `[n]` in `[0, total)`, grouped by ring, in the order of `numbers` else."""
        if self.number == 1:
            return numbers
        upto = np.cumsum(self.lengths)
        ring = np.searchsorted(upto, numbers, side="right")
        order = np.argsort(ring, kind="stable")
        if self.total == self.size:
            return numbers[order]
        return (numbers - (upto - self.lengths - self.edges[:-1])[ring])[order]

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All there is to know, copied."""
        banks = {str(number): bank.bounds.state_dict() for number, bank in enumerate(self._banks)}
        return {"banks": banks, "has_cuts": self.has_cuts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, by copy; `ValueError` for rings of another shape."""
        for number, bank in enumerate(self._banks):
            bank.bounds.load_state_dict(state["banks"][str(number)])
        self.has_cuts = bool(state["has_cuts"])
        self._recount()

    # -- inner ------------------------------------------------------------------------------------------------------

    def _split(self, slots: Ints) -> list[tuple[Bank, Ints | slice, Ints, Ints]]:
        """Of every bank that has some of `slots` `[n]`: which, and their lanes and slots within the bank."""
        parts: list[tuple[Bank, Ints | slice, Ints, Ints]] = []
        for bank in self._banks:
            capacity, last = bank.bounds.capacity, bank.offset + bank.bounds.capacity * bank.bounds.lanes
            mine: Ints | slice = slice(None)
            if len(self._banks) > 1:
                mine = np.flatnonzero((slots >= bank.offset) & (slots < last))
            local = slots[mine] - bank.offset
            if local.size:
                parts.append((bank, mine, local // capacity, local % capacity))
        if sum(lanes.size for _, _, lanes, _ in parts) < slots.size:
            raise IndexError
        return parts

    def _stops(self) -> list[Ints]:
        found = []
        for index, _, offset in self._banks:
            runs = index.trajectories()
            found.append(runs.stop + offset + runs.lane * index.capacity)
        return found

    def _not_stored(self, slots: Ints) -> IndexError:
        wrong = slots[~self.holds(slots)]
        return IndexError(
            f"index ({wrong.reshape(-1)[0] if wrong.size else slots}) must be that of a stored step: one of "
            f"{self.total} in rings that begin at {self.edges[:-1].tolist()[:8]} and hold {self.lengths.tolist()[:8]}"
        )


def _cursor(cursors: Ints, lengths: Ints, index: EpisodeIndex) -> Ints:
    """Next slots as the index wants them: the length where a ring is not full."""
    return np.where(lengths == index.capacity, cursors % index.capacity, lengths)
