"""Queries of clipped gradients: sensitivities reached and never passed by neighbours, sums that no split changes."""

import math
from fractions import Fraction

import numpy as np
import pytest

from oracles import random_blocks
from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.queries.gradients import JointGradients, RowGradients, check_clipping
from tensorveil.privacy.units import Unit

SHAPE = (4, 3, 3)
BOUNDS = Bounds(-1, 1)
GRID = 2.0**-30
MODELS = [CP(2), Tucker((2, 1, 2))]
UNITS = ["value", "entry", "slice_values:0", "slice_values:2", "slice:0", "slice:1"]


def model(family, scale=0.3):
    return family.model([scale * block for block in random_blocks(family.block_shapes(SHAPE), 3)])


def table(seed=0):
    """Some cells several times, index 3 of the first mode empty."""
    generator = np.random.default_rng(seed)
    where = np.argwhere(generator.random(SHAPE) < 0.7)
    where = np.concatenate([where[where[:, 0] < 3], where[:2], where[:1]])
    return Observations(where, generator.uniform(-1, 1, len(where)), SHAPE, duplicates="keep")


def shard(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit), bytes(32))


def joint(family, norm=0.01, sampled=False):
    return JointGradients(model(family), 0.05, norm, GRID, sampled)


def by_rows(family, norm=0.01):
    made = model(family)
    sizes = [*SHAPE, 1][: len(made.block_starts)]
    return RowGradients(made, 0.05, np.full(len(sizes), norm), tuple(np.ones(size, np.bool_) for size in sizes))


def whole_gradient(made, coordinate, value):
    """Minus the gradient of one entry by all numbers of the model, from the model's own."""
    found = np.zeros(made.parameters.size)
    for block, part in enumerate(made.gradient(coordinate, value)):
        row = int(coordinate[block]) if block < made.order else 0
        begin = int(made.block_starts[block] + row * made.block_widths[block])
        found[begin : begin + part.size] -= part.ravel()
    return found


def clipped(vector, norm):
    return vector * min(1.0, norm / max(np.linalg.norm(vector), 1e-300))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("family", MODELS, ids=str)
def test_no_neighbour_moves_joint_sums_further_than_stated_and_some_move_them_that_far(family, unit):
    query = joint(family)
    (change,) = query.sensitivity(Unit.of(unit))
    shares = []
    for mine, theirs in neighbours(table(), unit, BOUNDS, 60):
        moved = query.of(shard(theirs, unit))[0] - query.of(shard(mine, unit))[0]
        squares = Fraction(change.grid) ** 2 * sum(int(step) ** 2 for step in moved)
        assert squares <= Fraction(change.bound) ** 2
        shares.append(math.sqrt(squares) / change.bound)
    assert max(shares) > 0.9


@pytest.mark.parametrize("unit", ["value", "entry"])
@pytest.mark.parametrize("family", MODELS, ids=str)
def test_no_neighbour_moves_row_sums_further_than_stated_and_some_move_them_that_far(family, unit):
    query = by_rows(family)
    shares = []
    for mine, theirs in neighbours(table(), unit, BOUNDS, 60):
        tables = query.of(shard(mine, unit)), query.of(shard(theirs, unit))
        for first, second, change in zip(*tables, query.sensitivity(Unit.of(unit)), strict=True):
            (changed,) = np.nonzero((first != second).any(axis=1))
            assert len(changed) <= 1  # an observation touches one row of each block
            squares = Fraction(change.grid) ** 2 * sum(int(step) ** 2 for step in (second - first)[changed].ravel())
            assert squares <= Fraction(change.bound) ** 2
            shares.append(math.sqrt(squares) / change.bound)
    assert max(shares) > 0.9


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("family", MODELS, ids=str)
def test_joint_sums_are_those_of_the_units_own_gradients(family, unit):
    made, kind, data = model(family), Unit.of(unit), shard(table(), unit)
    owners = data.index(kind.mode_number) if kind.whole_slices else np.arange(len(data))
    sums = {owner: np.zeros(made.parameters.size) for owner in owners.tolist()}
    for owner, at, step in zip(owners.tolist(), data.coordinates, data.steps, strict=True):
        sums[owner] += whole_gradient(made, at, step / VALUE_STEPS - 0.05)
    norm = float(np.median([np.linalg.norm(one) for one in sums.values()]))  # some are clipped, some are not
    expected = sum(clipped(one, norm) for one in sums.values())
    np.testing.assert_allclose(joint(family, norm).of(data)[0] * GRID, expected, atol=1e-6)


