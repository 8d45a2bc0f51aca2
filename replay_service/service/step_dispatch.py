"""From a request to an episodic buffer and back to a reply: `Dispatch` with the verbs of steps."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from replay_service.episodic.replay_buffer import EpisodicBuffer
from replay_service.service.dispatch import MOST_SAMPLED, Dispatch, Extra
from replay_service.service.step_replies import GatheredSteps, batch_of, numbers, value_reply
from replay_service.wire.indices import decode_index
from replay_service.wire.message import Message
from replay_service.wire.verbs import OF_BOTH, Verb

__all__ = ["StepDispatch", "dispatch_for"]

Handler = Callable[[Message], Any]


class StepDispatch(Dispatch):
    """Serves one episodic buffer.

    Args:
        buffer: the buffer; every verb is one of its public calls.
        service_stats: what the host knows of itself, for `stats`.
        most_layouts: how many layouts of requests are remembered.
    """

    def __init__(self, buffer: EpisodicBuffer, service_stats: Extra | None = None, *, most_layouts: int = 1024) -> None:
        hosted: Any = buffer
        super().__init__(hosted, service_stats, most_layouts=most_layouts)
        self.steps = buffer
        shared = {verb: self._handlers[verb] for verb in OF_BOTH}
        own: dict[Verb, Handler] = {
            Verb.ADD_STEPS: self._add_steps,
            Verb.SAMPLE_STEPS: self._sample_steps,
            Verb.GET_STEPS: self._get_steps,
            Verb.GET_ENTRY: self._get_entry,
            Verb.SAMPLE_INDICES: self._sample_indices,
            Verb.PREVIOUS: lambda request: numbers(request.verb, index=buffer.prev(_index(request))),
            Verb.FOLLOWING: lambda request: numbers(request.verb, index=buffer.next(_index(request))),
            Verb.UNFINISHED: lambda request: numbers(request.verb, index=buffer.unfinished_index()),
            Verb.COLUMN: self._column,
            Verb.SET_COLUMN: self._set_column,
            Verb.HAS_NULL: self._has_null,
            Verb.EPISODIC_RETURN: self._episodic_return,
            Verb.UPDATE_WEIGHT: self._update_weight,
            Verb.GET_WEIGHT: self._get_weight,
            Verb.SET_BETA: self._set_beta,
            Verb.RESET: self._reset,
            Verb.END_EPISODES: self._end_episodes,
        }
        self._handlers = {**shared, **own}

    def describe(self) -> dict[str, Any]:
        """What a handle needs to know of the buffer."""
        return {
            "batch_size": None,
            "merges_info": False,
            "columnar": True,
            "priority_key": "td_error",
            "steps": {
                "maxsize": self.steps.maxsize,
                "buffer_num": self.steps.buffer_num,
                "stack_num": self.steps.stack_num,
                "prioritized": hasattr(self.steps, "update_weight"),
            },
        }

    def _release_buffer(self) -> None:
        """Nothing of the buffer outlives this process."""

    # -- writing ----------------------------------------------------------------------------------------------------

    def _add_steps(self, request: Message) -> Message:
        if request.objects is not None:
            batch, ids = request.objects
        else:
            batch, ids = batch_of(request), _array(request.optional("buffer_ids"))
        slots, returns, lengths, starts = self.steps.add(batch, ids)
        return numbers(request.verb, index=slots, returns=returns, lengths=lengths, starts=starts)

    def _set_column(self, request: Message) -> Message:
        if request.objects is not None:
            key, seq, index, default = request.objects
        else:
            key, seq = _named(request), batch_of(request)["value"]
            default = request.optional("default")
            default = None if default is None else default.item()
            index = decode_index(request)[0] if request.argument(0) else None
        self.steps.set_array_at_key(seq, key, index, default)
        return Message(request.verb)

    def _reset(self, request: Message) -> Message:
        self.steps.reset(keep_statistics=bool(request.argument(0)))
        return Message(request.verb)

    def _end_episodes(self, request: Message) -> Message:
        self.steps.end_episodes(_array(request.optional("buffer_ids")))
        return Message(request.verb)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _sample_steps(self, request: Message) -> GatheredSteps:
        size = _size(request)
        n_step = request.argument(2) if request.argument(3) else None
        gamma = request.tensor("gamma").item() if n_step is not None else 1.0

        def drawn() -> Any:
            slots, plan = self.steps.sample_plan(size, n_step, gamma)
            return plan, slots

        return GatheredSteps(request.verb, drawn)

    def _get_steps(self, request: Message) -> GatheredSteps:
        index = _index(request)
        return GatheredSteps(request.verb, lambda: (self.steps.plan(index), None))

    def _get_entry(self, request: Message) -> GatheredSteps:
        index, asked = _index(request), request.statics
        key, stack_num = tuple(asked["key"]), asked["stack_num"]
        return GatheredSteps(request.verb, lambda: (self.steps.entry_plan(index, key, stack_num), None))

    def _sample_indices(self, request: Message) -> Message:
        return numbers(request.verb, index=self.steps.sample_indices(_size(request)))

    def _column(self, request: Message) -> Message:
        key = tuple(request.statics["key"])
        with self.steps.lock:  # what is sent is packed after it is given back, and others write meanwhile
            return value_reply(request.verb, copying.deepcopy(self.steps.column(key)))

    def _has_null(self, request: Message) -> Message:
        return Message(request.verb, arguments=(int(self.steps.hasnull()),))

    def _episodic_return(self, request: Message) -> Message:
        index, after, values = (_array(request.optional(name)) for name in ("index", "v_s_", "v_s"))
        gamma, gae_lambda = request.tensor("gamma").item(), request.tensor("gae_lambda").item()
        returns, advantages = self.steps.episodic_return(index, after, values, gamma, gae_lambda)
        return numbers(request.verb, returns=returns, advantages=advantages)

    # -- priorities -------------------------------------------------------------------------------------------------

    def _update_weight(self, request: Message) -> Message:
        index, weight = request.tensor("index").numpy(force=True), request.tensor("weight")
        updated = self._prioritized.update_weight(index, weight, generation=_array(request.optional("generation")))
        return numbers(request.verb, updated=updated)

    def _get_weight(self, request: Message) -> Message:
        return numbers(request.verb, weight=self._prioritized.get_weight(_index(request)))

    def _set_beta(self, request: Message) -> Message:
        self._prioritized.set_beta(request.tensor("beta").item())
        return Message(request.verb)

    @property
    def _prioritized(self) -> Any:
        if not hasattr(self.steps, "update_weight"):
            raise AttributeError(f"{type(self.steps).__name__} has no priorities; use PrioritizedReplayBuffer")
        return self.steps


def _index(request: Message) -> Any:
    index, _ = decode_index(request)
    return index.numpy(force=True) if isinstance(index, Tensor) else index


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy(force=True)


def _size(request: Message) -> int | None:
    size = request.argument(0) if request.argument(1) else None
    if (
        size is not None and size > MOST_SAMPLED
    ):  # before anything is drawn: one client must not exhaust the memory of all
        raise ValueError(f"batch_size ({size}) must be at most {MOST_SAMPLED} through a handle")
    return size


def _named(request: Message) -> str:
    return str(request.statics["key"])


def dispatch_for(buffer: Any, service_stats: Extra | None, allow_callables: bool) -> Dispatch:
    """What serves `buffer`, of whichever kind it is."""
    if isinstance(buffer, EpisodicBuffer):
        return StepDispatch(buffer, service_stats)
    return Dispatch(buffer, service_stats, allow_callables=allow_callables)
