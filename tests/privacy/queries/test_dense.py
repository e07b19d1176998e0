"""Every cell of the box: what one unit moves, reached and never passed, and what a cell holds."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import VALUE_STEPS as STEPS
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.queries.dense import DenseCells
from tensorveil.privacy.units import Unit

SHAPE = (3, 2, 2)


def cells(query, where, values, unit):
    data = Observations(where, values, SHAPE, duplicates="keep")
    return query.finish(query.of(clip(data, Bounds(1, 5), unit, bytes(32))))[0]


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("default", [0, STEPS // 2, -STEPS])
@pytest.mark.parametrize("at_most", [None, 1, 3, 9])
def test_one_unit_moves_the_box_by_its_sensitivity_and_no_more(at_most, default, pure):
    """An observation, or all of one index, is removed; at_most None is the unit entry."""
    unit = Unit.entry() if at_most is None else Unit.slice(0, at_most)
    query, rng, moved = DenseCells(SHAPE, default, pure), np.random.default_rng(0), []
    (change,) = query.sensitivity(unit)
    for count, low in itertools.product((6, 12, 30), (1.0, 4.9)):
        where = rng.integers(0, SHAPE, (count, 3))
        where[:4] = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
        where[4:] = (
            where[4:] if low > 4 else np.maximum(where[4:], [[1, 0, 0]])
        )  # index 0 has one of each cell, or more
        for end in (1.0, 5.0):
            values = np.where(where[:, 0] == 0, end, rng.uniform(low, 5.0, count))
            taken = [where[:, 0] == 0] if at_most else [np.arange(count) == row for row in range(count)]
            for own in taken:
                less = cells(query, where[~own], values[~own], unit) if not own.all() else 0
                difference = (cells(query, where, values, unit) - less) * change.grid
                assert np.count_nonzero(difference) <= change.changed
                moved.append(np.abs(difference).sum() if pure else np.linalg.norm(difference))
                assert moved[-1] <= change.bound
    assert max(moved) == pytest.approx(change.bound, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-STEPS, STEPS), max_size=6), st.integers(-STEPS, STEPS), st.integers(-STEPS, STEPS))
def test_one_more_observation_moves_a_clipped_sum_by_at_most_the_sensitivity(others, added, start):
    query = DenseCells((1, 1), start, True)

    def cell(values):
        return int(query.finish((np.array([sum(value - start for value in values)]),))[0][0])

    (change,) = query.sensitivity(Unit.entry())
    assert abs(cell([*others, added]) - cell(others)) <= change.bound / change.grid


def test_sensitivities():
    def bound(default, at_most, pure):
        return DenseCells((5, 7), default, pure).sensitivity(Unit.slice(0, at_most))[0].bound

    assert bound(0, 1, True) == 1
    assert bound(-STEPS, 3, True) == 6
    assert bound(STEPS // 2, 4, False) == pytest.approx(3)
    assert bound(0, 100, True) == bound(0, None, True) == 7  # all cells of the slice


@given(st.integers(1, 49), st.integers(0, STEPS))
def test_the_norm_is_rounded_up(changes, start):
    (change,) = DenseCells((2, 50), start, False).sensitivity(Unit.slice(0, changes))
    exact = changes * (STEPS + start) ** 2
    numerator, denominator = (change.bound / change.grid).as_integer_ratio()
    assert numerator**2 >= exact * denominator**2
    assert change.bound / change.grid == pytest.approx(math.sqrt(exact), rel=1e-15)


def test_shards_add_up_to_the_whole():
    rng = np.random.default_rng(1)
    where, values = rng.integers(0, SHAPE, (40, 3)), rng.uniform(0, 6, 40)
    query = DenseCells(SHAPE, 77, True)
    whole = clip(Observations(where, values, SHAPE, duplicates="keep"), Bounds(1, 5), Unit.entry(), bytes(32))
    parts = [query.of(whole.kept(np.arange(40) % 3 == part))[0] for part in range(3)]
    np.testing.assert_array_equal(query.of(whole)[0], sum(parts))
