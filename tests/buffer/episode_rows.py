"""Steps of episodes whose every row tells which step of which episode it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer


def episode_rows(lengths: Sequence[int], *, first: int = 0, closed: bool = True) -> TensorDict:
    """Episodes `first`, `first + 1`… of these lengths one after the other: `episode` and `step` `[n]` int64, `next.done` `[n, 1]`.

    The last episode has no end flag unless `closed`.
    """
    episode = torch.repeat_interleave(torch.arange(first, first + len(lengths)), torch.tensor(lengths))
    step = torch.cat([torch.arange(length) for length in lengths])
    done = torch.cat([torch.arange(length) == length - 1 for length in lengths])
    done[-1] &= closed
    rows = episode.numel()
    return TensorDict({"number": episode, "step": step, "next": TensorDict({"done": done[:, None]}, [rows])}, [rows])


def buffer_of(
    sampler: object, rows: TensorDictBase | None = None, *, capacity: int = 1000, **kwargs: object
) -> ReplayBuffer:
    """A seeded buffer that draws with `sampler`, and holds `rows`."""
    settings: dict[str, object] = {
        "storage": LazyTensorStorage(capacity),
        "sampler": sampler,
        "generator": torch.Generator().manual_seed(0),
        **kwargs,
    }
    buffer: ReplayBuffer = TensorDictReplayBuffer(**settings)  # type: ignore[arg-type]
    if rows is not None:
        buffer.extend(rows)
    return buffer


def slices_in(sample: TensorDictBase) -> list[list[tuple[int, int]]]:
    """(episode, step) of each slice of a batch, cut after its `next.truncated` flags."""
    pairs = list(zip(sample["number"].tolist(), sample["step"].tolist(), strict=True))
    last = sample["next", "truncated"].flatten().tolist()
    found: list[list[tuple[int, int]]] = [[]]
    for pair, is_last in zip(pairs, last, strict=True):
        found[-1].append(pair)
        if is_last:
            found.append([])
    assert found.pop() == [], "the last slice of a batch ends with a flag"
    return found


def assert_runs(slices: list[list[tuple[int, int]]]) -> None:
    """Every slice is a run of consecutive steps of one episode."""
    for run in slices:
        number, step = run[0]
        assert run == [(number, step + i) for i in range(len(run))]


def chi_square(counts: Tensor) -> float:
    """Of counts `[k]` that should be alike."""
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())
