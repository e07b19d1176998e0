"""Histograms: exact weighted counts, and a sensitivity that neighbours reach and never pass."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from marginal_alone import MarginalAlone
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.privacy.bounds import VALUE_STEPS, clip
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS
from tensorveil.privacy.queries.values.histogram import Histogram
from tensorveil.privacy.units import Unit

BOUNDS = tv.Bounds(-1, 1)
UNITS = ["value", "slice_values:0", "slice_values:1", "entry", "slice:0", "slice:1"]
TINY = tv.Observations(
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 2], [3, 1]],
    [0.3, -0.2, 1.0, 0.5, -1.0, 0.1, 0.7],
    (5, 4),
    duplicates="keep",
)
END = VALUE_STEPS + 1
WHOLE = [(-VALUE_STEPS, 0), (0, END)]
HOLES = [(-VALUE_STEPS, -VALUE_STEPS + 1), (-200_000, -100_000), (0, 1), (1, 300_000), (VALUE_STEPS, END)]


def histogram(cells, pure=True):
    first, last = np.array(cells, dtype=np.int64).T
    return Histogram(first, last, pure)


def bounded(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))


def share(change, before, after):
    """How much of its declared sensitivity a change uses, squared for L2; exact."""
    steps = [int(step) for step in after - before]
    limit = Fraction(change.bound) * CONTRIBUTION_STEPS
    if change.norm == "L1":
        return sum(map(abs, steps)) / limit
    return sum(step**2 for step in steps) / limit**2


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("cells", [WHOLE, HOLES])
@pytest.mark.parametrize("unit", UNITS)
def test_the_declared_sensitivity_is_reached_and_never_passed(unit, cells, pure):
    query, shares = histogram(cells, pure), []
    for one, other in neighbours(TINY, unit, BOUNDS):
        mine, theirs = bounded(one, unit), bounded(other, unit)
        (change,) = query.sensitivity(mine.unit)
        shares.append(share(change, *query.of(mine), *query.of(theirs)))
    assert max(shares) <= 1
    assert max(shares) > 1 - Fraction(1, 2**28)
    if unit in ("value", "entry"):
        (change,) = query.sensitivity(Unit.of(unit))
        assert change.norm == "L2" or max(shares) == 1  # whole counts


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=12, max_size=12), st.sampled_from([0, 1]), st.booleans(), st.integers(1, 12))
def test_any_replaced_slice_stays_within_the_bound(values, mode, pure, cut):
    """Values of a slice in any cells: what goes into cells that are not counted weighs as well."""
    where = np.argwhere(np.ones((2, 6)))
    edges = np.unique(np.linspace(-VALUE_STEPS, END, cut + 2).astype(np.int64))
    kept = np.arange(len(edges) - 1) % 3 < 2
    query = Histogram(edges[:-1][kept], edges[1:][kept], pure)
    one = tv.Observations(where, np.linspace(-1, 1, 12), (2, 6))
    other = one.with_values(np.where(one.coordinates[:, mode] == 1, values, one.values))
    unit = f"slice_values:{mode}"
    mine, theirs = bounded(one, unit), bounded(other, unit)
    (change,) = query.sensitivity(mine.unit)
    assert share(change, *query.of(mine), *query.of(theirs)) <= 1


@pytest.mark.parametrize("cells", [WHOLE, HOLES])
@pytest.mark.parametrize("unit", UNITS)
def test_counts_are_those_of_a_loop_over_observations(unit, cells):
    rng = np.random.default_rng(0)
    where = np.column_stack([rng.integers(0, size, 400) for size in (9, 5)])
    values = np.where(rng.random(400) < 0.5, rng.choice([-1.0, 0.0, 1.0], 400), rng.uniform(-1, 1, 400))
    data = bounded(tv.Observations(where, values, (9, 5), duplicates="keep"), unit)
    expected = [Fraction(0)] * len(cells)
    owners = data.index(data.unit.mode_number) if data.unit.whole_slices else np.arange(len(data))
    for step, owner in zip(data.steps.tolist(), owners.tolist(), strict=True):
        for cell, (first, last) in enumerate(cells):
            if first <= step < last:
                expected[cell] += Fraction(1, int(np.count_nonzero(owners == owner)))
    (counts,) = histogram(cells).of(data)
    assert counts.dtype == np.int64
    for count, right in zip(counts.tolist(), expected, strict=True):
        assert right - Fraction(400, CONTRIBUTION_STEPS) <= Fraction(count, CONTRIBUTION_STEPS) <= right
    if not data.unit.whole_slices:
        assert counts.tolist() == [CONTRIBUTION_STEPS * right for right in expected]


@pytest.mark.parametrize("unit", UNITS)
def test_neither_the_order_of_rows_nor_the_split_into_shards_shows(unit):
    rng = np.random.default_rng(1)
    where = np.column_stack([rng.integers(0, size, 300) for size in (6, 5)])
    data = bounded(tv.Observations(where, rng.uniform(-1, 1, 300), (6, 5), duplicates="keep"), unit)
    query = histogram(HOLES)
    (whole,) = query.of(data)
    owners = data.index(data.unit.mode_number if data.unit.whole_slices else 0)
    parts = [query.of(data.kept(owners % 3 == part))[0] for part in range(3)]  # no slice is split
    np.testing.assert_array_equal(np.sum(parts, axis=0), whole)
    order = rng.permutation(300)
    mixed = replace(data, coordinates=data.coordinates[order], steps=data.steps[order])
    np.testing.assert_array_equal(query.of(mixed)[0], whole)


def test_the_highest_value_is_counted():
    data = bounded(tv.Observations([[0, 0], [1, 0]], [1.0, 7.0], (2, 1)), "value")
    assert histogram([(VALUE_STEPS, END)]).of(data)[0].tolist() == [2 * CONTRIBUTION_STEPS]
    assert histogram([(0, VALUE_STEPS)]).of(data)[0].tolist() == [0]


@pytest.mark.parametrize(
    "cells",
    [
        [(0, 0)],
        [(5, 3)],
        [(0, 2), (1, 3)],
        [(0, 5), (0, 5)],
        [(4, 6), (0, 2)],
        [(-VALUE_STEPS - 1, 0)],
        [(0, END + 1)],
        np.empty((0, 2)),
    ],
)
def test_cells_that_overlap_or_leave_the_bounds_are_refused(cells):
    with pytest.raises(tv.InputError, match="cells must be"):
        histogram(cells)


@pytest.mark.parametrize(
    "first, last", [([0.0], [1.0]), (np.array([0]), np.array([1, 2])), (np.array([[0]]), np.array([[1]]))]
)
def test_ends_of_cells_must_be_whole_numbers(first, last):
    with pytest.raises(tv.InputError, match="first and last must be int64"):
        Histogram(first, last, True)


def test_cells_cannot_be_changed_afterwards():
    first, last = np.array([0]), np.array([1])
    query = Histogram(first, last, True)
    first[0] = -5
    assert query.first.tolist() == [0]
    with pytest.raises(ValueError, match="read-only"):
        query.last[0] = 9


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("unit", ["value", "slice_values:0", "entry", "slice:0"])
def test_neighbours_are_not_told_apart_by_a_replay(unit, delta):
    plan = MarginalAlone().plan(tv.CP(rank=1), BOUNDS, unit, 2.0, delta, shape=TINY.shape)
    used = [replay(*pair, plan).largest for pair in neighbours(TINY, unit, BOUNDS)]
    assert max(used) > 0.99
