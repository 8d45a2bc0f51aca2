"""What a policy is to collectors, learners and trainers: it acts, it learns, and its acting weights travel.

States, as trainers and collectors set them:

    =============  ===============  ===============
    state          policy.training  policy.updating
    =============  ===============  ===============
    collecting     True             False
    updating       True             True
    testing        False            False
    =============  ===============  ===============

A policy answers in the kind it was asked in: a `Batch` of "obs" gives one of "act", a TensorDict of "observation" one of
"action". What it learns from may come from a buffer of either kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from clients.actions import ActionMap

__all__ = ["Policy", "Statistics"]

Statistics = dict[str, float | list[float]]


class Policy(nn.Module, ABC):
    """Base of all policies: `forward` acts; `update` = sample, `process_fn`, `learn`, `post_process_fn`, in that order.

    Args:
        action_space: of the environments; a Box makes `map_action` bound and scale to it, as `ActionMap` says.
        action_scaling, action_bound_method: see `ActionMap`.

    Attributes:
        updating: True during `update`.
        lr_scheduler: None, or what has a `step()` to be called after each update.
    """

    def __init__(
        self,
        *,
        action_space: Space[Any] | None = None,
        action_scaling: bool = True,
        action_bound_method: str = "clip",
    ) -> None:
        super().__init__()
        self.updating = False
        self.lr_scheduler: Any = None
        self._action_map = ActionMap(action_space, action_scaling, action_bound_method)

    @abstractmethod
    def forward(self, data: Any, state: Any = None) -> Any:
        """Act on observations `[N, *obs]`.

        Args:
            data: a Batch of "obs", or a TensorDict of "observation".
            state: of a recurrent policy, as the last call gave it; None at the beginning.

        Returns:
            A Batch of "act" `[N, …]` and, where there are, "state" and "policy" (what is to be stored with the step), or a
            TensorDict of "action".
        """

    @abstractmethod
    def learn(self, batch: Any, **kwargs: Any) -> Statistics:
        """Optimise on a batch `[B]`; statistics by name, lists where there was more than one step. May add columns."""

    def acting_modules(self) -> nn.Module:
        """The part whose state acts: what a collector needs of a newer version (no target network); here: the whole policy."""
        return self

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        """Prepare a sampled batch `[B]` for `learn`, where that needs more of the buffer than its rows; here: unchanged."""
        return batch

    def post_process_fn(self, batch: Any, buffer: Any, indices: Any) -> None:
        """Give the buffer what `learn` found out: new priorities, where the batch was drawn by priority.

        A Batch has them as "weight", which `learn` has written over the weights of the draw; a TensorDict as "td_error". Steps that
        were overwritten since the draw keep the priority of what is there now, where the batch has their "generation".
        """
        keys = batch.keys()
        if "weight" in keys and hasattr(buffer, "update_weight"):
            stamps = {"generation": batch["generation"]} if "generation" in keys else {}
            buffer.update_weight(indices, batch["weight"], **stamps)
        elif "priority_weight" in keys and "td_error" in keys:
            buffer.update_tensordict_priority(batch)

    @property
    def sample_options(self) -> dict[str, Any]:
        """What `sample` and `prefetch` of a buffer are to add to a batch, where it can (`returns_in_sample`); here: nothing."""
        return {}

    def sample(self, sample_size: int | None, buffer: Any) -> tuple[Any, Any]:
        """(batch, indices) of `sample_size` rows: 0 for all in order, None for the buffer's own batch size."""
        options = self.sample_options if getattr(buffer, "returns_in_sample", False) else {}
        return _apart(buffer.sample(sample_size, **options))

    def update(self, sample_size: int | None, buffer: Any, **kwargs: Any) -> Statistics:
        """Sample from `buffer` and learn. A buffer of None gives `{}`.

        Args:
            sample_size: see `sample`.
            buffer: an episodic buffer, a buffer of TensorDicts, or a handle on either.
            kwargs: for `learn`.
        """
        if buffer is None:
            return {}
        batch, indices = self.sample(sample_size, buffer)
        return self.update_on(batch, buffer, indices, **kwargs)

    def update_on(self, batch: Any, buffer: Any, indices: Any = None, **kwargs: Any) -> Statistics:
        """Learn from a batch `[B]` that was sampled from `buffer` already, for instance by its `prefetch`.

        Args:
            batch: the batch, or (batch, indices) as an episodic buffer gives them.
            buffer: gets the new priorities.
            indices: of the rows; None: the batch knows them ("index"), or is a pair.
            kwargs: for `learn`.
        """
        if indices is None:
            batch, indices = _apart(batch)
        with self._updating():
            batch = self.process_fn(batch, buffer, indices)
            statistics = self.learn(batch, **kwargs)
            self.post_process_fn(batch, buffer, indices)
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()
        return statistics

    def exploration_noise(self, act: Any, batch: Any) -> Any:
        """Actions `[N, …]` as they are to be taken while exploring; here: unchanged. batch: what was acted on."""
        return act

    def map_action(self, act: Any) -> Any:
        """What the environment gets for actions `[N, …]` of `forward`; these are what is stored."""
        return self._action_map.to_environment(act)

    def map_action_inverse(self, act: Any) -> Any:
        """The actions `[N, …]` that `map_action` turns into `act`, for actions that were drawn from the action space."""
        return self._action_map.from_environment(act)

    def weights(self) -> dict[str, Tensor]:
        """A copy on the CPU of what acts, to be published."""
        return {name: value.detach().cpu().clone() for name, value in self.acting_modules().state_dict().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Act with `weights`, which another copy of this policy gave; raises RuntimeError where they don't fit."""
        self.acting_modules().load_state_dict(weights)

    @contextmanager
    def _updating(self) -> Iterator[None]:
        was_training = self.training
        if not was_training:
            self.train()
        self.updating = True
        try:
            yield
        finally:
            self.updating = False
            if not was_training:
                self.eval()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device


def _apart(sampled: Any) -> tuple[Any, Any]:
    """(batch, indices) of what a buffer gave: that, or a batch with a column "index"."""
    if isinstance(sampled, tuple):
        return sampled[0], sampled[1]
    return sampled, sampled.get("index", None)
