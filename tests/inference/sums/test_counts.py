"""Counts given noisy counts: nearer to the truth than the noisy ones, zero where there is nothing."""

import numpy as np
import pytest

from tensorveil.inference.sums.counts import believed_counts


@pytest.mark.parametrize("noise", [1.0, 15.0])
def test_they_are_nearer_to_the_truth_and_know_how_near(noise):
    rng = np.random.default_rng(0)
    true = np.where(rng.random(3000) < 0.5, 0.0, rng.geometric(0.03, 3000))
    noisy = true + rng.normal(0, noise, 3000)
    found, variances = believed_counts(noisy, noise**2)
    error = np.square(found - true)
    assert error.mean() < 0.9 * np.square(np.maximum(noisy, 0) - true).mean()
    assert variances.mean() == pytest.approx(error.mean(), rel=0.25)
    assert (found >= 0).all()


def test_noise_around_zero_is_no_count():
    noisy = np.random.default_rng(1).normal(0, 10.0, 1000)
    found, _ = believed_counts(noisy, 100.0)
    assert found.mean() < 1.5  # the positive parts have mean 4


@pytest.mark.parametrize("variance", [0.0, 1e-6])
def test_without_noise_they_are_the_counts(variance):
    counts = np.array([0.0, 1.0, 7.0, 250.0])
    found, variances = believed_counts(counts, variance)
    np.testing.assert_allclose(found, counts, atol=0.6)
    assert believed_counts(counts, 0.0)[0].tolist() == counts.tolist()
    assert np.isfinite(variances).all()


def test_one_count_and_negative_ones_are_no_trouble():
    for noisy in ([3.0], [-5.0, -2.0], [0.0, 0.0]):
        found, variances = believed_counts(np.array(noisy), 4.0)
        assert np.isfinite(found).all()
        assert min(found.min(), variances.min()) >= 0
