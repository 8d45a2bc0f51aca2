"""Nothing piles up: what parts keep beside the records is bounded by the ring, not by the number of calls.

`python -m benchmarks.memory` makes a million calls and watches the whole process.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import pytest
import torch

from replay_service import LazyTensorStorage, Sequence, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from tests.buffer.part_models import MOST_SLOTS, SAMPLERS, STORAGES, WRITERS, rows_of

ROUND = 60
PHASE = 25
"""Calls since the buffer was emptied last, when it is measured."""

ELSEWHERE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType)

pytestmark = pytest.mark.filterwarnings("ignore:.* are missing for a whole batch:UserWarning")


def _held_bytes(root: Any) -> int:
    """Memory of everything that can be reached from an object, arrays and tensors included; classes and code are not."""
    seen: set[int] = set()
    waiting, held = [root], 0
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, ELSEWHERE):
            continue
        seen.add(id(found))
        held += found.untyped_storage().nbytes() if isinstance(found, torch.Tensor) else sys.getsizeof(found)
        waiting += gc.get_referents(found)
    return held


def _assert_flat(buffer: TensorDictReplayBuffer) -> None:
    rows = [rows_of([number, number + 1, number + 2]) for number in range(4)]

    def use(turns: range) -> None:
        for turn in turns:
            buffer.extend(rows[turn % 4])
            if turn % 3 == 0:
                data = buffer.sample(2)
                buffer.update_priority(data["index"], torch.ones(data.shape[0]), generation=data["index_generation"])
            if turn % ROUND == ROUND - 1:
                buffer.empty()

    use(range(ROUND + PHASE))
    before = _held_bytes(buffer)
    use(range(ROUND + PHASE, 6 * ROUND + PHASE))
    # One entry of eight bytes for each of 300 calls would be 2400.
    assert _held_bytes(buffer) < before + 1000


def _writer() -> TensorDictRoundRobinWriter:
    return TensorDictRoundRobinWriter(track_generations=True)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_samplers(sampler: str) -> None:
    storage = LazyTensorStorage(MOST_SLOTS)
    _assert_flat(TensorDictReplayBuffer(storage=storage, sampler=SAMPLERS[sampler](), writer=_writer()))


@pytest.mark.parametrize("storage", ["list", "stack", "compressed", "memmap"])
def test_storages(storage: str) -> None:
    _assert_flat(TensorDictReplayBuffer(storage=STORAGES[storage](MOST_SLOTS), writer=_writer()))


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_writers(writer: str) -> None:
    _assert_flat(TensorDictReplayBuffer(storage=LazyTensorStorage(MOST_SLOTS), writer=WRITERS[writer]()))


def test_sample_units() -> None:
    storage = LazyTensorStorage(MOST_SLOTS)
    _assert_flat(TensorDictReplayBuffer(storage=storage, sample_unit=Sequence(2), writer=_writer()))


def test_growth_is_noticed() -> None:
    class Keeping(TensorDictRoundRobinWriter):
        calls: list[Any] | None = None

        def extend(self, data: Any) -> Any:
            self.calls = [*(self.calls or []), None]
            return super().extend(data)

    writer = Keeping(track_generations=True)
    with pytest.raises(AssertionError):
        _assert_flat(TensorDictReplayBuffer(storage=LazyTensorStorage(MOST_SLOTS), writer=writer))
