"""The released mean and the marginal that agrees with it."""

from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.total import (
    ENDS,
    TRUST_COUNT,
    Total,
    _mean_variance,
    mean_of_totals,
    reading_range,
    surest_spread,
    with_mean,
)
from tensorveil.inference.values.marginal import Marginal, exact_marginal
from tensorveil.inference.values.scale import scale_of

STEPS = 2**20


def marginal(values):
    return exact_marginal(np.rint(values * STEPS).astype(np.int64), STEPS)


def test_the_mean_is_the_place_of_the_sum_in_the_range():
    total = NoisySums(np.array([250.0]), np.array([1000.0]), 4.0, 0.0)
    mean, error = mean_of_totals([Total(total, -0.5, 0.3)])
    assert mean == pytest.approx(-0.1 + 0.25 * 0.4)
    assert error == pytest.approx(0.4 * 2 / 1000)


def test_a_small_share_of_the_budget_does_not_make_the_mean_worse():
    """Its count may be far off: a mean from it alone would then seem more certain than it is."""
    rng = np.random.default_rng(2)
    count, place = 168.0, -0.94

    def total(share):
        noise = rng.laplace(0, 1 / (0.5 * share), 2)
        pair = count * np.array([1 + place, 1 - place]) / 2 + noise
        variance = 2 / (0.5 * share) ** 2
        return Total(NoisySums.of_pairs(pair, variance), -1.0, 1.0)

    alone, together, claimed = [], [], []
    for _ in range(2000):
        small, large = total(0.05), total(0.95)
        mean, error = mean_of_totals([small, large])
        alone.append(mean_of_totals([large])[0] - place)
        together.append(mean - place)
        claimed.append(error)
    size = np.sqrt(np.mean(np.square(together)))
    assert size < 1.02 * np.sqrt(np.mean(np.square(alone)))
    assert size == pytest.approx(np.median(claimed), rel=0.3)


def test_a_tail_up_to_the_bound_leaves_atoms_what_they_are():
    values = np.repeat([-1.0, -0.9, -0.8, -0.7], [400, 300, 200, 100])
    moved, _ = with_mean(replace(marginal(values), error=0.01), -0.85, 1e-4, 64)
    assert moved.masses[-1] > 0  # the tail ends at the upper bound
    scale = scale_of(moved, 32)
    np.testing.assert_allclose(scale.low[:4], [-1.0, -0.9, -0.8, -0.7], atol=1e-3)
    np.testing.assert_array_equal(scale.low[:4], scale.high[:4])


def test_a_marginal_that_missed_many_values_gives_way_to_the_mean():
    known = replace(marginal(np.linspace(-1.0, -0.9, 500)), error=0.1)
    _, means = with_mean(known, 0.0, 0.05, 64)
    assert means.mean() == pytest.approx(0.0, abs=0.02)


def test_means_that_agree_are_averaged():
    known = replace(marginal(np.linspace(-0.3, 0.3, 500)), error=0.02)
    _, means = with_mean(known, 0.02, 0.03, 64)
    assert 0 < means.mean() < 0.02
    assert means.std() < 0.03


def test_the_law_of_the_mean_is_that_of_its_prior_noise_and_marginal():
    """Against means that are drawn from the prior, and noise and an error of the marginal that are added to them."""
    rng = np.random.default_rng(3)
    known = replace(marginal(np.linspace(-1.0, -0.5, 500)), error=0.3)
    noise, released, doubt = 0.2, -0.6, np.sqrt(_mean_variance(known))
    drawn = 2 * rng.beta(ENDS, ENDS, 2_000_000) - 1
    near = np.abs(drawn + noise * rng.standard_normal(len(drawn)) - released) < 0.01
    drawn = drawn[near]
    drawn = drawn[np.abs(drawn + doubt * rng.standard_t(TRUST_COUNT, len(drawn)) - known.mean()) < 0.02]
    _, means = with_mean(known, released, noise, 64)
    assert len(drawn) > 500
    assert means.mean() == pytest.approx(drawn.mean(), abs=4 * drawn.std() / np.sqrt(len(drawn)))
    np.testing.assert_allclose(np.quantile(means, [0.1, 0.5, 0.9]), np.quantile(drawn, [0.1, 0.5, 0.9]), atol=0.03)


@pytest.mark.parametrize(("place", "most"), [(-0.99, 0.95), (0.95, 0.95), (-0.9, 1.2), (0.3, 1.1)])
def test_a_mean_near_a_bound_is_known_better_than_by_the_noisy_mean_and_elsewhere_little_worse(place, most):
    """Draws beyond a bound were clipped one by one: with all values near zero, that moved the mean of the draws up."""
    rng = np.random.default_rng(4)
    nothing = Marginal(np.array([-STEPS]), np.array([STEPS + 1]), np.ones(1), 20.0, 1.0)
    noise = 0.07
    released = place + noise / np.sqrt(2) * rng.laplace(size=200)
    found = np.array([with_mean(nothing, one, noise, 64)[1].mean() for one in np.clip(released, -1, 1)])
    assert np.abs(found - place).mean() < most * np.abs(np.clip(released, -1, 1) - place).mean()


