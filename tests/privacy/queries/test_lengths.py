"""Sums and counts by the length of slices: no slice that comes or goes is longer than one, and each is as long."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from privacy.queries.sums_cases import READINGS, ROWS, TINY, bounded, crowd, share_moved, shares
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS
from tensorveil.privacy.queries.sums.lengths import COUNT_PART, Lengths
from tensorveil.privacy.queries.sums.row_sums import Rows
from tensorveil.privacy.units import Unit

UNIT = "slice:0"


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("rows", ROWS)
def test_the_declared_sensitivity_is_reached_and_never_passed(rows, reading):
    assert min(shares(Lengths(ROWS[rows], READINGS[reading]), UNIT)) > 0.99  # every slice uses all of its length


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from(list(READINGS)))
def test_no_random_slice_is_longer_than_one(seed, count, reading):
    rng = np.random.default_rng(seed)
    where = np.column_stack([np.full(count, 2), rng.integers(0, rng.integers(1, 5), count)])
    values = rng.choice([-1.0, 1.0, 2.0**-20, -(2.0**-20), 0.3], count)
    slice_ = bounded(tv.Observations(where, values, (5, 4), duplicates="keep"), UNIT)
    nobody = slice_.kept(np.zeros(count, dtype=np.bool_))
    assert share_moved(Lengths(ROWS["of a mode"], READINGS[reading]), slice_, nobody) > 0.99


def active_slice(half, small):
    """One slice with four times `half` observations in two rows: in one of them large values up and small ones down.

    In the other they are the other way round, so that the slice's own offset is zero.
    """
    row = np.concatenate([np.full(half, VALUE_STEPS), np.full(half, -small)])
    coordinates = np.zeros((4 * half, 2), dtype=np.uint32)
    coordinates[2 * half :, 1] = 1
    return BoundedObservations(coordinates, (1, 2), Unit.slice(0), np.concatenate([row, -row]))


# Small values whose contributions would vanish if each were rounded towards zero by itself, at counts where those of
# large values would be whole: that would move sums and counts by 1.0000085 and 1.00047.
@pytest.mark.parametrize("half, small", [(10_071, 17), (500_550, 866)])
def test_an_active_slice_cannot_gain_by_rounding(half, small):
    query, slice_ = Lengths(Rows.of_mode(1, 2), READINGS["values"]), active_slice(half, small)
    nobody = slice_.kept(np.zeros(len(slice_), dtype=np.bool_))
    assert share_moved(query, slice_, nobody) > 0.99


def test_a_slice_in_very_many_rows_is_not_longer_than_one():
    """The squares of a million rows are added one after the other, as floats."""
    count = 2**20
    coordinates = np.column_stack([np.zeros(count), np.arange(count)]).astype(np.uint32)
    steps = np.random.default_rng(0).integers(-VALUE_STEPS, VALUE_STEPS + 1, count)
    slice_ = BoundedObservations(coordinates, (1, count), Unit.slice(0), steps)
    nobody = slice_.kept(np.zeros(count, dtype=np.bool_))
    assert share_moved(Lengths(Rows.of_mode(1, count), READINGS["values"]), slice_, nobody) > 0.99


def test_sums_and_counts_are_those_of_slices_scaled_to_one():
    data, reading = bounded(TINY, UNIT), READINGS["short reach"]
    read = reading.of(data)
    expected = np.zeros((2, 4))
    for owner in range(5):
        mine = data.index(0) == owner
        vector = np.zeros((2, 4))
        for row, one in zip(data.index(1)[mine], read[mine], strict=True):
            vector[:, row] += one, COUNT_PART
        expected += vector / max(np.linalg.norm(vector), 1e-300)
    (found,) = Lengths(ROWS["of a mode"], reading).of(data)
    np.testing.assert_allclose(found / CONTRIBUTION_STEPS, expected.ravel(), atol=1e-5)


@pytest.mark.parametrize("rows", ROWS)
def test_neither_the_order_of_the_rows_nor_the_split_into_shards_shows(rows):
    query, data = Lengths(ROWS[rows], READINGS["not monotone"]), bounded(crowd(), UNIT)
    order = np.random.default_rng(2).permutation(len(data))
    mixed = replace(data, coordinates=data.coordinates[order], steps=data.steps[order])
    (whole,) = query.of(data)
    np.testing.assert_array_equal(query.of(mixed)[0], whole)
    first = data.coordinates[:, 0] < 2  # a slice lies in one shard
    np.testing.assert_array_equal(query.of(data.kept(first))[0] + query.of(data.kept(~first))[0], whole)


def test_what_a_slice_adds_does_not_depend_on_the_others():
    query, data = Lengths(ROWS["of groups"], READINGS["short reach"]), bounded(TINY, UNIT)
    alone = sum(query.of(data.kept(data.index(0) == owner))[0] for owner in range(5))
    np.testing.assert_array_equal(query.of(data)[0], alone)


@pytest.mark.parametrize("unit", [Unit.value(), Unit.slice_values(0), Unit.entry()], ids=str)
def test_other_units_have_no_proof(unit):
    with pytest.raises(tv.UnprovenError, match="unit slice only"):
        Lengths(ROWS["of a mode"], READINGS["values"]).sensitivity(unit)
