"""What must hold between a storage and the priorities of its records, whatever happened before."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from replay_service.buffer.samplers.prioritized import PrioritizedSampler


def assert_priorities_are_consistent(buffer: Any) -> None:
    """Fails unless every record of the buffer, and nothing else, has a priority, and the sampler draws from exactly those."""
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSampler)
    with buffer.lock:
        state, total, size = sampler.state_dict(), sampler.total, len(buffer.storage)
    assert state["priorities"].numel() == state["masses"].numel() == size
    assert bool(torch.isfinite(state["priorities"]).all())
    torch.testing.assert_close(
        state["masses"], (state["priorities"] + state["eps"]) ** state["alpha"], rtol=1e-12, atol=0
    )
    assert total == pytest.approx(math.fsum(state["masses"].tolist()), rel=1e-9)
