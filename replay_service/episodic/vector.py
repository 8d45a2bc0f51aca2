"""Several rings beside each other, one for each environment, so that steps keep their order in time."""

from __future__ import annotations

from typing import Any

import torch

from replay_service.buffer.counts import positive_integer
from replay_service.episodic.parts import ReadOptions
from replay_service.episodic.replay_buffer import EpisodicBuffer, ReplayBuffer, ring_size, seed_of

__all__ = ["VectorReplayBuffer", "bank_of"]


class VectorReplayBuffer(ReplayBuffer):
    """`buffer_num` rings of `ceil(total_size / buffer_num)` steps each. Slots are numbered ring by ring.

    Args:
        total_size: steps of all rings.
        buffer_num: rings.
        stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed, service: as for `ReplayBuffer`.

    Raises:
        TypeError, ValueError: a size or number that is none.
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int | torch.Generator = 42,
        **service: Any,
    ) -> None:
        options = ReadOptions(stack_num, ignore_obs_next, save_only_last_obs, sample_avail, seed_of(random_seed))
        made_with = {"total_size": total_size, "buffer_num": buffer_num}
        EpisodicBuffer.__init__(self, made_with, options, [bank_of(total_size, buffer_num)], service=service)

    @property
    def _takes_one(self) -> bool:
        return False


def bank_of(total_size: int, buffer_num: int) -> tuple[int, int]:
    """(capacity, number) of equal rings that hold at least `total_size` steps."""
    number = positive_integer(buffer_num, "buffer_num")
    return -(-ring_size(total_size, "total_size") // number), number
