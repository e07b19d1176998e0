"""Ridge least squares for one block of a model, all other blocks held fixed.

A prediction is linear in the row of each block that its entry touches (blocks.py): xhat_w = phi_w . row. So the best
row of a factor matrix is the solution of

    (H + lambda I) row = g,        H = sum_w phi_w phi_w^T,   g = sum_w phi_w x_w     over the row's own entries,

and the core is one such row with all entries, too long to form H: only products of H with vectors are computed.
"""

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fused import LANES
from tensorveil.kernels.reference.blocks import (
    Blocks,
    add_products,
    block_row_features,
    entry_features,
    find_rows,
    scratch,
    sum_of_lanes,
)
from tensorveil.kernels.reference.statistics import SMALLEST_LIMIT

DESCENTS = 5  # times that all numbers of a non-negative row are set, per sweep; it starts from the old row


@compiled
def factorize(H: Floats) -> bool:
    """Cholesky factor of H in place, lower triangle; False where H is not positive definite."""
    for a in range(H.shape[0]):
        for b in range(a + 1):
            total = H[a, b]
            for c in range(b):
                total -= H[a, c] * H[b, c]
            if a == b:
                if not total > 0.0:
                    return False
                H[a, a] = np.sqrt(total)
            else:
                H[a, b] = total / H[b, b]
    return True


@compiled
def substitute(H: Floats, g: Floats) -> None:
    """g becomes the solution of H H^T x = g, H lower triangular."""
    R = g.size
    for a in range(R):
        total = g[a]
        for b in range(a):
            total -= H[a, b] * g[b]
        g[a] = total / H[a, a]
    for a in range(R - 1, -1, -1):
        total = g[a]
        for b in range(a + 1, R):
            total -= H[b, a] * g[b]
        g[a] = total / H[a, a]


@compiled
def descend(H: Floats, g: Floats, row: Floats) -> int:
    """Lower row . H row / 2 - g . row by one number after the other, none below zero; returns how many are above it.

    Of H, the lower triangle is read. Each number becomes the best one given the others, so that no step goes up (Hsieh,
    Dhillon 2011).
    """
    R = g.size
    for _ in range(DESCENTS):
        for a in range(R):
            total = g[a]
            for b in range(R):
                if b != a:
                    total -= (H[a, b] if a > b else H[b, a]) * row[b]
            row[a] = max(total / H[a, a], 0.0) if H[a, a] > 0.0 else 0.0
    above = 0
    for a in range(R):
        above += row[a] > 0.0
    return above


@compiled
def inverse_trace(H: Floats, column: Floats) -> float:
    """Trace of (H H^T)^-1 = squared norm of H^-1, H lower triangular."""
    R = H.shape[0]
    trace = 0.0
    for c in range(R):
        for a in range(c, R):
            total = 1.0 if a == c else 0.0
            for b in range(c, a):
                total -= H[a, b] * column[b]
            column[a] = total / H[a, a]
            trace += column[a] * column[a]
    return trace


@compiled
def solve_rows(
    model: Blocks,
    coordinates: Coordinates,
    values: Floats,
    order: Integers,
    begins: Integers,
    n: int,
    ridge: float,
    nonnegative: bool = False,
) -> float:
    """Set every row of factor matrix n to its ridge solution; returns the effective number of parameters.

    order[begins[i]:begins[i + 1]] are the entries of row i. A row without entries becomes zero. The effective number is
    sum over rows of tr(H (H + lambda I)^-1). A row whose matrix is not positive definite to the last digit stays. Rows
    of non-negative models move towards the best row without numbers below zero.
    """
    parameters, starts, widths = model
    R = widths[n]
    first = widths[:n].sum()
    rows, phi, work = scratch(model, coordinates.shape[1])
    H, g, column = np.empty((R, R)), np.empty(R), np.empty(R)
    effective = 0.0
    for i in range(begins.size - 1):
        H[:] = 0.0
        g[:] = 0.0
        for position in range(begins[i], begins[i + 1]):
            w = order[position]
            entry_features(model, coordinates, w, rows, phi, work)
            x = values[w]
            for a in range(R):
                p = phi[first + a]
                g[a] += p * x
                for b in range(a + 1):
                    H[a, b] += p * phi[first + b]
        for a in range(R):
            H[a, a] += ridge
        row = starts[n] + i * R
        if nonnegative:
            effective += descend(H, g, parameters[row : row + R])
            continue
        if not factorize(H):
            continue
        substitute(H, g)
        effective += R - ridge * inverse_trace(H, column)
        for a in range(R):
            parameters[row + a] = g[a]
    return effective


@compiled
def multiply_others(model: Blocks, coordinates: Coordinates, w: int, n: int, k: Floats) -> None:
    """k = Kronecker product of entry w's rows of all modes but n; the last mode varies fastest."""
    parameters, starts, widths = model
    k[0] = 1.0
    size = 1
    for m in range(coordinates.shape[1] - 1, -1, -1):
        if m == n:
            continue
        row = starts[m] + np.int64(coordinates[w, m]) * widths[m]
        for r in range(widths[m] - 1, -1, -1):  # from the back, so that nothing is overwritten too early
            a = parameters[row + r]
            for cell in range(size):
                k[r * size + cell] = a * k[cell]
        size *= widths[m]


@compiled
def feature_norms(model: Blocks, coordinates: Coordinates, block: int, largest: Floats) -> None:
    """largest[k] = the largest |phi_w| of the entries in row k of the block, at least SMALLEST_LIMIT.

    It is infinite if one of them is not finite. What `largest` holds before counts as well.
    """
    _, starts, widths = model
    N = coordinates.shape[1]
    rows, phi, work = scratch(model, N)
    lanes = np.empty(LANES)
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        first = block_row_features(model, rows, N, block, phi, work)
        lanes[:] = 0.0
        add_products(phi, first, phi, first, widths[block], lanes)
        length = np.sqrt(sum_of_lanes(lanes))
        k = (rows[block] - starts[block]) // widths[block]
        if not length <= largest[k]:  # true if the length is not a number
            largest[k] = length if length < np.inf else np.inf
    for k in range(largest.size):
        largest[k] = max(largest[k], SMALLEST_LIMIT)
