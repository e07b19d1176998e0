"""Normal equations: brute-force neighbours reach the declared sensitivity and never pass it; shards and rows mix."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.rows import normal_equations
from tensorveil.privacy.queries.rows.normal_equations import NormalEquations
from tensorveil.privacy.queries.rows.own_rows import Reading
from tensorveil.privacy.stages import Norm
from tensorveil.solvers.layouts.sorted_entries import SortedEntries

BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]
FAMILIES = [tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2))]


def shard_of(observations, unit):
    return clip(observations, BOUNDS, tv.Unit.of(unit), bytes(32))


def data(seed, shape=SHAPE, share=0.6):
    rng = np.random.default_rng(seed)
    where = np.argwhere(rng.random(shape) < share)
    where = where[where[:, 0] != 2]
    where = np.concatenate([where, where[: len(where) // 2]])  # some cells twice
    where = where[np.lexsort(where.T[::-1])]
    return tv.Observations(where, rng.choice([1.0, 2.2, 5.0], len(where)), shape, duplicates="keep")


def model_of(family, rng, shape=SHAPE):
    return family.model([rng.normal(0, 0.7, block) for block in family.block_shapes(shape)])


def query_for(family, block, unit, pure, limit, seed=0, shape=SHAPE, rows=None):
    rng = np.random.default_rng(seed)
    withheld = 0 if unit == "slice:0" else None
    mean = 0.0 if "value" in unit else -0.7  # residuals from bound to bound; or beyond them, whatever a slice takes off
    offsets = Offsets(mean, [None if mode == withheld else rng.normal(0, 0.02, shape[mode]) for mode in range(3)])
    size = 1 if block == 3 else shape[block]
    limits = np.full(size, limit) if np.ndim(limit) == 0 else rng.uniform(*limit, size)
    asked = np.arange(size) if rows is None else rows
    return NormalEquations(Reading(0.1, 0.8, offsets), model_of(family, rng, shape), block, limits, asked, pure)


def length(change, norm):
    """Squares are exact whole numbers."""
    squares = [sum(int(number) ** 2 for number in row) for row in change]
    return math.sqrt(sum(squares)) if norm is Norm.L2 else sum(map(math.sqrt, squares))


# every slice of the first mode has a single observation
ALONE = tv.Observations([[k, k % 4, k % 3] for k in range(5)], [1.0, 5.0, 2.0, 3.0, 5.0], SHAPE)


def largest_shares(query, unit, tables=None):
    """For each part, the largest share of its sensitivity that any neighbour uses."""
    changes = query.sensitivity(tv.Unit.of(unit).resolved(["a", "b", "c"]))
    shares = np.zeros(len(changes))
    for table in tables or [data(0)]:
        for one, other in neighbours(table, unit, BOUNDS):
            parts = zip(query.of(shard_of(one, unit)), query.of(shard_of(other, unit)), changes, strict=True)
            moved = [length(mine - theirs, change.norm) * change.grid / change.bound for mine, theirs, change in parts]
            shares = np.maximum(shares, moved)
    return shares


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("family, block", [(FAMILIES[0], 1), (FAMILIES[1], 2), (FAMILIES[1], 3)])
def test_the_declared_sensitivity_is_reached_and_never_passed(family, block, unit, pure):
    tight = largest_shares(query_for(family, block, unit, pure, 1e-12), unit, [data(0), ALONE])
    loose = largest_shares(query_for(family, block, unit, pure, (0.1, 2.0)), unit)
    assert (tight > 0.9).all()
    assert (tight <= 1).all()
    assert (loose <= 1).all()


@pytest.mark.parametrize("limit", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("unit", UNITS)
def test_no_limit_whatever_breaks_the_sensitivity(unit, limit):
    assert (largest_shares(query_for(FAMILIES[0], 1, unit, False, limit), unit) <= 1).all()


@pytest.mark.parametrize("unit", UNITS)
def test_features_of_any_size_keep_the_sensitivity(unit):
    query = query_for(FAMILIES[0], 1, unit, False, 1e-12)
    for size in (1e-300, 2.0**61):
        factors = [query.model.factors[0] * size, query.model.factors[1], query.model.factors[2] * size]
        huge = NormalEquations(query.reading, tv.CPModel(factors), 1, query.limits, query.rows, False)
        assert (largest_shares(huge, unit) <= 1).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(UNITS), st.sampled_from(FAMILIES), st.integers(1, 3), st.booleans())
def test_shards_and_the_order_of_rows_do_not_show_in_a_single_bit(seed, unit, family, block, pure):
    rng = np.random.default_rng(seed)
    query = query_for(family, min(block, 2 if family.name == "cp" else 3), unit, pure, (0.1, 2.0), seed)
    whole = shard_of(data(seed), unit)
    mixed = rng.permutation(len(whole))
    permuted = tv.Observations(
        whole.coordinates[mixed], BOUNDS.uncentred(whole.centred[mixed]), SHAPE, duplicates="keep"
    )
    chosen = (rng.random(SHAPE[0]) < 0.5)[whole.index(0)] if "slice" in unit else rng.random(len(whole)) < 0.5
    parts = [query.of(whole.kept(chosen)), query.of(whole.kept(~chosen))]
    for total, other, *split in zip(query.of(whole), query.of(shard_of(permuted, unit)), *parts, strict=True):
        np.testing.assert_array_equal(total, other)
        np.testing.assert_array_equal(total, split[0] + split[1])


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_only_the_rows_that_are_asked_for_are_answered(unit):
    whole = query_for(FAMILIES[0], 1, unit, False, 1.0).of(shard_of(data(0), unit))
    some = query_for(FAMILIES[0], 1, unit, False, 1.0, rows=np.array([3, 1])).of(shard_of(data(0), unit))
    for part, other in zip(whole, some, strict=True):
        np.testing.assert_array_equal(other, part[[3, 1]])


def test_many_observations_give_the_sums_of_a_slow_oracle(monkeypatch):
    """With limits that fit, and with one too small for the vectorised kernel; the order is kept between questions."""
    shape = (30, 20, 40)
    observations = data(3, shape, 0.65)
    shard = shard_of(observations, "value")
    assert worth_compiling(len(shard), "cp")
    sorts = []
    sort = SortedEntries.of
    monkeypatch.setattr(SortedEntries, "of", lambda *arguments: sorts.append(0) or sort(*arguments), raising=True)
    for limit in (60.0, 1.0):
        query = query_for(tv.CP(rank=3), 1, "value", False, limit, shape=shape)
        (found,) = query.of(shard)
        factors = query.model.factors
        phi = factors[0][shard.coordinates[:, 0]] * factors[2][shard.coordinates[:, 2]]
        psi = phi / np.maximum(np.linalg.norm(phi, axis=1), limit)[:, None]
        terms = np.clip(query.reading.residuals(shard), -1, 1)[:, None] * psi
        slow = np.zeros((20, 3))
        np.add.at(slow, shard.index(1), terms)
        np.testing.assert_allclose(found * normal_equations.STATISTIC_GRID, slow, atol=1e-5)
        query.of(shard)
    assert len(sorts) == 1  # both queries read the same residuals
    other = NormalEquations(
        Reading(0.0, 1.0, query.reading.offsets), query.model, 1, query.limits, query.rows, pure=False
    )
    assert not np.array_equal(other.of(shard)[0], found)
    assert len(sorts) == 2
