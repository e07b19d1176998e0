"""Sums and counts of one mode: no unit that comes or goes moves them too far, and some move them all the way."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations, clip
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS
from tensorveil.privacy.queries.pairs import COUNT_PART, Lengths, Pairs, Rows
from tensorveil.privacy.queries.windows import WindowReading
from tensorveil.privacy.units import Unit

BOUNDS = tv.Bounds(-1, 1)
TINY = tv.Observations(
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 2], [3, 1]],
    [0.3, -0.2, 1.0, 0.5, -1.0, 0.1, 0.7],
    (5, 4),
    duplicates="keep",
)
WHOLE = WindowReading.of_centred(2)
NARROW = WindowReading(0.1, Offsets(0.0, [None, np.array([0.1, -0.2, 0.0, 0.3])]), -0.05, 0.05)
MODE = Rows.of_mode(1, 4)
GROUPS = Rows(8, ((1, 2 * np.arange(4)), (0, np.array([0, 1, 1, 0, 1]))))
ALL = Rows(1)


def bounded(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))


def share_moved(query, unit, one, other, pure):
    """The part of the declared sensitivity that a change uses, compared exactly: an error where it is more than all."""
    (change,) = query.sensitivity(Unit.of(unit))
    steps = [int(step) for step in query.of(one)[0] - query.of(other)[0]]
    limit = change.bound * CONTRIBUTION_STEPS
    length, most = (sum(map(abs, steps)), limit) if pure else (sum(step**2 for step in steps), limit**2)
    assert length <= most
    return length / most if pure else np.sqrt(length / most)


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", ["entry", "slice:0"])
@pytest.mark.parametrize("rows", [MODE, GROUPS, ALL])
def test_pairs_keep_to_the_declared_sensitivity_and_reach_it(rows, unit, pure):
    used = [
        share_moved(Pairs(rows, reading, pure), unit, bounded(one, unit), bounded(other, unit), pure)
        for reading in (WHOLE, NARROW)
        for one, other in neighbours(TINY, unit, BOUNDS)
    ]
    assert max(used) > 0.99


@pytest.mark.parametrize("reading", [WHOLE, NARROW])
@pytest.mark.parametrize("rows", [MODE, GROUPS, ALL])
def test_lengths_keep_to_the_declared_sensitivity_and_reach_it(rows, reading):
    query = Lengths(rows, reading)
    used = [
        share_moved(query, "slice:0", bounded(one, "slice:0"), bounded(other, "slice:0"), False)
        for one, other in neighbours(TINY, "slice:0", BOUNDS)
    ]
    assert min(used) > 0.99  # every slice uses all of its length


def active_slice(half, small):
    """One slice with four times `half` observations in two rows: in one of them large values up and small ones down.

    In the other they are the other way round, so that the slice's own level is zero.
    """
    row = np.concatenate([np.full(half, VALUE_STEPS), np.full(half, -small)])
    coordinates = np.zeros((4 * half, 2), dtype=np.uint32)
    coordinates[2 * half :, 1] = 1
    return BoundedObservations(
        coordinates, np.concatenate([row, -row]), (1, 2), ("user", "item"), BOUNDS, Unit.slice(0)
    )


# Small values whose contributions would vanish if each were rounded towards zero by itself, at counts where those of
# large values would be whole: that would move sums and counts by 1.0000085 and 1.00047.
@pytest.mark.parametrize("half, small", [(10_071, 17), (500_550, 866)])
def test_an_active_slice_cannot_gain_by_rounding(half, small):
    query, slice_ = Lengths(Rows.of_mode(1, 2), WHOLE), active_slice(half, small)
    nobody = slice_.kept(np.zeros(len(slice_), dtype=np.bool_))
    assert share_moved(query, "slice:0", slice_, nobody, False) > 0.99


def test_lengths_add_sums_and_counts_of_slices_scaled_to_one():
    data = bounded(TINY, "slice:0")
    read = NARROW.of(data)
    expected = np.zeros((2, 4))
    for owner in range(5):
        mine = data.index(0) == owner
        vector = np.zeros((2, 4))
        for row, one in zip(data.index(1)[mine], read[mine], strict=True):
            vector[:, row] += one, COUNT_PART
        expected += vector / max(np.linalg.norm(vector), 1e-300)
    (sums,) = Lengths(MODE, NARROW).of(data)
    np.testing.assert_allclose(sums / CONTRIBUTION_STEPS, expected.ravel(), atol=1e-5)


@pytest.mark.parametrize("query", [Pairs(GROUPS, NARROW, True), Pairs(MODE, NARROW, False), Lengths(MODE, NARROW)])
def test_neither_the_order_of_the_rows_nor_the_split_into_shards_matters(query):
    rng = np.random.default_rng(1)
    where = np.column_stack([rng.integers(0, 5, 400), rng.integers(0, 4, 400)])
    values = rng.uniform(-1, 1, 400)
    order = rng.permutation(400)
    data, mixed = (
        bounded(tv.Observations(where[rows], values[rows], (5, 4), duplicates="keep"), "slice:0")
        for rows in (np.arange(400), order)
    )
    (whole,) = query.of(data)
    np.testing.assert_array_equal(query.of(mixed)[0], whole)
    first = data.coordinates[:, 0] < 2  # a slice lies in one shard
    np.testing.assert_array_equal(query.of(data.kept(first))[0] + query.of(data.kept(~first))[0], whole)


@pytest.mark.parametrize("query", [Pairs(MODE, NARROW, True), Pairs(MODE, NARROW, False), Lengths(MODE, NARROW)])
def test_what_a_slice_adds_does_not_depend_on_the_others(query):
    data = bounded(TINY, "slice:0")
    whole = sum(query.of(data.kept(data.index(0) == owner))[0] for owner in range(5))
    np.testing.assert_array_equal(query.of(data)[0], whole)


def test_lengths_are_not_proven_for_single_observations():
    with pytest.raises(tv.UnprovenError, match="unit slice only"):
        Lengths(MODE, WHOLE).sensitivity(Unit.entry())


def test_an_observation_lies_in_one_of_the_rows():
    assert GROUPS.of(bounded(TINY, "entry")).tolist() == [0, 2, 4, 1, 1, 5, 2]
    assert not ALL.of(bounded(TINY, "entry")).any()
    for numbers in (np.array([0, 4]), np.array([-1, 3])):
        with pytest.raises(tv.InputError, match="rows must lie from 0 to 3"):
            Rows(4, ((0, numbers),))
