"""Symbols of cells that may be missing: how sure it is that a cell is observed, and what its symbol then tells."""

from functools import reduce

import numpy as np
import pytest

from tensorveil.inference.values.cells import MOST_SYMBOLS, observed_chances, released_cells
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.mechanisms.planning.channel_design import design_cell_channel
from tensorveil.privacy.bounds import VALUE_STEPS

SCALE = public_scale((-1.0, -0.5, 0.0, 0.5, 1.0), VALUE_STEPS)


def observed(shape, density, skew, rng):
    """Which cells are observed, by rates of the indices of every mode."""
    rates = [np.exp(skew * rng.normal(size=size) - skew**2 / 2) for size in shape]
    chances = density * reduce(np.multiply.outer, rates)
    return rng.random(shape) < np.minimum(chances, 1.0)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("shape", "density", "epsilon"), [((300, 200), 0.05, 5.0), ((40, 30, 50), 0.3, 3.0)])
def test_chances_to_be_observed_are_calibrated(shape, density, epsilon, skew):
    """Of cells with symbols of values, sorted by that chance, the share that is observed is as stated."""
    rng = np.random.default_rng(4)
    truth = observed(shape, density, skew, rng)
    false, true = np.exp(-epsilon) * 3, 0.9
    told = rng.random(shape) < np.where(truth, true, false)
    where = np.argwhere(told).astype(np.uint32)
    chance = observed_chances(where, shape, false, true)
    real = true * chance / (true * chance + false * (1 - chance))  # of a cell with such a symbol
    order = np.argsort(real)
    for part in np.array_split(order, 5):
        share = truth[tuple(where[part].T)].mean()
        assert real[part].mean() == pytest.approx(share, abs=0.12)
    assert real.mean() == pytest.approx(truth[told].mean(), abs=0.05)


def test_the_law_of_a_symbol_is_the_mixture_of_missing_and_observed():
    """Frequencies of the symbols of a class among cells of one level, observed or not, against the stated law."""
    rng, shape, level = np.random.default_rng(5), (400, 300), 4
    truth = observed(shape, 0.2, 0.0, rng)
    table = design_cell_channel(SCALE, 3.0, 0.2, 10.0).chances
    rows = np.where(truth, 1 + level, 0).ravel()
    symbols = (rng.random(rows.size)[:, None] > np.cumsum(table, axis=1)[rows]).sum(axis=1)
    where, released = released_cells(symbols, table, shape, SCALE, 0.01)
    assert released.chances.shape[1] <= MOST_SYMBOLS
    assert len(where) == len(released)
    law = released.chances[level]
    wanted = law / law.sum()
    counts = np.bincount(released.symbols, minlength=len(law))
    assert np.abs(counts / counts.sum() - wanted).max() < 0.01
    missing = symbols.reshape(shape)[tuple(where.T)]
    assert (missing != 0).all()  # the first symbol says "missing"
