"""Exact rows: one value reaches the declared sensitivity and never passes it, whatever the public numbers are."""

from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.inference.rows import RidgeMatrices
from tensorveil.mechanisms.output import FLOAT_MARGIN, largest_lengths
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.exact_rows import MOST_BITS, ExactRows, row_features

BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
RNG = np.random.default_rng(0)
WHERE = np.argwhere(RNG.random(SHAPE) < 0.5)
WHERE = np.concatenate([WHERE, WHERE[:9]])
WHERE = WHERE[WHERE[:, 0] != 3]
OBSERVATIONS = tv.Observations(WHERE, RNG.uniform(1, 5, len(WHERE)), SHAPE, duplicates="keep")
CP = tv.CPModel([RNG.normal(0, 0.7, (size, 2)) for size in SHAPE])
TUCKER = tv.TuckerModel(RNG.normal(0, 0.7, (2, 2, 2)), [RNG.normal(0, 0.7, (size, 2)) for size in SHAPE])
CASES = [(CP, 0), (CP, 2), (TUCKER, 1), (TUCKER, 3), (None, 1)]


def shard_of(observations):
    return clip(observations, BOUNDS, tv.Unit.value(), bytes(32))


def query_for(model, block, pure=False, bits=20, ridge=0.3):
    """With the scales that make the sensitivity exact."""
    rows, features = row_features(shard_of(OBSERVATIONS), model, block)
    size = 1 if block == 3 else SHAPE[block]
    whitening = RidgeMatrices.of(rows, features, size, ridge).inverse_roots
    largest = largest_lengths(whitening, features, rows, size)
    scales = np.where(largest > 0, 2 * largest * FLOAT_MARGIN, 1.0)
    return ExactRows(model, block, whitening, scales, np.flatnonzero(largest > 0), bits, pure)


def largest_share(query):
    (change,) = query.sensitivity(tv.Unit.value())
    found = 0.0
    for one, other in neighbours(OBSERVATIONS, "value", BOUNDS):
        moved = query.of(shard_of(one))[0] - query.of(shard_of(other))[0]
        assert np.count_nonzero(moved.any(axis=1)) <= 1  # a value lies in one row: both norms are the same
        found = max(found, float(np.linalg.norm(moved.astype(np.float64))) * change.grid / change.bound)
    return found


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("model, block", CASES)
def test_the_declared_sensitivity_is_reached_and_never_passed(model, block, pure):
    assert 1 - 1e-5 < largest_share(query_for(model, block, pure)) <= 1


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow", "ignore:divide by zero")
@pytest.mark.parametrize("scale", [1e-300, 0.5, 1 - 2.0**-30, 3.0, 0.0, -1.0, np.inf, np.nan])
def test_no_scale_and_no_whitening_whatever_break_the_sensitivity(scale):
    query = query_for(CP, 0)
    assert largest_share(replace(query, scales=query.scales * scale)) <= 1
    assert largest_share(replace(query, whitening=query.whitening / scale if scale else query.whitening)) <= 1


@pytest.mark.parametrize("model, block", CASES)
def test_sums_are_those_of_whitened_features_and_values(model, block):
    query, shard = query_for(model, block, bits=24), shard_of(OBSERVATIONS)
    (totals,) = query.of(shard)
    rows, features = row_features(shard, model, block)
    for place, row in enumerate(query.rows):
        own = rows == row
        slow = query.whitening[row] @ (features[own] * shard.centred[own, None]).sum(axis=0) / query.scales[row]
        np.testing.assert_allclose(totals[place] * query.sensitivity(shard.unit)[0].grid, slow, atol=1e-6)


def test_shards_and_the_order_of_rows_do_not_show_in_a_single_bit():
    query, shard = query_for(CP, 1), shard_of(OBSERVATIONS)
    chosen = RNG.random(len(shard)) < 0.5
    parts = query.of(shard.kept(chosen))[0] + query.of(shard.kept(~chosen))[0]
    mixed = RNG.permutation(len(shard))
    other = shard_of(tv.Observations(WHERE[mixed], OBSERVATIONS.values[mixed], SHAPE, duplicates="keep"))
    np.testing.assert_array_equal(query.of(shard)[0], parts)
    np.testing.assert_array_equal(query.of(shard)[0], query.of(other)[0])


def test_bits_that_could_overflow_a_sum_are_refused():
    query, shard = query_for(TUCKER, 3), shard_of(OBSERVATIONS)
    most = MOST_BITS - len(shard).bit_length()
    replace(query, bits=most).of(shard)
    with pytest.raises(tv.InputError, match="bits"):
        replace(query, bits=most + 1).of(shard)


def test_the_sensitivity_is_that_of_ridge_regression_solved_twice():
    """S^-1 (g' - g) = S (c' - c), S = H^1/2: the noise-shaped change of the solved rows, by brute force."""
    ridge = 0.3
    query, shard = query_for(CP, 0, ridge=ridge), shard_of(OBSERVATIONS)
    rows, features = row_features(shard, CP, 0)
    for row in query.rows:
        own = np.flatnonzero(rows == row)
        stacked = np.vstack([features[own], np.sqrt(ridge) * np.eye(2)])
        root = np.linalg.inv(query.whitening[row])
        reached = 0.0
        for place in range(len(own)):
            targets = np.zeros((2, len(own) + 2))
            targets[:, place] = -1.0, 1.0
            low, high = (np.linalg.lstsq(stacked, target, rcond=None)[0] for target in targets)
            reached = max(reached, float(np.linalg.norm(root @ (high - low))))
        assert query.scales[row] == pytest.approx(reached)
