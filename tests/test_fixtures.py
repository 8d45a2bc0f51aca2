"""The fixtures that other tests stand on: torn rows are seen, waiting ends, and the Ray of the tests is our own."""

from __future__ import annotations

import pytest
import torch

from tests.rows import MAX_STAMP


def test_transitions_have_the_documented_leaves(transitions):
    data = transitions(3, stamp=5)
    shapes = {key: (tuple(data[key].shape), data[key].dtype) for key in data.keys(True, True)}
    assert shapes == {
        "observation": ((3, 4), torch.float32),
        "action": ((3,), torch.int64),
        ("next", "observation"): ((3, 4), torch.float32),
        ("next", "reward"): ((3, 1), torch.float32),
        ("next", "done"): ((3, 1), torch.bool),
        ("next", "terminated"): ((3, 1), torch.bool),
        ("next", "truncated"): ((3, 1), torch.bool),
    }
    assert data["action"].tolist() == [5, 6, 7]


def test_transitions_refuse_stamps_that_float32_cannot_tell(transitions):
    with pytest.raises(ValueError, match="stamp"):
        transitions(2, stamp=MAX_STAMP)


def test_whole_rows_pass(transitions, assert_whole_rows):
    assert_whole_rows(transitions(70))
    assert_whole_rows(transitions(6).reshape(2, 3))


TORN = ["observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done")]


@pytest.mark.parametrize("key", TORN)
def test_a_torn_leaf_is_named(transitions, assert_whole_rows, key):
    data, other = transitions(4, stamp=10), transitions(4, stamp=11)
    data[key][2] = other[key][2] if key != ("next", "done") else ~data[key][2]
    with pytest.raises(AssertionError, match="row 2"):
        assert_whole_rows(data)


def test_wait_until_returns_what_became_true(wait_until):
    values = iter([0, None, "ready"])
    assert wait_until(lambda: next(values)) == "ready"


def test_wait_until_gives_up(wait_until):
    with pytest.raises(AssertionError, match="the door did not hold within"):
        wait_until(lambda: False, timeout_s=0.02, what="the door")


def test_ray_is_our_own_and_sees_the_tests(ray_session, transitions, assert_whole_rows):
    import ray

    assert ray.get_runtime_context().namespace == ray_session.namespace
    assert ray.cluster_resources()["CPU"] == 4
    make = ray.remote(num_cpus=0)(transitions)  # found by reference: workers import tests.rows
    assert_whole_rows(ray.get(make.remote(5), timeout=60))
