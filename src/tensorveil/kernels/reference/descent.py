"""Predictions and stochastic gradient passes over the blocks of a model, CP and Tucker alike."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference.blocks import Blocks, entry_features, scratch


def predict(model: Blocks, coordinates: Coordinates, predictions: Floats) -> None:
    """predictions[w] = xhat_w. The kernel of Tucker models is compiled for Tucker models only."""
    kernel = predict_cp if model.starts.size == coordinates.shape[1] else predict_tucker
    kernel(model, coordinates, predictions)


@compiled
def predict_cp(model: Blocks, coordinates: Coordinates, predictions: Floats) -> None:
    """xhat_w = sum_r prod_n a^(n)[i_n, r]."""
    for w in range(coordinates.shape[0]):
        xhat = 0.0
        for r in range(model.widths[0]):
            product = 1.0
            for n in range(coordinates.shape[1]):
                product *= model.parameters[model.starts[n] + np.int64(coordinates[w, n]) * model.widths[n] + r]
            xhat += product
        predictions[w] = xhat


@compiled
def predict_tucker(model: Blocks, coordinates: Coordinates, predictions: Floats) -> None:
    """xhat_w = the core contracted with the rows of all modes."""
    rows, phi, work = scratch(model, coordinates.shape[1])
    for w in range(coordinates.shape[0]):
        predictions[w] = entry_features(model, coordinates, w, rows, phi, work)


@compiled
def features_at(model: Blocks, coordinates: Coordinates, phi: Floats) -> float:
    """Features of all blocks at the first of the coordinates; returns xhat."""
    rows, _, work = scratch(model, coordinates.shape[1])
    return entry_features(model, coordinates, 0, rows, phi, work)


class Clipping(NamedTuple):
    """For every block the clip norm, whether to watch it, and what was seen: the largest gradient and |phi|^2."""

    norms: Floats
    watched: NDArray[np.bool_]
    largest_gradient: Floats
    largest_feature: Floats


@compiled
def sgd_pass(
    model: Blocks,
    coordinates: Coordinates,
    values: Floats,
    visits: Integers,
    eta: float,
    penalties: Floats,
    clipping: Clipping,
    noise_block: int,
    noise: Floats,
) -> float:
    """Visit the entries in the given order, one stochastic gradient step each; returns the sum of squared residuals.

    For entry w with residual e = x_w - xhat_w and every block b, all from the same old values:

        v_b   = -2 e phi_b + 2 lambda_b row_b          gradient of e^2 + sum_b lambda_b |row_b|^2
        v_b   = v_b / max(1, |v_b| / m_b)              clipping, m_b = inf for none
        row_b = row_b - eta (v_b + n_w)                noise n_w on noise_block only, one row of `noise` a step

    Watched blocks record the largest |v_b| before clipping and the largest |phi_b|^2. The pass stops at the first
    residual that is not finite and returns it.
    """
    parameters, _, widths = model
    rows, phi, work = scratch(model, coordinates.shape[1])
    loss = 0.0
    for step in range(visits.size):
        w = visits[step]
        e = values[w] - entry_features(model, coordinates, w, rows, phi, work)
        if not np.isfinite(e):
            return float(e * e)
        loss += e * e
        first = 0
        for b in range(widths.size):
            width = widths[b]
            row = rows[b]
            scale = eta
            if clipping.norms[b] < np.inf or clipping.watched[b]:
                squared_gradient = 0.0
                squared_feature = 0.0
                for r in range(width):
                    v = -2.0 * e * phi[first + r] + 2.0 * penalties[b] * parameters[row + r]
                    squared_gradient += v * v
                    squared_feature += phi[first + r] * phi[first + r]
                norm = np.sqrt(squared_gradient)
                clipping.largest_gradient[b] = max(clipping.largest_gradient[b], norm)
                clipping.largest_feature[b] = max(clipping.largest_feature[b], squared_feature)
                scale = eta / max(1.0, norm / clipping.norms[b])
            for r in range(width):
                v = -2.0 * e * phi[first + r] + 2.0 * penalties[b] * parameters[row + r]
                parameters[row + r] -= scale * v
            if b == noise_block:
                for r in range(width):
                    parameters[row + r] -= eta * noise[step, r]
            first += width
    return loss