@pytest.mark.parametrize("unit", UNITS)
def test_the_sums_of_shards_are_those_of_the_whole(unit):
    """Single observations may be split in any way, slices stay whole."""
    kind, data = Unit.of(unit), shard(table(), unit)
    generator = np.random.default_rng(2)
    part = generator.integers(0, 3, SHAPE[kind.mode_number] if kind.whole_slices else len(data))
    part = part[data.index(kind.mode_number)] if kind.whole_slices else part
    for query in (joint(CP(2)), joint(MODELS[1]), joint(CP(2), sampled=True)):
        pieces = [query.of(data.kept(part == number))[0] for number in range(3)]
        np.testing.assert_array_equal(np.sum(pieces, axis=0), query.of(data)[0])
    if not kind.whole_slices:
        query = by_rows(MODELS[1])
        pieces = [query.of(data.kept(part == number)) for number in range(3)]
        for block, whole in zip(zip(*pieces, strict=True), query.of(data), strict=True):
            np.testing.assert_array_equal(np.sum(block, axis=0), whole)


@pytest.mark.parametrize("unit", UNITS)
def test_the_order_of_rows_changes_no_sum(unit):
    observations = table()
    for order in (np.argsort(observations.values), np.random.default_rng(4).permutation(len(observations))):
        other = observations.take(order)
        for query in (joint(CP(2)), joint(MODELS[1]), joint(CP(2), sampled=True)):
            np.testing.assert_array_equal(query.of(shard(observations, unit))[0], query.of(shard(other, unit))[0])


def test_a_second_question_to_the_same_shard_gets_the_answer_of_its_own_model():
    """The order of entries is kept with the shard; nothing of the model is."""
    for unit in ("entry", "slice:1"):
        data = shard(table(), unit)
        joint(CP(2)).of(data)
        again = JointGradients(model(CP(2), scale=0.5), -0.1, 0.2, GRID, False)
        np.testing.assert_array_equal(again.of(data)[0], again.of(shard(table(), unit))[0])


def test_only_the_rows_that_are_asked_for_are_answered():
    query = by_rows(CP(2))
    rows = tuple(np.arange(size) % 2 == 0 for size in SHAPE)
    some = RowGradients(query.model, query.mean, query.clip_norms, rows)
    data = shard(table(), "value")
    for part, whole, chosen in zip(some.of(data), query.of(data), rows, strict=True):
        np.testing.assert_array_equal(part, whole[chosen])


def test_grids_on_which_a_sum_could_overflow_are_refused():
    JointGradients(model(CP(2)), 0.0, 1.0, 2.0**-30, False)
    with pytest.raises(InputError, match=r"2\^61"):
        JointGradients(model(CP(2)), 0.0, 1.0, 2.0**-31, False)


@pytest.mark.parametrize("number", [-257.0, 1e300])
def test_states_with_gradients_that_might_not_be_finite_are_refused(number):
    """Their steps would be cast to any whole number, e.g. -2^63; a model itself refuses NaN and infinity."""
    blocks = [np.full((size, 1), 0.5) for size in SHAPE]
    blocks[1][2, 0] = number
    broken = CP(1).model(blocks)
    with pytest.raises(InputError, match="a state must have numbers"):
        JointGradients(broken, 0.0, 1.0, GRID, False)
    with pytest.raises(InputError, match="a state must have numbers"):
        RowGradients(broken, 0.0, np.ones(3), ())
    for mean in (number, math.nan):
        with pytest.raises(InputError, match="a mean of at most 1"):
            JointGradients(model(CP(2)), mean, 1.0, GRID, False)


@pytest.mark.parametrize("norm", [math.nan, math.inf, 0.0, 1e-160])
def test_norms_that_could_not_be_compared_with_are_refused(norm):
    with pytest.raises(InputError, match="clip norm"):
        JointGradients(model(CP(2)), 0.0, norm, GRID, False)
    with pytest.raises(InputError, match="clip norm"):
        RowGradients(model(CP(2)), 0.0, np.array([1.0, norm, 1.0]), ())


def test_a_sum_of_the_most_vectors_fits_the_grid():
    check_clipping(2.0**31 - 1, 1.0)
    for norm, grid in ((2.0**31, 1.0), (1.0, 2.0**-31)):
        with pytest.raises(InputError, match="below 2\\^61"):
            check_clipping(norm, grid)
    with pytest.raises(InputError, match="power of two"):
        check_clipping(1.0, 0.75)
