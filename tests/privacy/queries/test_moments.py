"""Clipped moments of units and counts: sensitivities reached and never passed by neighbours, and exact sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.queries.moments import COUNT_WEIGHT, Counts, UnitMoments, round_toward_zero
from tensorveil.privacy.units import Unit

SHAPE = (4, 3, 3)
BOUNDS = Bounds(-1, 1)
GRID = 2.0**-29
UNITS = ["value", "entry", "slice_values:0", "slice_values:2", "slice:0", "slice:1"]


def table(seed=0):
    """Some cells several times, index 3 of the first mode empty."""
    generator = np.random.default_rng(seed)
    where = np.argwhere(generator.random(SHAPE) < 0.7)
    where = np.concatenate([where[where[:, 0] < 3], where[:2], where[:1]])
    return Observations(where, generator.uniform(-1, 1, len(where)), SHAPE, duplicates="keep")


def shard(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit), bytes(32))


def gaussian(unit, norm=1.0, size=2.0):
    counted = () if Unit.of(unit).coordinates_public else (0, 1, 2)
    return UnitMoments(size, norm, counted, GRID, pure=False)


def squared(steps):
    return Fraction(GRID) ** 2 * sum(int(step) ** 2 for step in np.ravel(steps))


CASES = [*[(unit, False) for unit in UNITS], ("value", True), ("entry", True)]


@pytest.mark.parametrize("unit, pure", CASES)
def test_no_neighbour_moves_the_moments_further_than_stated_and_some_move_them_that_far(unit, pure):
    kind = Unit.of(unit)
    ends = Bounds(-math.sqrt(0.5), math.sqrt(0.5)) if unit == "value" else BOUNDS  # there y^2 - 1/2 is 0
    query = UnitMoments(1.0, 0.5, () if pure else gaussian(unit).counted, GRID, pure)
    (change,) = query.sensitivity(kind)
    shares = []
    for mine, theirs in neighbours(table(), unit, ends, 60):
        moved = squared(query.of(shard(theirs, unit))[0] - query.of(shard(mine, unit))[0])
        assert moved <= Fraction(change.bound) ** 2
        shares.append(math.sqrt(moved) / change.bound)
    # values that are replaced leave the first number as it is: two slices are never opposite to each other
    assert max(shares) > (0.66 if kind.kind == "slice_values" else 0.9)


@pytest.mark.parametrize("unit", UNITS)
def test_moments_are_those_of_the_units_clipped_one_by_one(unit):
    query, kind, data = gaussian(unit), Unit.of(unit), shard(table(), unit)
    width = 2 if unit == "value" else 3
    expected = np.zeros(width + sum(SHAPE[mode] for mode in query.counted))
    places = width + np.cumsum([0, *SHAPE])
    vectors: dict[int, np.ndarray] = {}
    for number, (at, step) in enumerate(zip(data.coordinates.tolist(), data.steps.tolist(), strict=True)):
        y = step / VALUE_STEPS
        one = np.zeros_like(expected)
        one[:width] = [1.0, y, y**2 - 0.5][3 - width :]
        for mode in query.counted:
            one[places[mode] + at[mode]] = COUNT_WEIGHT
        owner = at[kind.mode_number] if kind.whole_slices else number
        vectors[owner] = vectors.get(owner, 0.0) + one / query.size
    lengths = [np.linalg.norm(vector) for vector in vectors.values()]
    if kind.whole_slices:
        assert max(lengths) > query.clip_norm
    pairs = zip(vectors.values(), lengths, strict=True)
    expected = sum(vector * min(1.0, query.clip_norm / length) for vector, length in pairs)
    np.testing.assert_allclose(query.of(data)[0] * GRID, expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 200_001])
@pytest.mark.parametrize("mode", [0, 2])
def test_a_slice_stays_within_the_clip_norm_however_many_observations_it_has(count, mode):
    """Each of them is rounded, in one row or in many, with values of both signs."""
    generator = np.random.default_rng(count)
    for many_rows in (False, True):
        where = generator.integers(0, SHAPE, (count, 3)) * many_rows
        where[:, mode] = 1
        data = shard(
            Observations(where, generator.choice([-1.0, 0.3, 1.0], count), SHAPE, duplicates="keep"), f"slice:{mode}"
        )
        for size in (1.0, 7.3):
            query = gaussian(f"slice:{mode}", norm=math.sqrt(3), size=size)
            found = squared(query.of(data)[0])
            assert found <= Fraction(query.clip_norm) ** 2
            if count > 20:
                assert found > Fraction(0.999 * query.clip_norm) ** 2


@pytest.mark.parametrize("unit", UNITS)
def test_neither_shards_nor_the_order_of_rows_change_a_sum(unit):
    kind, data, query = Unit.of(unit), shard(table(), unit), gaussian(unit)
    generator = np.random.default_rng(2)
    part = generator.integers(0, 3, SHAPE[kind.mode_number] if kind.whole_slices else len(data))
    part = part[data.index(kind.mode_number)] if kind.whole_slices else part
    pieces = [query.of(data.kept(part == number))[0] for number in range(3)]
    np.testing.assert_array_equal(np.sum(pieces, axis=0), query.of(data)[0])
    shuffled = table().take(generator.permutation(len(data)))
    np.testing.assert_array_equal(query.of(shard(shuffled, unit))[0], query.of(data)[0])


def test_an_entry_moves_one_count_of_each_mode_by_one():
    query = Counts(3)
    for mine, theirs in neighbours(table(), "entry", BOUNDS, 60):
        parts = query.of(shard(mine, "entry")), query.of(shard(theirs, "entry"))
        for first, second, change in zip(*parts, query.sensitivity(Unit.entry()), strict=True):
            assert np.abs(second - first).sum() * change.grid == change.bound == 1.0


def test_counts_are_how_often_an_index_occurs():
    data = shard(table(), "entry")
    for mode, counts in enumerate(Counts(3).of(data)):
        assert counts.tolist() == [data.coordinates[:, mode].tolist().count(index) for index in range(SHAPE[mode])]


@pytest.mark.parametrize("size, norm", [(0.0, 1.0), (math.nan, 1.0), (1e300, 1.0), (1.0, math.nan), (1.0, 1e-160)])
def test_scales_on_which_lengths_could_not_be_computed_are_refused(size, norm):
    with pytest.raises(InputError, match=r"size|clip norm"):
        UnitMoments(size, norm, (), GRID, pure=False)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.integers(-30, 3))
def test_rounding_makes_no_number_longer(values, exponent):
    grid = 2.0**exponent
    for value, inward in zip(values, round_toward_zero(np.array(values), grid), strict=True):
        assert abs(int(inward)) * Fraction(grid) <= abs(Fraction(value)) < (abs(int(inward)) + 1) * Fraction(grid)


@pytest.mark.parametrize("numbers, grid", [([1.0], 2.0**-62), ([math.nan], 1.0), ([0.0, -math.inf], 1.0)])
def test_numbers_beyond_the_grid_are_refused(numbers, grid):
    with pytest.raises(InputError, match="finite and at most 2\\^61 grid steps"):
        round_toward_zero(np.array(numbers), grid)
