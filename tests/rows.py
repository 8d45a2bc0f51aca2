"""Rows in which every leaf tells the same stamp, so that a torn row shows."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase

# float32 holds every integer up to here; a larger stamp would look torn although it is not.
MAX_STAMP = 2**24

# Coprime periods: a row made of two stamps differs in some flag unless the stamps are 35 apart.
TERMINATED_EVERY = 5
TRUNCATED_EVERY = 7


def stamped_rows(rows: int, stamp: int = 0) -> TensorDict:
    """Make transitions ``[rows]``; row ``i`` carries ``stamp + i`` in each of its leaves.

    Leaves: ``observation [rows, 4] float32``, ``action [rows] int64``, and under ``next`` ``observation [rows, 4]
    float32``, ``reward [rows, 1] float32``, ``done``, ``terminated``, ``truncated`` ``[rows, 1] bool``. Flags are
    functions of the stamp: terminated on multiples of 5, truncated on the other multiples of 7, done on both.
    """
    if not 0 <= stamp <= MAX_STAMP - rows:
        raise ValueError(f"stamp ({stamp}) must be between 0 and {MAX_STAMP - rows} for {rows} rows")
    stamps = torch.arange(stamp, stamp + rows)
    observation = stamps.to(torch.float32)[:, None].repeat(1, 4)
    terminated, truncated = _flags(stamps)
    following = TensorDict(
        {
            "observation": observation.clone(),
            "reward": stamps.to(torch.float32)[:, None],
            "done": (terminated | truncated)[:, None],
            "terminated": terminated[:, None],
            "truncated": truncated[:, None],
        },
        batch_size=[rows],
    )
    return TensorDict({"observation": observation, "action": stamps, "next": following}, batch_size=[rows])


def assert_rows_are_whole(data: TensorDictBase) -> None:
    """Fail, naming leaf and row, unless every leaf of every row of ``data`` tells the stamp of its ``action``.

    Leaves that :func:`stamped_rows` does not make (``index``, weights) are ignored; its own must all be there.
    """
    stamps = data.get("action").flatten()
    expected = {
        ("observation",): stamps,
        ("next", "observation"): stamps,
        ("next", "reward"): stamps,
    }
    terminated, truncated = _flags(stamps)
    expected |= {
        ("next", "terminated"): terminated,
        ("next", "truncated"): truncated,
        ("next", "done"): terminated | truncated,
    }
    for key, wanted in expected.items():
        leaf = data.get(key).reshape(stamps.numel(), -1)
        torn = (leaf != wanted[:, None].to(leaf.dtype)).any(dim=1).nonzero().flatten()
        if torn.numel():
            row = int(torn[0])
            name = ".".join(key)
            raise AssertionError(
                f"{torn.numel()} torn rows: row {row} has action {int(stamps[row])} but {name} {leaf[row].tolist()}"
            )


def _flags(stamps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    terminated = stamps % TERMINATED_EVERY == 0
    return terminated, (stamps % TRUNCATED_EVERY == 0) & ~terminated
