"""A handle on an episodic buffer for Tianshou 2: its collectors, algorithms and trainers take it as a vector buffer.

Batches are converted at the border; steps, episodes and priorities stay where the service is. What an algorithm reads by whole
columns (n-step returns do) travels as whole columns: give such a service no more slots than needed, or compute returns by
`EpisodicClient.sample(n_step=…)` in a loop of your own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clients.episodic_handle import EpisodicClient
from replay_service.episodic.batch import Batch

__all__ = ["HostedSteps", "tianshou_buffer"]

COLUMNS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")


class HostedSteps:
    """The calls of a Tianshou buffer, made of those of a handle.

    client: handle on a buffer whose rings are of one size (plain, vector, prioritized). batch_type: Tianshou's Batch; it is
    made of a nested dict and gives one by `to_dict`.
    """

    def __init__(self, client: EpisodicClient, batch_type: Any) -> None:
        self.client = client
        self.maxsize = client.maxsize
        self.buffer_num = client.buffer_num
        self._batch_type = batch_type

    def __len__(self) -> int:
        return len(self.client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client!r})"

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Any, ...]:
        """Appends steps; (slots, episode returns, episode lengths, slots where episodes start)."""
        answer: tuple[Any, ...] = self.client.add(Batch(batch.to_dict()), buffer_ids)
        return answer

    def sample(self, batch_size: int | None) -> tuple[Any, np.ndarray]:
        """Steps and their slots; 0 for all in order."""
        batch, index = self.client.sample(batch_size)
        return self._theirs(batch), index

    def sample_indices(self, batch_size: int | None) -> np.ndarray:
        """Slots of steps; 0 for all in order."""
        return self.client.sample_indices(batch_size)

    def __getitem__(self, index: Any) -> Any:
        return self._theirs(self.client[index])

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """One entry of the steps at `index`."""
        entry = self.client.get(index, key, default_value, stack_num)
        return self._theirs(entry) if isinstance(entry, Batch) else entry

    def prev(self, index: Any) -> Any:
        """The slot of the step before each."""
        return self.client.prev(index)

    def next(self, index: Any) -> Any:
        """The slot of the step after each."""
        return self.client.next(index)

    def unfinished_index(self) -> np.ndarray:
        """Slots of steps that nothing follows though they are not done."""
        return self.client.unfinished_index()

    def get_buffer_indices(self, start: int, stop: int) -> np.ndarray:
        """Slots from `start` up to `stop` (excluded) within the ring of `start`, around its end where `stop` isn't behind."""
        ring = self.maxsize // self.buffer_num
        first = start - start % ring
        if not 0 <= start < self.maxsize or not first <= stop <= first + ring:
            raise ValueError(f"start ({start}) and stop ({stop}) must lie in one ring of {ring} slots; they do not")
        if start < stop:
            return np.arange(start, stop)
        return np.concatenate([np.arange(start, first + ring), np.arange(first, stop)])

    def set_array_at_key(self, seq: Any, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Writes one entry of many steps."""
        self.client.set_array_at_key(seq, key, index, default_value)

    def hasnull(self) -> bool:
        """Whether any stored number is NaN or any stored object None; looked for where the steps are."""
        return self.client.hasnull()

    def isnull(self) -> Any:
        """Where that is, for all steps in order."""
        return self._theirs(self.client[:].isnull())

    def reset(self, keep_statistics: bool = False) -> None:
        """Forgets all steps."""
        self.client.reset(keep_statistics=keep_statistics)

    @property
    def update_weight(self) -> Any:
        """`update_weight(index, new_weight)`; AttributeError where the service has no priorities."""
        return self.client.update_weight

    @property
    def set_beta(self) -> Any:
        """`set_beta(beta)`; AttributeError where the service has no priorities."""
        return self.client.set_beta

    def __getattr__(self, name: str) -> Any:
        if name not in COLUMNS:
            raise AttributeError(f"{name} must be a call of a hosted buffer or one of {', '.join(COLUMNS)}")
        column = self.client.column(name)
        return self._theirs(column) if isinstance(column, Batch) else column

    def _theirs(self, batch: Batch) -> Any:
        return self._batch_type(batch.to_dict())


def tianshou_buffer(client: EpisodicClient) -> Any:
    """A buffer for `tianshou.data.Collector(buffer=…)` and whatever reads a collector's buffer; it can be pickled.

    Raises ModuleNotFoundError without Tianshou 2.
    """
    try:
        from tianshou.data import Batch as TianshouBatch
        from tianshou.data import ReplayBufferManager
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"tianshou must be installed to take a buffer for it: pip install 'replay-service[tianshou]'; {error}",
            name=error.name,
        ) from error

    # Tianshou asks for its own class before it believes that there is a ring for each environment.
    class HostedReplayBuffer(HostedSteps, ReplayBufferManager):  # type: ignore[misc]
        def __reduce__(self) -> tuple[Any, ...]:
            return tianshou_buffer, (self.client,)

    return HostedReplayBuffer(client, TianshouBatch)
