"""Steps of episodes in the flat and the nested form: as the format says, and nothing is lost, whatever the steps are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

from replay_service import LayoutError
from replay_service.buffer.persist.nested_ted import H5Combine, H5Split, Nested2TED, TED2Nested
from replay_service.buffer.persist.ted import Flat2TED, TED2Flat


def episodes(lengths: list[int], lanes: int | None = None) -> TensorDict:
    """Steps of whole episodes, one after the other, of which each observation is another number; `[T]` or `[T, lanes]`."""
    if lanes is not None:
        return torch.stack([episodes(lengths) for _ in range(lanes)], 1)
    steps = sum(lengths)
    seen = torch.randperm(10_000)[: steps + len(lengths)].to(torch.float32)
    done = torch.zeros(steps, 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    first = torch.arange(steps) + done.squeeze(1).cumsum(0) - done.squeeze(1).long()
    return TensorDict(
        {
            "observation": seen[first].unsqueeze(1).expand(steps, 3).clone(),
            "action": torch.randint(9, (steps,)),
            "done": torch.zeros_like(done),
            "terminated": torch.zeros_like(done),
            "collector": {"traj_ids": done.squeeze(1).cumsum(0)},
            "next": {
                "observation": seen[first + 1].unsqueeze(1).expand(steps, 3).clone(),
                "reward": torch.randn(steps, 1),
                "done": done,
                "terminated": done.clone(),
            },
        },
        [steps],
    )


def same(found: TensorDictBase, expected: TensorDictBase) -> bool:
    assert found.batch_size == expected.batch_size
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        assert found[key].dtype == value.dtype, key
        bits = [t.contiguous().view(torch.uint8).tolist() for t in (found[key], value)]
        assert bits[0] == bits[1], key
    return True


def converted(hook: Any, data: TensorDictBase, shift: int = 0, is_full: bool = False) -> TensorDictBase:
    hook.shift, hook.is_full = shift, is_full
    return hook(data, path=None)


def test_flat_data_is_what_the_format_says() -> None:
    data = episodes([3, 2, 4])
    flat = converted(TED2Flat(), data, 9)
    assert {key: tuple(value.shape) for key, value in flat.items(True, True) if isinstance(value, torch.Tensor)} == {
        "action": (9,),
        ("collector", "traj_ids"): (9,),
        "done": (9, 1),
        "observation": (12, 3),
        "reward": (9, 1),
        "terminated": (9, 1),
    }
    assert (flat["is_full"], flat["shift"]) == (False, 9)
    assert torch.equal(flat["observation"][:4], torch.cat([data["observation"][:3], data["next", "observation"][2:3]]))
    assert torch.equal(flat["reward"], data["next", "reward"])
    assert same(Flat2TED()(flat), data)


def test_a_full_ring_is_put_in_order_and_back() -> None:
    data = episodes([4, 5])
    ring = data.roll(3, 0) if hasattr(data, "roll") else torch.cat([data[-3:], data[:-3]])
    flat = converted(TED2Flat(), ring, shift=3, is_full=True)
    assert torch.equal(flat["action"], data["action"])
    assert flat["observation"].shape == (11, 3)
    assert same(Flat2TED()(flat), ring)


def test_written_into_what_is_there() -> None:
    data = episodes([3, 2])
    out = data.clone().zero_()
    assert Flat2TED()(converted(TED2Flat(), data, 5), out=out) is out
    assert same(out, data)


def test_nested_data_has_a_row_per_episode() -> None:
    data = episodes([3, 2, 4])
    nested = converted(TED2Nested(), data, 9)
    assert nested.batch_size == (3,)
    assert [tuple(part.shape) for part in nested["observation"].unbind()] == [(4, 3), (3, 3), (5, 3)]
    assert [tuple(part.shape) for part in nested["reward"].unbind()] == [(3, 1), (2, 1), (4, 1)]
    assert same(Nested2TED()(nested), data)
    split = H5Split()(nested)
    assert sorted(key for key in split.keys() if key.startswith("traj")) == ["traj_0", "traj_1", "traj_2"]  # noqa: SIM118
    assert split["traj_1", "observation"].shape == (3, 3)
    assert same(Nested2TED()(H5Combine()(split)), data)


steps = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    lengths=steps, lanes=st.sampled_from([None, 1, 3]), cut=st.integers(0, 5), roll=st.integers(0, 20), data=st.data()
)
def test_nothing_is_lost(lengths: list[int], lanes: int | None, cut: int, roll: int, data: st.DataObject) -> None:
    """Whatever the steps are: unfinished episodes, rings, holes, flags beside `next`, NaN."""
    written = episodes(lengths, lanes)
    written = written[: max(1, written.shape[0] - cut)]
    count = written.shape[0]
    is_full, shift = data.draw(st.booleans()), roll % count
    if is_full and shift:
        written = torch.cat([written[-shift:], written[:-shift]])
    for _ in range(data.draw(st.integers(0, 2))):
        key = data.draw(st.sampled_from(["observation", ("next", "observation"), "done", ("next", "done")]))
        place = data.draw(st.integers(0, count - 1))
        written[key][place] = float("nan") if written[key].is_floating_point() else True
    if data.draw(st.booleans()):
        written["next", "only_there"] = torch.arange(written.numel()).view(written.shape)
    for forth, back in ((TED2Flat(), Flat2TED()), (TED2Nested(), Nested2TED())):
        assert same(back(converted(forth, written, shift if is_full else count, is_full)), written)
    pieces = H5Split()(converted(TED2Nested(), written, shift if is_full else count, is_full))
    assert same(Nested2TED()(H5Combine()(pieces)), written)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch.zeros(3), "must be a TensorDict of steps"),
        (TensorDict({"a": torch.zeros(3)}, [3]), "under next"),
        (TensorDict({"next": {"a": torch.zeros(3)}}, [3]), r"done_key \(next.done\) must be an entry"),
        (TensorDict({"next": {"done": torch.zeros(3)}, "text": "a"}, [3]), "text must be a tensor"),
    ],
)
def test_what_has_no_steps_is_refused(data: Any, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        TED2Flat()(data)


def test_what_is_not_flat_is_refused() -> None:
    data = TensorDict({"observation": torch.zeros(4)}, [])
    for back in (Flat2TED(), Nested2TED()):
        with pytest.raises(LayoutError, match="must be"):
            back(data)
    with pytest.raises(LayoutError, match="traj_"):
        H5Combine()(data)
    flat = converted(TED2Flat(), episodes([2]), 2)
    del flat["done"]
    with pytest.raises(LayoutError, match=r"done_key \(done\)"):
        Flat2TED()(flat)
