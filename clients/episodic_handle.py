"""The handle on an episodic buffer that lives elsewhere: its calls, one round trip each. It pickles as an address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from clients.conversing import Conversing
from clients.futures import Future
from clients.prefetch import Prefetch
from clients.step_requests import (
    Added,
    added,
    array,
    drawn,
    indexed,
    sample_steps_request,
    size_arguments,
    steps,
    steps_request,
    value,
    values_request,
)
from replay_service.arguments import entry_key, flag_of, index_array, numbers_of, positive_integer, real_number
from replay_service.episodic.batch import Batch
from replay_service.episodic.columns import as_rows
from replay_service.episodic.facts import StepFacts
from replay_service.episodic.incoming import ids_of
from replay_service.episodic.parts import RESERVED
from replay_service.episodic.returns import check_share
from replay_service.episodic.travel import apart
from replay_service.errors import LayoutError
from replay_service.records import ServiceAddress
from replay_service.specs import Key
from replay_service.wire.channel import Channel
from replay_service.wire.indices import encode_index
from replay_service.wire.message import Message, compose, static_text
from replay_service.wire.verbs import Verb

__all__ = ["EpisodicClient"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Drawn = tuple[Batch, Ints]


class EpisodicClient(Conversing):
    """A handle on a hosted episodic buffer, with the calls of a local one.

    It can be pickled, handed through Ray, and used by several threads; every process has a conversation of its own. Each call
    takes `timeout` in seconds (None: the service's default) and raises `ReplayTimeoutError` after it, `ServiceUnavailableError`
    if the service is dead or unreachable, and `ClosedError` after `close`; apart from that, what the local call raises.
    Batches hold arrays where arrays were added, and tensors where tensors were; all of it is the caller's own.

    Args:
        address: where the service lives.
        facts: what is known of the buffer.
        channel: what carries the messages; None joins the service over Ray at the first call.
    """

    returns_in_sample = True
    owners_only = (*Conversing.owners_only, "dropnull", "load_state_dict", "save_hdf5", "set_batch", "update")

    def __init__(self, address: ServiceAddress, facts: StepFacts, channel: Channel | None = None) -> None:
        super().__init__(address, channel)
        self._facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodicClient, (self._address, self._facts)

    def __getattr__(self, name: str) -> Any:
        if name in RESERVED:  # attributes of a local buffer; a handle would have to fetch them whole
            raise AttributeError(
                f"{name} is with the service: column({name!r}) fetches all of it, get(index, {name!r}) some"
            )
        return super().__getattr__(name)

    # -- writing ----------------------------------------------------------------------------------------------------

    def add(
        self, batch: Batch | Mapping[str, Any], buffer_ids: ArrayLike | None = None, *, timeout: float | None = None
    ) -> Added:
        """Appends steps, all or none; as `ReplayBuffer.add`."""
        return added(self._call(steps_request(batch, buffer_ids), timeout))

    def submit_add(self, batch: Batch | Mapping[str, Any], buffer_ids: ArrayLike | None = None) -> Future[Added]:
        """Sends steps without waiting; several requests may be in flight (bounded), and they are applied in order."""
        return self._submit(steps_request(batch, buffer_ids), added)

    def set_array_at_key(
        self,
        seq: Any,
        key: str,
        index: Any = None,
        default_value: float | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Writes one entry of many steps; as `ReplayBuffer.set_array_at_key`."""
        if not isinstance(key, str):
            raise TypeError(f"key ({key!r:.60}) must be the name of an entry; got {type(key).__name__}")
        if default_value is not None and not isinstance(default_value, bool):
            real_number("default_value", default_value)
        arguments, entries = ((0,), list[tuple[Key, Tensor]]()) if index is None else encode_index(index)
        try:
            taken_apart = apart({"value": as_rows("seq", seq)})
        except LayoutError as error:
            objects, obstacle = (key, seq, index, default_value), str(error).partition(" must ")[0]
            self._call(Message(Verb.SET_COLUMN, objects=objects, obstacle=obstacle), timeout)
            return
        entries += [(("data", *name), tensor) for name, tensor in taken_apart.entries]
        if default_value is not None:
            entries.append((("default",), torch.tensor(default_value, dtype=torch.float64, device="cpu")))
        static = static_text({"key": key, "batch": taken_apart.skeleton})
        self._call(compose(Verb.SET_COLUMN, entries, static=static, arguments=arguments), timeout)

    def reset(self, keep_statistics: bool = False, *, timeout: float | None = None) -> None:
        """Forgets all steps; as `ReplayBuffer.reset`."""
        keep = flag_of("keep_statistics", keep_statistics)
        self._call(Message(Verb.RESET, arguments=(int(keep),)), timeout)

    def end_episodes(self, buffer_ids: ArrayLike | None = None, *, timeout: float | None = None) -> None:
        """Ends the episodes that run in these rings (None: in all); as `ReplayBuffer.end_episodes`."""
        ids = None if buffer_ids is None else ids_of(buffer_ids)
        self._call(values_request(Verb.END_EPISODES, buffer_ids=ids), timeout)

    # -- draws ------------------------------------------------------------------------------------------------------

    def sample(
        self, batch_size: int | None, n_step: int | None = None, gamma: float = 0.99, *, timeout: float | None = None
    ) -> Drawn:
        """Steps and their slots, with what n-step returns are made of if asked for; as `ReplayBuffer.sample`."""
        return drawn(self._call(sample_steps_request(batch_size, n_step, gamma), timeout))

    def submit_sample(self, batch_size: int | None, n_step: int | None = None, gamma: float = 0.99) -> Future[Drawn]:
        """Asks for a sample without waiting."""
        return self._submit(sample_steps_request(batch_size, n_step, gamma), drawn)

    def prefetch(
        self, batch_size: int | None, depth: int = 2, n_step: int | None = None, gamma: float = 0.99
    ) -> Prefetch[Drawn]:
        """Samples without end, of which `depth` are asked for ahead: the next travels while this one trains.

        What is returned is an iterator that can be closed, also by `with`.
        """
        sample_steps_request(batch_size, n_step, gamma)
        return Prefetch(lambda: self.submit_sample(batch_size, n_step, gamma), depth, self._address.timeout_s)

    def sample_indices(self, batch_size: int | None, *, timeout: float | None = None) -> Ints:
        """Slots of steps, as `ReplayBuffer.sample_indices`."""
        request = Message(Verb.SAMPLE_INDICES, arguments=size_arguments(batch_size))
        slots: Ints = self._array(request, "index", timeout)
        return slots

    # -- steps ------------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Batch:
        """The steps at `index`; as for a local buffer."""
        return steps(self._call(indexed(Verb.GET_STEPS, index), None))

    def get(
        self,
        index: Any,
        key: str | tuple[str, ...],
        default_value: Any = None,
        stack_num: int | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """One entry of the steps at `index`; as `ReplayBuffer.get`."""
        parts = list(entry_key("key", key))
        frames = None if stack_num is None else positive_integer(stack_num, "stack_num")
        try:
            reply = self._call(indexed(Verb.GET_ENTRY, index, {"key": parts, "stack_num": frames}), timeout)
        except KeyError:
            if default_value is None:
                raise
            return default_value
        return steps(reply)["entry"]

    def column(self, key: str | tuple[str, ...], *, timeout: float | None = None) -> Any:
        """A stored entry of all slots, `[maxsize, …]`, copied; as `ReplayBuffer.column`."""
        parts = list(entry_key("key", key))
        return value(self._call(compose(Verb.COLUMN, [], static=static_text({"key": parts})), timeout), "value")

    def prev(self, index: Any, *, timeout: float | None = None) -> Any:
        """The slot of the step before each; as `ReplayBuffer.prev`."""
        return self._array(indexed(Verb.PREVIOUS, index), "index", timeout)

    def next(self, index: Any, *, timeout: float | None = None) -> Any:
        """The slot of the step after each; as `ReplayBuffer.next`."""
        return self._array(indexed(Verb.FOLLOWING, index), "index", timeout)

    def unfinished_index(self, *, timeout: float | None = None) -> Ints:
        """Slots of steps that nothing follows though they are not done; as `ReplayBuffer.unfinished_index`."""
        slots: Ints = self._array(Message(Verb.UNFINISHED), "index", timeout)
        return slots

    def hasnull(self, *, timeout: float | None = None) -> bool:
        """Whether any stored number is NaN or any stored object None; looked for where the steps are."""
        return bool(self._call(Message(Verb.HAS_NULL), timeout).argument(0))

    def episodic_return(
        self,
        indices: ArrayLike | None = None,
        v_s_: Any = None,
        v_s: Any = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        *,
        timeout: float | None = None,
    ) -> tuple[Floats, Floats]:
        """Returns and advantages of steps, computed where they are; as `ReplayBuffer.episodic_return`."""
        index = None if indices is None else index_array(indices)
        for name, share in (("gamma", gamma), ("gae_lambda", gae_lambda)):
            check_share(name, share)
        request = values_request(
            Verb.EPISODIC_RETURN, index=index, v_s_=v_s_, v_s=v_s, gamma=float(gamma), gae_lambda=float(gae_lambda)
        )
        reply = self._call(request, timeout)
        return array(reply, "returns"), array(reply, "advantages")

    # -- priorities -------------------------------------------------------------------------------------------------

    @property
    def update_weight(self) -> Callable[..., Any]:
        """`update_weight(index, new_weight, *, generation=None, timeout=None)` sets priorities, as
        `PrioritizedReplayBuffer.update_weight`; there is no such call, and `AttributeError` is raised, if the buffer has none."""
        return self._of_priorities(self._update_weight)

    @property
    def get_weight(self) -> Callable[..., Any]:
        """`get_weight(index, *, timeout=None)`, as `PrioritizedReplayBuffer.get_weight`; else `AttributeError`."""
        return self._of_priorities(self._get_weight)

    @property
    def set_beta(self) -> Callable[..., None]:
        """`set_beta(beta, *, timeout=None)`, as `PrioritizedReplayBuffer.set_beta`; else `AttributeError`."""
        return self._of_priorities(self._set_beta)

    # -- facts ------------------------------------------------------------------------------------------------------

    @property
    def maxsize(self) -> int:
        """Slots of all rings."""
        return self._facts.maxsize

    @property
    def buffer_num(self) -> int:
        """Rings that steps can be added to."""
        return self._facts.buffer_num

    @property
    def stack_num(self) -> int:
        """Steps that are stacked when read."""
        return self._facts.stack_num

    def __bool__(self) -> bool:
        """True: a handle is there, however many steps its buffer holds."""
        return True

    # -- inner ------------------------------------------------------------------------------------------------------

    def _update_weight(
        self, index: Any, new_weight: Any, *, generation: Any = None, timeout: float | None = None
    ) -> Any:
        generation = None if generation is None else numbers_of("generation", generation)
        weight = numbers_of("new_weight", new_weight, None if isinstance(new_weight, np.ndarray) else torch.float64)
        request = values_request(Verb.UPDATE_WEIGHT, index=index_array(index), weight=weight, generation=generation)
        return self._array(request, "updated", timeout)

    def _get_weight(self, index: Any, *, timeout: float | None = None) -> Any:
        return self._array(indexed(Verb.GET_WEIGHT, index), "weight", timeout)

    def _set_beta(self, beta: float, *, timeout: float | None = None) -> None:
        self._call(values_request(Verb.SET_BETA, beta=real_number("beta", beta)), timeout)

    def _of_priorities(self, call: Callable[..., Any]) -> Callable[..., Any]:
        if not self._facts.prioritized:
            raise AttributeError(f"{self._address.name} has no priorities; use PrioritizedReplayBuffer")
        return call

    def _array(self, request: Message, name: str, timeout: float | None) -> Any:
        return array(self._call(request, timeout), name)
