"""ReplayBuffer: what goes in comes out whole, what is refused changes nothing, and nobody shares memory with the buffer."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict, tensorclass

from replay_service import (
    EmptyBufferError,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorStorage,
)
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.source_tree import ROOT

Pair = namedtuple("Pair", ["left", "right"])


@tensorclass
class Step:
    observation: torch.Tensor
    reward: torch.Tensor


def _buffer(capacity: int = 8, rows: int = 0, **parts: Any) -> ReplayBuffer:
    parts = {"writer": RoundRobinWriter(track_generations=True), "batch_size": 4, **parts}
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), **parts)
    if rows:
        buffer.extend(stamped_rows(rows))
    return buffer


def _all_of(buffer: ReplayBuffer) -> tuple[Any, ...]:
    """Everything that a refused call must leave as it was."""
    stamps = buffer.writer.generations_of(torch.arange(buffer.storage.slots))
    contents = buffer[:]["action"].tolist() if len(buffer) else []
    return len(buffer), buffer.write_count, contents, stamps.tolist(), buffer.storage.leaves(), buffer.stats()


# -- extend and add -----------------------------------------------------------------------------------------------------


def test_extend_gives_a_slot_per_row() -> None:
    buffer = _buffer()
    assert buffer.extend(stamped_rows(3)).tolist() == [0, 1, 2]
    assert buffer.add(stamped_rows(1, stamp=3)[0]) == 3
    assert (len(buffer), buffer.write_count) == (4, 4)
    assert buffer[:]["action"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_ten_rows_into_four_keep_the_last_four(storage: type) -> None:
    buffer = ReplayBuffer(storage=storage(4))
    slots = buffer.extend(torch.arange(10))
    assert slots.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert (len(buffer), buffer.write_count) == (4, 10)
    assert sorted(buffer[:].tolist()) == [6, 7, 8, 9]
    assert [int(buffer[int(slot)]) for slot in slots[-4:]] == [6, 7, 8, 9]
    assert buffer.extend(torch.tensor([10])).tolist() == [2]


def test_no_rows_change_nothing() -> None:
    buffer = _buffer(rows=3)
    before = _all_of(buffer)
    slots = buffer.extend(stamped_rows(3)[:0])
    assert (slots.dtype, slots.shape) == (torch.int64, (0,))
    assert _all_of(buffer) == before


def test_no_rows_at_first_fix_no_layout() -> None:
    buffer = _buffer()
    assert buffer.extend(stamped_rows(2)[:0]).numel() == 0
    assert buffer.storage.leaves() is None
    assert buffer.extend(torch.arange(2)).tolist() == [0, 1]


WRONG: list[tuple[str, Any, str]] = [
    ("missing key", stamped_rows(3).exclude(("next", "reward")), r"missing \['next\.reward'\]"),
    ("extra key", stamped_rows(3).set("bonus", torch.zeros(3)), r"extra \['bonus'\]"),
    ("dtype", stamped_rows(3).set("action", torch.zeros(3)), "action must be int64 .*; got float32"),
    (
        "row shape",
        stamped_rows(3).set(("next", "observation"), torch.zeros(3, 1)),
        r"next\.observation .* got float32 with \[1\]",
    ),
    (
        "lengths",
        {**stamped_rows(3).to_dict(), "action": torch.zeros(2, dtype=torch.int64)},
        r"\(\d rows\) must have as many rows",
    ),
    ("text", stamped_rows(3).set("action", NonTensorData("a", batch_size=[3])), "action must be a dense tensor"),
    ("array", {**stamped_rows(3).to_dict(), "action": np.zeros(3)}, "action must be a dense tensor; got ndarray"),
    ("another form", torch.zeros(3), "keys must be"),
    ("no leading dimension", stamped_rows(1)[0], "batch_size"),
    ("nothing", None, "data must be a dense tensor; got NoneType"),
]


@pytest.mark.parametrize(("data", "words"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_refused_extends_change_nothing(data: Any, words: str) -> None:
    buffer = _buffer(capacity=4, rows=6)
    before = _all_of(buffer)
    with pytest.raises(LayoutError, match=words):
        buffer.extend(data)
    future = buffer.submit_extend(data)
    with pytest.raises(LayoutError, match=words):
        future.result()
    assert _all_of(buffer) == before
    assert buffer.extend(stamped_rows(1, stamp=50)).tolist() == [2], "the next row goes where it would have gone"


def test_refused_adds_change_nothing() -> None:
    buffer = _buffer(rows=2)
    before = _all_of(buffer)
    for wrong in (stamped_rows(1)[0].exclude("action"), stamped_rows(1), "text"):
        with pytest.raises(LayoutError):
            buffer.add(wrong)
    assert _all_of(buffer) == before


@pytest.mark.parametrize(
    "storage",
    [lambda: LazyTensorStorage(8), lambda: ListStorage(8), lambda: TensorStorage(stamped_rows(8))],
    ids=["lazy", "list", "tensor"],
)
def test_the_buffer_shares_no_memory(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage(), batch_size=16)
    data = stamped_rows(8)
    buffer.extend(data)
    added = stamped_rows(1, stamp=8)[0]
    buffer.add(added)
    for given in (data, added):
        given["action"] += 1000
        given["next", "observation"].fill_(-1)
    for read in (buffer.sample(), buffer[:], buffer[2], buffer[[1, 2]], buffer.read_all_in_order()):
        read["action"] += 1000
        read["next", "reward"].fill_(-1)
    assert_rows_are_whole(buffer[:])
    assert sorted(buffer[:]["action"].tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_samples_are_independent_of_later_writes() -> None:
    wide = TensorDict({"pixels": torch.arange(8, dtype=torch.uint8)[:, None].repeat(1, 60_000)}, [8])
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=8)  # large enough for recycled memory
    buffer.extend(wide)
    samples = [buffer.sample() for _ in range(12)]
    kept = [sample["pixels"][:, 0].clone() for sample in samples]
    buffer.extend(wide * 0)
    buffer.sample()
    for sample, first in zip(samples, kept, strict=True):
        assert bool((sample["pixels"] == first[:, None]).all())


# -- forms --------------------------------------------------------------------------------------------------------------

FORMS: list[tuple[str, Any]] = [
    ("bare tensor", torch.arange(4)),
    ("TensorDict", TensorDict({"a": torch.arange(4), "n": {"b": torch.ones(4, 2)}}, [4])),
    ("tensorclass", Step(torch.zeros(4, 3), torch.arange(4.0), batch_size=[4])),
    ("dict", {"a": torch.arange(4), "n": {"b": torch.ones(4, 2)}}),
    ("tuple", (torch.arange(4), torch.ones(4, 2))),
    ("list", [torch.arange(4), torch.ones(4, 2)]),
    ("named tuple", Pair(torch.arange(4), {"b": torch.ones(4, 2)})),
]


@pytest.mark.parametrize("data", [form for _, form in FORMS], ids=[name for name, _ in FORMS])
def test_records_keep_their_form(data: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), batch_size=3)
    buffer.extend(data)
    first = buffer[0]
    assert buffer.add(first) == 4
    for read in (buffer.sample(), buffer[:], first):
        assert type(read) is type(data)
        if isinstance(data, dict | TensorDict):
            assert set(read.keys()) == {"a", "n"}
        if isinstance(data, Pair):
            assert set(read.right) == {"b"}


ANYTHING = ["text", {"words": ["a", "b"], "n": 3}, (1, "x"), None, np.arange(3)]


def test_a_list_takes_anything() -> None:
    buffer = ReplayBuffer(storage=ListStorage(10), batch_size=4, collate_fn=list)
    buffer.extend(ANYTHING)
    buffer.add({"single": "dict"})
    assert (buffer[0], buffer[1], buffer[5]) == ("text", {"words": ["a", "b"], "n": 3}, {"single": "dict"})
    assert isinstance(buffer.sample(), list)


def test_tensordicts_with_text_are_for_lists() -> None:
    data = TensorDict({"a": torch.arange(2), "note": NonTensorData("hello", batch_size=[2])}, [2])
    buffer = ReplayBuffer(storage=ListStorage(10), batch_size=2)
    buffer.extend(data)
    assert list(buffer.sample()["note"]) == ["hello", "hello"]
    with pytest.raises(LayoutError, match=r"note must be a dense tensor.*keep such data in a ListStorage"):
        ReplayBuffer(storage=LazyTensorStorage(10)).extend(data)


def test_collate_fn_has_the_last_word() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, collate_fn=lambda batch: {"batch": batch})
    buffer.extend(torch.zeros(4, 3))
    assert buffer.sample()["batch"].shape == (2, 3)
    assert buffer.dense_leaves() is None


# -- sample -------------------------------------------------------------------------------------------------------------


def test_sample() -> None:
    buffer = _buffer(rows=8)
    data, info = buffer.sample(return_info=True)
    assert data.batch_size == (4,)
    assert data["action"].tolist() == info["index"].tolist(), "slot and stamp agree here"
    assert info["index_generation"].tolist() == [0, 0, 0, 0]
    assert_rows_are_whole(data)
    assert buffer.sample(100).batch_size == (100,)
    assert buffer.sample(np.int64(2)).batch_size == (2,)
    assert buffer.submit_sample(3).result().batch_size == (3,)


@pytest.mark.parametrize(
    ("size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), ("2", TypeError), (True, TypeError)]
)
def test_what_is_no_batch_size(size: Any, error: type) -> None:
    buffer = _buffer(rows=4)
    for call in (buffer.sample, buffer.can_sample, lambda n: buffer.submit_sample(n).result()):
        with pytest.raises(error, match="batch_size"):
            call(size)


def test_a_batch_size_must_come_from_somewhere() -> None:
    buffer = _buffer(rows=4, batch_size=None)
    with pytest.raises(ValueError, match="batch_size must be given to sample, or to the buffer"):
        buffer.sample()
    assert buffer.sample(2).batch_size == (2,)


def test_an_empty_buffer_has_nothing_to_sample() -> None:
    buffer = _buffer()
    for _ in range(2):
        assert not buffer.can_sample()
        with pytest.raises(EmptyBufferError, match="extend it first"):
            buffer.sample()
        buffer.extend(stamped_rows(1))
        assert buffer.can_sample()
        buffer.empty()


def test_iterating_samples_for_ever() -> None:
    buffer = _buffer(rows=4)
    sizes = [batch.batch_size[0] for batch, _ in zip(buffer, range(3), strict=False)]
    assert sizes == [4, 4, 4]
    assert buffer.next().batch_size == (4,)


def test_generators_are_passed() -> None:
    draws = []
    for _ in range(2):
        buffer = _buffer(rows=8, generator=torch.Generator().manual_seed(5))
        before = torch.get_rng_state()
        draws.append([buffer.sample()["action"].tolist() for _ in range(5)])
        assert torch.equal(before, torch.get_rng_state())
    assert draws[0] == draws[1]
    buffer.set_rng(torch.Generator().manual_seed(5))
    assert [buffer.sample()["action"].tolist() for _ in range(5)] == draws[0]
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator; got int"):
        buffer.set_rng(5)  # type: ignore[arg-type]
    first, second = (_buffer(rows=8).sample(64)["action"].tolist() for _ in range(2))
    assert first != second, "without one, every buffer has its own seed"


# -- emptying, stamps, repr ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty_write_count", [True, False])
def test_empty(empty_write_count: bool) -> None:
    buffer = _buffer(rows=5)
    buffer.empty(empty_write_count)
    assert (len(buffer), buffer.write_count) == (0, 0 if empty_write_count else 5)
    assert buffer.writer.generations_of(torch.arange(6)).tolist() == [1] * 5 + [-1]
    assert buffer.extend(stamped_rows(2)).tolist() == [0, 1]
    assert buffer.writer.generations_of(torch.arange(6)).tolist() == [2, 2, 1, 1, 1, -1]


def test_the_documents_stamps() -> None:
    rb = ReplayBuffer(storage=LazyTensorStorage(8), writer=RoundRobinWriter(track_generations=True))
    rb.extend(torch.arange(8))
    _, info = rb.sample(4, return_info=True)
    index, generation = info["index"], info["index_generation"]
    rb.extend(torch.arange(8, 11))  # overwrites slots 0, 1, 2
    stale = rb.writer.generations_of(index) != generation
    assert stale.tolist() == (index < 3).tolist()


def test_without_tracking_samples_carry_no_stamps() -> None:
    buffer = _buffer(rows=4, writer=RoundRobinWriter())
    _, info = buffer.sample(return_info=True)
    assert set(info) == {"index"}
    assert buffer.storage.generations is None


def test_repr_says_what_it_is() -> None:
    assert repr(_buffer(rows=3)) == (
        "ReplayBuffer(LazyTensorStorage, RandomSampler, RoundRobinWriter, len=3, batch_size=4)"
    )


def test_a_local_buffer_works_without_ray() -> None:
    program = (
        "import sys, torch; sys.modules['ray'] = None\n"
        "from replay_service import LazyTensorStorage, ReplayBuffer\n"
        "rb = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2); rb.extend(torch.arange(4)); rb.sample()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
