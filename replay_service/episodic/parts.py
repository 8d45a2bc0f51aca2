"""What an episodic buffer is made of: rings, columns, totals, draws, and a generator; and how indices name its steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.arguments import entry_key, index_array
from replay_service.buffer.counts import positive_integer
from replay_service.buffer.local_service import LocalService
from replay_service.episodic.batch import Batch
from replay_service.episodic.batch_printing import described
from replay_service.episodic.draws import Draws
from replay_service.episodic.rings import Rings
from replay_service.episodic.store import StepStore
from replay_service.episodic.totals import EpisodeTotals
from replay_service.errors import key_name

__all__ = ["RESERVED", "BufferParts", "ReadOptions"]

Ints = NDArray[np.int64]

RESERVED = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
HIDDEN = ("terminated", "truncated")


@dataclass(frozen=True)
class ReadOptions:
    """How steps are stored and read.

    Attributes:
        stack_num: steps that `obs`, `obs_next`, `info` and `policy` are stacked from.
        ignore_obs_next: `obs_next` is not stored but read as the next step's `obs`.
        save_only_last_obs: of stacked observations only the last frame is stored.
        sample_avail: only steps with `stack_num - 1` steps of their episode before them are drawn.
        random_seed: of the draws.
    """

    stack_num: int = 1
    ignore_obs_next: bool = False
    save_only_last_obs: bool = False
    sample_avail: bool = False
    random_seed: int = 42


def _entry(name: str) -> Any:
    """A property for a reserved entry, which can be read as a whole but not replaced."""

    def whole(self: BufferParts) -> Any:
        return self.whole_entry(name)

    def refuse(self: BufferParts, value: Any) -> None:
        raise AssertionError(f"{name} is reserved: it must not be assigned; write to its rows, or use set_batch")

    return property(whole, refuse, doc=f"The stored `{name}` of all slots, `[maxsize, …]`, a view.")


class BufferParts(LocalService):
    """Base of all episodic buffers.

    Args:
        banks: (capacity, number) of rings; see `Rings`.
        options: how steps are stored and read.
        draws: what draws steps.

    Attributes:
        lock: held by every call; hold it for several calls that belong together.
        maxsize: slots of all rings.
        stack_num: as in `options`.
        options: the settings by name.
    """

    obs, act, rew, done, obs_next = (_entry(name) for name in ("obs", "act", "rew", "done", "obs_next"))
    terminated, truncated, info, policy = (_entry(name) for name in ("terminated", "truncated", "info", "policy"))

    def __init__(self, banks: Sequence[tuple[int, int]], options: ReadOptions, draws: Draws) -> None:
        positive_integer(options.stack_num, "stack_num")
        self.lock = threading.RLock()
        self.stack_num = options.stack_num
        self.options: dict[str, Any] = asdict(options)
        self._options = options
        self._rings = Rings(banks)
        self.maxsize = self._rings.size
        self._store = StepStore(self.maxsize)
        self._totals = EpisodeTotals(self._rings.edges[:-1])
        self._draws = draws
        self._random = np.random.RandomState(options.random_seed)
        self._written = 0
        self._done_only = True
        """Whether callers speak of `done` alone: then that is all they are shown."""

    # -- what there is ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._rings.total

    @property
    def buffer_num(self) -> int:
        """Rings that steps can be added to."""
        return self._rings.number

    @property
    def subbuffer_edges(self) -> Ints:
        """Edges of the rings, int64 `[rings + 1]`: ring `r` has the slots from `edges[r]` up to `edges[r + 1]`."""
        return self._rings.edges.copy()

    @property
    def last_index(self) -> Ints:
        """Slot of the newest step of each ring, int64 `[rings]`; the ring's first one where it is empty."""
        return self._rings.newest.copy()

    @property
    def lengths(self) -> Ints:
        """Stored steps of each ring, int64 `[rings]`."""
        return self._rings.lengths.copy()

    @property
    def write_count(self) -> int:
        """Steps added so far, overwritten ones included."""
        return self._written

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """A snapshot: size, write_count, prefetch_queue_size, initialized, capacity, utilization. Waits for no other call."""
        size = len(self)
        return {
            "size": size,
            "write_count": self._written,
            "prefetch_queue_size": 0,
            "initialized": True,
            "capacity": self.maxsize,
            "utilization": size / self.maxsize if self.maxsize else 0.0,
        }

    def whole_entry(self, name: str) -> Any:
        """The entry `name` of all slots, `[maxsize, …]`, nested as it is: views of what is stored.

        Raises:
            AttributeError: no step had it.
        """
        whole = self._store.whole
        if name not in whole:
            raise AttributeError(f"{type(self).__name__} has no entry {name!r}; got {list(whole.keys())}")
        return whole[name]

    def column(self, key: str | tuple[str, ...]) -> Any:
        """A stored entry by its nested name, `[maxsize, …]`: views; `KeyError` names those that exist."""
        found: Any = self._store.whole
        for part in entry_key("key", key):
            if not isinstance(found, Batch) or part not in found:
                raise KeyError(f"key ({key_name(key)}) must be a stored entry; got {list(self._store.names)}")
            found = found[part]
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not an entry; and nothing is there yet while a buffer is being unpickled
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.whole_entry(name)

    def __repr__(self) -> str:
        shown = [(name, self._store.whole[name]) for name in self._store.names if name not in self._hidden]
        return described(type(self).__name__, shown)

    @property
    def _hidden(self) -> tuple[str, ...]:
        return HIDDEN if self._done_only else ()

    # -- which steps an index names -----------------------------------------------------------------------------------

    def _slots_of(self, index: Any) -> Ints:
        """The slots that `index` names, int64 of its shape.

        Integers are slots; negative ones count from the last stored slot back. A slice, but for `[:]`, and a mask as
        long as the buffer is filled choose among the stored slots in the order of their numbers; a mask of `maxsize`
        names slots, and leaves out those that hold nothing. `[:]` is everything, oldest to newest, ring by ring.

        Raises:
            IndexError: a slot that holds no step.
            TypeError: something that is no index.
        """
        if index is Ellipsis:
            index = slice(None)
        if isinstance(index, slice):
            return self._available() if index == slice(None) else self._rings.stored()[index]
        slots = self._numbers_of(index)
        if slots.size and (int(slots.max()) >= self._rings.size or not self._rings.is_dense(int(slots.max()))):
            held = self._rings.holds(slots)
            if not held.all():
                raise self._not_stored(slots[~held].reshape(-1)[0])
        return slots

    def _numbers_of(self, index: Any) -> Ints:
        """As `_slots_of`, for what is no slice; whether the slots hold steps is left to be found out."""
        slots: Any = index
        if type(index) is not np.ndarray or index.dtype != np.int64:
            slots = index_array(index).numpy(force=True)
        if slots.dtype == np.bool_:
            return self._masked(slots)
        return self._from_the_end(slots) if slots.size and int(slots.min()) < 0 else slots

    def _masked(self, mask: NDArray[np.bool_]) -> Ints:
        if mask.shape == (self.maxsize,):
            slots = np.flatnonzero(mask)
            return slots[self._rings.holds(slots)]
        if mask.shape == (len(self),):
            return self._rings.stored()[mask]
        raise IndexError(f"index (mask {list(mask.shape)}) must be [{self.maxsize}] or, of stored steps, [{len(self)}]")

    def _from_the_end(self, slots: Ints) -> Ints:
        stored = self._rings.stored()
        if int(slots.min()) < -stored.size:
            raise self._not_stored(int(slots.min()))
        return np.where(slots < 0, stored[np.minimum(slots, -1)], slots)

    def _not_stored(self, slot: int) -> IndexError:
        return IndexError(
            f"index ({slot}) must be that of a stored step; got {len(self)} steps in {self.maxsize} slots"
        )

    def _available(self) -> Ints:
        """All stored slots that may be drawn, ring by ring, oldest to newest."""
        slots = self._rings.order()
        if not self._options.sample_avail or self.stack_num == 1:
            return slots
        return slots[self._rings.positions(slots) >= self.stack_num - 1]
