"""Symbols of cells: one observation changes the number of one cell, and no symbol tells more than its table allows."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.mechanisms.planning.channel_design import design_cell_channel, design_channel
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.cell_symbols import CellSymbols
from tensorveil.privacy.stages import Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault, VaultError

SHAPE = (3, 2, 2)
CELLS = math.prod(SHAPE)
STARS = public_scale((-1.0, 0.0, 1.0), VALUE_STEPS)
EDGES = tuple(STARS.edges.tolist())
QUERY = CellSymbols(SHAPE, EDGES)
UNLIKELY = 1e-6


def channel(epsilon, density=0.5):
    return design_cell_channel(STARS, epsilon, density, 10.0)


def shard(where, values, unit="entry", shape=SHAPE):
    data = Observations(np.reshape(where, (-1, len(shape))), values, shape, duplicates="keep")
    return clip(data, Bounds(1, 5), Unit.of(unit), bytes(32))


def numbers(where, values):
    return QUERY.finish(QUERY.of(shard(where, values)))


def vault(shards, epsilon, theorem="input-cells", law=Law.CHANNEL, seed=0):
    stage = Stage("cells", theorem, PureEvent(epsilon), Sensitivity(None, None, "1 cell"), law, "cells")
    return Vault(shards, [stage], 0, NoiseSource(seed))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, CELLS - 1), st.floats(-10, 10)), min_size=2, max_size=12))
def test_one_observation_changes_the_number_of_its_own_cell_alone(observed):
    cells, values = (np.array(part) for part in zip(*observed, strict=True))
    where = np.column_stack(np.unravel_index(cells, SHAPE))
    whole = numbers(where, values)
    assert set(np.flatnonzero(whole)) == set(cells)
    for row in range(len(cells)):
        less = numbers(np.delete(where, row, axis=0), np.delete(values, row))
        assert set(np.flatnonzero(whole != less)) <= {cells[row]}


def test_the_number_of_a_cell_is_the_level_of_the_mean_of_its_values():
    where = [[0, 0, 0], [0, 0, 0], [1, 1, 1], [2, 0, 1]]
    found = numbers(where, [1.0, 5.0, 9.0, -4.0]).reshape(SHAPE)
    assert found[0, 0, 0] == 2  # the mean, 3, is the middle one of three levels
    assert found[1, 1, 1] == 3
    assert found[2, 0, 1] == 1
    assert np.count_nonzero(found) == 3


@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_the_exact_loss_of_all_symbols_is_at_most_epsilon_and_reaches_it(epsilon, density):
    """Of a box of two cells, all pairs of neighbours and all outcomes, by the whole numbers that are sampled."""
    table = channel(epsilon, density).counts.astype(object)
    states = range(len(table))
    worst = 0.0
    for before, after in itertools.permutations(states, 2):  # of the cell that changes; the other one stays
        for other in states:
            for one, two in itertools.product(range(table.shape[1]), repeat=2):
                mine, theirs = table[before, one] * table[other, two], table[after, one] * table[other, two]
                if mine or theirs:
                    worst = max(worst, abs(math.log(mine) - math.log(theirs)))
    assert worst <= epsilon * (1 + 1e-12)
    assert worst > 0.99 * min(epsilon, 16.0)


def test_every_cell_has_the_law_of_its_row_missing_ones_too():
    shape = (60, 50)
    where = np.argwhere(np.ones(shape))[:1500]  # half of the rows are empty
    values = np.where(np.arange(1500) % 2, 5.0, 1.0)
    found, table = CellSymbols(shape, EDGES), channel(2.0)
    drawn = vault([shard(where, values, shape=shape)], 2.0).cells("cells", found, table)
    assert drawn.shape == (3000,)
    for row, cells in ((0, slice(1500, None)), (1, slice(0, 1500, 2)), (3, slice(1, 1500, 2))):
        expected = table.chances[row] * len(drawn[cells])
        counts = np.bincount(drawn[cells], minlength=len(expected))
        used = expected > 5
        seen, wanted = (np.append(part[used], part[~used].sum() + 1e-9) for part in (counts, expected))
        assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > UNLIKELY


def test_neither_the_order_of_rows_nor_the_split_into_shards_shows():
    rng = np.random.default_rng(1)
    where, values = rng.integers(0, SHAPE, (40, 3)), rng.uniform(0, 6, 40)
    order = rng.permutation(40)
    whole = shard(where, values)
    split = [whole.kept(np.arange(40) % 3 == part) for part in range(3)]  # cells are split, too
    drawn = [
        vault(shards, 3.0).cells("cells", QUERY, channel(3.0))
        for shards in ([whole], [shard(where[order], values[order])], split)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("unit", "query", "paid", "table", "match"),
    [
        ("entry", QUERY, 1.0, channel(1.5), "pays"),
        ("entry", QUERY, 1.0, channel(1.0 + 1e-12), "pays"),
        ("entry", CellSymbols(SHAPE, EDGES[1:]), 2.0, channel(2.0), "needs 3 rows"),
        ("entry", QUERY, 2.0, design_channel(STARS, 2.0, 10.0), "needs 4 rows"),
        ("value", QUERY, 2.0, channel(2.0), "priced by"),
        ("slice:0", QUERY, 2.0, channel(2.0), "priced by"),
    ],
)
def test_what_is_not_paid_for_or_does_not_fit_is_refused_before_anything_is_paid(unit, query, paid, table, match):
    locked = vault([shard([[0, 0, 0]], [3.0], unit)], paid)
    with pytest.raises(VaultError, match=match):
        locked.cells("cells", query, table)
    assert locked.receipts == ()


def test_a_stage_pays_for_one_symbol_per_cell_and_no_second_one():
    locked = vault([shard([[0, 0, 0]], [3.0])], 1.0)
    locked.cells("cells", QUERY, channel(1.0))
    with pytest.raises(VaultError, match="used up"):
        locked.cells("cells", QUERY, channel(1.0))
    assert [one.query for one in locked.receipts] == ["CellSymbols"]


def test_a_box_of_another_shape_is_refused():
    with pytest.raises(InputError, match="the box must have the shape"):
        CellSymbols((3, 2, 3), EDGES).of(shard([[0, 0, 0]], [3.0]))
