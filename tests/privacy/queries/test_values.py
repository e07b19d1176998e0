"""Values and their sum within a range: what one unit moves, reached and never passed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.queries.values.values import Values, changed_values, values_change
from tensorveil.privacy.units import Unit

BOUNDS = Bounds(1, 5)
WHERE = np.array([[0, 0], [0, 0], [0, 1], [1, 0], [2, 1], [2, 1], [2, 1]])  # at most three of one index of either mode
LEVELS = (-4.0, 1.0, 3.3, 9.0)


def shard(values, unit="value"):
    data = Observations(WHERE, values, (3, 2), duplicates="keep")
    return clip(data, BOUNDS, Unit.of(unit), bytes(32))


def neighbours(unit):
    """Every value, or all values of every slice, replaced by each of the levels."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.choice(LEVELS, len(WHERE))
        units = (
            [[row] for row in range(len(WHERE))] if unit == "value" else [WHERE[:, 0] == index for index in range(3)]
        )
        for own, level in itertools.product(units, LEVELS):
            other = values.copy()
            other[own] = level
            yield shard(values, unit), shard(other, unit)


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", ["value", "slice_values:0"])
def test_one_unit_moves_values_by_their_sensitivity_and_no_more(unit, pure):
    query, moved = Values(pure), []
    for mine, theirs in neighbours(unit):
        change = query.sensitivity(mine)
        assert change == query.sensitivity(theirs)
        difference = (query.of(theirs) - query.of(mine)) * change.grid  # in the order of coordinates, then of values
        moved.append(np.abs(difference).sum() if pure else np.linalg.norm(difference))
        assert moved[-1] <= change.bound
    assert max(moved) == pytest.approx(change.bound, rel=1e-9)


def test_how_many_values_one_unit_changes():
    values = np.arange(7.0)
    assert changed_values(shard(values)) == 1
    assert changed_values(shard(values, "slice_values:0")) == 3
    assert changed_values(shard(values, "slice_values:1")) == 4
    at_most = clip(Observations(WHERE, values, (3, 2), duplicates="keep"), BOUNDS, Unit.slice_values(1, 2), bytes(32))
    assert changed_values(at_most) == 2


@given(st.integers(1, 10**9))
def test_the_norm_of_so_many_changes_is_rounded_up(changes):
    assert values_change(changes, pure=True).bound == 2 * changes
    bound = values_change(changes, pure=False).bound
    numerator, denominator = bound.as_integer_ratio()
    assert numerator**2 >= 4 * changes * denominator**2
    assert bound == pytest.approx(2 * math.sqrt(changes), rel=1e-15)
