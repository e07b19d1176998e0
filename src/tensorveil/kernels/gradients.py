"""Clipped gradients of privacy units, rounded towards zero on a grid and summed as whole numbers.

The gradient of (x_w - xhat_w)^2 by the row of block b that entry w touches is -2 e phi_b, e = x_w - xhat_w. What is
summed here is minus that. Whole numbers make the order of entries irrelevant: no sum of many terms is a float.
"""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.blocks import Coordinates, Floats, Integers, features, find_rows, work_size
from tensorveil.kernels.compiling import compiled

# Computed norms are off by a relative (d + 4) 2^-53 at most, d numbers being squared; this covers d up to 2^27.
INSIDE = 1.0 - 2.0**-24


@compiled
def shrinking(norm: float, m: float) -> float:
    """What to multiply a vector of this computed norm with so that its true norm is at most m."""
    if norm > m * INSIDE:
        return m * INSIDE / norm  # [K1]
    return 1.0


@compiled
def entry_sums(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: Coordinates,
    values: Floats,
    chosen: NDArray[np.bool_],
    m: float,
    grid: float,
    totals: Integers,
) -> None:
    """totals += sum over the chosen entries of their joint gradients, each clipped to norm m, in grid steps."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    for w in range(coordinates.shape[0]):
        if not chosen[w]:
            continue
        find_rows(coordinates, w, starts, widths, rows)
        e = values[w] - features(parameters, rows, widths, N, phi, work)
        squared = 0.0
        for r in range(phi.size):
            squared += phi[r] * phi[r]
        slope = 2.0 * e * shrinking(2.0 * abs(e) * np.sqrt(squared), m)
        first = 0
        for b in range(starts.size):
            for r in range(widths[b]):
                totals[rows[b] + r] += np.int64(np.trunc(slope * phi[first + r] / grid))  # [K2]
            first += widths[b]


@compiled
def slice_sums(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: Coordinates,
    values: Floats,
    slices: Integers,
    chosen: NDArray[np.bool_],
    m: float,
    grid: float,
    totals: Integers,
) -> None:
    """totals += sum over the chosen slices of their entries' summed joint gradients, each sum clipped to norm m.

    Entries must be sorted by slice and, within one, by a rule that reads that slice alone. `scratch` holds the gradient
    of one slice; only the rows that the slice touches are looked at and cleared.
    """
    N = coordinates.shape[1]
    n_entries = coordinates.shape[0]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    scratch = np.zeros(parameters.size)
    seen = np.zeros(parameters.size, np.bool_)  # at the first number of each row
    longest = 0
    run = 0
    for w in range(n_entries):
        run = run + 1 if w > 0 and slices[w] == slices[w - 1] else 1
        longest = max(longest, run)
    touched = np.empty((longest * starts.size, 2), np.int64)  # where a row begins, how long it is
    w = 0
    while w < n_entries:
        this = slices[w]
        count = 0
        while w < n_entries and slices[w] == this:
            if chosen[this]:
                find_rows(coordinates, w, starts, widths, rows)
                e = values[w] - features(parameters, rows, widths, N, phi, work)
                first = 0
                for b in range(starts.size):
                    if not seen[rows[b]]:
                        seen[rows[b]] = True
                        touched[count, 0] = rows[b]
                        touched[count, 1] = widths[b]
                        count += 1
                    for r in range(widths[b]):
                        scratch[rows[b] + r] += 2.0 * e * phi[first + r]
                    first += widths[b]
            w += 1
        squared = 0.0
        for place in range(count):
            for cell in range(touched[place, 0], touched[place, 0] + touched[place, 1]):
                squared += scratch[cell] * scratch[cell]
        scale = shrinking(np.sqrt(squared), m)
        for place in range(count):
            seen[touched[place, 0]] = False
            for cell in range(touched[place, 0], touched[place, 0] + touched[place, 1]):
                totals[cell] += np.int64(np.trunc(scale * scratch[cell] / grid))  # [K3]
                scratch[cell] = 0.0


@compiled
def row_sums(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: Coordinates,
    values: Floats,
    clip_norms: Floats,
    grids: Floats,
    totals: Integers,
) -> None:
    """totals += sum over entries of their row gradients, each block's clipped to its own norm, in its grid's steps."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(widths.sum())
    work = np.empty(work_size(widths, N))
    for w in range(coordinates.shape[0]):
        find_rows(coordinates, w, starts, widths, rows)
        e = values[w] - features(parameters, rows, widths, N, phi, work)
        first = 0
        for b in range(starts.size):
            squared = 0.0
            for r in range(widths[b]):
                squared += phi[first + r] * phi[first + r]
            slope = 2.0 * e * shrinking(2.0 * abs(e) * np.sqrt(squared), clip_norms[b])
            for r in range(widths[b]):
                totals[rows[b] + r] += np.int64(np.trunc(slope * phi[first + r] / grids[b]))  # [K4]
            first += widths[b]
