from __future__ import annotations

import numpy as np
import pytest
import torch

from clients.step_block import StepBlock, leaves_of, nested
from replay_service.episodic.batch import Batch

KEPT = np.ones(2, np.bool_)


def step(*values: float) -> dict[tuple[str, ...], np.ndarray]:
    return {("a",): np.array(values)}


@pytest.mark.parametrize(
    ("by_lane", "rows", "lanes"), [(True, [1, 2, 10, 20], [0, 0, 1, 1]), (False, [1, 10, 2, 20], [0, 1, 0, 1])]
)
def test_order_of_rows(by_lane: bool, rows: list[int], lanes: list[int]) -> None:
    for room in (2, 5):
        block = StepBlock(2, room, {("a",): ((), np.dtype(np.float32))}, by_lane=by_lane)
        block.put(step(1, 10), None, KEPT)
        block.put(step(2, 20), None, KEPT)
        assert block.full == (room == 2)
        taken, of = block.take()
        assert taken["a",].dtype == np.float32
        assert (taken["a",].tolist(), of.tolist()) == (rows, lanes)
        assert len(block) == 0


@pytest.mark.parametrize("by_lane", [True, False])
def test_some_lanes_and_rows_that_are_not_kept(by_lane: bool) -> None:
    block = StepBlock(3, 3, {}, by_lane=by_lane)
    block.put(step(5), np.array([1]), np.array([True]))
    block.put(step(6, 7), np.array([0, 2]), np.array([True, False]))
    rows, lanes = block.take()
    assert sorted(zip(lanes.tolist(), rows["a",].tolist(), strict=True)) == [(0, 6), (1, 5)]


def test_what_was_taken_stays_as_it_is() -> None:
    block = StepBlock(2, 1, {}, by_lane=True)
    block.put(step(1, 2), None, KEPT)
    with pytest.raises(RuntimeError, match=r"steps \(1\) must be taken"):
        block.put(step(3, 4), None, KEPT)
    rows, _ = block.take()
    block.put(step(3, 4), None, KEPT)
    assert rows["a",].tolist() == [1, 2]
    assert block.fits(step(5, 6))
    assert not block.fits({("b",): np.zeros(2)})


def test_leaves_and_back() -> None:
    tree = {"a": np.arange(2), "b": {"c": torch.ones(2)}}
    for given in (tree, Batch(tree)):
        leaves = leaves_of(given, ("x",))
        assert {path: leaf.tolist() for path, leaf in leaves.items()} == {("x", "a"): [0, 1], ("x", "b", "c"): [1, 1]}
    back = nested(leaves_of(tree))
    assert back["b"]["c"].tolist() == [1, 1]
    assert nested(leaves_of(np.arange(3))).tolist() == [0, 1, 2]
