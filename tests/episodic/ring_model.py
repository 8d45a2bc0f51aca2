"""Rings of steps as plain lists: slow, and plain enough to be seen to be right."""

from __future__ import annotations

from typing import Any

__all__ = ["ModelRing", "ModelRings"]


class ModelRing:
    """One ring: slots with [number, done], what runs, and which steps are followed by their successor."""

    def __init__(self, first: int, capacity: int) -> None:
        self.first = first
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.steps: list[list[Any]] = []  # oldest first: [slot, number, done]
        self.written = 0
        self.total, self.length, self.start = 0.0, 0, self.first

    def add(self, number: int, done: bool) -> list[float]:
        slot = self.first + self.written % self.capacity
        self.written += 1
        self.steps = [*self.steps, [slot, number, done]][-self.capacity :]
        if self.length == 0:
            self.start = slot
        self.total, self.length = self.total + number, self.length + 1
        told = [slot, self.total if done else 0.0, self.length if done else 0, self.start]
        if done:
            self.total, self.length = 0.0, 0
        return told

    def end(self) -> None:
        if self.steps:
            self.steps[-1][2] = True
        self.total, self.length = 0.0, 0

    def reset(self, keep: bool) -> None:
        self.steps, self.written, self.start = [], 0, self.first
        if not keep:
            self.total, self.length = 0.0, 0

    def place(self, slot: int) -> int:
        return next(place for place, step in enumerate(self.steps) if step[0] == slot)

    def follow(self, slot: int, steps: int) -> int:
        place = self.place(slot)
        for _ in range(abs(steps)):
            if steps < 0 and place > 0 and not self.steps[place - 1][2]:
                place -= 1
            if steps > 0 and place < len(self.steps) - 1 and not self.steps[place][2]:
                place += 1
        return int(self.steps[place][0])


class ModelRings:
    """Several of them, numbered one after the other."""

    def __init__(self, number: int, capacity: int) -> None:
        self.rings = [ModelRing(place * capacity, capacity) for place in range(number)]
        self.capacity = capacity

    def ring_of(self, slot: int) -> ModelRing:
        return self.rings[slot // self.capacity]

    @property
    def order(self) -> list[int]:
        return [step[0] for ring in self.rings for step in ring.steps]

    def number_at(self, slot: int) -> int:
        ring = self.ring_of(slot)
        return int(ring.steps[ring.place(slot)][1])

    def follow(self, slot: int, steps: int) -> int:
        return self.ring_of(slot).follow(slot, steps)

    @property
    def unfinished(self) -> list[int]:
        return [ring.steps[-1][0] for ring in self.rings if ring.steps and not ring.steps[-1][2]]

    @property
    def newest(self) -> list[int]:
        return [ring.steps[-1][0] if ring.steps else ring.first for ring in self.rings]
