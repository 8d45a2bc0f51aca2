from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from clients.environments import VectorEnvironments, make_environments, wrap_environments
from tests.clients.counting import CountingEnv

ACTIONS = np.zeros(2, dtype=np.int64)


def test_outcome_of_the_last_step_is_the_true_one() -> None:
    environments = make_environments(partial(CountingEnv, 2), 2)
    assert environments.reset()[:, 0].tolist() == [0, 0]
    assert environments.step(ACTIONS).next_observation[:, 0].tolist() == [1, 1]
    last = environments.step(ACTIONS)
    assert last.next_observation[:, 0].tolist() == [2, 2]
    assert last.done.tolist() == [True, True]


@pytest.mark.parametrize("truncates", [False, True])
def test_termination_and_truncation_are_told_apart(truncates: bool) -> None:
    environments = make_environments(partial(CountingEnv, 1, truncates=truncates), 2)
    environments.reset()
    step = environments.step(ACTIONS)
    assert step.truncated.tolist() == [truncates] * 2
    assert step.terminated.tolist() == [not truncates] * 2
    assert step.done.all()
    assert step.reward.dtype == np.float64


def test_only_masked_environments_are_reset() -> None:
    short, long = partial(CountingEnv, 1), partial(CountingEnv, 5, name=1)
    environments = VectorEnvironments(SyncVectorEnv([short, long], autoreset_mode=AutoresetMode.DISABLED))
    environments.reset()
    step = environments.step(ACTIONS)
    assert step.done.tolist() == [True, False]
    assert environments.reset(mask=step.done)[:, 0].tolist() == [0, 1001]
    # What the step gave is not rewritten by the reset.
    assert step.next_observation[:, 0].tolist() == [1, 1001]
    assert environments.step(ACTIONS).next_observation[:, 0].tolist() == [1, 1002]


def test_environment_i_has_seed_plus_i() -> None:
    together = make_environments("CartPole-v1", 3).reset(seed=7)
    for i, observation in enumerate(together):
        alone, _ = gymnasium.make("CartPole-v1").reset(seed=7 + i)
        assert np.array_equal(observation, alone)
    assert np.array_equal(make_environments("CartPole-v1", 2).reset(seed=[8, 7]), together[[1, 0]])


def test_a_seed_waits_for_the_next_reset_of_all() -> None:
    environments = make_environments("CartPole-v1", 2)
    assert len(environments) == 2
    expected = make_environments("CartPole-v1", 2).reset(seed=7)
    environments.reset()
    environments.seed(7)
    assert not np.array_equal(environments.reset(mask=np.array([True, False])), expected)
    assert np.array_equal(environments.reset(), expected)
    # Once: what comes after is another episode.
    assert not np.array_equal(environments.reset(), expected)
    environments.seed(8)
    assert np.array_equal(environments.reset(seed=7), expected)
    assert not np.array_equal(environments.reset(), make_environments("CartPole-v1", 2).reset(seed=8))


def test_sampled_actions_repeat() -> None:
    drawn = []
    for _ in range(2):
        environments = make_environments("CartPole-v1", 4)
        environments.seed_actions(3)
        drawn.append([environments.sample_actions().tolist() for _ in range(5)])
    assert drawn[0] == drawn[1]


def test_processes_answer_alike() -> None:
    environments = make_environments(partial(CountingEnv, 2), 2, processes=True)
    try:
        environments.reset()
        environments.step(ACTIONS)
        last = environments.step(ACTIONS)
        assert last.next_observation[:, 0].tolist() == [2, 2]
        assert environments.reset(mask=last.done)[:, 0].tolist() == [0, 0]
    finally:
        environments.close()
        environments.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_environments_that_reset_by_themselves_are_refused(mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([partial(CountingEnv, 2)], autoreset_mode=mode)
    with pytest.raises(ValueError, match=rf"autoreset_mode \({mode.name}\) must be DISABLED.*make_environments"):
        wrap_environments(vector)


def test_a_lone_environment_is_a_vector_of_one() -> None:
    environments = wrap_environments(CountingEnv(2, name=3))
    assert environments.num_envs == 1
    assert environments.reset()[:, 0].tolist() == [3000]
    assert wrap_environments(environments) is environments


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match=r"count \(0\) must be at least 1"):
        make_environments("CartPole-v1", 0)
    with pytest.raises(ValueError, match=r"env \('CratPole-v1'\) must be an id registered with Gymnasium"):
        make_environments("CratPole-v1", 1)
    with pytest.raises(TypeError, match=r"env_options \(\['length'\]\) must be given with an id"):
        make_environments(CountingEnv, 1, length=2)
    with pytest.raises(TypeError, match=r"environments \(str\) must be"):
        wrap_environments("CartPole-v1")  # type: ignore[arg-type]
