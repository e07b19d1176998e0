"""Totals of values and squares: the declared sensitivity by brute force."""

import numpy as np
import pytest

from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.mechanisms.parts.level import level_coordinates
from tensorveil.models.cp import CP
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.sums.totals import Totals
from tensorveil.privacy.units import Unit

BOUNDS = Bounds(-1, 1)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]


def tiny():
    where = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 2], [3, 1]])
    return Observations(where, np.random.default_rng(0).uniform(-1, 1, len(where)), (4, 3))


def totals(observations, unit, pure):
    query = Totals(pure)
    shard = clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))
    (change,), (found,) = query.sensitivity(shard.unit), query.of(shard)
    return found * change.grid, change.bound


def different(one, other):
    """Where the second has a value that the first does not have at the same place."""
    values = np.full(len(other), np.nan)
    values[: min(len(one), len(other))] = one.values[: len(other)]
    return values != other.values


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", UNITS)
def test_no_neighbour_moves_the_totals_by_more_than_declared(unit, pure):
    moved = []
    for one, other in neighbours(tiny(), unit, BOUNDS):
        for value in (-1.0, -0.5, 0.0, 0.3, 1.0):  # the largest move is not always between the bounds
            changed = other.with_values(np.where(different(one, other), value, other.values))
            (before, declared), (after, _) = totals(one, unit, pure), totals(changed, unit, pure)
            moved.append(np.linalg.norm(before - after, 1 if pure else 2))
    assert max(moved) <= declared
    assert max(moved) > 0.7 * declared  # a value cannot move the mean by 2 and its square by 1 at once


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", UNITS)
def test_the_plan_counts_the_numbers_that_are_released(unit, pure):
    request = Request.checked(CP(rank=1), BOUNDS, unit, 1.0, 1e-6, (4, 3), None, None, None)
    assert len(totals(tiny(), unit, pure)[0]) == level_coordinates(request)
