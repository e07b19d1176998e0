"""Sums and paired sums of scores per row: no neighbour moves them too far, and some go all the way."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from privacy.queries.sums_cases import (
    BOUNDS,
    MOVING,
    NONE,
    READINGS,
    ROWS,
    TINY,
    UNITS,
    bounded,
    crowd,
    share_moved,
    shares,
)
from tensorveil.mechanisms.parts.offsets import offset_coordinates, offset_modes
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS
from tensorveil.privacy.queries.sums.row_sums import Rows, RowSums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.units import Unit

every_query = pytest.mark.parametrize(
    "query", [RowSums(rows, READINGS["not monotone"], pure) for rows in ROWS.values() for pure in (True, False)]
)


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rows", ROWS)
def test_the_declared_sensitivity_is_reached_and_never_passed(rows, unit, pure):
    used = {name: max(shares(RowSums(ROWS[rows], reading, pure), unit)) for name, reading in READINGS.items()}
    assert max(used.values()) > 0.99
    assert min(used[name] for name in MOVING) > 0.7  # a slice takes its own offset off its values


def random_world(rng, unit, own):
    """One slice, or one observation, among others; its values at random, many at the bounds, in a few rows."""
    count = int(rng.choice([1, 2, 7, 40])) if unit.whole_slices else 1
    where = np.column_stack([np.full(count, own), rng.integers(0, rng.integers(1, 5), count)])
    return where, rng.choice([-1.0, 1.0, 0.0, 2.0**-20, 0.3], count)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(UNITS), st.booleans(), st.sampled_from(list(READINGS)))
def test_no_random_neighbour_passes_the_bound(seed, unit, pure, reading):
    rng = np.random.default_rng(seed)
    resolved = Unit.of(unit).resolved(("a", "b"))
    where, values = random_world(rng, resolved, 2)
    others = np.array([[0, 0], [1, 3]]), np.array([0.5, -0.5])
    worlds = [np.append(others[1], values)]
    if resolved.coordinates_public:
        worlds.append(np.append(others[1], rng.choice([-1.0, 1.0, 0.1], len(values))))
        cells = [np.vstack([others[0], where])] * 2
    else:
        worlds.append(others[1])
        cells = [np.vstack([others[0], where]), others[0]]
    made = [tv.Observations(*world, (5, 4), duplicates="keep") for world in zip(cells, worlds, strict=True)]
    query = RowSums(ROWS["of a mode"], READINGS[reading], pure)
    share_moved(query, *(bounded(world, unit) for world in made))


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("count", [3, 10_071, 1_500_007])
def test_an_active_slice_cannot_gain_by_rounding(count, pure):
    """Terms of both signs, each rounded by itself: small ones vanish beside large ones; pairs have no signs."""
    coordinates = np.zeros((count, 2), dtype=np.uint32)
    coordinates[:, 1] = np.arange(count) % 2
    steps = np.where(np.arange(count) % 4 < 2, VALUE_STEPS, -1)
    worlds = [BoundedObservations(coordinates, (1, 2), Unit.slice_values(0), values) for values in (steps, -steps)]
    query = RowSums(Rows.of_mode(1, 2), READINGS["values"], pure)
    share_moved(query, *worlds)
    whole, nobody = (replace(worlds[0], unit=Unit.slice(0)).kept(np.full(count, chosen)) for chosen in (True, False))
    assert share_moved(query, whole, nobody) > 0.7


@every_query
@pytest.mark.parametrize("unit", UNITS)
def test_neither_the_order_of_the_rows_nor_the_split_into_shards_shows(query, unit):
    data = bounded(crowd(), unit)
    order = np.random.default_rng(2).permutation(len(data))
    mixed = replace(data, coordinates=data.coordinates[order], steps=data.steps[order])
    (whole,) = query.of(data)
    np.testing.assert_array_equal(query.of(mixed)[0], whole)
    first = data.coordinates[:, 0] < 2 if "slice" in unit else order < 100  # a slice lies in one shard
    np.testing.assert_array_equal(query.of(data.kept(first))[0] + query.of(data.kept(~first))[0], whole)


@every_query
def test_what_a_slice_adds_does_not_depend_on_the_others(query):
    data = bounded(TINY, "slice:0")
    alone = sum(query.of(data.kept(data.index(0) == owner))[0] for owner in range(5))
    np.testing.assert_array_equal(query.of(data)[0], alone)


@pytest.mark.parametrize("unit", UNITS)
def test_sums_and_pairs_are_those_of_a_loop_over_observations(unit):
    reading = READINGS["short reach"]
    data = bounded(TINY, unit)
    read = reading.of(data)
    pairs = np.zeros((2, 4))
    for owner, row, one in zip(data.index(0), data.index(1), read, strict=True):
        mine = data.index(1)[data.index(0) == owner]
        weight = 1 / np.sqrt((np.bincount(mine) ** 2).sum()) if "slice" in unit else 1.0
        pairs[:, row] += weight * (1 + one) / 2, weight * (1 - one) / 2
    (found,) = RowSums(ROWS["of a mode"], reading, False).of(data)
    expected = pairs[0] - pairs[1] if data.unit.coordinates_public else pairs.ravel()
    np.testing.assert_allclose(found / CONTRIBUTION_STEPS, expected, atol=1e-7)


def test_an_observation_lies_in_one_of_the_rows():
    assert ROWS["of groups"].of(bounded(TINY, "entry")).tolist() == [0, 2, 4, 1, 1, 5, 2]
    assert not ROWS["all in one"].of(bounded(TINY, "entry")).any()
    for numbers in (np.array([0, 4]), np.array([-1, 3])):
        with pytest.raises(tv.InputError, match="rows must lie from 0 to 3"):
            Rows(4, ((0, numbers),))
    for numbers in (np.array([0.0, 1.0]), np.array([0, 1], dtype=np.uint64), np.zeros((2, 2), dtype=np.int64)):
        with pytest.raises(tv.InputError, match="rows must be whole numbers"):
            Rows(4, ((0, numbers),))


def test_rows_cannot_be_changed_after_their_check():
    numbers = np.arange(4)
    rows = Rows(4, ((1, numbers),))
    numbers[:] = 400
    assert rows.of(bounded(TINY, "entry")).max() == 2


@pytest.mark.parametrize("unit", UNITS)
def test_rows_of_another_shape_are_refused_whichever_cells_are_observed(unit):
    """Index 3 of the second mode is not observed: an error that depends on it would tell who is there."""
    query = RowSums(Rows.of_mode(1, 3), ScoreReading.linear(0.0, 1.0, NONE), True)
    with pytest.raises(tv.InputError, match="rows must be one per index"):
        query.of(bounded(TINY, unit))


def test_so_many_rows_that_pairs_with_slices_would_overflow_are_refused():
    data = replace(bounded(TINY, "slice:0"), shape=(2**31, 4))
    with pytest.raises(tv.InputError, match="fewer than 2\\^62 pairs"):
        Rows(2**31).of(data)


@pytest.mark.parametrize("unit", UNITS)
def test_the_plan_counts_the_numbers_that_are_released(unit):
    request = Request.checked(tv.CP(rank=1), BOUNDS, unit, 1.0, 1e-6, (5, 4), None, None, None)
    modes = offset_modes(request, 0 if unit == "slice:0" else None)
    assert modes == ((1,) if unit == "slice:0" else (1, 0))  # the smallest mode first
    queries = [RowSums(Rows.of_mode(mode, (5, 4)[mode]), READINGS["values"], False) for mode in modes]
    seen = sum(len(query.of(bounded(TINY, unit))[0]) for query in queries)
    assert seen == offset_coordinates(request, modes)
