"""Weights of observations: shares of one each, better than equal ones, blind to values by construction."""

import numpy as np
import pytest

from tensorveil.mechanisms.planning.observation_weights import observation_logits
from tensorveil.privacy.queries.weighted_sums import WEIGHT_MARGIN, ObservationSums
from tensorveil.privacy.queries.windows import WindowReading
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Pattern

NOISE, OFFSET, RESIDUAL = 8.0, 1 / 36, 2 / 9


def skewed(seed=0, count=3000, sizes=(60, 80)):
    rng = np.random.default_rng(seed)
    shares = [rng.pareto(1.0, size) + 0.1 for size in sizes]
    return [rng.choice(size, count, p=share / share.sum()) for size, share in zip(sizes, shares, strict=True)], sizes


def observation_weights(rows, sizes, pure):
    """The weights that the query makes of the logits."""
    logits = observation_logits(rows, sizes, NOISE, OFFSET, RESIDUAL, pure)
    query = ObservationSums(WindowReading.of_centred(len(sizes)), logits, pure)
    return query.weights(Pattern(np.column_stack(rows).astype(np.uint32), tuple(sizes), Unit.value()))


def left(rows, sizes, weights):
    """The expected variance that is left of offsets, index by index."""
    total = 0.0
    for row, size, weight in zip(rows, sizes, weights, strict=True):
        counts = np.bincount(row, minlength=size)
        for index in np.flatnonzero(counts):
            own = weight[row == index]
            known = (NOISE + RESIDUAL * (own**2).sum()) / own.sum() ** 2
            total += np.sqrt(counts[index]) / np.sqrt(counts).sum() / (1 / OFFSET + 1 / known)
    return total


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("sizes", [(60, 80), (30, 20, 10)])
def test_of_one_observation_they_share_one_and_leave_less_than_equal_ones(pure, sizes):
    rows, sizes = skewed(sizes=sizes)
    weights = observation_weights(rows, sizes, pure)
    lengths = sum(weights) if pure else sum(weight**2 for weight in weights)
    np.testing.assert_allclose(lengths, WEIGHT_MARGIN if pure else WEIGHT_MARGIN**2, atol=1e-9)
    equal = [np.full(len(row), 1 / len(rows) if pure else len(rows) ** -0.5) for row in rows]
    assert left(rows, sizes, weights) < 0.99 * left(rows, sizes, equal)


def test_where_all_indices_are_alike_so_are_the_weights():
    rows = [np.repeat(np.arange(20), 20), np.tile(np.arange(20), 20)]
    for weights in observation_weights(rows, (20, 20), True):
        np.testing.assert_allclose(weights, 0.5, atol=1e-6)


def test_an_index_with_many_observations_leaves_them_to_the_others():
    rows, sizes = skewed(count=20_000)
    weights = observation_weights(rows, sizes, True)[0]
    counts = np.bincount(rows[0], minlength=sizes[0])
    most = counts.argmax()
    assert weights[rows[0] == most].mean() < np.median(weights)
