"""Calls that a handle and a local buffer answer alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from replay_service import traj
from tests.contracts.handle_recipes import (
    Call,
    anything,
    by_lane,
    filled,
    get,
    ignored,
    lanes,
    late,
    prioritized,
    put,
    records,
    tensordicts,
)
from tests.rows import stamped_rows

__all__ = ["CASES"]

TENSORDICT_CALLS: dict[str, list[Call]] = {
    "empty": [
        len,
        lambda b: b.write_count,
        lambda b: b.sample(),
        get(0),
        get(slice(None)),
        get([]),
        lambda b: b.read_all_in_order(),
        lambda b: b.extend(stamped_rows(0)),
        len,
    ],
    "extend": [filled(3), filled(4), filled(2), get(slice(None)), len, lambda b: b.write_count],
    "around": [filled(7), filled(7), get(slice(None)), lambda b: b.extend(stamped_rows(25)), get(slice(None))],
    "add": [lambda b: b.add(stamped_rows(1, stamp=5)[0]), filled(9), lambda b: b.add(stamped_rows(1)[0]), get(...)],
    "sample": [
        filled(7),
        lambda b: b.sample(),
        lambda b: b.sample(3),
        lambda b: b.sample(batch_size=20),
        lambda b: b.sample(5, return_info=True),
        lambda b: b.sample(return_info=True),
    ],
    "batch sizes": [
        filled(7),
        *(lambda b, size=size: b.sample(size) for size in (0, -1, True, 2.0, "4", 256, 7, 1, 300)),
    ],
    "futures": [
        lambda b: b.submit_extend(stamped_rows(4)).result(),
        lambda b: b.submit_sample(2).result(),
        lambda b: b.submit_sample().result(),
        lambda b: b.submit_extend(stamped_rows(2).exclude("action")).result(),
    ],
    "read": [
        filled(7),
        *(get(index) for index in (0, -1, 6, 7, -8, slice(2, 5), slice(None, None, 2), slice(5, 1), slice(-3, None))),
        *(
            get(index)
            for index in ([1, 2], torch.tensor([3, 3]), np.array([0, -1]), range(3), torch.tensor([[0, 1], [2, 3]]))
        ),
        *(
            get(index)
            for index in (torch.arange(7) % 2 == 0, torch.ones(3, dtype=torch.bool), [7], [-8], 1.5, True, None)
        ),
        *(get(index) for index in ("action", ("next", "reward"), "next", "nothing", ("next", "nothing"))),
    ],
    "write": [
        filled(7),
        put(2, stamped_rows(1, stamp=30)[0]),
        put(-1, stamped_rows(1, stamp=31)[0]),
        put(slice(3, 5), stamped_rows(2, stamp=32)),
        put([0, 1, 0], stamped_rows(3, stamp=40)),
        put(torch.arange(7) == 4, stamped_rows(1, stamp=50)),
        get(slice(None)),
        put(7, stamped_rows(1)[0]),
        put(slice(3, 5), stamped_rows(3)),
        put(2, stamped_rows(1).exclude("action")[0]),
        put(slice(None), stamped_rows(7, stamp=60).set("fresh", torch.arange(7))),
        get(slice(None)),
    ],
    "in order": [
        filled(7),
        *(lambda b, end=end: b.read_all_in_order(end) for end in (None, 0, 3, 7, 8, -1, True, "3")),
        lambda b: b.write_all(stamped_rows(7, stamp=20)),
        lambda b: b.write_all(stamped_rows(2, stamp=30), 2),
        lambda b: b.write_all(stamped_rows(2, stamp=40), end=-1),
        lambda b: b.write_all(stamped_rows(2, stamp=40)),
        lambda b: b.read_all_in_order(),
    ],
    "late": [
        filled(7),
        late(),
        late(stale=True),
        late(submitted=True),
        late(submitted=True, version_key="action", version=3),
        late(submitted=True, version_key="nothing", version=3),
        late(version_key="action", version=3),
        late(version_key="action", version=torch.tensor([0, 3, 4]), require_newer=True),
        late(version_key="action"),
        late(version=3),
        late(version_key="nothing", version=3),
        lambda b: b.update_if_present(index=[0], generation=torch.tensor([0, 1]), patch={"action": torch.zeros(1)}),
        lambda b: b.update_if_present(index=[0], generation=torch.tensor([0]), patch={"action": torch.zeros(1)}),
        lambda b: b.update_if_present(index=[0], generation=torch.tensor([0]), patch={"none": torch.zeros(1)}),
        get(slice(None)),
        filled(10),
        late(),
    ],
    "no priorities": [
        filled(3),
        lambda b: b.update_priority([0, 1], [1.0, 2.0]),
        lambda b: b.update_priority(torch.tensor([0, 1]), torch.ones(2), generation=torch.tensor([0, 5])),
        lambda b: b.update_priority(torch.tensor([0, 9]), torch.ones(2)),
        lambda b: b.update_priority(torch.tensor([0, 1]), torch.tensor([1.0, torch.nan])),
        lambda b: b.update_priority([0.5], [1.0]),
    ],
    "query": [
        filled(9),
        lambda b: b.query(traj["next", "reward"].sum() > 4, trajectory_key=("next", "done")),
        lambda b: b.query(traj.length > 100),
        lambda b: b.query(3),
    ],
    "into an empty one": [
        lambda b: b.extend([torch.tensor(1), torch.tensor(2)]),
        lambda b: b.extend(torch.zeros(2)),
        lambda b: b.add(torch.zeros(2)),
        lambda b: b.extend({"a": torch.zeros(2), "index": torch.ones(2)}),
        lambda b: b.sample(2),
    ],
    "again": [
        filled(3),
        lambda b: b.extend(b.sample(4)),
        lambda b: b.add(b.sample(1)[0]),
        lambda b: b[:],
        lambda b: b.extend(b.sample(4).select("index")),
        len,
    ],
    "refused": [
        filled(3),
        lambda b: b.extend(stamped_rows(2).exclude("action")),
        lambda b: b.extend(stamped_rows(2).set("more", torch.zeros(2))),
        lambda b: b.extend(stamped_rows(2).set("action", torch.zeros(2))),
        lambda b: b.extend(stamped_rows(2).set("observation", torch.zeros(2, 3))),
        lambda b: b.extend({**dict(stamped_rows(2).items()), "action": torch.zeros(3, dtype=torch.int64)}),
        lambda b: b.extend(torch.zeros(2)),
        lambda b: b.extend("text"),
        lambda b: b.extend(["text"]),
        lambda b: b.extend(TensorDict({"observation": NonTensorStack("a", "b"), "next": stamped_rows(2)["next"]}, [2])),
        lambda b: b.extend({"observation": "text"}),
        lambda b: b.extend(None),
        lambda b: b.add(stamped_rows(2)),
        lambda b: b.add("text"),
        len,
        lambda b: b.write_count,
        get(slice(None)),
        lambda b: b.sample(return_info=True),
    ],
}

PRIORITIZED_CALLS: dict[str, list[Call]] = {
    "priorities": [
        filled(6),
        lambda b: b.update_priority(torch.arange(6), torch.arange(6) + 0.5),
        lambda b: b.sample(return_info=True),
        lambda b: b.update_priority([0, 1], 2.0),
        lambda b: b.update_priority(torch.tensor([0, 1]), torch.tensor([[1.0, 3.0], [0.5, 0.25]])),
        lambda b: b.update_priority(torch.tensor([0, 5]), torch.tensor([9.0, 9.0]), generation=torch.tensor([0, 3])),
        lambda b: b.sample(8),
        lambda b: b.update_priority([0, 9], [1.0, 1.0]),
        lambda b: b.update_priority([0, 1], [1.0, -1.0]),
        lambda b: b.update_priority([0, 1], [1.0, float("inf")]),
        lambda b: b.update_priority([0, 1, 2], [1.0, 2.0]),
        lambda b: b.sample(8),
    ],
    "of a batch": [
        lambda b: b.extend(stamped_rows(6).set("error", torch.arange(6.0))),
        lambda b: b.extend(stamped_rows(2).set("error", torch.ones(2)), update_priority=False),
        lambda b: b.sample(8),
        lambda b: ignored(b.update_tensordict_priority(b.sample(4).set("error", torch.full((4, 2), 3.0)))),
        lambda b: b.update_tensordict_priority(b.sample(4).exclude("error")),
        lambda b: b.sample(8),
        lambda b: b.extend(stamped_rows(2).set("error", torch.tensor([1.0, torch.nan]))),
        lambda b: b.sample(8),
    ],
}

ANYTHING_CALLS: dict[str, list[Call]] = {
    "tensor": [
        lambda b: b.extend(torch.arange(8).view(4, 2)),
        lambda b: b.add(torch.tensor([8, 9])),
        lambda b: b.sample(),
        lambda b: b.sample(2, return_info=True),
        get(0),
        get([1, -1]),
        put(0, torch.tensor([5, 5])),
        put(slice(1, 3), torch.zeros(2, 2, dtype=torch.int64)),
        get(slice(None)),
        lambda b: b.extend(torch.zeros(2, 2)),
        lambda b: b.extend(torch.tensor(3)),
        lambda b: b.extend(["text"]),
        lambda b: b.update_if_present(index=[0], generation=torch.tensor([0]), patch={"a": torch.zeros(1)}),
    ],
    "tuple": [
        lambda b: b.extend((torch.arange(4), {"a": torch.ones(4, 2), "b": [torch.zeros(4)]})),
        lambda b: b.sample(2),
        get(1),
        get(slice(None)),
        lambda b: b.extend((torch.arange(4), {"a": torch.ones(3, 2), "b": [torch.zeros(4)]})),
        lambda b: b.extend((torch.arange(4), {"a": torch.ones(4, 2), "b": ["text"]})),
    ],
    "dtypes": [
        lambda b: b.extend({str(dtype): torch.ones(3, 2).to(dtype) for dtype in DTYPES}),
        lambda b: b.sample(5),
        get(slice(None)),
    ],
}

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
)

RECORD_CALLS: dict[str, list[Call]] = {
    "objects": [
        lambda b: b.extend(["a", None, {"x": torch.arange(2)}, (1, b"b", [2.5])]),
        lambda b: b.add("one"),
        lambda b: b.add({"y": 1}),
        lambda b: b.sample(),
        lambda b: b.sample(6, return_info=True),
        get(0),
        get(2),
        get([0, -1]),
        put(0, "other"),
        put(slice(0, 2), ["p", "q"]),
        get(slice(None)),
        lambda b: b.read_all_in_order(2),
        lambda b: b.write_all(["r"], 1),
        get(slice(None)),
        get(17),
        lambda b: b.extend("text"),
        lambda b: b.extend({"a": "text"}),
        lambda b: b.extend(3),
        lambda b: b.extend([]),
        len,
        lambda b: b.write_count,
    ],
    "a list of records": [
        lambda b: b.extend([torch.tensor(number) for number in range(3)]),
        lambda b: b.sample(),
        lambda b: b.extend([torch.tensor(3.5), torch.tensor(4.5)]),
        lambda b: b.extend([torch.tensor(5), torch.zeros(2)]),
        lambda b: b.extend([stamped_rows(4)[row] for row in range(4)]),
        lambda b: b.extend([TensorDict({"a": torch.zeros(2, 3)}, []), TensorDict({"b": torch.ones(2, 3)}, [])]),
        lambda b: b.extend([TensorDict({"a": torch.zeros(2, 3)}, []), TensorDict({"a": torch.ones(2, 3)}, [])]),
        lambda b: b.extend([torch.zeros(2), torch.ones(2)]),
        *(get(place) for place in range(15)),
        len,
    ],
    "tensors": [
        lambda b: b.extend(torch.arange(6).view(3, 2)),
        lambda b: b.sample(),
        lambda b: b.add(torch.tensor([7, 8])),
        get(slice(None)),
        put(0, torch.zeros(3)),
        get(slice(None)),
        lambda b: b.sample(4),
    ],
    "tensordicts": [
        filled(4),
        lambda b: b.sample(2),
        get(1),
        get(slice(None)),
        lambda b: b.add(stamped_rows(1)[0]),
        put(0, stamped_rows(1, stamp=9)[0]),
        put(slice(1, 3), stamped_rows(2, stamp=7)),
        get(slice(None)),
    ],
}

LANE_CALLS: dict[str, list[Call]] = {
    "lanes": [
        lambda b: b.extend(by_lane(4)),
        lambda b: b.add(by_lane(1)[:, 0]),
        len,
        lambda b: b.sample(),
        lambda b: b.sample(3, return_info=True),
        get(0),
        get(slice(1, 3)),
        get((2, 1)),
        get((slice(None), 0)),
        get((torch.tensor([0, 1]), torch.tensor([1, 0]))),
        get((torch.tensor([0, 1]), 1)),
        get(torch.tensor([[0, 1], [3, 0]])),
        get((9, 0)),
        get((0, 2)),
        put((0, 1), stamped_rows(1, stamp=50)[0]),
        put((torch.tensor([1, 2]), torch.tensor([0, 0])), stamped_rows(2, stamp=60)),
        put(3, by_lane(1, stamp=70)[:, 0]),
        get(slice(None)),
        lambda b: b.extend(by_lane(9, stamp=200)),
        lambda b: b.read_all_in_order(),
        lambda b: b.write_all(by_lane(3, stamp=10), 3),
        lambda b: b.read_all_in_order(5),
    ],
}


CASES = [
    pytest.param(recipe, calls, id=f"{recipe.__name__}-{name}")
    for recipe, named in (
        (tensordicts, TENSORDICT_CALLS),
        (prioritized, PRIORITIZED_CALLS),
        (anything, ANYTHING_CALLS),
        (records, RECORD_CALLS),
        (lanes, LANE_CALLS),
    )
    for name, calls in named.items()
]
