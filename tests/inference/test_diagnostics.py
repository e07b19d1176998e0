"""R-hat and effective sample size on chains whose answers are known."""

import numpy as np
import pytest

from tensorveil.inference.posterior.diagnostics import effective_size, split_rhat


def autoregressive(correlation, count=1000, columns=24):
    generator = np.random.default_rng(0)
    chain = np.empty((count, columns))
    chain[0] = generator.standard_normal(columns)
    for place in range(1, count):
        fresh = np.sqrt(1 - correlation**2) * generator.standard_normal(columns)
        chain[place] = correlation * chain[place - 1] + fresh
    return chain.reshape(count, 4, columns // 4)  # four chains


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.5, 0.9])
def test_effective_size_of_an_autoregressive_chain(correlation):
    found = np.median(effective_size(autoregressive(correlation)))
    assert found == pytest.approx(min(4000 * (1 - correlation) / (1 + correlation), 4000), rel=0.25)  # never more


def test_rhat_is_one_for_independent_draws_and_more_for_a_drift():
    still = autoregressive(0.0)
    assert split_rhat(still).max() < 1.01
    drifting = still + np.linspace(0, 2, len(still))[:, None, None]
    assert split_rhat(drifting).min() > 1.05


def test_constant_draws_are_no_trouble():
    constant = np.ones((20, 3, 2))
    np.testing.assert_array_equal(split_rhat(constant), 1.0)
    np.testing.assert_array_equal(effective_size(constant), 60)
