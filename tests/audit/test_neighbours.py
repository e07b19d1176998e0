"""Neighbours: every pair differs in one unit, what is added stands last, and the pairs that hurt are there."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.units import Unit

BOUNDS = Bounds(1, 5)
UNITS = ["value", "slice_values:user", "entry", "slice:user"]
NAMES = ("user", "film", "day")


def tiny(seed=0, shape=(4, 3, 2), count=9, **options):
    rng = np.random.default_rng(seed)
    cells = rng.choice(np.prod(shape), count, replace=False)
    where = np.column_stack(np.unravel_index(cells, shape))
    where = where[where[:, 0] != 2] if (where[:, 0] != 2).any() else where  # an empty slice
    return Observations(where, rng.uniform(1, 5, len(where)), shape, mode_names=NAMES, **options)


def rows(observations):
    cells = zip(observations.coordinates.tolist(), observations.values.tolist(), strict=True)
    return Counter((*cell, value) for cell, value in cells)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 20), st.sampled_from(UNITS))
def test_a_pair_differs_in_one_unit(seed, count, unit):
    pairs = list(neighbours(tiny(seed, count=count), unit, BOUNDS))
    for one, other in pairs:
        assert one.shape == other.shape == (4, 3, 2)
        assert one.mode_names == other.mode_names == NAMES
        first, second = rows(one), rows(other)
        less, more = first - second, second - first
        if Unit.of(unit).coordinates_public:
            np.testing.assert_array_equal(one.coordinates, other.coordinates)
            changed = one.coordinates[one.values != other.values]
            assert len(changed) > 0
            assert len(changed) == 1 or unit != "value"
        else:
            assert not less or not more  # added or removed, not both
            changed = np.array([cell[:3] for cell in (less + more).elements()])
            assert len(changed) == 1 or unit != "entry"
            shorter, longer = sorted((one, other), key=len)
            np.testing.assert_array_equal(longer.coordinates[: len(shorter)], shorter.coordinates)
            np.testing.assert_array_equal(longer.values[: len(shorter)], shorter.values)
        if "slice" in unit:
            assert len(np.unique(changed[:, 0])) == 1
    assert pairs or (not Unit.of(unit).coordinates_public and count < 5)


def test_each_value_goes_from_bound_to_bound():
    observations = tiny()
    moved = set()
    for one, other in neighbours(observations, "value", BOUNDS):
        place = int(np.flatnonzero(one.values != other.values)[0])
        assert {float(one.values[place]), float(other.values[place])} == {1.0, 5.0}
        moved.add(place)
    assert moved == set(range(len(observations)))


def test_each_slice_goes_from_bound_to_bound_and_with_alternating_signs():
    pairs = list(neighbours(tiny(), "slice_values:user", BOUNDS))
    patterns = set()
    for one, other in pairs:
        changed = one.values != other.values
        patterns.add((len(set(one.values[changed])), len(set(other.values[changed]))))
        assert {*one.values[changed], *other.values[changed]} == {1.0, 5.0}
    assert {(1, 1), (2, 2)} <= patterns


def test_on_a_tiny_tensor_every_observation_goes_and_every_free_cell_comes():
    observations = tiny()
    gone, come = set(), set()
    for one, other in neighbours(observations, "entry", BOUNDS):
        longer = max(one, other, key=len)
        (gone if longer is one else come).add(tuple(longer.coordinates[-1].tolist()))
    taken = {tuple(cell) for cell in observations.coordinates.tolist()}
    assert gone == taken
    assert come == {tuple(cell) for cell in np.argwhere(np.ones((4, 3, 2))).tolist()} - taken


def test_where_duplicates_are_kept_taken_cells_get_another_observation():
    observations = tiny(duplicates="keep")
    pairs = neighbours(observations, "entry", BOUNDS)
    come = {tuple(other.coordinates[-1].tolist()) for one, other in pairs if one is observations}
    assert len(come) == 24


def test_an_empty_row_is_filled_early():
    counts = [np.bincount(tiny().coordinates[:, 0], minlength=4)]
    assert (counts[0] == 0).any()
    early = [max(pair, key=len).coordinates[-1].tolist() for pair in neighbours(tiny(), "entry", BOUNDS, 4)]
    assert any(counts[0][cell[0]] == 0 for cell in early)


def test_each_slice_goes_and_an_empty_one_comes():
    observations = tiny()
    gone, come = set(), set()
    for one, other in neighbours(observations, "slice:user", BOUNDS):
        longer = max(one, other, key=len)
        (gone if longer is one else come).add(int(longer.coordinates[-1, 0]))
    present = set(observations.coordinates[:, 0].tolist())
    assert gone == present
    assert come == set(range(4)) - present


def test_in_a_large_tensor_cells_are_chosen_not_listed():
    where = np.column_stack([np.arange(200), np.arange(200), np.zeros(200, dtype=int)])
    observations = Observations(where, np.full(200, 3.0), (400, 300, 2), mode_names=NAMES)
    added = [other.coordinates[-1] for one, other in neighbours(observations, "entry", BOUNDS) if one is observations]
    assert 8 <= len(added) < 100
    assert any(cell[0] >= 200 for cell in added)  # a row without data


@pytest.mark.parametrize("unit", UNITS)
def test_a_limit_is_kept(unit):
    assert len(list(neighbours(tiny(), unit, BOUNDS, 3))) == 3
    with pytest.raises(InputError, match="limit"):
        neighbours(tiny(), unit, BOUNDS, 0)


def test_the_last_observation_is_never_taken_away():
    single = Observations([[0, 0, 0]], [3.0], (2, 2, 2), mode_names=NAMES)
    assert all(len(other) >= 1 for pair in neighbours(single, "entry", BOUNDS) for other in pair)
    assert all(len(other) >= 1 for pair in neighbours(single, "slice:user", BOUNDS) for other in pair)
