"""Contributions: weights that bound a whole slice exactly, and sums that forget their order."""

from collections import defaultdict
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS, slice_weights, whole_sums
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
    np.testing.assert_array_equal(mine, slice_weights(crowd, crowd.index(1), pure)[: len(own)])  # sorted: slice 0 first


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
