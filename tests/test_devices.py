"""Where memory is: what torch takes for its default device (`torch.set_default_device("cuda")` in a user's script) moves nothing here.

`meta` stands in for that device: it is on every machine, and whatever lands there cannot be read any more.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from clients import ReplayClient
from replay_service import HERReplayBuffer, LazyTensorStorage, Sequence, TensorDictReplayBuffer, traj
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.inproc import InprocChannel
from tests.buffer.goal_rows import distance, goal_rows
from tests.buffer.part_models import COLUMNAR, MOST_SLOTS, SAMPLERS, STORAGES, WRITERS, rows_of, why_not
from tests.source_tree import Source, source_from, sources, within

pytestmark = pytest.mark.filterwarnings("ignore:.* are missing for a whole batch:UserWarning")

# fmt: off
MADE_ON_THE_DEFAULT_DEVICE = frozenset({
    "arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor",
    "tensor", "zeros",
})
# fmt: on
ROOMS = ("replay_service", "clients")
NOT_OURS = ("clients.policies", "clients.trainers")
"""Networks and what they compute with live where the user wants them."""


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_a_buffer_stays_on_the_cpu(sampler: str) -> None:
    first, second = rows_of(list(range(6))), rows_of(list(range(6, 12)))
    for storage in STORAGES:
        made = STORAGES[storage](MOST_SLOTS)
        for writer in WRITERS:
            if why_not(writer, sampler) is None:
                made.empty()
                with torch.device("meta"):
                    _use(made, SAMPLERS[sampler](), WRITERS[writer](), storage in COLUMNAR, first, second)


def _use(storage: Any, sampler: Any, writer: Any, columnar: bool, first: Any, second: Any) -> None:
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, writer=writer)
    buffer.extend(first)
    buffer.extend(second)
    if columnar:
        assert storage.column("number").device.type == "cpu"
    data = buffer.sample(4)
    assert {value.device.type for value in data.values(True, True)} == {"cpu"}
    assert buffer[:].shape[0] == len(storage)
    assert buffer[-1]["number"].numel() == 1
    assert buffer[[0, 1]].shape == (2,)
    buffer.update_priority(data["index"], [1.0] * data.shape[0], generation=data["index_generation"])
    if columnar:
        patch = {"patched": data["number"]}
        late = {"version_key": "policy_version", "version": 3}
        buffer.update_if_present(index=data["index"], generation=data["index_generation"], patch=patch, **late)
        buffer.set_at_("patched", 5, [0])
    buffer.load_state_dict(buffer.state_dict())
    buffer.sample(2)
    buffer.empty()
    buffer.add(first[0])
    assert len(buffer) == 1


def test_windows_goals_and_queries_stay_on_the_cpu() -> None:
    rows = goal_rows([5, 4, 6])
    with torch.device("meta"):
        windows = TensorDictReplayBuffer(storage=LazyTensorStorage(12), sample_unit=Sequence(3, burn_in=1))
        windows.extend(rows)
        assert windows.sample(2)["learning_mask"].tolist() == [False, True, True, True] * 2
        assert [len(one) for one in windows.query(traj.length > 4)] == [6]
        goals = HERReplayBuffer(distance, storage=LazyTensorStorage(12))
        goals.extend(rows)
        assert set(goals.sample(8)["desired_goal"][:, 0].tolist()) <= {-1.0, 0.0, 1.0, 2.0}
        lanes = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
        lanes.extend(torch.stack([rows[:4], rows[4:8]]))
        assert lanes.sample(3)["index"].shape == (3, 2)
        assert lanes[1:3].shape == (2, 2)


def test_a_handle_stays_on_the_cpu() -> None:
    rows = goal_rows([5, 4])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), writer=WRITERS["tensordict ring"](), sampler=SAMPLERS["prioritized"]()
    )
    with torch.device("meta"):
        client = ReplayClient(ServiceAddress("near", "tests", 4, "auto"), InprocChannel(Dispatch(buffer).serve))
        client.extend(rows)
        client.add(rows[0])
        data = client.sample(4)
        assert {value.device.type for value in data.values(True, True)} == {"cpu"}
        client.update_priority(data["index"], [1.0] * 4, generation=data["index_generation"])
        client.update_priority([0, 1], 2.0)
        patch = {"step": data["step"]}
        result = client.update_if_present(index=data["index"], generation=data["index_generation"], patch=patch)
        assert result.updated_count == 4
        for index in (0, slice(1, 3), [2, 3], slice(None)):
            client[index] = client[index]
        client.write_all(client.read_all_in_order())
        assert [len(one) for one in client.query(traj.length > 4)] == [5]
        assert (len(client), client.stats()["size"]) == (10, 10)


def test_a_storage_is_where_it_was_asked_for_and_not_where_its_data_came_from() -> None:
    rows = rows_of([0, 1])
    there = LazyTensorStorage(4, device="meta")
    there.set(range(2), rows)
    assert {there.column(leaf.key).device.type for leaf in there.leaves() or ()} == {"meta"}
    here = LazyTensorStorage(4)
    with torch.device("meta"):
        here.set(range(2), rows)
    assert {here.column(leaf.key).device.type for leaf in here.leaves() or ()} == {"cpu"}
    follows = LazyTensorStorage(4, device="auto")
    follows.set(range(2), rows)
    assert follows.device == torch.device("cpu")


def test_every_tensor_that_is_made_says_where() -> None:
    ours = [source for source in sources() if _is_ours(source.module)]
    offences = [offence for source in ours for offence in placeless(source)]
    assert not offences, "\n".join(["", *offences])


@pytest.mark.parametrize("line", ["torch.zeros(3)", "torch.arange(4, dtype=torch.int64)", "f(torch.tensor([1]))"])
def test_a_tensor_without_a_place_is_found(line: str) -> None:
    assert list(placeless(source_from(line, "replay_service")))
    assert not list(placeless(source_from("torch.zeros(3, device=device); torch.full((2,), 1, **place)", "clients")))


def placeless(source: Source) -> Iterator[str]:
    """Calls that make a tensor on torch's default device."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_made = ast.unparse(node.func.value) == "torch" and node.func.attr in MADE_ON_THE_DEFAULT_DEVICE
            if is_made and not any(keyword.arg in ("device", None) for keyword in node.keywords):
                yield f"{source.module}:{node.lineno} makes a tensor on torch's default device: {ast.unparse(node)}"


@functools.cache
def _is_ours(module: str) -> bool:
    return any(within(module, room) for room in ROOMS) and not any(within(module, room) for room in NOT_OURS)
