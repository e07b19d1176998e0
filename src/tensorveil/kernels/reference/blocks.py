"""Predictions and stochastic gradient passes over the blocks of a model.

A model is one flat vector of numbers, cut into blocks: one factor matrix per mode and, for Tucker, the core last. An
entry w touches one row of each block, and its prediction is linear in each of these rows, with the others held fixed:

    xhat_w = phi_b . row_b        for every block b.

`phi_b` (the features of block b) is what cp.py and tucker.py compute; all that follows is the same for both.
"""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fused import LANES, fma
from tensorveil.kernels.reference import cp, tucker

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]


@compiled
def find_rows(coordinates: Coordinates, w: int, starts: Integers, widths: Integers, rows: Integers) -> None:
    """rows[b] = where the row of block b that entry w touches begins in the parameters."""
    N = coordinates.shape[1]
    for n in range(N):
        rows[n] = starts[n] + np.int64(coordinates[w, n]) * widths[n]
    for b in range(N, starts.size):  # the core is one row
        rows[b] = starts[b]


@compiled
def features(parameters: Floats, rows: Integers, widths: Integers, N: int, phi: Floats, work: Floats) -> float:
    """Fill phi with the features of all blocks, one after the other, and return xhat."""
    if widths.size == N:
        return cp.features(parameters, rows, widths[0], phi)
    return tucker.features(parameters, rows, widths, phi, work)


@compiled
def block_row_features(
    parameters: Floats, rows: Integers, widths: Integers, N: int, block: int, phi: Floats, work: Floats
) -> int:
    """Fill in the features of one block and return where they begin in phi; other parts of phi are undefined."""
    first = widths[:block].sum()
    if widths.size == N:
        cp.block_features(parameters, rows, widths[0], block, phi[first:])
    else:
        tucker.features(parameters, rows, widths, phi, work)
    return int(first)


@compiled
def add_products(a: Floats, first: int, b: Floats, second: int, count: int, lanes: Floats) -> None:
    """Add a[first + r] b[second + r] to lanes[r % LANES] for all r < count, in this order.

    A sum of floats depends on its order. The fast kernels keep one partial sum in each lane of a vector, so the
    reference keeps them as well: both must round to the same integers (see vectors.py).
    """
    for r in range(count):
        lanes[r % LANES] = fma(a[first + r], b[second + r], lanes[r % LANES])


@compiled
def sum_of_lanes(lanes: Floats) -> float:
    """Sum of the partial sums, in pairs as the fast kernels add them."""
    return float((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))


@compiled
def work_size(widths: Integers, N: int) -> int:
    """Numbers of scratch space that `features` needs."""
    if widths.size == N:
        return 0
    return tucker.work_size(widths)


@compiled
def predict(
    parameters: Floats, starts: Integers, widths: Integers, coordinates: Coordinates, predictions: Floats
) -> None:
    """predictions[w] = xhat_w."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        predictions[w] = features(parameters, rows, widths, N, phi, work)


@compiled
def entry_features(
    parameters: Floats, starts: Integers, widths: Integers, coordinates: Coordinates, phi: Floats
) -> float:
    """Features of all blocks at the first of the coordinates; returns xhat."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    work = np.empty(work_size(widths, N))
    find_rows(coordinates, 0, starts, widths, rows)
    return features(parameters, rows, widths, N, phi, work)


@compiled
def sgd_pass(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: Coordinates,
    values: Floats,
    visits: Integers,
    eta: float,
    penalties: Floats,
    clip_norms: Floats,
    noise_block: int,
    noise: Floats,
    watched: NDArray[np.bool_],
    largest_gradient: Floats,
    largest_feature: Floats,
) -> float:
    """Visit the entries in the given order, one stochastic gradient step each; returns the sum of squared residuals.

    For entry w with residual e = x_w - xhat_w and every block b, all from the same old values:

        v_b   = -2 e phi_b + 2 lambda_b row_b          gradient of e^2 + sum_b lambda_b |row_b|^2
        v_b   = v_b / max(1, |v_b| / m_b)              clipping, m_b = inf for none
        row_b = row_b - eta (v_b + n_w)                noise n_w on noise_block only, one row of `noise` a step

    Watched blocks record the largest |v_b| before clipping and the largest |phi_b|^2. The pass stops at the first
    residual that is not finite and returns it.
    """
    N = coordinates.shape[1]
    B = starts.size
    rows = np.empty(B, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    loss = 0.0
    for step in range(visits.size):
        w = visits[step]
        find_rows(coordinates, w, starts, widths, rows)
        e = values[w] - features(parameters, rows, widths, N, phi, work)
        if not np.isfinite(e):
            return float(e * e)
        loss += e * e
        first = 0
        for b in range(B):
            width = widths[b]
            row = rows[b]
            scale = eta
            if clip_norms[b] < np.inf or watched[b]:
                squared_gradient = 0.0
                squared_feature = 0.0
                for r in range(width):
                    v = -2.0 * e * phi[first + r] + 2.0 * penalties[b] * parameters[row + r]
                    squared_gradient += v * v
                    squared_feature += phi[first + r] * phi[first + r]
                norm = np.sqrt(squared_gradient)
                largest_gradient[b] = max(largest_gradient[b], norm)
                largest_feature[b] = max(largest_feature[b], squared_feature)
                scale = eta / max(1.0, norm / clip_norms[b])
            for r in range(width):
                v = -2.0 * e * phi[first + r] + 2.0 * penalties[b] * parameters[row + r]
                parameters[row + r] -= scale * v
            if b == noise_block:
                for r in range(width):
                    parameters[row + r] -= eta * noise[step, r]
            first += width
    return loss
