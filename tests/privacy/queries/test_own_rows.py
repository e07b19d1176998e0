"""What slices compute for themselves inside a query: from their own observations and released numbers alone."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.models.block_features import largest_feature, typical_feature
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.rows.own_rows import Reading, own_offsets, own_rows, with_own_rows
from tensorveil.solvers.start import public_start

BOUNDS = tv.Bounds(1, 5)
SHAPE = (8, 6, 4)
LIMIT_AND_RIDGE = (2.0, 0.3)
FAMILIES = [tv.CP(rank=3), tv.Tucker(ranks=(3, 2, 2))]


def data_of(seed, count=60, user=None):
    rng = np.random.default_rng(seed)
    where = np.column_stack(np.unravel_index(rng.choice(np.prod(SHAPE), count, replace=False), SHAPE))
    values = rng.uniform(0.5, 5.5, count)
    keep = np.ones(count, dtype=bool) if user is None else where[:, 0] == user
    return where[keep], values[keep]


def rows_of(numbers, width):
    """The rows of the first mode."""
    return numbers.parameters[: SHAPE[0] * width].reshape(-1, width)


def shard_of(where, values):
    return clip(tv.Observations(where, values, SHAPE, duplicates="keep"), BOUNDS, tv.Unit.slice(0), bytes(32))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 7), st.sampled_from(FAMILIES))
def test_a_row_does_not_change_by_a_bit_when_other_users_data_change(seed, user, family):
    mine = data_of(seed, 100, user)
    model = public_start(family, SHAPE, std=0.5)
    rng = np.random.default_rng(seed)
    reading = Reading(0.1, 0.7, Offsets(0.1, [None, rng.normal(0, 0.1, 6), None]))
    found = []
    for other, count in ((seed + 1, 5), (seed + 2, 150)):
        where, values = data_of(other, count)
        foreign = where[:, 0] != user
        together = np.concatenate([where[foreign], mine[0]]), np.concatenate([values[foreign], mine[1]])
        assume(len(together[1]) > 0)
        shard = shard_of(*together)
        residuals, made = with_own_rows(shard, reading, model.numbers, *LIMIT_AND_RIDGE)
        width = model.ranks[0]
        found.append((residuals[shard.index(0) == user].tobytes(), rows_of(made, width)[user].tobytes()))
        np.testing.assert_array_equal(made.parameters[8 * width :], model.parameters[8 * width :])
    assert found[0] == found[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_observations_does_not_show_in_a_single_bit(family):
    where, values = data_of(5, 150)
    where, values = np.concatenate([where] * 3), np.concatenate([values, values[::-1], values])
    model, reading = public_start(family, SHAPE, std=0.5), Reading(0.0, 1.0, Offsets.none(3))
    mixed = np.random.default_rng(6).permutation(len(values))
    shards = (shard_of(where[p], values[p]) for p in (np.arange(len(values)), mixed))
    one, other = (with_own_rows(shard, reading, model.numbers, *LIMIT_AND_RIDGE) for shard in shards)
    assert one[0].tobytes() == other[0].tobytes()
    assert one[1].parameters.tobytes() == other[1].parameters.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_solve_the_slices_ridge_regression(family):
    model = public_start(family, SHAPE, std=0.5)
    where, values = data_of(3, 120)
    shard = shard_of(where, values)
    reading = Reading(0.0, 20.0, Offsets.none(3))  # nothing is clipped
    small = shard.centred / 20.0
    limit, ridge = largest_feature(model, 0), 2.0 * typical_feature(model, 0) ** 2
    rows = own_rows(shard, reading.residuals(shard), model.numbers, 0, limit, ridge / limit**2)
    for user in range(SHAPE[0]):
        own = shard.coordinates[:, 0] == user
        phi = np.array([model.features(cell)[0] for cell in shard.coordinates[own]]).reshape(-1, model.ranks[0])
        stacked = np.vstack([phi, np.sqrt(ridge) * np.eye(model.ranks[0])])
        best = np.linalg.lstsq(stacked, np.concatenate([small[own], np.zeros(model.ranks[0])]), rcond=None)[0]
        np.testing.assert_allclose(rows[user], best, atol=1e-6)


def test_offsets_are_shrunk_means_of_residuals():
    where, values = data_of(4, 150)
    shard = shard_of(where, values)
    reading = Reading(0.1, 0.9, Offsets(0.05, [None, np.linspace(-0.2, 0.2, 6), None]))
    offsets = own_offsets(shard, reading.values(shard), reading.offsets, 0)
    for user in range(SHAPE[0]):
        residuals = reading.residuals(shard)[shard.index(0) == user]
        assert offsets[user] == pytest.approx(residuals.sum() / (len(residuals) + 2), abs=1e-8)
