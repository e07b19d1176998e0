"""Vectorised tails against scipy's."""

import numpy as np
import pytest
from scipy import special

from tensorveil.kernels.fast.normal_tails import fill_tails, mass_between


@pytest.mark.parametrize("count", [1, 4, 6003])
def test_tails_are_right_to_thirteen_digits(count):
    z = np.zeros(6004)
    z[:count] = np.linspace(-35, 35, count) if count > 4 else [0.3, -2.0, 8.0, 0.0][:count]
    tails = np.full(6004, np.nan)
    fill_tails(z, tails, count)
    np.testing.assert_allclose(tails[:count], special.ndtr(-np.abs(z[:count])), rtol=2e-13)


def test_far_out_and_infinite_numbers_have_tails_that_vanish():
    z = np.array([np.inf, -np.inf, 1e6, -38.0])
    tails = np.empty(4)
    fill_tails(z, tails, 4)
    assert (tails >= 0).all()
    assert (tails < 1e-280).all()


@pytest.mark.parametrize("low, high", [(-np.inf, -1.0), (-2.0, -1.5), (-1.0, 0.5), (0.2, 9.0), (7.0, np.inf)])
def test_masses_keep_their_digits_in_both_tails(low, high):
    tail = {z: 0.0 if np.isinf(z) else special.ndtr(-abs(z)) for z in (low, high)}
    side = -1.0 if low > 0 else 1.0
    expected = side * (special.ndtr(side * high) - special.ndtr(side * low))
    assert mass_between(low, tail[low], high, tail[high]) == pytest.approx(expected, rel=1e-12)
