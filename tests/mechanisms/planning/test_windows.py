"""Windows: what is read stays within one, slopes are those of shifted normal values, noise narrows them."""

import math

import numpy as np
import pytest

from tensorveil.mechanisms.planning.windows import REACHES, best_reach, window
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.queries.windows import WindowReading


def positions(seen, values):
    """What a query reads of residuals through the window."""
    return WindowReading(0.0, Offsets.none(2), seen.low, seen.high).positions(values)


@pytest.mark.parametrize("std, reach", [(0.5, 1.0), (0.5, 3.0), (0.0, 2.0), (1e-9, 2.0)])
@pytest.mark.parametrize("ends", [(-math.inf, math.inf), (-1.3, 0.7), (-2.0, 0.0), (0.0, 2.0)])
def test_what_is_read_keeps_to_one_and_the_window_to_what_can_be(std, reach, ends):
    seen = window(std, reach, *ends)
    read = positions(seen, np.linspace(-3, 3, 1001))
    assert np.abs(read).max() <= 1.0
    assert (np.diff(read) >= 0).all()
    assert seen.slope > 0
    assert seen.low < seen.high


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("highest", [math.inf, 0.6])
def test_slope_and_variance_are_those_of_normal_values(reach, highest):
    seen = window(0.5, reach, -math.inf, highest)
    values = np.random.default_rng(0).normal(0, 0.5, 400_000)
    assert positions(seen, values).var() == pytest.approx(seen.variance, rel=0.02)
    if highest == math.inf or reach < 1.2:
        shifted = (positions(seen, values + 0.01).mean() - positions(seen, values - 0.01).mean()) / 0.02
        assert shifted == pytest.approx(seen.slope, rel=0.02)


def test_the_more_noise_the_narrower():
    reaches = [best_reach(noise, [100.0], 0.1) for noise in (1e-3, 1.0, 30.0, 1e4)]
    assert reaches == sorted(reaches, reverse=True)
    assert reaches[0] == max(REACHES)
    assert reaches[-1] == min(REACHES)
