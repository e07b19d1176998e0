"""Right-hand sides and matrices of alternating least squares, as whole numbers on a grid."""

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

STATISTIC_STEPS = 2.0**32  # grid steps in one
SQUARE_ROOT_OF_TWO = np.sqrt(2.0)
INSIDE = 1.0 - 2.0**-40  # keeps |phi| <= 1 true whatever the last bits of a division are
SMALLEST_LIMIT = 1e-12  # of the length of features: shorter ones are not lengthened to 1


@compiled
def block_features(model: Blocks, coordinates: Coordinates, block: int, table: Floats) -> None:
    """table[w] = phi_w of one block."""
    rows, phi, work = scratch(model, coordinates.shape[1])
    first = model.widths[:block].sum()
    for w in range(coordinates.shape[0]):
        entry_features(model, coordinates, w, rows, phi, work)
        table[w] = phi[first : first + model.widths[block]]


@compiled
def shortened(
    model: Blocks, rows: Integers, N: int, block: int, limit: float, phi: Floats, work: Floats, lanes: Floats
) -> tuple[int, float]:
    """Where the features of a block begin in phi, and INSIDE / max(|phi|, limit), or 0 where one is not finite."""
    first = block_row_features(model, rows, N, block, phi, work)
    lanes[:] = 0.0
    add_products(phi, first, phi, first, model.widths[block], lanes)
    length = np.sqrt(sum_of_lanes(lanes))
    if not (length < np.inf and limit < np.inf):
        return first, 0.0
    return first, INSIDE / max(length, limit, SMALLEST_LIMIT)


@compiled
def right_sides(
    model: Blocks, coordinates: Coordinates, block: int, residuals: Floats, weights: Floats, limits: Floats, g: Integers
) -> None:
    """Add up, for every row k of the block, over its entries w,

        g_k += a_w x_w psi_w,   psi_w = phi_w / max(|phi_w|, limit_k)

    where the residual x_w is first clipped to [-1, 1] and each term is rounded towards zero to the grid; sums are exact
    in int64. A term is at most a_w long, because rounding only shortens it. An entry whose features or limit are not
    finite adds nothing. [K1]

    `fast.statistics.right_sides` gives the same numbers for CP models, bit for bit, so every float that g rests on is
    computed in the same order.
    """
    _, starts, widths = model
    N = coordinates.shape[1]
    rows, phi, work = scratch(model, N)
    lanes = np.empty(LANES)
    width = widths[block]
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        k = (rows[block] - starts[block]) // width
        first, shrink = shortened(model, rows, N, block, limits[k], phi, work, lanes)
        if shrink == 0.0:
            continue
        x = residuals[w]
        x = x if x > -1.0 else -1.0
        x = x if x < 1.0 else 1.0
        slope = x * (weights[w] * STATISTIC_STEPS * shrink)
        for r in range(width):
            g[k, r] += np.int64(slope * phi[first + r])  # conversion to a whole number rounds towards zero


@compiled
def row_matrices(
    model: Blocks, coordinates: Coordinates, block: int, weights: Floats, limits: Floats, H: Integers
) -> None:
    """Add up, for every row k of the block, over its entries w,

        H_k += a_w psi_w psi_w^T

    with psi_w as for `right_sides`, each term rounded towards zero to the grid; sums are exact in int64. The upper
    triangle is kept, row by row, with the numbers off the diagonal times sqrt(2), so that its length is the Frobenius
    norm. A term is then at most a_w long: rounding only shortens it. [K2]
    """
    _, starts, widths = model
    N = coordinates.shape[1]
    rows, phi, work = scratch(model, N)
    lanes = np.empty(LANES)
    width = widths[block]
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        k = (rows[block] - starts[block]) // width
        first, shrink = shortened(model, rows, N, block, limits[k], phi, work, lanes)
        a = weights[w] * STATISTIC_STEPS
        cell = 0
        for r in range(width if shrink > 0.0 else 0):
            psi = phi[first + r] * shrink
            for c in range(r, width):
                twice = 1.0 if c == r else SQUARE_ROOT_OF_TWO
                H[k, cell] += np.int64(a * twice * psi * (phi[first + c] * shrink))
                cell += 1


def square_matrices(triangles: Floats, width: int) -> Floats:
    """Symmetric matrices from upper triangles whose numbers off the diagonal were scaled by sqrt(2)."""
    first, second = np.triu_indices(width)
    matrices = np.zeros((len(triangles), width, width))
    values = triangles / np.where(first == second, 1.0, np.sqrt(2.0))
    matrices[:, first, second] = values
    matrices[:, second, first] = values
    return matrices
