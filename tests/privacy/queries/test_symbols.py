"""Symbols: each from its own value, on the scale of the channel's levels, in an order that tells nothing of rows."""

import numpy as np
import pytest

from tensorveil.data.observations import Observations
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.queries.values.values import Values
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault, VaultError

BOUNDS = Bounds(1, 5)
LEVELS = (1.0, 2.0, 3.0, 4.0, 5.0)
WHERE = np.repeat([[0, 0], [0, 1], [1, 0]], 4, axis=0)


def shard(values, unit="value"):
    return clip(Observations(WHERE, values, (2, 2), duplicates="keep"), BOUNDS, Unit.of(unit), bytes(32))


def vault(values, epsilon, unit="value", law=Law.CHANNEL, seed=0):
    stage = Stage("values", "input-values", PureEvent(epsilon), Sensitivity(None, Norm.L1, "values"), law, "values")
    return Vault([shard(values, unit)], [stage], 0, NoiseSource(seed))


@pytest.mark.parametrize("query", [Symbols(), Symbols(nearest=True), Symbols((-1000, VALUE_STEPS // 2), nearest=True)])
def test_a_replaced_value_moves_its_own_symbol_alone(query):
    channel = design_channel(LEVELS if query.within is None else (-1, 0, 1), 30.0)
    values = np.array([1.0, 2, 3, 4, 1.2, 2.4, 3.6, 4.8, 1.5, 2.5, 3.5, 4.5])
    before = query.draw(shard(values), channel, NoiseSource(0))
    values[3] = 5.0  # the largest of its cell before and after
    after = query.draw(shard(values), channel, NoiseSource(0))
    assert set(np.flatnonzero(before != after)) <= {3}


def test_values_on_the_scale_of_a_released_range():
    values = Symbols((-VALUE_STEPS // 2, VALUE_STEPS)).values(shard([1, 2, 3, 5] * 3))
    np.testing.assert_allclose(values[:4], [-1, -1, -1 / 3, 1])  # centred -1, -0.5, 0 and 1


def test_symbols_and_values_of_a_cell_come_in_order():
    rng = np.random.default_rng(0)
    values = rng.uniform(1, 5, len(WHERE))
    symbols = vault(values, 2.0).symbols("values", Symbols(), design_channel(LEVELS, 2.0)).reshape(3, 4)
    assert (np.diff(symbols, axis=1) >= 0).all()
    answer = vault(values, 2.0, law=Law.LAPLACE).values("values", Values(pure=True))
    noisy = answer.values.reshape(3, 4)
    assert (np.diff(noisy, axis=1) > 0).all()
    assert answer.law.scale == 1.0
    unsorted = NoiseSource(0).laplace(shard(values).steps, grid=2.0**-20, sensitivity=2**21, epsilon=2.0)
    np.testing.assert_array_equal(np.sort(unsorted.reshape(3, 4), axis=1), noisy)


def test_the_vault_refuses_symbols_that_cost_more_than_their_stage_pays():
    assert len(vault(np.full(12, 3.0), 4.0).symbols("values", Symbols(), design_channel(LEVELS, 4.0))) == 12
    with pytest.raises(VaultError, match="8 symbols at 4"):
        vault(np.full(12, 3.0), 4.0, "slice_values:0").symbols("values", Symbols(), design_channel(LEVELS, 4.0))
    with pytest.raises(VaultError, match="got a query of input-centred"):
        vault(np.full(12, 3.0), 4.0).symbols("values", Symbols((0, 9)), design_channel(LEVELS, 4.0))
    with pytest.raises(VaultError, match="priced for channel"):
        vault(np.full(12, 3.0), 4.0).values("values", Values(pure=True))
