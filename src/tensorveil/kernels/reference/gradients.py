"""Clipped gradients of privacy units, rounded towards zero on a grid and summed as whole numbers.

Let e = x_w - xhat_w be the residual of entry w. The gradient of e^2 with respect to the row of block b that the entry
touches is -2 e phi_b; these kernels sum the negative gradient. Sums of whole numbers do not depend on the order of the
entries: no sum over entries is a float.
"""

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fused import LANES
from tensorveil.kernels.reference.blocks import Blocks, add_products, entry_features, scratch, sum_of_lanes

# Computed norms have a relative error of at most (d + 4) 2^-53, where d numbers are squared; this covers d up to 2^27.
INSIDE = 1.0 - 2.0**-24
# Beyond these two limits numbers underflow or overflow, and a computed norm says nothing. No plan comes near them.
LEAST_SQUARED = 2.0**-900  # of |phi|^2
MOST_SHRINKING = 2.0**900  # of a norm over its clip norm


@compiled
def shrinking(norm: float, m: float) -> float:
    """The factor that brings a vector of this computed norm to a true norm of at most m.

    It is 0 if the norm is not finite or out of range: the caller then leaves the vector out, since 0 times infinity is
    not 0.
    """
    limit = m * INSIDE
    if not norm < limit * MOST_SHRINKING:
        return 0.0
    return limit / norm if norm > limit else 1.0  # [K1]


@compiled
def entry_sums(
    model: Blocks, coordinates: Coordinates, values: Floats, m: float, grid: float, totals: Integers
) -> None:
    """totals += sum over entries of their joint gradients, each clipped to norm m, in grid steps.

    `fast.gradients.entry_sums` gives the same integers for CP models, bit for bit, so every float here is computed in
    the same order: the prediction from the last block, partial sums in lanes, block after block. The grid must be a
    power of two. An entry whose gradient is not finite adds nothing.
    """
    parameters, _, widths = model
    B = widths.size
    rows, phi, work = scratch(model, coordinates.shape[1])
    lanes, squares = np.empty(LANES), np.empty(LANES)
    steps = 1.0 / grid
    for w in range(coordinates.shape[0]):
        entry_features(model, coordinates, w, rows, phi, work)
        lanes[:] = 0.0
        add_products(phi, phi.size - widths[B - 1], parameters, rows[B - 1], widths[B - 1], lanes)
        e = values[w] - sum_of_lanes(lanes)
        squares[:] = 0.0
        first = 0
        for b in range(B):
            lanes[:] = 0.0
            add_products(phi, first, phi, first, widths[b], lanes)
            for lane in range(LANES):
                squares[lane] += lanes[lane]
            first += widths[b]
        squared = sum_of_lanes(squares)
        shrink = shrinking(2.0 * abs(e) * np.sqrt(squared), m)
        if shrink == 0.0 or squared < LEAST_SQUARED:
            continue
        slope = 2.0 * e * (shrink * steps)
        first = 0
        for b in range(B):
            for r in range(widths[b]):
                totals[rows[b] + r] += np.int64(np.trunc(slope * phi[first + r]))  # [K2]
            first += widths[b]


@compiled
def slice_sums(
    model: Blocks, coordinates: Coordinates, values: Floats, slices: Integers, m: float, grid: float, totals: Integers
) -> None:
    """totals += sum over slices of the summed joint gradients of their entries, each sum clipped to norm m.

    Entries must be sorted by slice and, within one, by a rule that reads that slice alone. `gradient` is that
    of one slice; only the rows that the slice touches are read and cleared. A slice whose gradient is not finite adds
    nothing.
    """
    parameters, _, widths = model
    n_entries = coordinates.shape[0]
    rows, phi, work = scratch(model, coordinates.shape[1])
    gradient = np.zeros(parameters.size)
    seen = np.zeros(parameters.size, np.bool_)  # at the first number of each row
    touched = np.empty((parameters.size // widths.min(), 2), np.int64)  # where a row begins and ends; no more rows
    w = 0
    while w < n_entries:
        this = slices[w]
        count = 0
        while w < n_entries and slices[w] == this:
            e = values[w] - entry_features(model, coordinates, w, rows, phi, work)
            first = 0
            for b in range(widths.size):
                if not seen[rows[b]]:
                    seen[rows[b]] = True
                    touched[count, 0] = rows[b]
                    touched[count, 1] = rows[b] + widths[b]
                    count += 1
                for r in range(widths[b]):
                    gradient[rows[b] + r] += 2.0 * e * phi[first + r]
                first += widths[b]
            w += 1
        squared = 0.0
        for place in range(count):
            for cell in range(touched[place, 0], touched[place, 1]):
                squared += gradient[cell] * gradient[cell]
        scale = shrinking(np.sqrt(squared), m)
        for place in range(count):
            seen[touched[place, 0]] = False
            for cell in range(touched[place, 0], touched[place, 1]):
                if scale != 0.0:
                    totals[cell] += np.int64(np.trunc(scale * gradient[cell] / grid))  # [K3]
                gradient[cell] = 0.0


@compiled
def row_sums(
    model: Blocks, coordinates: Coordinates, values: Floats, clip_norms: Floats, grids: Floats, totals: Integers
) -> None:
    """totals += sum over entries of their row gradients, each clipped to the norm of its block, in grid steps.

    Each block has its own grid. A row gradient that is not finite adds nothing.
    """
    widths = model.widths
    rows, phi, work = scratch(model, coordinates.shape[1])
    for w in range(coordinates.shape[0]):
        e = values[w] - entry_features(model, coordinates, w, rows, phi, work)
        first = 0
        for b in range(widths.size):
            squared = 0.0
            for r in range(widths[b]):
                squared += phi[first + r] * phi[first + r]
            shrink = shrinking(2.0 * abs(e) * np.sqrt(squared), clip_norms[b])
            if shrink != 0.0 and squared >= LEAST_SQUARED:
                slope = 2.0 * e * shrink
                for r in range(widths[b]):
                    totals[rows[b] + r] += np.int64(np.trunc(slope * phi[first + r] / grids[b]))  # [K4]
            first += widths[b]
