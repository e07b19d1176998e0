"""Offsets given noisy sums, against integration over all of them together."""

import numpy as np
import pytest
from scipy.special import logsumexp

from tensorveil.inference.sums.effects import GRID, SCALE, SHIFT, Curve, OffsetSampler, ReadSums

LINE = Curve(GRID, np.full(len(GRID), 0.5))
BENT = Curve(np.log1p(np.exp(2 * GRID - 2)) / 2, np.full(len(GRID), 0.2))  # a rare value: flat below, steep above


def drawn(read, curve, rounds, features=(), limit=2.0, seed=0):
    sampler = OffsetSampler(read, curve, list(features), np.random.default_rng(seed))
    steps = [sampler.step(limit) for _ in range(rounds)][rounds // 10 :]
    return np.mean([mean for mean, _ in steps], axis=0), np.array([draw for _, draw in steps])


def integrated(read, curve, limit):
    """Posterior means of three offsets: sums over grids of each offset, of the shift and of the standard deviation."""
    offsets, shifts = np.linspace(-5, 5, 401), SHIFT * np.linspace(-3.5, 3.5, 41)
    stds = np.exp(np.linspace(np.log(1e-3), np.log(limit), 81))
    level, spread = np.interp(offsets, GRID, curve.mean), np.interp(offsets, GRID, curve.variance)
    total, weighted = [], []
    for std in stds:
        for shift in shifts:
            log = -0.5 * (shift / SHIFT) ** 2 + np.log(std) - np.log1p((std / SCALE) ** 2)  # even in the log of std
            means = []
            for sum_, count, doubt, square in zip(read.sums, read.counts, read.doubts, read.squares, strict=True):
                error = read.noise + doubt * level**2 + square * spread
                fit = -0.5 * ((sum_ - count * level) ** 2 / error + np.log(error))
                prior = -0.5 * ((offsets - shift) / std) ** 2
                prior -= logsumexp(prior)
                log += logsumexp(fit + prior)
                chances = np.exp(fit + prior - logsumexp(fit + prior))
                means.append(chances @ offsets)
            total.append(log)
            weighted.append(means)
    chances = np.exp(np.array(total) - logsumexp(total))
    return chances @ np.array(weighted)


@pytest.mark.parametrize("curve", [LINE, BENT])
def test_three_offsets_are_those_of_the_integral(curve):
    counts = np.array([40.0, 25.0, 60.0])
    level = np.interp([0.8, -0.4, 0.2], GRID, curve.mean)
    read = ReadSums(counts * level + np.array([2.0, -1.0, 1.0]), counts, 9.0, np.array([1.0, 0.0, 2.0]), counts)
    mean, draws = drawn(read, curve, 3000)
    wanted = integrated(read, curve, 2.0)
    np.testing.assert_allclose(mean, wanted, atol=0.06)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.05)


def test_without_signal_offsets_are_near_zero_and_with_little_noise_they_are_the_means():
    rng = np.random.default_rng(1)
    counts, zeros = rng.integers(20, 60, 200).astype(float), np.zeros(200)
    noise = ReadSums(rng.normal(0, 20.0, 200), counts, 400.0, zeros, 0 * counts)
    assert np.sqrt(np.mean(drawn(noise, LINE, 60)[0] ** 2)) < 0.15
    true = rng.normal(0, 0.5, 200)
    clear = ReadSums(counts * true, counts, 1e-4, zeros, 0 * counts)
    np.testing.assert_allclose(drawn(clear, LINE, 40)[0], true, atol=0.01)


def test_features_carry_what_single_sums_cannot_tell():
    rng = np.random.default_rng(2)
    kind = rng.choice([-1.0, 1.0], 300)
    counts = np.full(300, 10.0)
    read = ReadSums(counts * 0.4 * kind + rng.normal(0, 12.0, 300), counts, 144.0, np.zeros(300), counts)
    with_kind, alone = drawn(read, LINE, 80, [kind[:, None]])[0], drawn(read, LINE, 80)[0]
    assert np.mean((with_kind - 0.4 * kind) ** 2) < 0.2 * np.mean((alone - 0.4 * kind) ** 2)


def test_offsets_far_from_the_start_are_found_and_limits_are_kept():
    counts = np.full(30, 100.0)
    true = np.append(np.zeros(29), 2.5)
    read = ReadSums(counts * true, counts, 4.0, np.zeros(30), counts)
    assert drawn(read, LINE, 20)[0][-1] == pytest.approx(2.5, abs=0.3)
    spread = drawn(ReadSums(np.zeros(30), counts, 1e8, np.zeros(30), counts), LINE, 200, limit=0.1)[1]
    assert spread.std(axis=1).mean() < 0.12
