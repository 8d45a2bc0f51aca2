"""Save, load, write, save, load, draw: for every storage, writer and sampler that go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from replay_service import TensorDictReplayBuffer
from tests.buffer.part_models import SAMPLERS, STORAGES, WRITERS, rows_of, why_not

CAPACITY = 7
DRAWS = 100
WHOLE = [
    (storage, writer, sampler)
    for storage in sorted(STORAGES)
    for writer in sorted(WRITERS)
    for sampler in sorted(SAMPLERS)
    if why_not(writer, sampler) is None
]

pytestmark = pytest.mark.filterwarnings("ignore:.* are missing for a whole batch:UserWarning")


def buffer_of(storage: str, writer: str, sampler: str, seed: int = 0) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=STORAGES[storage](CAPACITY),
        writer=WRITERS[writer](),
        sampler=SAMPLERS[sampler](),
        batch_size=2,
        priority_key="rank",
        generator=torch.Generator().manual_seed(seed),
    )


def future(buffer: TensorDictReplayBuffer, draws: int) -> list[Any]:
    """The next draws, whatever they give or raise, with a write in the middle of many."""
    seen: list[Any] = []
    for number in range(draws):
        if number == DRAWS // 2:
            seen.append(buffer.extend(rows_of([100, 101, 102])).tolist())
        try:
            batch = buffer.sample()
        except Exception as error:
            seen.append(repr(error))
        else:
            seen.append(plain(batch))
    return seen


def plain(batch: TensorDictBase) -> list[Any]:
    told = ("index", "index_generation", "priority_weight", "number", "mask", ("next", "truncated"))
    return [batch.get(name).tolist() for name in told if batch.get(name, None) is not None]


@pytest.mark.parametrize(("storage", "writer", "sampler"), WHOLE)
def test_draws_go_on_as_if_nothing_had_happened(storage: str, writer: str, sampler: str, folder: Path) -> None:
    kept = buffer_of(storage, writer, sampler)
    for numbers in ([0, 1, 2, 3], [4, 5], [6, 7, 8]):
        kept.extend(rows_of(numbers))
        future(kept, 1)
    if "prioritized" in sampler:
        kept.update_priority([0, 3], torch.tensor([5.0, 0.25]))
    kept.dumps(folder / "first")

    second = buffer_of(storage, writer, sampler, seed=1)
    second.extend(rows_of([50, 51]))  # what it has makes room
    second.loads(folder / "first")
    for buffer in (kept, second):
        buffer.extend(rows_of([9, 10, 11]))
        future(buffer, 1)
    second.dumps(folder / "second")
    third = buffer_of(storage, writer, sampler, seed=2)
    third.loads(folder / "second")

    expected = future(kept, DRAWS)
    assert future(third, DRAWS) == expected
    assert future(second, 5) == expected[:5], "a save must not change what is saved"
    assert third.write_count == kept.write_count
    assert (
        third.writer.generations_of(torch.arange(CAPACITY)).tolist()
        == kept.writer.generations_of(torch.arange(CAPACITY)).tolist()
    )
