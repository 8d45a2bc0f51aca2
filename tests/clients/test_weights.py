from __future__ import annotations

from typing import Any

import pytest
import ray
import torch

from clients.weights import WeightsBox
from replay_service.errors import ReplayTimeoutError

pytestmark = pytest.mark.usefixtures("ray_session")


def stored(value: float) -> Any:
    return ray.put({"w": torch.tensor(value)})


def polled(box: WeightsBox) -> tuple[int, float] | None:
    newest = box.poll()
    return None if newest is None else (newest[0], float(newest[1]["w"]))


def test_the_newest_version_is_given_once() -> None:
    box = WeightsBox()
    assert polled(box) is None
    box.offer(1, stored(1.0))
    box.offer(2, stored(2.0))
    assert polled(box) == (2, 2.0)
    assert polled(box) is None
    box.offer(3, stored(3.0))
    assert polled(box) == (3, 3.0)


def test_an_older_version_never_follows_a_newer_one() -> None:
    box = WeightsBox()
    box.offer(5, stored(5.0))
    box.offer(4, stored(4.0))
    assert polled(box) == (5, 5.0)
    box.offer(5, stored(4.0))
    assert polled(box) is None


@ray.remote(num_cpus=0)
def never() -> None:
    import threading

    threading.Event().wait()


def test_weights_that_do_not_come_are_an_error() -> None:
    box = WeightsBox(timeout_s=0.2)
    missing = never.remote()
    box.offer(1, missing)
    with pytest.raises(ReplayTimeoutError, match=r"timeout \(0.2 s\) must cover the call; the learner"):
        box.poll()
    ray.cancel(missing, force=True)
