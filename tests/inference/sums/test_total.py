"""The released mean and the marginal that agrees with it."""

import numpy as np
import pytest

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.total import mean_of_total, reading_range, with_mean
from tensorveil.inference.values.marginal import exact_marginal

STEPS = 2**20


def marginal(values):
    return exact_marginal(np.rint(values * STEPS).astype(np.int64), STEPS)


def test_the_mean_is_the_place_of_the_sum_in_the_range():
    total = NoisySums(np.array([250.0]), np.array([1000.0]), 4.0, 0.0)
    mean, error = mean_of_total(total, -0.5, 0.3)
    assert mean == pytest.approx(-0.1 + 0.25 * 0.4)
    assert error == pytest.approx(0.4 * 2 / 1000)


@pytest.mark.parametrize("short", [0.03, -0.03])
def test_the_marginal_takes_the_mean_that_it_is_given(short):
    known = marginal(np.random.default_rng(0).uniform(-0.4, 0.2, 5000))
    object.__setattr__(known, "error", 0.01)
    wanted = known.mean() + short
    moved, mean, error = with_mean(known, wanted, 1e-4)
    assert mean == pytest.approx(wanted, abs=1e-4)
    assert moved.mean() == pytest.approx(wanted, abs=2e-3)
    assert moved.masses.sum() == pytest.approx(1.0)
    assert error < 0.01


def test_where_the_marginal_is_sure_values_are_read_in_its_range_alone():
    low, high = reading_range(marginal(np.linspace(-0.4, 0.2, 500)), 0.1)
    assert (low, high) == pytest.approx((-0.4, 0.2), abs=0.01)
