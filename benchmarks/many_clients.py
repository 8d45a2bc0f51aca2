"""Do many clients share one service fairly, and whole?

    python -m benchmarks.many_clients [--clients 8] [--seconds 30] [--transport distributed] [--stop-one]

Every client is a process that extends and samples in turn. Printed: rows per second of each client and of all, of one client alone,
and what came out wrong: rows lost, rows torn (leaves of one row with different stamps). `--stop-one` stops one client (SIGSTOP) half
way and compares what the others reach before and after.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from functools import partial
from typing import Any

import ray
import torch
from tensordict import TensorDict

from benchmarks.clock import report
from clients import connect
from replay_service import LazyTensorStorage, TensorDictReplayBuffer

__all__ = ["main"]

ROWS = 32
CAPACITY = 100_000


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--transport", default="distributed", choices=["ray", "distributed", "auto"])
    parser.add_argument("--stop-one", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    context = ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        address = context.address_info["gcs_address"]
        alone, _, _ = _run(address, 1, min(10.0, options.seconds), options.transport, False)
        rates, wrong, halves = _run(address, options.clients, options.seconds, options.transport, options.stop_one)
    finally:
        ray.shutdown()
    rows: list[dict[str, Any]] = [{"who": "one client alone", "rows/s": sum(alone), "of mean": 1.0}]
    mean = sum(rates) / len(rates)
    rows += [{"who": f"client {i}", "rows/s": rate, "of mean": rate / mean} for i, rate in enumerate(rates)]
    rows.append({"who": f"all {options.clients}", "rows/s": sum(rates), "of mean": sum(rates) / sum(alone)})
    report(f"Clients of one service, {options.transport} (last row: as a multiple of one alone)", rows, options.json)
    print(f"Rows lost: {wrong['lost']}, torn: {wrong['torn']}.")
    if options.stop_one:
        before, after = halves
        print(f"The others with one client stopped: {after / before:.2f} of their rate before.")


def _run(
    address: str, clients: int, seconds: float, transport: str, stop_one: bool
) -> tuple[list[float], dict[str, int], tuple[float, float]]:
    """Rows per second of every client; rows lost and torn; rate of all but the first in both halves."""
    owner: Any = TensorDictReplayBuffer(
        storage=partial(LazyTensorStorage, CAPACITY),
        batch_size=64,
        service_backend="ray",
        service_backend_options={"remote_config": {"num_cpus": 0}},
        transport=transport,
    )
    processes = multiprocessing.get_context("spawn")
    results, begin = processes.Queue(), processes.Event()
    with owner:
        name, namespace = owner.address.name, owner.address.namespace
        workers = [
            processes.Process(target=_work, args=(address, name, namespace, number, seconds, begin, results))
            for number in range(clients)
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            results.get(timeout=120)
        begin.set()
        if stop_one:
            time.sleep(seconds / 2)
            os.kill(workers[0].pid or 0, signal.SIGSTOP)
            time.sleep(seconds / 2)
            os.kill(workers[0].pid or 0, signal.SIGCONT)
        reports = sorted(results.get(timeout=seconds + 120) for _ in workers)
        for worker in workers:
            worker.join(30)
        written = owner.write_count
    lost = sum(report[2] for report in reports) - written
    torn = sum(report[3] for report in reports)
    others = reports[1:] or reports
    halves = (sum(report[4] for report in others), sum(report[5] for report in others))
    return [report[1] / seconds for report in reports], {"lost": lost, "torn": torn}, halves


def _work(address: str, name: str, namespace: str, number: int, seconds: float, begin: Any, results: Any) -> None:
    torch.set_num_threads(1)
    client = connect(name, namespace=namespace, address=address)
    client.extend(_stamped(number, 0))
    client.sample()
    results.put(number)
    begin.wait()
    start = time.monotonic()
    halves = [0, 0]
    written, torn, step = ROWS, 0, 1
    while (passed := time.monotonic() - start) < seconds:
        client.extend(_stamped(number, step))
        batch = client.sample()
        torn += int(sum((batch[key].reshape(64, -1) != batch["a"][:, None]).any(1).sum() for key in ("b", "c")))
        written += ROWS
        step += 1
        halves[int(passed * 2 > seconds)] += ROWS + 64
    results.put((number, float(sum(halves)), written, torn, *halves))
    client.close()


def _stamped(number: int, step: int) -> TensorDict:
    """Rows in which every leaf carries the same stamp."""
    stamp = torch.arange(ROWS) + step * ROWS + number * 10_000_000
    return TensorDict({"a": stamp, "b": stamp[:, None].expand(ROWS, 128).clone(), "c": stamp.double()}, [ROWS])


if __name__ == "__main__":
    main()
