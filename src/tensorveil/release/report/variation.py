"""How far predictions differ from cell to cell, beside the spread of the values: whether a release says anything.

It is computed from the released model alone, so it costs no privacy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws

CELLS = 2_000  # drawn from a fixed, public stream, where there are more
EXPLAINED = 0.01  # of the variance of the values: less is nearly constant
OF_RANGE = 0.01  # where the spread of the values was not released: of the width of the bounds
DIGITS = 6


def variation_of(model: Completion) -> dict[str, Any] | None:
    """Standard deviations of predictions and of values; None for a model that predicts for nobody or has no bounds.

    The spread of the values is that of their released marginal; it is None where none was released.
    """
    if not model.clipped or model.withheld_mode is not None:
        return None
    predictions = float(np.std(model.predict(_cells(model.shape))))
    values = None if model.draws is None else _spread(model.draws) * (model.high - model.low) / 2
    return variation(_rounded(predictions), None if values is None else _rounded(values), model.low, model.high)


def level_and_unit(model: Completion) -> tuple[float, float]:
    """The overall level of the predictions, and how far values move where offsets and components move by one.

    With posterior draws the sum of offsets and components is a latent number, and values are a curve of it. The level
    is then the mean over some cells, and the unit the slope of the curve there, by least squares.
    """
    width = (model.high - model.low) / 2
    if model.draws is None:
        return min(max(model.low + width * (1 + model.offsets.mean), model.low), model.high), width
    cells = _cells(model.shape).astype(np.uint32)
    latent = model.draws.latent_means(cells, model.offsets).mean(axis=0)
    values = model.low + width * (1 + model.draws.predict(cells, model.offsets))
    apart = latent - latent.mean()
    square = float(apart @ apart)
    return float(values.mean()), float(apart @ values) / square if square > 0 else 0.0


def variation(predictions: float, values: float | None, low: float, high: float) -> dict[str, Any]:
    """Both numbers, and whether the predictions are nearly constant."""
    limit = OF_RANGE * (high - low) if values is None else math.sqrt(EXPLAINED) * values
    return {"predictions": predictions, "values": values, "nearly_constant": predictions < limit}


def sentence(found: dict[str, Any]) -> str:
    """What a reader must know of predictions that are nearly constant."""
    told = "vary by less than 1 % of the range of the values"
    if found["values"] is not None:
        told = "explain less than 1 % of the variance of the values"
    return f"The predictions are nearly the same for all cells: they {told}. The release says little beyond the mean."


def _cells(shape: tuple[int, ...]) -> Any:
    total = math.prod(shape)
    if total <= CELLS:
        return np.argwhere(np.ones(shape, dtype=bool))
    draw = np.random.default_rng(0)
    return np.column_stack([draw.integers(0, size, CELLS) for size in shape])


def _spread(draws: PosteriorDraws) -> float:
    """The standard deviation of the released marginal, centred: latent numbers are N(0, 1) over all values.

    Between two knots values are spread evenly; the first and the last level reach to infinity.
    """
    from scipy.special import ndtr

    ends: Floats = draws.knots.mean(axis=0)
    masses = np.diff(ndtr(np.concatenate([[-np.inf], ends[1:-1], [np.inf]])))
    masses = masses / masses.sum()
    middles, widths = (draws.low + draws.high) / 2, draws.high - draws.low
    mean = masses @ middles
    return float(np.sqrt(masses @ ((middles - mean) ** 2 + widths**2 / 12)))


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
