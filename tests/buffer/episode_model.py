"""Lanes of steps as plain lists, walked step by step: what `EpisodeIndex` has to agree with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from replay_service.buffer.episodes import EpisodeIndex, find_start_stop_traj

WINDOW = (-3, -1, 0, 1, 2)


@dataclass
class Lane:
    """One ring: the value (end flag or id) of each slot, and where a cut was made."""

    capacity: int
    by_ids: bool
    values: dict[int, Any] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)
    cursor: int = 0

    def write(self, value: Any) -> int:
        slot = self.cursor
        self.values[slot] = value
        self.cuts.discard(slot)
        self.cursor = (slot + 1) % self.capacity
        return slot

    def slots(self) -> list[int]:
        """Stored slots, oldest first."""
        oldest = self.cursor if len(self.values) == self.capacity else 0
        return [(oldest + i) % self.capacity for i in range(len(self.values))]

    def fragments(self) -> list[list[int]]:
        slots = self.slots()
        fragments = [slots[:1]] if slots else []
        for before, slot in itertools.pairwise(slots):
            ended = self.values[before] != self.values[slot] if self.by_ids else self.values[before]
            if ended or before in self.cuts:
                fragments.append([])
            fragments[-1].append(slot)
        return fragments


class Model:
    """All lanes, written beside the index."""

    def __init__(self, capacity: int, lanes: int, by_ids: bool) -> None:
        self.capacity = capacity
        self.by_ids = by_ids
        self.lanes = [Lane(capacity, by_ids) for _ in range(lanes)]

    def column(self, values: Any) -> dict[str, Any]:
        """As the keyword that the index takes."""
        return {"ids" if self.by_ids else "ends": np.array(values)}

    def fragments(self) -> list[tuple[int, list[int]]]:
        return [(number, fragment) for number, lane in enumerate(self.lanes) for fragment in lane.fragments()]

    def check(self, index: EpisodeIndex) -> None:
        """Compare every question that the index answers."""
        self._check_state(index)
        self._check_rows(index)
        for lane in range(len(self.lanes)):
            self._check_recovery(lane)
        for slice_len in (1, 2, 3, self.capacity):
            check_draws(
                index, [(lane, f) for lane, f in self.fragments() if len(f) >= slice_len], slice_len, strict=True
            )
            check_draws(index, self.fragments(), slice_len, strict=False)

    def _check_state(self, index: EpisodeIndex) -> None:
        fragments = self.fragments()
        assert index.cursors.tolist() == [lane.cursor if lane.values else 0 for lane in self.lanes]
        assert index.lengths.tolist() == [len(lane.values) for lane in self.lanes]
        found = index.trajectories()
        assert found.start.tolist() == [f[0] for _, f in fragments]
        assert found.stop.tolist() == [f[-1] for _, f in fragments]
        assert found.length.tolist() == [len(f) for _, f in fragments]
        assert found.lane.tolist() == [lane for lane, _ in fragments]
        for steps in range(1, self.capacity + 2):
            assert index.count(steps) == sum(len(f) >= steps for _, f in fragments)
        slots, lanes = index.unfinished()
        newest = [(lane.slots()[-1], number) for number, lane in enumerate(self.lanes) if lane.values]
        expected = [(s, n) for s, n in newest if self.by_ids or not self.lanes[n].values[s]]
        assert list(zip(slots.tolist(), lanes.tolist(), strict=True)) == expected

    def _check_rows(self, index: EpisodeIndex) -> None:
        rows = [(lane, f, i) for lane, f in self.fragments() for i in range(len(f))]
        slots = np.array([f[i] for _, f, i in rows], np.int64)
        lanes = np.array([lane for lane, _, _ in rows], np.int64)
        bounds = index.bounds_of(slots, lanes)
        assert bounds.start.tolist() == [f[0] for _, f, _ in rows]
        assert bounds.stop.tolist() == [f[-1] for _, f, _ in rows]
        assert bounds.length.tolist() == [len(f) for _, f, _ in rows]
        assert bounds.position.tolist() == [i for _, _, i in rows]
        for part, asked in zip(
            bounds, (index.start_of, index.stop_of, index.length_of, index.position_of), strict=True
        ):
            assert (part == asked(slots, lanes)).all()
        assert index.is_first(slots, lanes).tolist() == [i == 0 for _, _, i in rows]
        assert index.is_last(slots, lanes).tolist() == [i == len(f) - 1 for _, f, i in rows]
        assert index.prev(slots, lanes).tolist() == [f[max(i - 1, 0)] for _, f, i in rows]
        assert index.next(slots, lanes).tolist() == [f[min(i + 1, len(f) - 1)] for _, f, i in rows]
        for across in (False, True):
            found, inside = index.window(slots, WINDOW, lanes, across=across)
            for row, (lane, fragment, i) in enumerate(rows):
                run = self.lanes[lane].slots() if across else fragment
                at = run.index(fragment[i])
                assert found[row].tolist() == [run[min(max(at + o, 0), len(run) - 1)] for o in WINDOW]
                assert inside[row].tolist() == [0 <= at + o < len(run) for o in WINDOW]

    def _check_recovery(self, number: int) -> None:
        lane = self.lanes[number]
        if not lane.values or (self.by_ids and lane.cuts):
            return
        column = torch.tensor([lane.values[slot] for slot in range(len(lane.values))])
        if not self.by_ids:
            column[list(lane.cuts)] = True
        full = len(lane.values) == self.capacity
        keyword = {"trajectory" if self.by_ids else "end": column}
        start, stop, lengths = find_start_stop_traj(
            **keyword, at_capacity=full, cursor=(lane.cursor - 1) % self.capacity
        )
        expected = sorted(lane.fragments(), key=lambda fragment: fragment[-1])
        assert start.tolist() == [[f[0]] for f in expected]
        assert stop.tolist() == [[f[-1]] for f in expected]
        assert lengths.tolist() == [len(f) for f in expected]


def check_draws(index: EpisodeIndex, eligible: list[tuple[int, list[int]]], slice_len: int, *, strict: bool) -> None:
    """Draw every start of every eligible fragment once, by the uniforms that have to lead there."""
    expected, uniforms = [], []
    for number, (lane, fragment) in enumerate(eligible):
        steps = min(slice_len, len(fragment))
        starts = len(fragment) - steps + 1
        for start in range(starts):
            run = fragment[start : start + steps]
            expected.append((run[0], run[-1], steps, lane))
            uniforms.append(((number + 0.5) / len(eligible), (start + 0.5) / starts))
    if expected:
        drawn = index.draw_starts(slice_len, uniforms, strict=strict)
        assert list(zip(*(part.tolist() for part in drawn), strict=True)) == expected
