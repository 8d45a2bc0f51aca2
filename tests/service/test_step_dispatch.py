"""Requests that no handle of ours would send, and many at once: every one is answered, and the buffer stays whole."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from clients.step_requests import sample_steps_request, steps_request
from replay_service.episodic import Batch, PrioritizedVectorReplayBuffer
from replay_service.service.step_dispatch import StepDispatch, dispatch_for
from replay_service.wire.conversation import Conversation
from replay_service.wire.failures import NOT_DENSE
from replay_service.wire.inproc import InprocChannel
from replay_service.wire.message import Message, compose, static_text
from replay_service.wire.verbs import STEP_VERBS, Verb
from tests.episodic.steps import rows

TIMEOUT_S = 20.0
COLUMN = (("data", "obs"), torch.ones(2))


def filled() -> PrioritizedVectorReplayBuffer:
    buffer = PrioritizedVectorReplayBuffer(8, 2, alpha=0.5, beta=0.5)
    buffer.add(rows([0, 10]))
    buffer.add(rows([1, 11]))
    return buffer


def strange(verb: Verb, skeleton: Any, *entries: Any, arguments: tuple[int, ...] = ()) -> Message:
    return compose(
        verb, entries, static=static_text({} if skeleton is None else {"batch": skeleton}), arguments=arguments
    )


REQUESTS = [
    *(Message(verb) for verb in STEP_VERBS - {Verb.LENGTH, Verb.WRITE_COUNT, Verb.STATS, Verb.CLOSE}),
    *(Message(verb, arguments=(1 << 40,) * 6) for verb in STEP_VERBS - {Verb.CLOSE}),
    strange(Verb.ADD_STEPS, None, COLUMN),
    strange(Verb.ADD_STEPS, 3, COLUMN),
    strange(Verb.ADD_STEPS, [], COLUMN),
    strange(Verb.ADD_STEPS, [["act", "n"]], COLUMN),
    strange(Verb.ADD_STEPS, [["obs", [["x", "n"]]]], COLUMN),
    strange(Verb.ADD_STEPS, [["obs", "n"]], COLUMN),
    strange(Verb.ADD_STEPS, [["obs", "n"]], COLUMN, (("buffer_ids",), torch.tensor([0.5, 1.5]))),
    strange(Verb.ADD_STEPS, [["obs", "n"]], COLUMN, (("buffer_ids",), torch.tensor([[0], [1]]))),
    strange(Verb.SET_COLUMN, [["value", "n"]], (("data", "value"), torch.ones(3))),
    strange(Verb.UPDATE_WEIGHT, None, (("index",), torch.tensor([99])), (("weight",), torch.ones(1))),
    strange(Verb.UPDATE_WEIGHT, None, (("index",), torch.tensor([0.5])), (("weight",), torch.ones(1))),
    strange(Verb.SET_BETA, None, (("beta",), torch.ones(2))),
    strange(Verb.END_EPISODES, None, (("buffer_ids",), torch.tensor([True]))),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.verb.name)
def test_every_frame_is_answered_and_the_buffer_stays_whole(request_: Message) -> None:
    buffer = filled()
    dispatch = StepDispatch(buffer)
    conversation = Conversation()
    frame = conversation.request(request_, lambda size: np.zeros(size, np.uint8), with_layout=True)
    reply, _ = dispatch.serve(frame)
    conversation.reply(request_, reply)
    channel = InprocChannel(dispatch.serve)
    assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == len(buffer)
    if len(buffer):  # a bare RESET is a good request
        assert buffer[:].obs.tolist() == [0, 1, 10, 11]
        assert buffer.weight.tolist() == [1, 1, 0, 0, 1, 1, 0, 0]


def test_words_are_refused_before_anything_is_drawn() -> None:
    buffer = filled()
    buffer.add(rows([2, 12], info={"word": np.array(["a", "b"], object)}))
    dispatch = StepDispatch(buffer)
    conversation, before = Conversation(), buffer.state_dict()["random"]["numbers"].tolist()
    request = sample_steps_request(4, None, 0.9)
    frame = conversation.request(request, lambda size: np.zeros(size, np.uint8))
    reply, objects = dispatch.serve(frame, dense_only=True)
    assert conversation.reply(request, reply).status == NOT_DENSE
    assert objects is None
    assert buffer.state_dict()["random"]["numbers"].tolist() == before


def test_no_client_can_exhaust_the_memory_of_all() -> None:
    channel = InprocChannel(StepDispatch(filled()).serve)
    for verb in (Verb.SAMPLE_STEPS, Verb.SAMPLE_INDICES):
        with pytest.raises(ValueError, match="at most"):
            channel.call(Message(verb, arguments=(1 << 30, 1)), TIMEOUT_S)


def test_steps_are_whole_while_others_add() -> None:
    buffer = PrioritizedVectorReplayBuffer(64, 2, alpha=0.5, beta=0.5)
    dispatch = dispatch_for(buffer, None, False)
    errors: list[BaseException] = []
    done = threading.Event()

    def add(lane: int) -> None:
        try:
            channel = InprocChannel(dispatch.serve)
            for number in range(150):
                step = Batch(rows([number] * 4), obs=np.full((4, 50), number), obs_next=np.full((4, 50), number))
                channel.call(steps_request(step, [lane] * 4), TIMEOUT_S)
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threads = [threading.Thread(target=add, args=(lane,)) for lane in range(2)]
    for thread in threads:
        thread.start()
    channel = InprocChannel(dispatch.serve)
    drawn = 0
    while any(thread.is_alive() for thread in threads):
        if len(buffer) == 0:
            continue
        reply = channel.call(sample_steps_request(16, 3, 0.9), TIMEOUT_S)
        seen, acted = reply.tensor("data", "obs"), reply.tensor("data", "act")
        assert (seen == acted[:, None]).all()
        drawn += 1
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not errors
    assert drawn
    assert buffer.write_count == 1200
    assert np.isfinite(buffer.weight).all()
