"""From symbols of all cells of a box, observed or not, to symbols of values, each with a chance to be one.

A symbol that is an interval of levels is that of a value in it, or of anything else, missing cells too, by chance. The
probability that a cell is observed, d, is estimated from the numbers of such symbols of its indices. Then

    P(symbol | level if it is observed) = (1 - d) Q(symbol | missing) + d Q(symbol | level),

so that a symbol of a cell in one class of d is a symbol of its own, of a channel with fewer certain answers: the
posterior takes it as any other. Cells whose symbol says "missing" are left out; they count for d alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.released import Released
from tensorveil.inference.values.scale import Scale

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

MOST_SYMBOLS = 256
CLASSES = 16  # of chances to be observed, at most
LEAST_RATE = 0.02  # of an index, of the average: no row is known to be empty
MOST_CERTAIN = 0.999


def released_cells(
    symbols: Integers, chances: Floats, shape: tuple[int, ...], scale: Scale, error: float
) -> tuple[Coordinates, Released]:
    """Coordinates of the cells that may be observed, and their symbols with the law of them.

    Parameters
    ----------
    symbols : of all cells, in order
    chances : Q(symbol | level), the first row for missing cells. The first symbol says "missing", and the last nothing
    scale, error : levels, and the standard error of their shares by the marginal
    """
    missing, levels = chances[0], chances[1:]
    telling = np.arange(1, chances.shape[1] - 1)
    number = np.full(chances.shape[1], -1)
    number[telling] = np.arange(len(telling))
    chosen = np.flatnonzero(number[symbols] >= 0)
    where = np.stack(np.unravel_index(chosen, shape), axis=1).astype(np.uint32)
    false, true = float(missing[telling].sum()), float(levels[:, telling].sum(axis=1).mean())
    logs = np.log(observed_chances(where, shape, false, true))
    count = min(CLASSES, MOST_SYMBOLS // len(telling))
    ends = np.quantile(logs, np.arange(1, count) / count) if len(logs) else np.zeros(count - 1)
    classes = np.searchsorted(ends, logs, side="right")
    sizes = np.maximum(np.bincount(classes, minlength=count), 1)
    each = np.bincount(classes, np.exp(logs), count) / sizes
    law = [(1 - chance) * missing[telling] + chance * levels[:, telling] for chance in each]
    found = classes * len(telling) + number[symbols[chosen]]
    return where, Released(found, np.concatenate(law, axis=1), scale, error)


def observed_chances(where: Coordinates, shape: tuple[int, ...], false: float, true: float) -> Floats:
    """The chance that a cell is observed, for cells whose symbols are those of values.

    A cell is observed with the chance of an average cell times one rate per index. The number of symbols of an index
    shows its rate, with an error that is known, and rates are shrunk by what of their variance is error.

    Parameters
    ----------
    where : of the symbols of values
    false, true : chances of such a symbol for a missing cell, and for an observed one
    """
    cells = math.prod(shape)
    density = max((len(where) / cells - false) / (true - false), 1 / cells)
    logs = np.full(len(where), math.log(min(density, MOST_CERTAIN)))
    for mode, size in enumerate(shape):
        counts = np.bincount(where[:, mode], minlength=size)
        average = density * cells / size
        rates = (counts - false * cells / size) / (true - false) / average
        noise = np.maximum(counts, 1.0) / ((true - false) * average) ** 2
        spread = max(float(np.mean((rates - 1) ** 2 - noise)), 1e-6)
        shrunk = 1 + (rates - 1) * spread / (spread + noise)
        logs += np.log(np.maximum(shrunk, LEAST_RATE))[where[:, mode]]
    return np.asarray(np.minimum(np.exp(logs), MOST_CERTAIN))