@pytest.mark.parametrize("short", [0.03, -0.03])
def test_the_marginal_takes_the_mean_that_it_is_given(short):
    known = marginal(np.random.default_rng(0).uniform(-0.4, 0.2, 5000))
    object.__setattr__(known, "error", 0.01)
    wanted = known.mean() + short
    moved, means = with_mean(known, wanted, 1e-4, 64)
    assert means.mean() == pytest.approx(wanted, abs=1e-4)
    assert moved.mean() == pytest.approx(wanted, abs=2e-3)
    assert moved.masses.sum() == pytest.approx(1.0)
    assert means.std() < 0.01


def test_where_the_marginal_is_sure_values_are_read_in_its_range_alone():
    low, high = reading_range(marginal(np.linspace(-0.4, 0.2, 500)), 0.1)
    assert (low, high) == pytest.approx((-0.4, 0.2), abs=0.01)


def test_few_values_in_wide_bounds_are_not_read_at_the_price_of_the_bounds():
    narrow = replace(marginal(np.linspace(0.001, 0.002, 500)), error=0.1)
    low, high = reading_range(narrow, 0.01)  # noise of ten times the spread of the values
    assert high - low < 0.02
    wide = replace(marginal(np.linspace(-0.5, 0.5, 500)), error=0.1)
    low, high = reading_range(wide, 0.01)  # noise of a thirtieth of it
    assert (low, high) == pytest.approx((-1, 1))


def test_the_surest_spread_leaves_out_tails_that_noise_may_have_made():
    rng = np.random.default_rng(0)
    normal = marginal(np.clip(0.1 * rng.standard_normal(50_000), -1, 1))
    assert surest_spread(replace(normal, error=0.03)) == pytest.approx(0.1, rel=0.03)
    constant = marginal(np.repeat([-0.4, -0.2, 0.0], [500, 30, 10]))
    assert surest_spread(replace(constant, error=0.03)) < 1e-3
    assert surest_spread(replace(constant, error=0.002)) > 0.02


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_narrow_values_in_wide_bounds_are_predicted_better_than_by_a_noisy_mean_over_the_bounds(epsilon):
    generator = np.random.default_rng(5)
    where = np.column_stack(np.unravel_index(generator.choice(18 * 8 * 17, 1000, replace=False), (18, 8, 17)))
    data = tv.Observations(where, 0.001 * generator.standard_normal(1000), (18, 8, 17))
    plan = tv.SumPerturbation().plan(tv.CP(1), tv.Bounds(-100, 100), "value", epsilon, shape=(18, 8, 17))
    errors = [np.mean(tv.fit(data, plan, seed=seed).predict(where) ** 2) for seed in range(4)]
    noise = np.sqrt(2) * 200 / (1000 * epsilon)  # of a mean over the whole bounds, with all of the budget
    assert np.sqrt(np.mean(errors)) < noise


def test_the_total_of_narrow_values_has_the_budget_that_their_offsets_would_waste():
    """A constant in noise seems to have tails: sums of offsets took half the budget, and added noise of their own."""
    where = np.column_stack(np.unravel_index(np.arange(0, 500, 5), (25, 20)))
    data = tv.Observations(where, np.full(100, 700.0), (25, 20))
    plan = tv.SumPerturbation().plan(tv.CP(1), tv.Bounds(0, 1000), "value", 6.0, shape=(25, 20), expected_count=100)
    errors = [np.abs(tv.fit(data, plan, seed=seed).predict(where) - 700.0).mean() for seed in range(8)]
    assert np.mean(errors) < 2 * 1000 / (100 * 6.0)  # twice the mean absolute noise of a mean over the bounds


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_values_that_the_marginal_did_not_see_are_in_the_mean_all_the_same(unit):
    """A fifth of the values may lie in a cell that is not clear: read in the range of the others, all seemed zero."""
    where = np.column_stack(np.unravel_index(np.arange(0, 240, 4), (12, 20)))
    values = (np.arange(60) % 5 == 0).astype(float)
    data = tv.Observations(where, values, (12, 20))
    plan = tv.SumPerturbation().plan(tv.CP(1), tv.Bounds(0, 1), unit, 10.0, shape=(12, 20), expected_count=60)
    means = np.array([tv.fit(data, plan, seed=seed).predict(where).mean() for seed in range(12)])
    assert np.abs(means - 0.2).max() < 0.1
