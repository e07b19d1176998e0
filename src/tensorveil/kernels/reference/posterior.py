"""Means of latent numbers under a model with offsets."""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference import blocks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]


@compiled
def predict_means(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    offsets: Floats,
    offset_starts: Integers,
    coordinates: Coordinates,
    mean: float,
    means: Floats,
    begin: int,
    end: int,
) -> None:
    """means[w] = mean + offsets + xhat_w; the offsets of mode n begin at offset_starts[n]."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(blocks.work_size(widths, N))
    for w in range(begin, end):
        if widths.size == N:
            total = cp_row(parameters, starts, widths[0], coordinates, w, N - 1, phi)
        else:
            blocks.find_rows(coordinates, w, starts, widths, rows)
            total = blocks.features(parameters, rows, widths, N, phi, work)
        for n in range(N):
            total += offsets[offset_starts[n] + np.int64(coordinates[w, n])]
        means[w] = mean + total


@compiled
def cp_row(
    parameters: Floats, starts: Integers, R: int, coordinates: Coordinates, w: int, n: int, phi: Floats
) -> float:
    """phi[:R] = Hadamard product of the rows of all modes but n; returns xhat_w: a CP model, one mode alone."""
    N = coordinates.shape[1]
    phi[:R] = 1.0
    for m in range(N):
        if m != n:
            row = starts[m] + np.int64(coordinates[w, m]) * R
            for r in range(R):
                phi[r] *= parameters[row + r]
    row = starts[n] + np.int64(coordinates[w, n]) * R
    xhat = 0.0
    for r in range(R):
        xhat += phi[r] * parameters[row + r]
    return xhat
