"""The released mean and the marginal that agrees with it."""

from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.total import Total, mean_of_totals, reading_range, with_mean
from tensorveil.inference.values.marginal import exact_marginal
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
    moved, _, _ = with_mean(replace(marginal(values), error=0.01), -0.85, 1e-4)
    assert moved.masses[-1] > 0  # the tail ends at the upper bound
    scale = scale_of(moved, 32)
    np.testing.assert_allclose(scale.low[:4], [-1.0, -0.9, -0.8, -0.7], atol=1e-3)
    np.testing.assert_array_equal(scale.low[:4], scale.high[:4])


def test_a_marginal_that_missed_many_values_gives_way_to_the_mean():
    known = replace(marginal(np.linspace(-1.0, -0.9, 500)), error=0.1)
    _, mean, _ = with_mean(known, 0.0, 0.05)
    assert mean == pytest.approx(0.0, abs=0.02)


def test_means_that_agree_are_averaged():
    known = replace(marginal(np.linspace(-0.3, 0.3, 500)), error=0.02)
    _, mean, error = with_mean(known, 0.02, 0.03)
    assert 0 < mean < 0.02
    assert error < 0.03


@pytest.mark.parametrize("short", [0.03, -0.03])
def test_the_marginal_takes_the_mean_that_it_is_given(short):
    known = marginal(np.random.default_rng(0).uniform(-0.4, 0.2, 5000))
    object.__setattr__(known, "error", 0.01)
    wanted = known.mean() + short
    moved, mean, error = with_mean(known, wanted, 1e-4)
    assert mean == pytest.approx(wanted, abs=1e-4)
    assert moved.mean() == pytest.approx(wanted, abs=2e-3)
    assert moved.masses.sum() == pytest.approx(1.0)
    assert error < 0.01


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


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_narrow_values_in_wide_bounds_are_predicted_better_than_by_a_noisy_mean_over_the_bounds(epsilon):
    generator = np.random.default_rng(5)
    where = np.column_stack(np.unravel_index(generator.choice(18 * 8 * 17, 1000, replace=False), (18, 8, 17)))
    data = tv.Observations(where, 0.001 * generator.standard_normal(1000), (18, 8, 17))
    plan = tv.SumPerturbation().plan(tv.CP(1), tv.Bounds(-100, 100), "value", epsilon, shape=(18, 8, 17))
    errors = [np.mean(tv.fit(data, plan, seed=seed).predict(where) ** 2) for seed in range(4)]
    noise = np.sqrt(2) * 200 / (1000 * epsilon)  # of a mean over the whole bounds, with all of the budget
    assert np.sqrt(np.mean(errors)) < noise
