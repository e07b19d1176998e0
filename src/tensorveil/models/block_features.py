"""Features of a block: the numbers that multiply its rows in a prediction, and their length by the model."""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats
from tensorveil.kernels.reference import statistics
from tensorveil.models.factor_model import FactorModel

SMALLEST = 1e-12


def block_features(model: FactorModel, coordinates: NDArray[np.uint32], block: int) -> Floats:
    """The features of a block at checked coordinates, one row per entry."""
    table = np.empty((len(coordinates), int(model.block_widths[block])))
    statistics.block_features(model.numbers, coordinates, block, table)
    return table


def largest_feature(model: FactorModel, mode: int) -> float:
    """A bound on |phi| of any entry for the rows of this mode."""
    lengths = [np.linalg.norm(factor, axis=1).max() for place, factor in enumerate(model.factors) if place != mode]
    core = 1.0 if model.core is None else float(np.linalg.norm(model.core))
    return max(float(np.prod(lengths)) * core, SMALLEST)


def typical_feature(model: FactorModel, block: int) -> float:
    """The root mean square of |phi| over all cells, for this block."""
    moments = [factor.T @ factor / len(factor) for factor in model.factors]
    if block == model.order:  # the core's features are the Kronecker product of the rows
        return max(math.sqrt(float(np.prod([np.trace(moment) for moment in moments]))), SMALLEST)
    if model.core is None:
        diagonals = [np.diag(moment) for place, moment in enumerate(moments) if place != block]
        return max(math.sqrt(float(np.prod(diagonals, axis=0).sum())), SMALLEST)
    spread = model.core
    for place, moment in enumerate(moments):
        if place != block:
            spread = np.moveaxis(np.tensordot(moment, spread, axes=(1, place)), 0, place)
    return max(math.sqrt(max(float((spread * model.core).sum()), 0.0)), SMALLEST)
