"""R-hat, effective sample size and weights of chains whose answers are known."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from tensorveil.inference.posterior.diagnostics import effective_size, expected_logs, split_rhat, stacking_weights


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


def test_expected_logs_are_those_of_values_left_out():
    """Normal values of unit variance with a flat prior on their mean: the law of a value left out is known."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal(30)
    means = values.mean() + generator.standard_normal(4000) / np.sqrt(30)
    found = expected_logs(norm.logpdf(values, means[:, None]))
    others = (values.sum() - values) / 29
    np.testing.assert_allclose(found.sum(), norm.logpdf(values, others, np.sqrt(1 + 1 / 29)).sum(), atol=0.15)
    naive = np.log(norm.pdf(values, means[:, None]).mean(axis=0)).sum()
    assert naive > found.sum() + 0.5


def test_weights_of_chains_are_those_of_the_best_mixture():
    generator = np.random.default_rng(1)
    values = np.where(generator.random(2000) < 0.7, -1.0, 1.5) + generator.standard_normal(2000)
    logs = [norm.logpdf(values, mean) for mean in (-1.0, 1.5, 6.0)]
    found = stacking_weights(logs, 0.0)

    def mixed(free):
        return np.exp([*free, 0.0]) / np.exp([*free, 0.0]).sum()

    best = minimize(lambda free: -np.mean(np.log(mixed(free) @ np.exp(logs))), [1.0, 1.0], method="Nelder-Mead").x
    np.testing.assert_allclose(found, mixed(best), atol=0.02)
    assert found[2] < 0.01


def test_chains_that_predict_alike_have_like_weights():
    values = np.random.default_rng(2).standard_normal(2000)
    logs = [norm.logpdf(values, mean) for mean in (0.0, 0.05, 0.1)]
    alike, exact = stacking_weights(logs, 20.0), stacking_weights(logs, 0.0)
    assert exact.min() < 0.1
    assert alike.min() > 0.2
    far = stacking_weights([logs[0], norm.logpdf(values, 3.0)], 20.0)
    assert far[1] < 0.02
