from __future__ import annotations

import numpy as np
import pytest

from clients.collect_stats import CollectStats


def test_record_and_mapping_say_the_same() -> None:
    stats = CollectStats(7, 2, np.array([1.0, 3.0]), np.array([2, 5]), 0.5, idxs=np.array([0, 4]))
    assert dict(stats).keys() == {"n/ep", "n/st", "rews", "lens", "idxs", "rew", "len", "rew_std", "len_std"}
    assert (stats["n/ep"], stats["n/st"], stats["rew"], stats["rew_std"]) == (2, 7, 2.0, 1.0)
    assert (stats["len"], stats["len_std"]) == (3.5, 1.5)
    assert stats["idxs"].tolist() == [0, 4]
    assert stats.collect_speed == 14.0
    with pytest.raises(KeyError, match=r"key \('n/steps'\) must be one of n/ep"):
        stats["n/steps"]


def test_no_episode_no_mean() -> None:
    stats = CollectStats(3, 0, np.zeros(0), np.zeros(0, np.int64), 0.1)
    assert [stats[name] for name in ("rew", "rew_std", "len", "len_std")] == [0.0] * 4
    assert stats["idxs"].tolist() == []


def test_several_together() -> None:
    one = CollectStats(7, 2, np.array([1.0, 3.0]), np.array([2, 5]), 0.5, 4)
    two = CollectStats(2, 1, np.array([5.0]), np.array([2]), 0.5, 3)
    both = CollectStats.together([one, two], 0.25)
    assert (both["n/st"], both["n/ep"], both["rews"].tolist(), both["lens"].tolist()) == (9, 3, [1, 3, 5], [2, 5, 2])
    assert (both.policy_version, both.collect_time_s) == (3, 0.25)
    assert CollectStats.together([], 0.0)["n/st"] == 0
