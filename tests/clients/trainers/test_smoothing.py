from __future__ import annotations

import math

from clients.trainers.smoothing import MovingMean


def test_mean_of_the_last_values() -> None:
    mean = MovingMean(window=3)
    assert mean.mean == 0.0
    mean.add([1.0, 2.0])
    assert mean.mean == 1.5
    mean.add([3.0, 4.0])
    assert mean.mean == 3.0


def test_what_is_no_number_is_left_out() -> None:
    mean = MovingMean()
    mean.add([1.0, math.inf, math.nan, -math.inf, 3.0])
    assert mean.mean == 2.0
