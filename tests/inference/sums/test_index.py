"""Sums by the index: which rows observations count for, and what latent means follow, against samples."""

import numpy as np
import pytest

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.index import REACH, ROWS, drawn_bends, index_of
from tensorveil.inference.sums.law import relinked
from tensorveil.inference.values.marginal import exact_marginal
from tensorveil.inference.values.scale import scale_of

STEPS = 2**20
SIGMA = 0.5


@pytest.fixture
def world():
    """Values that follow the sum of two modes' offsets by a curve that is flat at the top."""
    rng = np.random.default_rng(0)
    means = {0: rng.normal(0, 0.6, 40), 2: rng.normal(0, 0.5, 30)}
    where = {mode: rng.integers(0, len(part), 60_000) for mode, part in means.items()}
    added = sum(part[where[mode]] for mode, part in means.items())
    latent = np.minimum(added, 0.5) + SIGMA * rng.standard_normal(len(added))
    values = np.clip(0.3 * latent, -1, 1)
    nothing = {mode: np.zeros(len(part)) for mode, part in means.items()}
    return means, where, added, values, index_of(means, nothing, where, added)


def scale_for(values):
    return scale_of(exact_marginal(np.rint(values * STEPS).astype(np.int64), STEPS), 32)


def summed(world, noise):
    _, where, _, values, index = world
    rows = sum(index.numbers[mode][chosen] for mode, chosen in where.items())
    scores = np.clip(scale_for(values).scores(np.rint(values * STEPS).astype(np.int64)), -REACH, REACH)
    sums, counts = np.bincount(rows, scores, ROWS), np.bincount(rows, minlength=ROWS).astype(float)
    return NoisySums(sums, counts, noise**2, noise**2)


def test_a_row_holds_the_observations_whose_offsets_add_up_to_its_place(world):
    means, where, added, _, index = world
    rows = sum(index.numbers[mode][chosen] for mode, chosen in where.items())
    width = index.places[1] - index.places[0]
    assert rows.min() >= 0
    assert rows.max() < ROWS
    assert np.abs(added - index.places[rows]).max() <= len(means) * width / 2 + 1e-9
    np.testing.assert_allclose(index.shares, np.bincount(rows, minlength=ROWS) / len(rows))
    for row in np.unique(rows):  # the weights of places have the mean of the draws
        assert index.near[row] @ index.places == pytest.approx(added[rows == row].mean(), abs=1e-6)


def test_latent_means_follow_the_values_of_rows_and_the_scale_keeps_the_marginal(world):
    _, _, added, values, index = world
    scale = scale_for(values)
    shares, lines = drawn_bends(index, scale, summed(world, 1.0), SIGMA, 50, np.random.default_rng(1))
    law = relinked(scale, lines.mean(axis=0), shares, SIGMA)
    rng = np.random.default_rng(2)
    means = np.interp(added, index.places, lines.mean(axis=0))
    predicted = law.value(means + SIGMA * rng.standard_normal(len(means)))
    np.testing.assert_allclose(
        np.quantile(predicted, [0.05, 0.3, 0.5, 0.7, 0.95]),
        np.quantile(values, [0.05, 0.3, 0.5, 0.7, 0.95]),
        atol=0.03,
    )
    for low, high in ((-1.5, -0.8), (-0.3, 0.3), (0.8, 1.2), (1.3, 2.0)):
        inside = (low < added) & (added < high)
        assert predicted[inside].mean() == pytest.approx(values[inside].mean(), abs=0.02)


def test_sums_that_drown_in_noise_leave_a_line_of_slope_one(world):
    *_, values, index = world
    sums = summed(world, 1.0)
    noise = np.random.default_rng(3).normal(0, 1e7, (2, ROWS))
    drowned = NoisySums(sums.sums + noise[0], sums.counts, 1e14, 0.0)
    _, lines = drawn_bends(index, scale_for(values), drowned, SIGMA, 400, np.random.default_rng(4))
    assert np.polyfit(index.places, lines.mean(axis=0), 1)[0] == pytest.approx(1.0, abs=0.05)
    assert lines.std(axis=0)[-1] > 0.2  # and says that it is not known


def test_what_offsets_were_fitted_to_is_not_learned_again(world):
    means, where, added, values, index = world
    excess = {0: 0.3 * means[0], 2: np.zeros(30)}
    fitted = index_of(means, excess, where, added)
    scale, sums = scale_for(values), summed(world, 1.0)
    rows = sum(index.numbers[mode][chosen] for mode, chosen in where.items())
    more = NoisySums(sums.sums + np.bincount(rows, excess[0][where[0]], ROWS), sums.counts, 1.0, 1.0)
    plain, corrected, wrong = (
        drawn_bends(one, scale, read, SIGMA, 2, np.random.default_rng(5))[1].mean(axis=0)
        for one, read in ((index, sums), (fitted, more), (index, more))
    )
    held = index.shares > 0.01
    np.testing.assert_allclose(corrected[held], plain[held], atol=0.03)
    assert np.abs(wrong - plain)[held].max() > 0.1
