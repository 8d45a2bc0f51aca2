"""Fixtures that any test may ask for."""

from __future__ import annotations

import gc
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent

# What is compiled is kept, whatever the environment says: each of the many processes of a run would compile all of it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Set before torch and ray are imported, so that every process started by a test has them too.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

import pytest  # noqa: E402
import torch  # noqa: E402

from tests.rows import assert_rows_are_whole, stamped_rows  # noqa: E402

if TYPE_CHECKING:
    from tests.wire.serving import House

torch.set_num_threads(1)

POLL_EVERY_S = 0.01


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of the sight of `gc.collect`, which many tests call: it stays until the end anyway."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class RaySession:
    """The one Ray of the test run: ``address`` for other processes to join, ``namespace`` for names."""

    address: str
    namespace: str


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RaySession]:
    """Start a Ray of our own (four logical cores, no dashboard) and stop it after the last test."""
    import ray

    namespace = f"tests-{uuid.uuid4().hex}"
    context = ray.init(
        # Never a Ray that happens to run on this machine, whatever RAY_ADDRESS says.
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=400_000_000,
        log_to_driver=False,
        namespace=namespace,
    )
    try:
        yield RaySession(address=context.address_info["gcs_address"], namespace=namespace)
    finally:
        ray.shutdown()


@pytest.fixture(scope="session")
def guest_house(ray_session: RaySession) -> Iterator[House]:
    """One actor for buffers that a test hosts and does not end; see `tests/wire/serving.py`."""
    from tests.wire.serving import House

    house = House(ray_session.namespace)
    yield house
    house.close()


def poll(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "the condition") -> Any:
    """Return the first true value of ``condition()``; AssertionError if ``timeout_s`` pass without one."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not hold within {timeout_s} s; last value {value!r}")
        time.sleep(POLL_EVERY_S)


# These are functions given out by fixtures of session scope, so that hypothesis tests may ask for them.


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """``wait_until(condition, timeout_s=10.0, what=...)``: wait for a condition, never for a time."""
    return poll


@pytest.fixture(scope="session")
def transitions() -> Callable[..., Any]:
    """``transitions(rows, stamp=0)``: rows whose leaves all tell one stamp; see ``tests/rows.py``."""
    return stamped_rows


@pytest.fixture(scope="session")
def assert_whole_rows() -> Callable[..., None]:
    """``assert_whole_rows(data)``: fails if a row holds leaves of two different stamps."""
    return assert_rows_are_whole
