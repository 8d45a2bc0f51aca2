"""The sum tree against plain lists: what it holds, what it sums, what it draws, and what it refuses."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer.sum_tree import SumTree
from replay_service.errors import PriorityError

BELOW_ONE = float(np.nextafter(1.0, 0.0))
# One leaf, one node and its neighbours, full and overfull levels, and levels that end in the middle of a node.
CAPACITIES = [1, 2, 3, 4, 5, 15, 16, 17, 63, 65, 100]

values = st.one_of(st.just(0.0), st.floats(1e-8, 1e8), st.sampled_from([1.0, 5e-324, 1e-300]))


def tree_of(leaves: list[float], *, extremes: bool = False) -> SumTree:
    tree = SumTree(len(leaves), extremes=extremes)
    tree.update(np.arange(len(leaves)), leaves)
    return tree


def assert_holds(tree: SumTree, leaves: list[float]) -> None:
    """Everything the tree can be asked, against the list."""
    assert tree.capacity == len(tree) == len(leaves)
    assert tree.state().tolist() == leaves
    assert tree.total == pytest.approx(math.fsum(leaves), rel=1e-12, abs=0.0)
    assert tree.max() == max(leaves)
    assert tree.min_positive() == min((leaf for leaf in leaves if leaf > 0.0), default=math.inf)
    half = len(leaves) // 2
    for start, stop in ((0, len(leaves)), (0, half), (half, len(leaves)), (half // 2, half), (half, half)):
        assert tree.sum(start, stop) == pytest.approx(math.fsum(leaves[start:stop]), rel=1e-12, abs=0.0)


# --- what it holds ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_changes_leaves_what_a_list_would_hold(data: st.DataObject) -> None:
    def some_values(size: int) -> list[float]:
        return data.draw(st.lists(values, min_size=size, max_size=size))

    leaves = [0.0] * data.draw(st.sampled_from(CAPACITIES))
    trees = [SumTree(len(leaves)), SumTree(len(leaves), extremes=True)]
    for _ in range(data.draw(st.integers(1, 8))):
        size = len(leaves)
        change = data.draw(st.sampled_from(["update", "update_range", "fill", "clear", "resize", "load_state"]))
        arguments: tuple[object, ...] = ()
        if change == "update":
            index = data.draw(st.lists(st.integers(0, size - 1), max_size=2 * size))
            arguments = (index, fresh := some_values(len(index)))
            for place, value in zip(index, fresh, strict=True):
                leaves[place] = value
        elif change == "update_range":
            start, stop = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
            arguments = (start, stop, fresh := some_values(stop - start))
            leaves[start:stop] = fresh
        elif change == "fill":
            arguments = (data.draw(values),)
            leaves = [*arguments] * size
        elif change == "clear":
            leaves = [0.0] * size
        elif change == "resize":
            arguments = (size + data.draw(st.integers(0, 70)),)
            leaves += [0.0] * (arguments[0] - size)
        else:
            leaves = some_values(size)
            arguments = (leaves,)
        for tree in trees:
            getattr(tree, change)(*arguments)
            assert_holds(tree, leaves)


@pytest.mark.parametrize("extremes", [False, True])
def test_the_root_is_the_sum_of_the_leaves_after_2000_updates_over_eight_orders_of_magnitude(extremes: bool) -> None:
    rng = np.random.default_rng(0)
    tree, leaves = SumTree(1000, extremes=extremes), np.zeros(1000)
    for _ in range(2000):
        index = rng.integers(0, 1000, rng.integers(1, 40))
        value = 10.0 ** rng.uniform(-4, 4, index.size) * (rng.random(index.size) < 0.8)
        tree.update(index, value)
        leaves[index] = value
    assert tree.total == pytest.approx(math.fsum(leaves), rel=1e-9, abs=0.0)
    assert_holds(tree, leaves.tolist())
    drawn = tree.draw(rng.random(20_000))
    assert (leaves[drawn] > 0.0).all()


def test_huge_leaves_that_go_away_leave_no_trace_on_small_ones() -> None:
    tree = tree_of([1e-8] * 100)
    tree.update([50], [1e16])
    tree.update([50], [1e-8])
    assert tree.total == pytest.approx(1e-6, rel=1e-12)
    tree.fill(0.0)
    assert tree.total == 0.0


def test_of_an_index_that_comes_twice_the_last_value_stands() -> None:
    tree = SumTree(100, extremes=True)
    tree.update([7, 3, 7, 7, 3], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert tree.get([7, 3]).tolist() == [4.0, 5.0]
    assert (tree.total, tree.max(), tree.min_positive()) == (9.0, 5.0, 4.0)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_range_is_the_same_as_its_indices(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    by_range, by_index = SumTree(capacity, extremes=True), SumTree(capacity, extremes=True)
    for _ in range(20):
        start, stop = np.sort(rng.integers(0, capacity + 1, 2))
        value = rng.random(stop - start) if rng.random() < 0.5 else rng.random()
        by_range.update_range(start, stop, value)
        by_index.update(np.arange(start, stop), value)
        assert_holds(by_range, by_index.state().tolist())
        assert by_range.total == by_index.total


def test_one_number_serves_for_all_indices() -> None:
    tree = SumTree(10)
    tree.update([1, 2, 3], 0.5)
    assert tree.state().tolist() == [0.0, 0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 0]


def test_an_empty_update_changes_nothing() -> None:
    tree = tree_of([1.0, 2.0])
    tree.update([], [])
    tree.update(np.array([], np.int64), 3.0)
    tree.update_range(1, 1, 3.0)
    assert_holds(tree, [1.0, 2.0])


def test_get_keeps_the_shape_of_its_index() -> None:
    tree = tree_of([0.0, 1.0, 2.0, 3.0])
    assert tree.get(np.array([[3, 1], [0, 3]])).tolist() == [[3.0, 1.0], [0.0, 3.0]]
    assert tree.get(2).shape == ()


def test_resize_keeps_leaves_and_gives_room() -> None:
    tree = tree_of([1.0, 2.0, 3.0], extremes=True)
    tree.resize(1000)
    assert_holds(tree, [1.0, 2.0, 3.0] + [0.0] * 997)
    tree.update([999], [7.0])
    assert (tree.total, tree.max()) == (13.0, 7.0)


def test_states_are_copies_both_ways() -> None:
    tree = tree_of([1.0, 2.0])
    taken = tree.state()
    taken[:] = 9.0
    given_away = np.array([3.0, 4.0])
    other = SumTree(2)
    other.load_state(given_away)
    given_away[:] = 9.0
    assert_holds(tree, [1.0, 2.0])
    assert_holds(other, [3.0, 4.0])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_a_copied_and_a_pickled_tree_are_trees_of_their_own(duplicate: object) -> None:
    tree = tree_of([1.0, 2.0, 4.0], extremes=True)
    twin = duplicate(tree)  # type: ignore[operator]
    twin.update([0], [8.0])
    assert_holds(tree, [1.0, 2.0, 4.0])
    assert_holds(twin, [8.0, 2.0, 4.0])
    assert twin.draw([0.0]).tolist() == [0]


# --- what it draws ---------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=150).filter(any))
def test_prefix_search_finds_the_leaf_where_the_running_sum_passes_the_mass(leaves: list[int]) -> None:
    # Whole numbers and halves add up without rounding, so that every edge is met exactly.
    tree = tree_of([float(leaf) for leaf in leaves])
    mass = np.arange(2 * sum(leaves)) / 2.0
    expected = np.searchsorted(np.cumsum(leaves), mass, side="right")
    assert tree.prefix_search(mass).tolist() == expected.tolist()
    assert tree.prefix_search([tree.total]).tolist() == [int(np.flatnonzero(leaves)[-1])]


@settings(max_examples=150, deadline=None)
@given(st.lists(values, min_size=1, max_size=150).filter(any))
def test_a_leaf_of_zero_is_never_drawn(leaves: list[float]) -> None:
    tree = tree_of(leaves)
    # The ends of the interval, and the uniforms around every edge between two leaves, where rounding decides.
    edges = np.cumsum(leaves) / tree.total
    around = np.concatenate([edges, np.nextafter(edges, 0.0), np.nextafter(edges, 1.0), [0.0, 5e-324, BELOW_ONE, 1.0]])
    index, mass = tree.draw_with_mass(np.clip(around, 0.0, 1.0))
    assert mass.tolist() == [leaves[i] for i in index]
    assert (mass > 0.0).all()


def test_the_ends_of_the_interval_draw_the_first_and_the_last_leaf_above_zero() -> None:
    leaves = np.zeros(1000)
    leaves[300:700] = 0.1
    tree = tree_of(leaves.tolist())
    assert tree.draw([0.0, BELOW_ONE, 1.0]).tolist() == [300, 699, 699]


@pytest.mark.parametrize("capacity", [5, 20, 64])
def test_leaves_are_drawn_as_often_as_their_share(capacity: int) -> None:
    rng = np.random.default_rng(0)
    leaves = rng.random(capacity) ** 3 * (rng.random(capacity) < 0.8)
    draws = 200_000
    counts = np.bincount(tree_of(leaves.tolist()).draw(rng.random(draws)), minlength=capacity)
    share = leaves / leaves.sum()
    standard_error = np.sqrt(draws * share * (1.0 - share))
    assert (np.abs(counts - draws * share) <= 3.0 * standard_error).all()


def test_one_uniform_from_each_stratum_draws_equal_leaves_once_each() -> None:
    tree = tree_of([0.25] * 64)
    strata = (np.arange(64) + np.random.default_rng(0).random(64)) / 64
    assert tree.draw(strata).tolist() == list(range(64))


def test_draws_keep_the_order_of_the_uniforms() -> None:
    tree = tree_of([1.0] * 10)
    assert tree.draw([0.95, 0.05, 0.55, 0.05]).tolist() == [9, 0, 5, 0]
    assert tree.draw([]).shape == (0,)


def test_a_tree_of_one_leaf_draws_it() -> None:
    assert tree_of([5e-324]).draw([0.0, 0.5, BELOW_ONE]).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda data: torch.from_numpy(data).numpy(),
        lambda data: np.repeat(data, 2)[::2],
        lambda data: data.astype(data.dtype.newbyteorder()),
        lambda data: np.broadcast_to(data, data.shape),
        list,
    ],
    ids=["tensor", "strided", "other byte order", "read-only", "list"],
)
def test_arrays_of_any_make_are_taken(make: object) -> None:
    tree = SumTree(4)
    tree.update(make(np.array([1, 3])), make(np.array([1.0, 3.0])))  # type: ignore[operator]
    assert tree.draw(make(np.array([0.9, 0.1]))).tolist() == [3, 1]  # type: ignore[operator]


def test_narrower_numbers_are_taken() -> None:
    tree = SumTree(4)
    tree.update(np.array([1, 3], np.uint8), np.array([1.0, 3.0], np.float32))
    assert tree.draw(np.array([0.9, 0.1], np.float32)).tolist() == [3, 1]


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["draw", "draw_with_mass", "prefix_search"])
def test_nothing_can_be_drawn_where_all_is_zero(name: str) -> None:
    tree = tree_of([1.0, 2.0])
    tree.clear()
    with pytest.raises(PriorityError, match=r"total \(0\.0\) must be positive and finite"):
        getattr(tree, name)([0.0])


@pytest.mark.parametrize("leaves", [[1e308, 1e308], [1.0, math.nan], [1.0, math.inf]])
def test_nothing_can_be_drawn_where_the_total_is_no_number(leaves: list[float]) -> None:
    with pytest.raises(PriorityError, match="must be positive and finite"):
        tree_of(leaves).draw([0.5])


@pytest.mark.parametrize("wrong", [-1e-9, 1.0001, math.nan, math.inf])
def test_a_uniform_outside_its_interval_is_named(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"uniforms \(.*\) must be in \[0, 1\]; got it at place 1 of 3"):
        tree_of([1.0, 1.0]).draw([0.5, wrong, 0.5])


@pytest.mark.parametrize("wrong", [-1e-9, 2.0001, math.nan])
def test_a_mass_outside_its_interval_is_named(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"mass \(.*\) must be in \[0, 2\]"):
        tree_of([1.0, 1.0]).prefix_search([wrong])


@pytest.mark.parametrize("index", [[0, 3], [0, -1], [0, 2**40], [0, np.iinfo(np.int64).min]])
def test_an_index_out_of_range_is_refused_before_anything_is_written(index: list[int]) -> None:
    tree = tree_of([1.0, 2.0, 4.0], extremes=True)
    with pytest.raises(IndexError, match=r"index \(-?\d+\) must be at least 0 and below capacity; got a capacity of 3"):
        tree.update(index, [9.0, 9.0])
    with pytest.raises(IndexError, match="must be at least 0 and below capacity"):
        tree.get(index)
    assert_holds(tree, [1.0, 2.0, 4.0])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1)])
def test_a_range_that_is_none_is_refused(start: int, stop: int) -> None:
    tree = tree_of([1.0, 2.0, 4.0])
    with pytest.raises(IndexError, match=r"must lie within 0 to capacity"):
        tree.update_range(start, stop, 1.0)
    with pytest.raises(IndexError, match=r"must lie within 0 to capacity"):
        tree.sum(start, stop)
    assert_holds(tree, [1.0, 2.0, 4.0])


def test_shapes_and_kinds_that_do_not_fit_are_refused() -> None:
    tree = tree_of([1.0, 2.0, 4.0])
    with pytest.raises(TypeError, match=r"index \(dtype float64\) must be integers"):
        tree.update([0.0, 1.0], [1.0, 1.0])
    with pytest.raises(TypeError, match=r"index \(dtype bool\) must be integers"):
        tree.update(np.array([True, False, True]), [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"value \(3 numbers\) must be as long as index; got 2 indices"):
        tree.update([0, 1], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"index \(shape \(1, 2\)\) must be \[n\]"):
        tree.update([[0, 1]], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"uniforms \(shape \(\)\) must be \[n\]"):
        tree.draw(0.5)
    with pytest.raises(ValueError, match=r"value \(shape \(3,\)\) must be one number or one for each leaf; got 2"):
        tree.update_range(0, 2, [1.0, 1.0, 1.0])
    assert_holds(tree, [1.0, 2.0, 4.0])


def test_states_that_are_none_are_refused() -> None:
    tree = tree_of([1.0, 2.0, 4.0])
    with pytest.raises(
        ValueError, match=r"leaves \(shape \(2,\)\) must have one number for each of the tree's 3 leaves"
    ):
        tree.load_state([1.0, 2.0])
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(PriorityError, match=r"leaves \(.*\) must be finite and not negative; got it at place 1"):
            tree.load_state([1.0, wrong, 2.0])
    assert_holds(tree, [1.0, 2.0, 4.0])


def test_capacities_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"capacity \(0\) must be at least 1"):
        SumTree(0)
    tree = tree_of([1.0, 2.0, 4.0])
    with pytest.raises(ValueError, match=r"capacity \(2\) must not shrink; got a tree of 3 leaves"):
        tree.resize(2)
    assert_holds(tree, [1.0, 2.0, 4.0])


def test_a_tree_tells_what_it_is() -> None:
    assert repr(tree_of([1.0, 2.0])) == "SumTree(capacity=2, extremes=False, total=3)"
