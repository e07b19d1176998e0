"""Gibbs draws of the rows of a model: each row's law given all else is normal, by the normal equations of its entries.

With y_w a latent value and o_w its precision, row i of mode n together with its offset is a ridge regression:

    H = sum_w o_w phi_w phi_w^T + Lambda,    g = sum_w o_w phi_w t_w + Lambda mu_i,    row ~ N(H^-1 g, H^-1),

phi_w the features of the row and a one for the offset, t_w = y_w - mean - offsets of the other modes, and N(mu_i,
Lambda^-1) the row's prior. Rows of one mode do not depend on each other, so threads share them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference import blocks
from tensorveil.kernels.reference.least_squares import factorize

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


@compiled
def draw_rows(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    offsets: Floats,
    offset_starts: Integers,
    coordinates: Coordinates,
    mean: float,
    latent: Floats,
    precisions: Floats,
    order: Integers,
    begins: Integers,
    n: int,
    prior_means: Floats,
    prior_precisions: Floats,
    reflection: float,
    centres: Floats,
    key: np.uint64,
    begin: int,
    end: int,
) -> None:
    """Draw rows begin to end of factor matrix n with their offsets; order[begins[i]:begins[i + 1]] are row i's entries.

    centres[i] = H^-1 g, the mean of the row and its offset.

    reflection = a, from -1 to 0: the new row is H^-1 g + a (old row - H^-1 g) + sqrt(1 - a^2) z, z ~ N(0, H^-1), which
    leaves the row's law as it is (Adler 1981, over-relaxation); with 0 it does not depend on the old row.
    """
    N = coordinates.shape[1]
    R = widths[n]
    D = R + 1
    first = np.int64(0)
    for b in range(n):
        first += widths[b]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(blocks.work_size(widths, N))
    own = np.empty(D)
    H = np.empty((D, D))
    g = np.empty(D)
    fresh = math.sqrt(1.0 - reflection * reflection)
    for i in range(begin, end):
        H[:] = 0.0
        for a in range(D):
            H[a, a] = prior_precisions[a]
            g[a] = prior_precisions[a] * prior_means[i, a]
        own[R] = 1.0
        for position in range(begins[i], begins[i + 1]):
            w = order[position]
            if widths.size == N:
                cp_row(parameters, starts, R, coordinates, w, n, own)
            else:
                blocks.find_rows(coordinates, w, starts, widths, rows)
                blocks.features(parameters, rows, widths, N, phi, work)
                own[:R] = phi[first : first + R]
            t = latent[w] - mean
            for m in range(N):
                if m != n:
                    t -= offsets[offset_starts[m] + np.int64(coordinates[w, m])]
            t *= precisions[w]
            for a in range(D):
                g[a] += t * own[a]
            for a in range(D):
                p = precisions[w] * own[a]
                for b in range(D):  # the upper half is not needed; whole rows are faster
                    H[a, b] += p * own[b]
        if not factorize(H):
            continue
        row = starts[n] + i * R
        own[:R] = parameters[row : row + R]
        own[R] = offsets[offset_starts[n] + i]
        for a in range(D):
            total = g[a]
            for b in range(a):
                total -= H[a, b] * g[b]
            g[a] = total / H[a, a]
        for a in range(D - 1, -1, -1):
            total = g[a]
            for b in range(a + 1, D):
                total -= H[b, a] * centres[i, b]
            centres[i, a] = total / H[a, a]
        state = normals.stream(key, i)
        for a in range(D):  # g is L^-1 g; L^T row is where the old row stands on the same scale
            state += normals.STEP
            change = fresh * normals.quantile(normals.uniform(state))
            if reflection != 0.0:
                total = 0.0
                for b in range(a, D):
                    total += H[b, a] * own[b]
                change += reflection * (total - g[a])
            g[a] += change
        for a in range(D - 1, -1, -1):
            total = g[a]
            for b in range(a + 1, D):
                total -= H[b, a] * g[b]
            g[a] = total / H[a, a]
        parameters[row : row + R] = g[:R]
        offsets[offset_starts[n] + i] = g[R]


@compiled
def core_equations(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: Coordinates,
    targets: Floats,
    precisions: Floats,
    begin: int,
    end: int,
) -> tuple[Floats, Floats]:
    """sum_w o_w phi_w phi_w^T (lower half) and sum_w o_w phi_w t_w of some entries, phi_w features of the core."""
    N = coordinates.shape[1]
    cells = widths[N]
    first = widths.sum() - cells
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(blocks.work_size(widths, N))
    H = np.zeros((cells, cells))
    g = np.zeros(cells)
    for w in range(begin, end):
        blocks.find_rows(coordinates, w, starts, widths, rows)
        blocks.features(parameters, rows, widths, N, phi, work)
        for a in range(cells):
            p = precisions[w] * phi[first + a]
            g[a] += p * targets[w]
            for b in range(a + 1):
                H[a, b] += p * phi[first + b]
    return H, g
