"""Bad input to every call: refused with the name of what is wrong, and nothing is other than before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from replay_service.errors import LayoutError
from tests.episodic.every_class import told
from tests.episodic.steps import filled, rows, tr

NAN = float("nan")
NO_TENSORS = {
    "meta": lambda: torch.zeros(2, device="meta"),
    "sparse": lambda: torch.zeros(2).to_sparse(),
}


def made() -> Any:
    buffer = PrioritizedVectorReplayBuffer(12, 3, 0.6, 0.4)
    for number in range(3):
        buffer.add(rows([number, 10 + number, 20 + number], [0, 0, int(number == 1)]))
    return buffer


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "n_step 1.5": (lambda b: b.sample(2, n_step=1.5), r"n_step \(1.5\) must be an integer"),
    "n_step True": (lambda b: b.sample(2, n_step=True), r"n_step \(True\) must be"),
    "n_step 0": (lambda b: b.sample(2, n_step=0), r"n_step \(0\) must be at least 1"),
    "gamma text": (lambda b: b.sample(2, n_step=2, gamma="x"), r"gamma \('x'\) must be a number"),
    "gamma tensor": (lambda b: b.sample(2, n_step=2, gamma=torch.tensor(0.5)), "gamma .* must be a number"),
    "gamma NaN": (lambda b: b.sample(2, n_step=2, gamma=NAN), "gamma .* must be from 0 to 1"),
    "lambda": (lambda b: b.episodic_return(None, np.zeros(9), gae_lambda=[1]), "gae_lambda .* must be a number"),
    "stack_num 0": (lambda b: b.get([0], "obs", stack_num=0), r"stack_num \(0\) must be a positive integer"),
    "stack_num 2.5": (lambda b: b.get([0], "obs", stack_num=2.5), r"stack_num \(2.5\) must be"),
    "stack_num huge": (lambda b: b.get([0], "obs", stack_num=1 << 40), r"stack_num .* must be at most 12"),
    "key": (lambda b: b.get([0], 3), r"key \(3\) must be the name of an entry"),
    "column": (lambda b: b.column(None), r"key \(None\) must be the name of an entry"),
    "set key": (lambda b: b.set_array_at_key(np.zeros(12), 3), r"key \(3\) must be the name of an entry"),
    "set one": (lambda b: b.set_array_at_key(3, "x"), r"seq \(3\) must have one row for each step"),
    "set ragged": (lambda b: b.set_array_at_key([1, [2]], "x"), "seq must have rows of one shape"),
    "set sparse": (lambda b: b.set_array_at_key(torch.zeros(12).to_sparse(), "x"), "seq must be a dense tensor"),
    "default text": (lambda b: b.set_array_at_key([1], "x", [0], "a"), r"default_value \('a'\) must be a number"),
    "default huge": (lambda b: b.set_array_at_key([1], "x", [0], 1 << 70), "x .* must be numbers that fit int64"),
    "default NaN": (lambda b: b.set_array_at_key([1], "x", [0], NAN), "x .* must be numbers that fit int64"),
    "values": (lambda b: b.episodic_return(None, ["a"] * 9), "v_s_ .*must be numbers"),
    "values meta": (lambda b: b.episodic_return(None, torch.zeros(9, device="meta")), "v_s_ must be a dense tensor"),
    "index 2**63": (lambda b: b[1 << 63], "index .*must .*fit 64 bits"),
    "index float": (lambda b: b[[0.5]], "index must be integers"),
    "index None": (lambda b: b[None], "index must be"),
    "index huge": (lambda b: b[np.array([2**64 - 1], np.uint64)], "index .*must .*fit 64 bits"),
    "index meta": (lambda b: b.prev(torch.zeros(1, dtype=torch.int64, device="meta")), "index must be a dense tensor"),
    "slots": (lambda b: b.get_buffer_indices("0", 2), r"start \('0'\) must be a slot"),
    "slots huge": (lambda b: b.get_buffer_indices(0, 1 << 80), r"start and stop .* must lie in the same ring"),
    "reset": (lambda b: b.reset(np.zeros(3)), "keep_statistics .* must be True or False"),
    "update": (lambda b: ReplayBuffer(3).update([1]), r"buffer \(\[1\]\) must be an episodic buffer"),
    "load": (lambda b: b.load_state_dict(None), "state_dict must be that of an episodic buffer; got NoneType"),
    "weight text": (lambda b: b.update_weight([0], "much"), "new_weight must be numbers"),
    "weight complex": (lambda b: b.update_weight([0], torch.ones(1, dtype=torch.complex64)), "new_weight must be real"),
    "generation": (lambda b: b.update_weight([0], 1.0, generation=["a"]), "generation must be numbers"),
    "beta": (lambda b: b.set_beta("x"), r"beta \('x'\) must be a number"),
    "ids": (lambda b: b.add(rows([1]), buffer_ids=["a"]), "buffer_ids must be numbers"),
    "ids grad": (
        lambda b: b.add(rows([1]), buffer_ids=torch.zeros(1, requires_grad=True)),
        "buffer_ids .* must be integers",
    ),
    "end": (lambda b: b.end_episodes(torch.zeros(2, device="meta")), "buffer_ids must be a dense tensor"),
    "done NaN": (lambda b: b.add(rows([1, 2, 3], done=[0, NAN, 1])), r"done \(nan\) must be True or False"),
    "done 2": (lambda b: b.add(rows([1, 2, 3], done=[0, 2, 1])), r"done \(2\) must be True or False"),
    "rew complex": (lambda b: b.add(rows([1, 2, 3], rew=np.ones(3, complex))), "rew .*must be real numbers"),
    "rew one": (lambda b: b.add(rows([1, 2, 3], rew=1.0)), r"rew \(\[\]\) must have one row"),
    "obs one": (lambda b: b.add(rows([1, 2, 3], obs=1)), r"obs \(1\) must have a leading dimension of 3"),
    "obs None": (lambda b: b.add(rows([1, 2, 3], obs=None)), r"obs \(None\) must be given"),
    "obs NaN": (lambda b: b.add(rows([1, 2, 3], obs=np.array([1, NAN, 2]))), "obs .* must be numbers that fit int64"),
    "obs inf": (lambda b: b.add(rows([1, 2, 3], obs=np.array([1, 1e30, 2]))), "obs .* must be numbers that fit int64"),
    "obs object": (lambda b: b.add(rows([1, 2, 3], info=object())), "info .* must be an array or tensor"),
    "batch done": (
        lambda b: b.set_batch({**whole(), "done": np.zeros((12, 2))}),
        r"done \(\[12, 2\]\) must be one flag",
    ),
    "batch part": (lambda b: b.set_batch({"obs": np.zeros(12)}), r"act \(missing\) must be among the entries"),
    "batch empty": (lambda b: b.set_batch({}), r"obs \(missing\) must be among the entries"),
    "batch rew": (lambda b: b.set_batch({**whole(), "rew": np.array(["a"] * 12, object)}), "rew .* must be"),
}


def whole() -> dict[str, Any]:
    return {name: np.zeros(12) for name in ("obs", "act", "rew", "done")}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_refused_changes_nothing(name: str) -> None:
    call, message = CALLS[name]
    buffer = made()
    before = told(buffer.state_dict())
    with pytest.raises((TypeError, ValueError, IndexError, KeyError), match=message):
        call(buffer)
    assert told(buffer.state_dict()) == before
    assert len(buffer[:].obs) == 9


@pytest.mark.parametrize("kind", NO_TENSORS)
@pytest.mark.parametrize("entry", ["obs", "act", "obs_next", "info", "policy", "more"])
def test_tensors_without_memory_are_refused(kind: str, entry: str) -> None:
    for buffer in (ReplayBuffer(4), filled(4, 2)):
        before = told(buffer.state_dict())
        with pytest.raises(LayoutError, match=f"{entry} must be a dense tensor with memory; got a {kind} one"):
            buffer.add(tr(1, **{entry: NO_TENSORS[kind]()}))
        assert told(buffer.state_dict()) == before


@pytest.mark.parametrize("given", [torch.float64, torch.complex64, torch.int64])
def test_a_tensor_that_the_stored_type_cannot_hold(given: torch.dtype) -> None:
    buffer = ReplayBuffer(4)
    buffer.add(tr(0, obs=torch.zeros(2, dtype=torch.uint8)))
    before = told(buffer.state_dict())
    wrong = {torch.float64: [1.0, NAN], torch.complex64: [1j, 0], torch.int64: [300, 1]}[given]
    with pytest.raises(LayoutError, match=r"obs \(torch.* must be numbers that fit torch.uint8"):
        buffer.add(tr(1, obs=torch.tensor(wrong, dtype=given)))
    assert told(buffer.state_dict()) == before
    buffer.add(tr(1, obs=torch.tensor([3.0, 255.0])))
    assert buffer[1].obs.tolist() == [3, 255]


def test_a_warning_that_is_an_error_tears_nothing() -> None:
    buffer = ReplayBuffer(4)
    buffer.add(tr(0, act=np.float32(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.add(tr(1, act=np.float64(1e300)))  # too large for float32, as NumPy warns
    assert buffer[:].act.tolist() == [0, float("inf")]


def test_numbers_in_types_that_numpy_has_not() -> None:
    buffer = VectorReplayBuffer(4, 2)
    half = torch.tensor([0.5, 1.0], dtype=torch.bfloat16, requires_grad=True)
    buffer.add(Batch(rows([1, 2], rew=half)), buffer_ids=torch.tensor([0, 1], dtype=torch.uint8))
    assert buffer[:].rew.tolist() == [0.5, 1.0]
    buffer.add(Batch(rows([3, 4], obs=torch.tensor([3.0, 4.0], dtype=torch.bfloat16))))
    assert buffer[:].obs.tolist() == [1, 3, 2, 4]
    assert buffer.episodic_return(None, torch.zeros(4, dtype=torch.bfloat16))[0].shape == (4,)
    weights = PrioritizedVectorReplayBuffer(4, 2, 1.0, 1.0)
    weights.add(rows([1, 2]))
    assert weights.update_weight([0, 2], half).tolist() == [True, True]
    weights.update_weight([0, 2], [0.1, 0.2])
    assert weights.weight[[0, 2]].tolist() == pytest.approx([0.1, 0.2], abs=2e-7 + 1e-12, rel=0)


def test_steps_ahead_without_end_take_no_time() -> None:
    buffer = filled(5, 5)
    few, many = (buffer.sample(4, n_step=n)[0].n_step for n in (5, 1 << 62))
    assert few.rew.shape == many.rew.shape


def test_an_ellipsis_is_everything_as_through_a_handle() -> None:
    buffer = filled(5, 3)
    assert buffer[...] == buffer[:]


@pytest.mark.parametrize("wrong", [None, "x", np.zeros(3), np.zeros(0), -5, np.full(1, 10**9)], ids=str)
@pytest.mark.parametrize("part", ["columns", "totals", "rings", "draws", "random"])
def test_a_state_that_is_not_whole_changes_nothing(part: str, wrong: Any) -> None:
    whole_state, buffer = made().state_dict(), made()
    buffer.end_episodes()
    before = told(buffer.state_dict())
    for name in [None, *whole_state[part]]:
        damaged = {**whole_state, part: wrong if name is None else {**whole_state[part], name: wrong}}
        if (part, name) in (("rings", "has_cuts"), ("random", "cached"), ("draws", "beta")):
            continue  # numbers, each of which is a possible one
        with pytest.raises((ValueError, TypeError)):
            buffer.load_state_dict(damaged)
        assert told(buffer.state_dict()) == before, name
    for name in ('["rew"]', '["done"]', '["obs"]'):
        columns = {key: value for key, value in whole_state["columns"].items() if key != name}
        with pytest.raises(ValueError, match="must be among the entries of stored steps"):
            buffer.load_state_dict({**whole_state, "columns": columns})
    buffer.load_state_dict(whole_state)
    assert told(buffer.state_dict()) == told(whole_state)
