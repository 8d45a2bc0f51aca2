"""What must hold inside a buffer whatever happened before, from whichever thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from replay_service.buffer.samplers.prioritized import PrioritizedSampler
from replay_service.buffer.samplers.prioritized_slice import PrioritizedSliceSampler
from tests.buffer.priority_invariants import assert_priorities_are_consistent

Check = Callable[[Any], Any]


def assert_buffer_is_consistent(buffer: Any, check: Check, *, stamped: bool = True) -> None:
    """Fails unless counts, records, stamps, priorities and draws of a buffer agree.

    Args:
        buffer: a buffer of TensorDicts in this process.
        check: fails for a record that is torn; given all of them at once, and samples.
        stamped: every write since the buffer was made was stamped, and nothing was emptied or loaded.
    """
    with buffer.lock:
        storage, writer = buffer.storage, buffer.writer
        filled = storage.filled
        assert 0 <= filled <= storage.slots
        assert len(storage) == filled * storage.lanes
        check(buffer[:])
        if writer.tracks_generations:
            stamps = writer.generations_of(torch.arange(min(storage.slots, filled + 1)))
            assert bool((stamps[:filled] >= 0).all())
            assert filled == storage.slots or int(stamps[filled]) == -1 or not stamped
            if stamped:
                assert int((stamps[:filled] + 1).sum()) * storage.lanes == buffer.write_count
        if isinstance(buffer.sampler, PrioritizedSampler):
            assert_priorities_are_consistent(buffer)
        elif isinstance(buffer.sampler, PrioritizedSliceSampler):
            assert buffer.sampler.priorities().numel() == len(storage)
        if buffer.can_sample(4):
            sample = buffer.sample(4)
            check(sample)
            drawn = sample["index"]
            slots = drawn if drawn.ndim == 1 else drawn[:, 0]
            assert bool(((slots >= 0) & (slots < filled)).all())
            if writer.tracks_generations:
                assert torch.equal(writer.generations_of(slots), sample["index_generation"])
