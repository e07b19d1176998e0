"""Right-hand sides and matrices of alternating least squares, as whole numbers on a grid."""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.blocks import features, find_rows, work_size
from tensorveil.kernels.compiling import compiled

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STATISTIC_STEPS = 2.0**32  # grid steps in one
SQUARE_ROOT_OF_TWO = np.sqrt(2.0)
INSIDE = 1.0 - 2.0**-40  # keeps |phi| <= 1 true whatever the last bits of a division do


@compiled
def block_features(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: NDArray[np.uint32],
    block: int,
    table: Floats,
) -> None:
    """table[w] = phi_w of one block."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    first = widths[:block].sum()
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        features(parameters, rows, widths, N, phi, work)
        table[w] = phi[first : first + widths[block]]


@compiled
def feature_norms(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: NDArray[np.uint32],
    block: int,
    largest: Floats,
) -> None:
    """largest[k] = the largest |phi_w| of the entries in row k of the block."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    first = widths[:block].sum()
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        features(parameters, rows, widths, N, phi, work)
        k = (rows[block] - starts[block]) // widths[block]
        total = 0.0
        for r in range(first, first + widths[block]):
            total += phi[r] * phi[r]
        largest[k] = max(largest[k], np.sqrt(total))


@compiled
def row_statistics(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: NDArray[np.uint32],
    block: int,
    residuals: Floats,
    weights: Floats,
    limits: Floats,
    g: Integers,
    H: Integers,
) -> None:
    """Add up, for every row k of the block, over its entries w,

        g_k += a_w x_w psi_w,   H_k += a_w psi_w psi_w^T,   psi_w = phi_w / max(|phi_w|, limit_k)

    with the residual x_w first clipped to [-1, 1], each term rounded towards zero to the grid, sums exact in int64. Of
    H the upper triangle is kept, row by row, numbers off the diagonal times sqrt(2), so that its length is the
    Frobenius norm. A term of g and a term of H are then at most a_w long: rounding only shortens them. [K1]
    """
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    width = widths[block]
    first = widths[:block].sum()
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        features(parameters, rows, widths, N, phi, work)
        k = (rows[block] - starts[block]) // width
        total = 0.0
        for r in range(first, first + width):
            total += phi[r] * phi[r]
        shrink = INSIDE / max(np.sqrt(total), limits[k])
        x = min(max(residuals[w], -1.0), 1.0)
        a = weights[w] * STATISTIC_STEPS
        cell = 0
        for r in range(width):
            psi = phi[first + r] * shrink
            g[k, r] += np.int64(a * x * psi)  # conversion to a whole number goes towards zero
            for c in range(r, width):
                twice = 1.0 if c == r else SQUARE_ROOT_OF_TWO
                H[k, cell] += np.int64(a * twice * psi * (phi[first + c] * shrink))
                cell += 1
