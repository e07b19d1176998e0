"""Sums of residuals per index: the declared sensitivity is reached and not passed."""

import numpy as np
import pytest

from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.mechanisms.parts.offsets import offset_coordinates, offset_modes
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.base import Reading
from tensorveil.privacy.queries.sums.row_sums import RowSums
from tensorveil.privacy.units import Unit

BOUNDS = Bounds(-1, 1)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]
TINY = Observations(
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 2], [3, 1]],
    [0.3, -0.2, 1.0, 0.5, -1.0, 0.1, 0.7],
    (5, 4),
    duplicates="keep",
)
BEYOND = Reading(0.0, 1 / 3, Offsets(0.0, [None, np.array([0.5, 0.0, 0.0, -0.5])]))  # some residuals are beyond one


def sums(observations, unit, mode, pure):
    query = RowSums(BEYOND, mode, pure)
    shard = clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))
    (change,), (found,) = query.sensitivity(shard.unit), query.of(shard)
    return found * change.grid, change.bound


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize(
    "unit, mode",  # a slice's own offset is never released
    [(unit, mode) for unit in UNITS for mode in (0, 1) if (unit, mode) != ("slice:0", 0)],
)
def test_the_declared_sensitivity_is_reached_and_never_passed(unit, mode, pure):
    moved = []
    for one, other in neighbours(TINY, unit, BOUNDS):
        (before, declared), (after, _) = sums(one, unit, mode, pure), sums(other, unit, mode, pure)
        moved.append(np.linalg.norm(before - after, 1 if pure else 2))
    assert max(moved) <= declared
    assert max(moved) > 0.99 * declared


@pytest.mark.parametrize("unit", UNITS)
def test_the_plan_counts_the_numbers_that_are_released(unit):
    request = Request.checked(CP(rank=1), BOUNDS, unit, 1.0, 1e-6, (5, 4), None, None, None)
    modes = offset_modes(request, 0 if unit == "slice:0" else None)
    assert modes == ((1,) if unit == "slice:0" else (1, 0))  # the smallest mode first
    seen = sum(len(sums(TINY, unit, mode, False)[0]) for mode in modes)
    assert seen == offset_coordinates(request, modes)
