"""Symbols: each from its own value, by edges in whole steps, in an order that tells nothing of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip, identities
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.secret_words import RowWords
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.queries.values.values import Values
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault, VaultError

BOUNDS = Bounds(1, 5)
STARS = public_scale((-1.0, -0.5, 0.0, 0.5, 1.0), VALUE_STEPS)
EDGES = tuple(STARS.edges.tolist())
WHERE = np.repeat([[0, 0], [0, 1], [1, 0]], 4, axis=0)


def channel(epsilon):
    return design_channel(STARS, epsilon, 10.0)


def shard(values, unit="value"):
    return clip(Observations(WHERE, values, (2, 2), duplicates="keep"), BOUNDS, Unit.of(unit), bytes(32))


def vault(values, epsilon, unit="value", law=Law.CHANNEL, seed=0):
    stage = Stage("values", "input-values", PureEvent(epsilon), Sensitivity(None, Norm.L1, "values"), law, "values")
    return Vault([shard(values, unit)], [stage], 0, NoiseSource(seed))


@pytest.mark.parametrize("edges", [EDGES, (-1000, VALUE_STEPS // 2, VALUE_STEPS // 2, VALUE_STEPS + 1)])
def test_a_replaced_value_moves_its_own_symbol_alone(edges):
    query = Symbols(edges)
    values = np.array([1.0, 2, 3, 4, 1.2, 2.4, 3.6, 4.8, 1.5, 2.5, 3.5, 4.5])
    before = query.draw(shard(values), RowWords(bytes(32)), channel(30.0))
    values[3] = 5.0  # the largest of its cell before and after
    after = query.draw(shard(values), RowWords(bytes(32)), channel(30.0))
    assert set(np.flatnonzero(before != after)) <= {3}


@given(st.lists(st.integers(-VALUE_STEPS, VALUE_STEPS), min_size=1, max_size=9), st.lists(st.integers(-9, 9)))
def test_the_level_is_the_number_of_edges_at_or_below_a_value(edges, near):
    edges = sorted(edges)
    steps = [edges[0] + shift for shift in near] + [edges[-1] + shift for shift in near] + edges
    levels = Symbols(tuple(edges)).levels(np.array(steps))
    assert levels.tolist() == [sum(edge <= step for edge in edges) for step in steps]


def test_a_table_for_another_number_of_levels_is_refused_before_anything_is_paid():
    locked = vault(np.full(12, 3.0), 4.0)
    for edges in (EDGES[1:], (*EDGES, VALUE_STEPS)):
        with pytest.raises(VaultError, match="one edge less"):
            locked.symbols("values", Symbols(edges), channel(4.0))
    assert locked.receipts == ()


def test_symbols_and_values_of_a_cell_come_in_order():
    rng = np.random.default_rng(0)
    values = rng.uniform(1, 5, len(WHERE))
    symbols = vault(values, 2.0).symbols("values", Symbols(EDGES), channel(2.0)).reshape(3, 4)
    assert (np.diff(symbols, axis=1) >= 0).all()
    answer = vault(values, 2.0, law=Law.LAPLACE).values("values", Values(pure=True))
    noisy = answer.values.reshape(3, 4)
    assert (np.diff(noisy, axis=1) > 0).all()
    assert answer.law.scale == 1.0
    unsorted = NoiseSource(0).laplace(shard(values).steps, grid=2.0**-20, sensitivity=2**21, epsilon=2.0)
    np.testing.assert_array_equal(np.sort(unsorted.reshape(3, 4), axis=1), noisy)


def test_every_observation_has_a_word_of_its_own_also_within_a_cell():
    whole = shard(np.full(12, 3.0))
    words = RowWords(bytes(range(32))).of(identities(whole.coordinates))
    assert len(np.unique(words)) == 12
    symbols = Symbols(EDGES).draw(whole, RowWords(bytes(range(32))), channel(0.1))
    assert len(np.unique(symbols[:4])) > 1  # equal values of one cell: one word for all would give one symbol


@pytest.mark.parametrize("split", [[[0, 1], [2]], [[2], [0], [1]], [[0, 2], [1]]])
def test_neither_the_split_into_shards_nor_their_order_shows_in_symbols_or_values(split):
    values = np.random.default_rng(3).uniform(1, 5, len(WHERE))
    whole = shard(values)
    cells = np.repeat(np.arange(3), 4)
    shards = [whole.kept(np.isin(cells, part)) for part in split]
    for law in (Law.CHANNEL, Law.LAPLACE):
        stage = Stage("values", "input-values", PureEvent(2.0), Sensitivity(None, Norm.L1, "values"), law, "values")
        released = []
        for parts in ([whole], shards):
            locked = Vault(parts, [stage], 0, NoiseSource(7))
            np.testing.assert_array_equal(locked.pattern.coordinates, whole.coordinates)
            if law is Law.CHANNEL:
                released.append(locked.symbols("values", Symbols(EDGES), channel(2.0)))
            else:
                released.append(locked.values("values", Values(pure=True)).values)
        np.testing.assert_array_equal(*released)


def test_the_vault_refuses_symbols_that_cost_more_than_their_stage_pays():
    assert len(vault(np.full(12, 3.0), 4.0).symbols("values", Symbols(EDGES), channel(4.0))) == 12
    with pytest.raises(VaultError, match="8 symbols at 4"):
        vault(np.full(12, 3.0), 4.0, "slice_values:0").symbols("values", Symbols(EDGES), channel(4.0))
    with pytest.raises(VaultError, match="priced for channel"):
        vault(np.full(12, 3.0), 4.0).values("values", Values(pure=True))
