"""Clipped gradients of CP models on whole vectors: the sums of reference/gradients.py, bit for bit."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference.gradients import INSIDE, LEAST_SQUARED, MOST_SHRINKING
from tensorveil.kernels.vectors import AHEAD, INT32, INT64, Code, Constants, declared, emits

BATCH = 32  # entries whose features stay in the nearest cache


@emits
def cp_lengths(
    c: Code,
    parameters: Any,
    starts: Any,
    coordinates: Any,
    w: Any,
    later: Any,
    k: Any,
    sums: Any,
    totals: Any,
    constants: Any,
) -> None:
    """sums[k] = (xhat_w, sum over modes of |phi_n|^2) of entry w.

    Rows of the model are padded to whole vectors. If the model does not fit a cache, the rows of entry `later` are
    prefetched meanwhile.
    """
    b = c.builder
    N, R, is_large = constants
    length = c.padded(R)
    if is_large:
        for row in _rows(c, parameters, starts, coordinates, later, N, length):
            c.prefetch(row, length, write=False)
        for row in _rows(c, totals, starts, coordinates, w, N, length):
            c.prefetch(row, length, write=True)
    rows = _rows(c, parameters, starts, coordinates, w, N, length)
    products: Any = c.zero(c.lanes)
    squares = [c.zero(c.lanes) for _ in range(N)]
    for begin, lanes in c.pieces(length):
        values = [c.load(row, begin, lanes) for row in rows]
        found = c.others(values)
        products = c.fma(found[-1], values[-1], products)
        for n, one in enumerate(found):
            squares[n] = c.fma(one, one, squares[n])
    c.store(c.two_sums(products, squares), sums, b.mul(k, INT64(2)))


@emits
def cp_add_steps(
    c: Code, parameters: Any, starts: Any, coordinates: Any, w: Any, slope: Any, totals: Any, constants: Any
) -> None:
    """totals += slope phi of entry w in every mode, rounded towards zero: whole numbers, held in doubles.

    Features are computed again: storing and loading them takes longer than three products.
    """
    b = c.builder
    N, R, _ = constants
    length = c.padded(R)
    factor = c.fill(slope, c.lanes)
    rows, aims = (_rows(c, base, starts, coordinates, w, N, length) for base in (parameters, totals))
    for begin, lanes in c.pieces(length):
        for aim, phi in zip(aims, c.others([c.load(row, begin, lanes) for row in rows]), strict=True):
            c.store(b.fadd(c.load(aim, begin, lanes), c.truncate(b.fmul(factor, phi))), aim, begin)


@emits
def clipped_slopes(c: Code, values: Any, first: Any, sums: Any, limit: Any, steps: Any, slopes: Any) -> None:
    """slopes = 2 e (limit / max(2 |e| |phi|, limit) steps) for a batch: `shrinking` on four entries at a time.

    e = values - xhat. An entry that the reference kernel leaves out gets zero.
    """
    b, lanes, kind = c.builder, c.lanes, ir.VectorType(c.number, c.lanes)
    limit, steps = c.fill(limit, lanes), c.fill(steps, lanes)
    most = b.fmul(limit, ir.Constant(kind, [MOST_SHRINKING] * lanes))
    least = ir.Constant(kind, [LEAST_SQUARED] * lanes)
    root, size = (
        declared(b.module, ir.FunctionType(kind, [kind]), f"llvm.{name}.v{lanes}f64") for name in ("sqrt", "fabs")
    )
    for begin in range(0, BATCH, lanes):
        low, high = (c.load(sums, 2 * begin + half * lanes, lanes) for half in (0, 1))
        xhat, squared = (c.picked(low, high, [*range(first, 2 * lanes, 2)]) for first in (0, 1))
        slope = b.fsub(c.load(c.pointer(values, first), begin, lanes), xhat)
        slope = b.fadd(slope, slope)
        norm = b.fmul(b.call(size, [slope]), b.call(root, [squared]))
        larger = b.select(b.fcmp_ordered(">", norm, limit), norm, limit)
        slope = b.fmul(slope, b.fmul(b.fdiv(limit, larger), steps))
        in_range = b.and_(b.fcmp_ordered("<", norm, most), b.fcmp_ordered(">=", squared, least))
        c.store(b.select(in_range, slope, c.zero(lanes)), slopes, begin)


def _rows(c: Code, base: Any, starts: Any, coordinates: Any, w: Any, N: int, length: int) -> list[Any]:
    """Where the rows of entry w begin, one per mode."""
    b = c.builder
    entry = b.gep(coordinates, [b.mul(w, INT64(N))], source_etype=INT32)
    return [c.row(base, starts, entry, n, length) for n in range(N)]


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
