"""What is refused is refused alike wherever the buffer is: the key or argument named, and nothing changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from clients import ReplayClient
from replay_service import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from replay_service.errors import EmptyBufferError, LayoutError, PriorityError, TransportUnavailableError
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.wire.serving import House

CAPACITY = 20
PLACES = ("here", "ray", "distributed", "auto")
NAN = float("nan")
Call = Callable[[Any], Any]

RECIPE: dict[str, Any] = {
    "storage": partial(LazyTensorStorage, CAPACITY),
    "sampler": partial(PrioritizedSampler, CAPACITY, alpha=0.7, beta=0.5),
    "writer": partial(TensorDictRoundRobinWriter, track_generations=True),
    "priority_key": "error",
    "batch_size": 4,
}


@pytest.fixture(scope="module")
def owner(guest_house: House) -> Any:
    return guest_house.host(partial(TensorDictReplayBuffer, **RECIPE))


@pytest.fixture(scope="module")
def places(owner: Any) -> Iterator[dict[str, Any]]:
    handles = {place: ReplayClient(replace(owner.address, transport=place)) for place in PLACES[1:]}
    yield {"here": TensorDictReplayBuffer(**RECIPE), **handles}
    for handle in handles.values():
        handle.close()


@pytest.fixture(params=PLACES)
def buffer(request: pytest.FixtureRequest, places: dict[str, Any], owner: Any) -> Any:
    """A full buffer: here, or behind a handle of each transport."""
    found = places[request.param]
    (found if request.param == "here" else owner).empty()
    found.extend(stamped_rows(CAPACITY))
    return found


def changed(key: Any, value: Any, rows: int = 8) -> TensorDict:
    """Rows of which one entry is another."""
    return stamped_rows(rows).set(key, value)


def late(**settings: Any) -> Call:
    index = torch.arange(4)
    given = {"index": index, "generation": torch.zeros(4, dtype=torch.int64), "patch": {"action": index}, **settings}
    return lambda b: b.update_if_present(**given)


ROWS: dict[str, tuple[Callable[[], Any], str]] = {
    "a missing key": (lambda: stamped_rows(8).exclude("action"), "action"),
    "a missing nested key": (lambda: stamped_rows(8).exclude(("next", "reward")), r"next\.reward"),
    "an extra key": (lambda: changed("more", torch.zeros(8)), "more"),
    "float64 into float32": (lambda: changed(("next", "reward"), torch.zeros(8, 1).double()), r"next\.reward"),
    "[8, 1] into [8, 4]": (lambda: changed("observation", torch.zeros(8, 1)), "observation"),
    "another rank": (lambda: changed("observation", torch.zeros(8, 2, 2)), "observation"),
    "one row for eight": (lambda: {**stamped_rows(8), "action": torch.zeros(1, dtype=torch.int64)}, "action"),
    "no rows at all": (lambda: stamped_rows(1)[0], "batch_size"),
    "nothing": (lambda: TensorDict({}, [4]), "data"),
    "a level where a tensor is": (
        lambda: stamped_rows(8).exclude("action").set(("action", "x"), torch.zeros(8)),
        "action",
    ),
    "no memory": (lambda: changed("observation", torch.zeros(8, 4, device="meta")), "observation"),
}


@pytest.mark.parametrize(("make", "named"), ROWS.values(), ids=ROWS)
def test_rows_that_do_not_fit(buffer: Any, make: Callable[[], Any], named: str) -> None:
    # Without memory there is nothing to send: not wrong in its layout, so over the channel it is no dense tensor.
    kinds = (LayoutError, TransportUnavailableError) if "meta" in repr(make()) else LayoutError
    with unchanged(buffer), pytest.raises(kinds, match=named):
        buffer.extend(make())
    assert buffer.extend(stamped_rows(8)).shape == (8,)


CALLS: dict[str, tuple[Call, type[Exception] | tuple[type[Exception], ...], str]] = {
    "batch size 0": (lambda b: b.sample(0), ValueError, r"batch_size \(0\)"),
    "batch size below 0": (lambda b: b.sample(-3), ValueError, r"batch_size \(-3\)"),
    "batch size beyond all": (lambda b: b.sample(2**70), ValueError, "batch_size"),
    "batch size text": (lambda b: b.submit_sample("4").result(), TypeError, "batch_size"),
    "return_info": (lambda b: b.sample(4, return_info="no"), TypeError, r"return_info \('no'\)"),
    "index beyond": (lambda b: b[CAPACITY], IndexError, "20"),
    "index below": (lambda b: b[[0, -CAPACITY - 1]], IndexError, "-21"),
    "index beyond 64 bits": (lambda b: b[[2**70]], IndexError, "64 bits"),
    "unsigned index": (lambda b: b[np.array([2**64 - 1], dtype=np.uint64)], IndexError, "64 bits"),
    "index text": (lambda b: b[["a"]], TypeError, "index must be integers or flags"),
    "index of None": (lambda b: b[[None]], TypeError, "index must be integers or flags; got NoneType"),
    "short mask": (lambda b: b[torch.ones(19, dtype=torch.bool)], IndexError, "mask"),
    "priority below 0": (lambda b: b.update_priority([0], [-1.0]), PriorityError, r"priority \(-1.0\)"),
    "priority NaN": (lambda b: b.update_priority([0, 1], torch.tensor([1.0, NAN])), PriorityError, "nan"),
    "priority text": (lambda b: b.update_priority([0], "high"), TypeError, "priority must be numbers; got str"),
    "priority None": (lambda b: b.update_priority([0], [None]), TypeError, "priority must be numbers"),
    "priority complex": (lambda b: b.update_priority([0], torch.ones(1) * 1j), TypeError, "priority must be real"),
    "priorities too few": (lambda b: b.update_priority([0, 1, 2], [1.0, 2.0]), ValueError, "priority"),
    "generation text": (
        lambda b: b.update_priority([0], [1.0], generation="now"),
        TypeError,
        "generation must be numbers; got str",
    ),
    "priorities of nothing": (lambda b: b.update_tensordict_priority(None), TypeError, "data must be a TensorDict"),
    "priorities without index": (
        lambda b: b.update_tensordict_priority(changed("error", torch.ones(8))),
        KeyError,
        "index",
    ),
    "late index": (late(index="all"), TypeError, "index must be"),
    "late generation": (late(generation=None), TypeError, "generation must be numbers; got NoneType"),
    "late patch of another key": (late(patch={"more": torch.zeros(4)}), LayoutError, "more"),
    "late patch too short": (late(patch={"action": torch.zeros(3, dtype=torch.int64)}), LayoutError, "patch"),
    "late version key": (late(version_key=3, version=1), TypeError, r"version_key \(3\)"),
    "late version": (
        late(patch={"observation": torch.zeros(4, 4)}, version_key="action", version="new"),
        TypeError,
        "version must be numbers; got str",
    ),
    "late newer": (late(version_key="action", version=1, require_newer="yes"), TypeError, "require_newer"),
    "update_priority": (lambda b: b.extend(stamped_rows(2), update_priority="no"), TypeError, "update_priority"),
    "carried NaN": (lambda b: b.extend(changed("error", torch.full((8,), NAN))), (PriorityError, LayoutError), "error|nan"),
    "query": (lambda b: b.query(TensorDict({}, [])), TypeError, "predicate"),
    "query key": (lambda b: b.query(trajectory_key=3), TypeError, r"trajectory_key \(3\)"),
    "write_all end": (lambda b: b.write_all(stamped_rows(4), "4"), (TypeError, ValueError), "end"),
    "set outside": (lambda b: b.__setitem__(CAPACITY, stamped_rows(1)[0]), IndexError, "20"),
    "set other rows": (lambda b: b.__setitem__(slice(0, 4), stamped_rows(4).exclude("action")), LayoutError, "action"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "kinds", "named"), CALLS.values(), ids=CALLS)
def test_calls_that_make_no_sense(buffer: Any, call: Call, kinds: Any, named: str) -> None:
    with unchanged(buffer), pytest.raises(kinds, match=named):
        call(buffer)
    assert_rows_are_whole(buffer.sample(3))


def test_nothing_to_draw(buffer: Any, owner: Any, places: dict[str, Any]) -> None:
    (buffer if buffer is places["here"] else owner).empty()
    with pytest.raises(EmptyBufferError, match=r"empty|at least"):
        buffer.sample(2)
    assert (len(buffer), buffer.write_count) == (0, 0)


def test_what_pickle_does_not_take(places: dict[str, Any], owner: Any) -> None:
    for place in ("ray", "auto"):
        with pytest.raises(TypeError, match="data must be something that pickle takes") as caught:
            places[place].extend(threading.Lock())
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="arguments of append_transform must be something that pickle takes"):
        owner.append_transform(threading.Lock())


@contextmanager
def unchanged(buffer: Any) -> Iterator[None]:
    """Holds a buffer to have the same records, counts and stamps after a block as before."""
    before = state_of(buffer)
    yield
    assert state_of(buffer) == before


def state_of(buffer: Any) -> tuple[Any, ...]:
    contents = [tensor.tolist() for tensor in buffer[:].values(True, True)]
    # Priorities are taken for the stamps that are current.
    index, ones = torch.arange(CAPACITY), torch.ones(CAPACITY)
    current = [
        buffer.update_priority(index, ones, generation=torch.full((CAPACITY,), stamp)).updated.tolist()
        for stamp in range(3)
    ]
    return len(buffer), buffer.write_count, contents, current
