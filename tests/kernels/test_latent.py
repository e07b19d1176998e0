"""Latent values behind noisy ones, against laws computed by numerical integration and by scipy."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tensorveil.kernels.reference import latent
from tensorveil.mechanisms.planning.channel_design import design_channel

UNLIKELY = 1e-6
LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)
CUTS = np.array([-np.inf, -0.75, -0.3, 0.2, 0.75, np.inf])
CHANCES = design_channel(LEVELS, 2.0).chances
SIGMA = 0.4


def level_chances(mean, sigma=SIGMA, cuts=CUTS):
    return np.diff(stats.norm(mean, sigma).cdf(cuts))


@pytest.mark.parametrize("mean", [-1.5, 0.1, 0.9])
@pytest.mark.parametrize("symbol", range(CHANCES.shape[1]))
def test_latent_values_have_their_law_given_the_symbol(symbol, mean):
    count = 5000
    drawn = np.empty(count)
    symbols = np.full(count, symbol)
    latent.draw_behind_symbols(symbols, CHANCES, CUTS, SIGMA, np.full(count, mean), np.uint64(3), drawn, 0, count)
    levels = np.searchsorted(CUTS[1:-1], drawn)
    expected = level_chances(mean) * CHANCES[:, symbol]
    expected *= count / expected.sum()
    used = expected > 5
    found = np.bincount(levels, minlength=5)
    chi = ((found[used] - expected[used]) ** 2 / expected[used]).sum()
    assert stats.chi2(used.sum()).sf(chi) > UNLIKELY
    for level in np.flatnonzero(used):
        low, high = (CUTS[level : level + 2] - mean) / SIGMA
        law = stats.truncnorm(low, high, mean, SIGMA)
        assert stats.kstest(drawn[levels == level], law.cdf).pvalue > UNLIKELY


def test_a_symbol_that_its_mean_all_but_excludes_still_has_a_finite_value_behind_it():
    drawn = np.empty(1)
    latent.draw_behind_symbols(np.array([0]), np.eye(5), CUTS, 0.01, np.array([5.0]), np.uint64(3), drawn, 0, 1)
    assert np.isfinite(drawn).all()


def test_the_likelihood_of_symbols_is_the_sum_of_logarithms():
    generator = np.random.default_rng(0)
    symbols, means = generator.integers(0, CHANCES.shape[1], 500), generator.normal(0, 0.6, 500)
    expected = [np.log(level_chances(mean) @ CHANCES[:, symbol]) for symbol, mean in zip(symbols, means, strict=True)]
    parts = [latent.symbols_likelihood(symbols, CHANCES, CUTS, SIGMA, means, *part) for part in ((0, 200), (200, 500))]
    assert sum(parts) == pytest.approx(math.fsum(expected), rel=1e-12)


def test_the_information_is_that_of_derivatives_taken_by_differences():
    generator = np.random.default_rng(1)
    symbols, means = generator.integers(0, CHANCES.shape[1], 30), generator.normal(0, 0.6, 30)
    information = np.empty((5, 5))
    latent.symbols_information(symbols, CHANCES, CUTS, SIGMA, means, information)
    step, rows = 1e-6, []
    for w in range(30):
        row = []
        for place in range(5):
            values = []
            for sign in (-1, 1):
                cuts = CUTS.copy()
                cuts[place] += sign * step if place else 0.0
                sigma = SIGMA * math.exp(0.0 if place else sign * step)
                values.append(latent.symbols_likelihood(symbols, CHANCES, cuts, sigma, means, w, w + 1))
            row.append((values[1] - values[0]) / (2 * step))
        rows.append(row)
    np.testing.assert_allclose(information, np.array(rows).T @ np.array(rows), rtol=1e-5, atol=1e-6)


def sum_density(x, sigma, scale):
    """Density of N(0, sigma^2) plus Laplace noise, by integration."""
    laplace, normal = stats.laplace(scale=scale), stats.norm(scale=sigma)
    points = sorted({0.0, x})
    reach = 12 * max(sigma, scale)
    return integrate.quad(
        lambda z: normal.pdf(z) * laplace.pdf(x - z), -reach, reach, points=points, limit=400, epsabs=1e-14
    )[0]


@pytest.mark.parametrize("sigma, scale", [(0.4, 0.2), (0.4, 2.0), (0.1, 1.0)])
def test_the_likelihood_under_laplace_noise_is_that_of_the_integral(sigma, scale):
    numbers = np.array([-1.0, 0.0, 0.3, 2.0])
    ours = [latent.laplace_likelihood(numbers, scale, sigma, np.full(4, 0.1), w, w + 1) for w in range(4)]
    theirs = [math.log(sum_density(x - 0.1, sigma, scale)) for x in numbers]
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), atol=1e-6)


@pytest.mark.parametrize("sigma, scale", [(0.4, 0.2), (0.4, 2.0)])
@pytest.mark.parametrize("x", [-0.5, 1.5])
def test_latent_values_have_their_law_given_a_number_with_laplace_noise(x, sigma, scale):
    count, mean = 5000, 0.2
    drawn = np.empty(count)
    numbers = np.full(count, x)
    latent.draw_behind_laplace(numbers, scale, sigma, np.full(count, mean), np.uint64(9), drawn, 0, count)
    grid = np.linspace(mean - 10 * sigma, mean + 10 * sigma, 40_001)
    density = stats.norm(mean, sigma).pdf(grid) * stats.laplace(x, scale).pdf(grid)
    cdf = integrate.cumulative_simpson(density, x=grid, initial=0)
    assert stats.kstest(drawn, lambda z: np.interp(z, grid, cdf / cdf[-1])).pvalue > UNLIKELY


def test_far_from_its_mean_a_number_with_laplace_noise_is_still_handled():
    drawn = np.empty(2)
    numbers = np.array([50.0, -50.0])
    latent.draw_behind_laplace(numbers, 0.05, 0.5, np.zeros(2), np.uint64(9), drawn, 0, 2)
    np.testing.assert_allclose(drawn, [5.0, -5.0], atol=3.0)  # sigma^2 / scale away, and some sigmas


@pytest.mark.parametrize("sigma, scale", [(0.4, 0.3), (0.4, 2.0), (0.01, 1.0)])
def test_variances_of_the_mixture_are_exponential_over_all_sums(sigma, scale):
    # with r drawn from the sum's law and the variance given r from ours, the variance has its own law again
    count = 20_000
    generator = np.random.default_rng(4)
    sums = sigma * generator.standard_normal(count) + generator.laplace(scale=scale, size=count)
    variances = np.empty(count)
    assert latent.draw_laplace_variances(sums, scale, sigma**2, np.uint64(5), variances, 0, count)
    assert stats.kstest(variances - sigma**2, stats.expon(scale=2 * scale**2).cdf).pvalue > UNLIKELY
    standard = sums / np.sqrt(variances)
    assert stats.kstest(standard, "norm").pvalue > UNLIKELY
