"""The noise of Lemma 2: radius Gamma(d, scale), uniform direction."""

import math

import numpy as np
import pytest
from scipy import stats

from tensorveil.published import norm_exponential_noise


def p_value(sample, law) -> float:
    return float(stats.kstest(np.ravel(sample), law.cdf).pvalue)


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_the_radius_of_the_noise_is_gamma(width, scale):
    noise = norm_exponential_noise(20_000, width, scale, np.random.default_rng(width))
    assert noise.shape == (20_000, width)
    assert p_value(np.linalg.norm(noise, axis=1), stats.gamma(width, scale=scale)) > 0.001


@pytest.mark.parametrize("width", [3, 8])
def test_the_direction_of_the_noise_is_uniform(width):
    noise = norm_exponential_noise(20_000, width, 1.0, np.random.default_rng(10 + width))
    directions = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    # a coordinate u of a uniform direction: (1 + u) / 2 is Beta((d - 1) / 2, (d - 1) / 2), along any axis
    law = stats.beta((width - 1) / 2, (width - 1) / 2)
    axes = [*np.eye(width), np.ones(width) / math.sqrt(width)]
    for axis in axes:
        assert p_value((1 + directions @ axis) / 2, law) > 0.001
    # Rayleigh's test: d n |mean|^2 is chi-square with d degrees of freedom
    statistic = width * 20_000 * np.sum(directions.mean(axis=0) ** 2)
    assert stats.chi2(width).sf(statistic) > 0.001
    # and no correlation between coordinates
    covariance = width * directions.T @ directions / 20_000
    assert np.abs(covariance - np.eye(width)).max() < 0.06


def test_in_one_dimension_the_noise_is_laplace():
    noise = norm_exponential_noise(20_000, 1, 0.3, np.random.default_rng(3))
    assert p_value(noise, stats.laplace(scale=0.3)) > 0.001
    assert stats.binomtest(int((noise > 0).sum()), 20_000).pvalue > 0.001


def test_the_radius_does_not_depend_on_the_direction():
    noise = norm_exponential_noise(20_000, 3, 1.0, np.random.default_rng(4))
    radius = np.linalg.norm(noise, axis=1)
    for side in (noise[:, 0] > 0, np.abs(noise[:, 0]) > 0.8 * radius):
        assert stats.ks_2samp(radius[side], radius[~side]).pvalue > 0.001
