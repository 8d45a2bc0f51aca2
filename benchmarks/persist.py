"""Checkpoints: save and load beside `cp` of the same bytes, what a second save writes, what one costs samplers, and queries.

    python -m benchmarks.persist [--megabytes 1000] [--rounds 3] [--folder .] [--json FILE]

Everything is measured in one run, taken in turn. `cp` leaves its bytes in the page cache; `cp, sync` waits until they are on disk, as a
save does. Loads go into a buffer without memory of its own, as after a restart.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.clock import report
from replay_service import LazyMemmapStorage, LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer, traj
from replay_service.records import SaveReceipt

STORAGES: dict[str, Callable[[int], Any]] = {"tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}
WIDTH = 4 * 84 * 84
ROW_BYTES = 2 * WIDTH + 29
QUERY_STEPS = 1_000_000


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where checkpoints are written; None: a temporary folder")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    records = int(options.megabytes * 1e6 / ROW_BYTES)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="replay-persist-") as name:
        folder = Path(name)
        rates = [row for kind in STORAGES for row in rates_of(kind, records, options.rounds, folder)]
        report("Save and load beside cp (medians, in turn)", rates, options.json)
        report("A second save after 5% changed", second_saves(records, folder), None)
        report("What one save costs samplers", concurrent(records, folder), None)
    report("A query over 1,000,000 steps", [query_cost(options.rounds)], None)


def steps(count: int) -> TensorDict:
    """Transitions like Atari's: two stacks of frames and three scalars."""
    frames = torch.randint(255, (2, count, WIDTH), dtype=torch.uint8)
    return TensorDict(
        {
            "obs": frames[0],
            "action": torch.zeros(count, dtype=torch.int64),
            "next": {
                "obs": frames[1],
                "reward": torch.randn(count, 1),
                "done": torch.zeros(count, 1, dtype=torch.bool),
            },
        },
        [count],
    )


def buffer_of(kind: str, records: int) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=STORAGES[kind](records), sampler=PrioritizedSampler(records, alpha=0.7, beta=0.5), batch_size=256
    )


def filled(kind: str, records: int) -> TensorDictReplayBuffer:
    buffer = buffer_of(kind, records)
    chunk = steps(min(records, 1000))
    while buffer.write_count < records:
        buffer.extend(chunk[: records - buffer.write_count])
    return buffer


def rates_of(kind: str, records: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """GB/s of save, load and cp."""
    buffer = filled(kind, records)
    saved, copied = folder / "saved", folder / "copied"
    size = buffer.dumps(saved).size_bytes
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for what, call in {
            "cp": lambda: _copy(saved, copied),
            "cp, sync": lambda: _copy(saved, copied, sync=True),
            "load": lambda: _load(kind, records, saved),
            "save": lambda: buffer.dumps(saved),
        }.items():
            shutil.rmtree(saved if what == "save" else copied, ignore_errors=True)  # so that all of it is written
            took.setdefault(what, []).append(_seconds(call))
    rate = {what: size / 1e9 / statistics.median(seconds) for what, seconds in took.items()}
    shutil.rmtree(saved)
    shutil.rmtree(copied, ignore_errors=True)
    return [
        {
            "storage": kind,
            "operation": what,
            "GB/s": rate[what],
            "of cp": rate[what] / rate["cp"],
            "of cp, sync": rate[what] / rate["cp, sync"],
        }
        for what in rate
    ]


def second_saves(records: int, folder: Path) -> list[dict[str, Any]]:
    """Bytes that are written again, and how long the lock was held."""
    rows = []
    for kind in STORAGES:
        buffer = filled(kind, records)
        buffer.dumps(folder / "saved")
        buffer.extend(steps(records // 20))
        receipt: SaveReceipt = buffer.dumps(folder / "saved")
        rows.append(
            {
                "storage": kind,
                "MB": receipt.size_bytes / 1e6,
                "% written": 100 * receipt.written_bytes / receipt.size_bytes,
                "seconds": receipt.took_s,
                "locked ms": 1000 * receipt.locked_s,
                "longest lock ms": 1000 * receipt.longest_lock_s,
            }
        )
        shutil.rmtree(folder / "saved")
    return rows


def concurrent(records: int, folder: Path) -> list[dict[str, Any]]:
    """Latencies of `sample` and `extend` in this thread, with and without another one that saves again and again."""
    buffer = filled("tensor", records)
    few = steps(32)
    rows = []
    for what, call in (("sample 256", buffer.sample), ("extend 32", lambda: buffer.extend(few))):
        alone = _latencies(call, 3.0)
        is_over = threading.Event()
        saves: list[SaveReceipt] = []

        def save(over: threading.Event = is_over, done: list[SaveReceipt] = saves) -> None:
            while not over.is_set():
                shutil.rmtree(folder / "saved", ignore_errors=True)
                done.append(buffer.dumps(folder / "saved"))

        saver = threading.Thread(target=save)
        saver.start()
        beside = _latencies(call, 5.0)
        is_over.set()
        saver.join()
        rows.append(
            {
                "call": what,
                "p50 ms": alone[0],
                "p50 ms saving": beside[0],
                "p99 ms": alone[1],
                "p99 ms saving": beside[1],
                "max ms saving": beside[2],
                "saves": len(saves),
                "longest lock ms": 1000 * max(receipt.longest_lock_s for receipt in saves),
            }
        )
    return rows


def query_cost(rounds: int) -> dict[str, Any]:
    """A query that matches nothing, beside `torch.cumsum` of the columns that it reads."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(QUERY_STEPS), batch_size=1)
    done = torch.zeros(QUERY_STEPS, 1, dtype=torch.bool)
    done[99::100] = True
    reward = torch.rand(QUERY_STEPS, 1)
    buffer.extend(TensorDict({"next": {"reward": reward, "done": done}}, [QUERY_STEPS]))
    predicate = traj["next", "reward"].sum() > 1e9
    buffer.query(predicate)
    took: dict[str, list[float]] = {"query": [], "cumsum": []}
    for _ in range(3 * rounds):
        took["query"].append(_seconds(lambda: buffer.query(predicate)))
        took["cumsum"].append(_seconds(lambda: (reward.cumsum(0), done.cumsum(0))))
    query, cumsum = (statistics.median(took[what]) for what in ("query", "cumsum"))
    return {"query ms": 1000 * query, "cumsum ms": 1000 * cumsum, "passes": query / cumsum}


def _copy(source: Path, target: Path, sync: bool = False) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)
    if sync:
        subprocess.run(["sync", "-f", target], check=True)


def _load(kind: str, records: int, path: Path) -> None:
    buffer_of(kind, records).loads(path)


def _seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _latencies(call: Callable[[], Any], seconds: float) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum, in milliseconds."""
    times = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        times.append(1000 * _seconds(call))
    times.sort()
    return statistics.median(times), times[min(len(times) - 1, int(0.99 * len(times)))], times[-1]


if __name__ == "__main__":
    main()
