"""Clipped gradients of CP models on whole vectors: the sums of reference/gradients.py, bit for bit."""

from typing import Any

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference.gradients import INSIDE, LEAST_SQUARED, MOST_SHRINKING
from tensorveil.kernels.vectors import AHEAD, Code, Constants, Row, Value, emits

BATCH = 32  # entries whose features stay in the nearest cache


@emits
def cp_lengths(
    c: Code,
    parameters: Row,
    starts: list[Value],
    coordinates: Row,
    w: Value,
    later: Value,
    k: Value,
    sums: Row,
    totals: Row,
    constants: tuple[int, ...],
) -> None:
    """sums[k] = (xhat_w, sum over modes of |phi_n|^2) of entry w.

    Rows of the model are padded to whole vectors. If the model does not fit a cache, the rows of entry `later` are
    prefetched meanwhile, and the totals of entry w, which are added to soon.
    """
    N, R, is_large = constants
    length = c.padded(R)
    entry = coordinates.at(w * N)
    if is_large:
        for row in c.rows(parameters, starts, coordinates.at(later * N), N, length):
            c.prefetch(row, length, write=False)
        for row in c.rows(totals, starts, entry, N, length):
            c.prefetch(row, length, write=True)
    rows = c.rows(parameters, starts, entry, N, length)
    products = c.zero
    squares = [c.zero for _ in range(N)]
    for begin in c.pieces(length):
        values = [row.vector(begin) for row in rows]
        features = c.others(values)
        products = c.fma(features[-1], values[-1], products)
        squares = [c.fma(phi, phi, total) for phi, total in zip(features, squares, strict=True)]
    sums.store(c.two_sums(products, squares), k * 2)


@emits
def cp_add_steps(
    c: Code,
    parameters: Row,
    starts: list[Value],
    coordinates: Row,
    w: Value,
    slope: Value,
    totals: Row,
    constants: tuple[int, ...],
) -> None:
    """totals += slope phi of entry w in every mode, rounded towards zero: whole numbers, held in doubles.

    Features are computed again, which takes no longer than storing and loading them.
    """
    N, R, _ = constants
    length = c.padded(R)
    rows, aims = (c.rows(base, starts, coordinates.at(w * N), N, length) for base in (parameters, totals))
    for begin in c.pieces(length):
        for aim, phi in zip(aims, c.others([row.vector(begin) for row in rows]), strict=True):
            aim.store(aim.vector(begin) + c.truncate(phi * slope), begin)


@emits
def clipped_slopes(c: Code, values: Row, first: Value, sums: Row, limit: Value, steps: Value, slopes: Row) -> None:
    """slopes = 2 e (limit / max(2 |e| |phi|, limit) steps) for a batch: `shrinking` on four entries at a time.

    e = values - xhat. An entry that the reference kernel leaves out gets zero.
    """
    even, odd = [*range(0, 2 * c.lanes, 2)], [*range(1, 2 * c.lanes, 2)]
    here = values.at(first)
    for begin in c.pieces(BATCH):
        low, high = (sums.vector(2 * begin + half * c.lanes) for half in (0, 1))
        xhat, squared = low.picked(even, high), low.picked(odd, high)
        slope = here.vector(begin) - xhat
        slope = slope + slope
        norm = c.size(slope) * c.root(squared)
        slope = slope * (limit / c.larger(norm, limit) * steps)
        in_range = (norm < limit * MOST_SHRINKING) & (squared >= LEAST_SQUARED)
        slopes.store(c.choose(in_range, slope, 0.0), begin)


@compiled
def entry_sums(
    parameters: Floats,
    starts: Any,
    coordinates: Coordinates,
    values: Floats,
    m: float,
    grid: float,
    totals: Floats,
    constants: Constants,
    length: int,
    begin: int,
    end: int,
) -> None:
    """`reference.gradients.entry_sums` of a CP model over all entries from begin to end.

    The rows of `parameters` and `totals` are padded with zeros to `length` numbers. Totals are whole numbers in
    doubles; they are exact while m / grid times the number of entries stays below 2^53, which the caller ensures.
    """
    steps = 1.0 / grid
    limit = m * INSIDE
    last = end - 1
    sums = np.zeros((BATCH, 2))
    here = np.zeros(BATCH)
    slopes = np.empty(BATCH)
    for first in range(begin, end, BATCH):  # short loops, so that no entry waits for another one's square root
        count = min(BATCH, end - first)
        for k in range(count):
            w = first + k
            cp_lengths(parameters, starts, coordinates, w, min(w + AHEAD, last), k, sums, totals, constants)
        if count < BATCH:
            here[:count] = values[first:end]
            clipped_slopes(here, 0, sums, limit, steps, slopes)  # [K1]
        else:
            clipped_slopes(values, first, sums, limit, steps, slopes)  # [K1]
        for k in range(count):
            if slopes[k] != 0.0:
                cp_add_steps(parameters, starts, coordinates, first + k, slopes[k], totals, constants)  # [K2]


@compiled
def move_whole(sums: Floats, length: int, R: int, totals: Integers) -> None:
    """totals += sums, where the sums are whole numbers in rows of R padded to `length`; the sums become zero."""
    for row in range(sums.size // length):
        for r in range(R):
            totals[row * R + r] += np.int64(sums[row * length + r])
        for r in range(length):
            sums[row * length + r] = 0.0
