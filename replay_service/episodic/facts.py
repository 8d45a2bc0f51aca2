"""What a handle knows of an episodic buffer without asking."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepFacts"]


@dataclass(frozen=True)
class StepFacts:
    """What never changes of an episodic buffer, and so is part of a handle.

    Attributes:
        maxsize: slots.
        buffer_num: rings that steps can be added to.
        stack_num: steps that are stacked when read.
        prioritized: whether steps are drawn by priority.
    """

    maxsize: int
    buffer_num: int
    stack_num: int = 1
    prioritized: bool = False
