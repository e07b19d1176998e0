"""Noisy sums: weights that bound a whole slice exactly, sums that forget their order, noise of the stated size."""

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.mechanisms.noisy_sums import (
    CONTRIBUTION_STEPS,
    describe,
    noisy_rows,
    noisy_totals,
    slice_weights,
    whole_sums,
)
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.units import Unit

COORDINATES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60)


def bounded(cells, unit, shape=(4, 5)):
    observations = Observations(np.array(cells), np.full(len(cells), 3.0), shape, duplicates="keep")
    return clip(observations, Bounds(1, 5), unit, bytes(32))


@settings(max_examples=60, deadline=None)
@given(COORDINATES, st.sampled_from(["slice", "slice_values"]), st.booleans(), st.sampled_from([0, 1, None]))
def test_the_weights_of_a_slice_keep_its_bound_exactly(cells, kind, pure, row_mode):
    """In fractions, on the floats as they are: sum_r (sum a)^2 <= 1 for Gaussian, sum a <= 1 for pure noise."""
    data = bounded(cells, Unit(kind, 0))
    rows = np.zeros(len(data), dtype=np.int64) if row_mode is None else data.index(row_mode)
    weights = slice_weights(data, rows, pure)
    by_row = defaultdict(Fraction)
    for owner, row, weight in zip(data.index(0).tolist(), rows.tolist(), weights.tolist(), strict=True):
        by_row[owner, row] += Fraction(weight)
    totals = defaultdict(Fraction)
    for (owner, _), total in by_row.items():
        totals[owner] += total if pure else total**2
    assert all(total <= 1 for total in totals.values())
    assert all(total >= 1 - Fraction(1, 2**38) for total in totals.values())  # and nothing is wasted


def test_single_observations_weigh_one():
    for unit in (Unit.value(), Unit.entry()):
        data = bounded([(0, 0), (0, 1), (0, 1)], unit)
        assert slice_weights(data, data.index(1), False).tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=30, deadline=None)
@given(COORDINATES, COORDINATES, st.booleans())
def test_the_weights_of_a_slice_do_not_read_other_slices(cells, others, pure):
    own = [cell for cell in cells if cell[0] == 0] or [(0, 0)]
    foreign = [(1 + owner % 3, row) for owner, row in others]
    alone, crowd = bounded(own, Unit.slice(0)), bounded(foreign + own, Unit.slice(0))
    mine = slice_weights(alone, alone.index(1), pure)
    np.testing.assert_array_equal(mine, slice_weights(crowd, crowd.index(1), pure)[len(foreign) :])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-1, 1)), min_size=1, max_size=30), st.randoms())
def test_sums_are_exact_towards_zero_and_blind_to_order(terms, random):
    def summed(items):
        return whole_sums(np.array([row for row, _ in items]), np.array([one for _, one in items]), 3)

    expected = [0, 0, 0]
    for row, one in terms:
        exact = abs(Fraction(one)) * CONTRIBUTION_STEPS
        expected[row] += (exact.numerator // exact.denominator) * (1 if one > 0 else -1)
    assert summed(terms).tolist() == expected
    mixed = list(terms)
    random.shuffle(mixed)
    assert summed(mixed).tolist() == expected


@pytest.mark.parametrize("event", [PureEvent(0.5), GaussianEvent(3.0)])
def test_the_noise_has_the_variance_that_is_stated(event):
    source = NoiseSource(seed=3)
    released, variance = noisy_totals(source, event, np.zeros(40_000, dtype=np.int64), 2.0)
    assert released.mean() == pytest.approx(0.0, abs=5 * np.sqrt(variance / 40_000))
    assert released.var() == pytest.approx(variance, rel=0.05)
    rows, variance = noisy_rows(source, event, np.zeros((20_000, 3), dtype=np.int64), 2.0**-32, 2.0)
    assert rows.var() == pytest.approx(variance, rel=0.05)


def test_the_noise_grows_with_sensitivity_and_with_less_budget():
    def spread(event, sensitivity):
        return noisy_totals(NoiseSource(seed=1), event, np.zeros(2000, dtype=np.int64), sensitivity)[0].std()

    assert spread(PureEvent(1.0), 2.0) == pytest.approx(2 * spread(PureEvent(1.0), 1.0), rel=0.1)
    assert spread(PureEvent(0.5), 1.0) == pytest.approx(2 * spread(PureEvent(1.0), 1.0), rel=0.1)
    assert spread(GaussianEvent(4.0), 1.0) == pytest.approx(2 * spread(GaussianEvent(2.0), 1.0), rel=0.1)


def test_statistics_come_through_the_noise_at_their_place():
    totals = np.arange(-50, 50, dtype=np.int64) * CONTRIBUTION_STEPS * 1000
    for event in (PureEvent(10.0), GaussianEvent(0.5)):
        released, variance = noisy_totals(NoiseSource(seed=0), event, totals, 1.0)
        assert np.abs(released - np.arange(-50, 50) * 1000).max() < 12 * np.sqrt(variance)


def test_sums_are_not_sampled():
    with pytest.raises(InputError, match="sampled"):
        noisy_totals(NoiseSource(seed=0), SampledGaussianEvent(1.0, 0.1, 1, False), np.zeros(1, dtype=np.int64), 1.0)


def test_the_words_for_noise_state_its_scale():
    assert describe(PureEvent(0.5), 2.0) == "discrete Laplace noise of scale 4"
    assert describe(GaussianEvent(3.0), 2.0) == "discrete Gaussian noise of std 6"
