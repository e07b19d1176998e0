"""Offsets given noisy sums and counts of one mode."""

import numpy as np
import pytest
from tensorveil.inference.sums.pairs import both_passes, mean_of_pairs, offsets_of_pairs

from tensorveil.inference.offsets import NoisySums


def test_two_passes_are_one_with_half_the_noise():
    rng = np.random.default_rng(0)
    counts, true = rng.uniform(20, 200, 4000), rng.normal(0, 0.2, 4000)
    between = 0.5 * true
    first, second = (
        NoisySums(counts * left + rng.normal(0, 3.0, 4000), counts + rng.normal(0, 2.0, 4000), 9.0, 4.0)
        for left in (true, true - between)
    )
    both = both_passes(first, second, between, 1.0)
    assert (both.sum_variance, both.count_variance) == (4.5, 2.0)
    assert np.var(both.counts - counts) == pytest.approx(2.0, rel=0.1)
    assert np.var(both.sums - counts * true) == pytest.approx(4.5, rel=0.15)


def test_without_noise_offsets_are_the_deviations_of_the_means():
    rng = np.random.default_rng(1)
    counts, true = rng.integers(200, 400, 50).astype(float), rng.normal(0, 0.2, 50)
    true -= counts @ true / counts.sum()
    pairs = NoisySums(counts * (true + 0.1), counts, 1e-6, 1e-6)
    np.testing.assert_allclose(offsets_of_pairs(pairs, None, 1.0, 1.0, 1e-4).offsets, true, atol=2e-3)


def test_the_mean_of_a_pair_is_shrunk_to_the_middle_where_noise_drowns_it():
    clear = NoisySums(np.array([400.0]), np.array([1000.0]), 1.0, 1.0)
    drowned = NoisySums(np.array([400.0]), np.array([1000.0]), 1e8, 1e8)
    assert mean_of_pairs(clear) == pytest.approx(0.4, abs=1e-4)
    assert abs(mean_of_pairs(drowned)) < 0.01


def test_sums_and_counts_come_back_on_their_own_scale():
    told = NoisySums.of_counts(np.array([1.0, -2.0, 4.0, 8.0]), 0.5, 0.25)
    assert told.sums.tolist() == [1.0, -2.0]
    assert told.counts.tolist() == [16.0, 32.0]
    assert (told.sum_variance, told.count_variance) == (0.5, 8.0)
