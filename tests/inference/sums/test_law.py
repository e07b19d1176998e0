"""Expectations of what sums read, against samples."""

import numpy as np
import pytest

from tensorveil.inference.sums.law import Earlier, ScoreLaw, relinked
from tensorveil.inference.values.marginal import exact_marginal
from tensorveil.inference.values.scale import scale_of

STEPS = 2**20


def scale_for(values):
    return scale_of(exact_marginal(np.rint(values * STEPS).astype(np.int64), STEPS), 32)


@pytest.fixture(params=["counts", "even"])
def scale(request):
    rng = np.random.default_rng(0)
    if request.param == "counts":
        return scale_for(np.minimum(rng.poisson(0.3, 20_000), 8) / 4 - 1)
    return scale_for(np.clip(rng.normal(0.1, 0.3, 20_000), -1, 1))


def test_the_curve_is_mean_and_variance_of_clipped_scores(scale):
    rng = np.random.default_rng(1)
    earlier = Earlier(np.array([-0.3, 0.4]), np.array([-0.2, 0.3]))
    curve = ScoreLaw(scale).curve(np.array([0.0, 0.7]), 0.8, 1.2, earlier)
    for place, mean in enumerate((0.0, 0.7)):
        which = rng.integers(0, 2, 200_000)
        values = scale.value(mean + earlier.latent[which] + 0.8 * rng.standard_normal(200_000))
        scores = scale.scores(np.rint(values * scale.steps).astype(np.int64))
        read = np.clip(scores - earlier.scores[which], -1.2, 1.2)
        assert curve.mean[place] == pytest.approx(read.mean(), abs=0.02)
        assert curve.variance[place] == pytest.approx(read.var(), abs=0.02)


def test_the_mean_of_a_value_is_where_that_value_is_expected(scale):
    rng = np.random.default_rng(2)
    added = rng.normal(0, 0.5, 300)
    value = float(scale.value(rng.normal(0.2, 1.0, 100_000)).mean())
    law = ScoreLaw(scale)
    latent = law.mean_of_values(value, 0.7, added)
    seen = scale.value(latent + rng.choice(added, 400_000) + 0.7 * rng.standard_normal(400_000)).mean()
    assert seen == pytest.approx(value, abs=0.01)
    assert law.mean_of_value(value, 0.7) == pytest.approx(law.mean_of_values(value, 0.7, np.zeros(1)))


def test_one_more_mode_adds_its_offsets_by_their_counts():
    latent, counts = np.array([-1.0, 0.0, 2.0]), np.array([10.0, 30.0, 60.0])
    pairs = Earlier.none().plus(latent, latent / 2, counts)
    assert pairs.latent.mean() == pytest.approx(1.1, abs=0.05)
    np.testing.assert_allclose(pairs.scores, pairs.latent / 2)
    twice = pairs.plus(np.array([5.0]), np.array([1.0]), np.ones(1))
    np.testing.assert_allclose(np.sort(twice.latent), np.sort(pairs.latent) + 5)


def test_a_moved_scale_has_the_same_values_for_latent_numbers_of_another_law(scale):
    rng = np.random.default_rng(3)
    centres, weights = np.array([-1.5, 0.2, 2.5]), np.array([0.5, 0.4, 0.1])
    latent = rng.choice(centres, 400_000, p=weights) + 0.4 * rng.standard_normal(400_000)
    seen = np.rint(relinked(scale, centres, weights, 0.4).value(latent) * scale.steps).astype(np.int64)
    level = np.searchsorted(scale.edges, seen, side="right")
    found = np.bincount(level, minlength=len(scale.masses)) / len(level)
    np.testing.assert_allclose(found, scale.masses / scale.masses.sum(), atol=0.004)


def test_moments_are_those_of_samples_read_by_another_scale(scale):
    rng = np.random.default_rng(4)
    moved = relinked(scale, np.array([-1.0, 1.0]), np.array([0.5, 0.5]), 0.5)
    mean, variance = ScoreLaw(moved, scale).moments(np.array([0.3]), 0.7, 1.5)
    values = moved.value(0.3 + 0.7 * rng.standard_normal(300_000))
    read = np.clip(scale.scores(np.rint(values * scale.steps).astype(np.int64)), -1.5, 1.5)
    assert mean[0] == pytest.approx(read.mean(), abs=0.02)
    assert variance[0] == pytest.approx(read.var(), abs=0.02)
