"""Sums of all modes: no replaced unit moves them too far, whatever the public weights, and some go all the way."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS
from tensorveil.privacy.queries.weighted_sums import ModeSums, ObservationSums
from tensorveil.privacy.queries.windows import WindowReading
from tensorveil.privacy.units import Unit

BOUNDS = tv.Bounds(-1, 1)
TINY = tv.Observations(
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 2], [3, 1]],
    [0.3, -0.2, 1.0, 0.5, -1.0, 0.1, 0.7],
    (5, 4),
    duplicates="keep",
)
READINGS = [
    WindowReading.of_centred(2),
    WindowReading(0.2, Offsets.none(2), -0.9, 0.8),
    WindowReading(-1.0, Offsets.none(2), 0.0, 1.5e-6),
]
SHARES = [(1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.2, 1e-9, 7.0)]


def bounded(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))


def logits(scale, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(scale * rng.normal(size=size) for size in TINY.shape)


def moves(query, unit):
    """How far neighbours move the sums, each exactly, in units of one contribution; the bound first."""
    (change,) = query.sensitivity(Unit.of(unit).resolved(TINY.mode_names))
    found = []
    for one, other in neighbours(TINY, unit, BOUNDS):
        steps = [int(step) for step in query.of(bounded(one, unit))[0] - query.of(bounded(other, unit))[0]]
        length = sum(map(abs, steps)) if query.pure else sum(step**2 for step in steps)
        limit = change.bound * CONTRIBUTION_STEPS
        assert length <= (limit if query.pure else limit**2)
        found.append(length / limit if query.pure else np.sqrt(length) / limit)
    return found


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", ["value", "slice_values:0", "slice_values:1"])
@pytest.mark.parametrize("shares", SHARES)
def test_shares_of_modes_keep_to_the_declared_sensitivity_and_reach_it(shares, unit, pure):
    assert max(moves(ModeSums(shares, pure), unit)) > 0.99


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_shares_of_observations_keep_to_the_declared_sensitivity_and_reach_it(scale, reading, pure):
    assert max(moves(ObservationSums(reading, logits(scale), pure), "value")) > 0.99


@pytest.mark.parametrize("pure", [True, False])
def test_shares_of_observations_are_a_softmax_over_the_modes(pure):
    data, made = bounded(TINY, "value"), logits(1.0)
    weights = ObservationSums(READINGS[0], made, pure).weights(data)
    for place, (i, j) in enumerate(TINY.coordinates.tolist()):
        share = 1 / (1 + np.exp(made[1][j] - made[0][i]))  # of two, the softmax is the logistic function
        told = [weight[place] if pure else weight[place] ** 2 for weight in weights]
        np.testing.assert_allclose(told, [share, 1 - share], rtol=1e-5)


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", ["value", "slice_values:0"])
def test_neither_the_order_of_the_rows_nor_the_split_into_shards_matters(unit, pure):
    rng = np.random.default_rng(0)
    where = np.column_stack([rng.integers(0, size, 300) for size in (5, 4, 9)])
    data = bounded(tv.Observations(where, rng.uniform(-1, 1, 300), (5, 4, 9), duplicates="keep"), unit)
    queries = [ModeSums((1.0, 0.3, 2.0, 0.1), pure)]
    if unit == "value":
        made = tuple(rng.normal(size=size) for size in data.shape)
        queries.append(ObservationSums(WindowReading(0.1, Offsets.none(3), -0.5, 0.5), made, pure))
    for query in queries:
        (whole,) = query.of(data)
        first = data.coordinates[:, 0] < 2 if unit != "value" else rng.random(300) < 0.01
        np.testing.assert_array_equal(query.of(data.kept(first))[0] + query.of(data.kept(~first))[0], whole)
        order = rng.permutation(300)
        mixed = bounded(tv.Observations(where[order], data.centred[order], data.shape, duplicates="keep"), unit)
        np.testing.assert_array_equal(query.of(mixed)[0], whole)


def test_shares_of_single_observations_are_not_proven_for_slices():
    with pytest.raises(tv.UnprovenError, match="unit value only"):
        ObservationSums(READINGS[0], logits(1.0), False).sensitivity(Unit.slice_values(0))


def test_public_numbers_that_would_break_the_sums_are_refused():
    for shares in ((1.0, -0.5), (0.0, 0.0), (np.nan, 1.0), (np.inf, 1.0)):
        with pytest.raises(tv.InputError, match="shares must be"):
            ModeSums(shares, True)
    with pytest.raises(tv.InputError, match="logits must be finite"):
        ObservationSums(READINGS[0], (np.array([0.0, np.nan]),), True)
    for low, high in ((0.0, 0.0), (1.0, -1.0), (np.nan, 1.0), (-np.inf, 1.0), (0.0, 5e-324)):
        with pytest.raises(tv.InputError, match="low below high"):
            WindowReading(0.0, Offsets.none(2), low, high)
