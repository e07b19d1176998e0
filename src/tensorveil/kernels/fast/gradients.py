"""Clipped gradients of CP models on whole vectors: the sums of reference/gradients.py, bit for bit."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference.gradients import INSIDE, LEAST_SQUARED, MOST_SHRINKING
from tensorveil.kernels.vectors import AHEAD, INT32, INT64, Code, Constants, data_of, declared, intrinsic, padded

BATCH = 32  # entries whose features stay in the nearest cache


@intrinsic
def cp_features(
    typingctx: Any,
    parameters: Any,
    starts: Any,
    coordinates: Any,
    w: Any,
    later: Any,
    phi: Any,
    k: Any,
    sums: Any,
    constants: Any,
) -> Any:
    """phi[k] = the features of all modes of entry w, sums[k] = (xhat_w, sum over modes of |phi_n|^2).

    Rows of the model, and therefore of phi, are padded to whole vectors. If the model does not fit a cache, the rows of
    entry `later` are prefetched meanwhile.
    """
    N, R, is_large = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        base, list_of, batch, pairs = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 5, 7))
        out = c.pointer(batch, b.mul(args[6], INT64(N * length)))
        if is_large:
            for row in _rows(c, base, args[1], list_of, args[4], N, length):
                c.prefetch(row, length, write=False)
        rows = _rows(c, base, args[1], list_of, args[3], N, length)
        products: Any = c.zero(c.lanes)
        squares = [c.zero(c.lanes) for _ in range(N)]
        for begin, lanes in c.pieces(length):
            values = [c.load(row, begin, lanes) for row in rows]
            found = c.others(values)
            products = c.fma(found[-1], values[-1], products)
            for n, one in enumerate(found):
                squares[n] = c.fma(one, one, squares[n])
                c.store(one, out, n * length + begin)
        c.store(c.two_sums(products, squares), pairs, b.mul(args[6], INT64(2)))
        return context.get_dummy_value()

    ints = types.int64
    return types.void(parameters, starts, coordinates, ints, ints, phi, ints, sums, constants), code


@intrinsic
def cp_add_steps(
    typingctx: Any,
    phi: Any,
    k: Any,
    starts: Any,
    coordinates: Any,
    w: Any,
    slope: Any,
    totals: Any,
    constants: Any,
) -> Any:
    """totals += slope phi[k] in every mode, rounded towards zero: whole numbers, held in doubles."""
    N, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        batch, list_of, sums = (data_of(context, b, signature.args[k], args[k]) for k in (0, 3, 6))
        mine = c.pointer(batch, b.mul(args[1], INT64(N * length)))
        aims = _rows(c, sums, args[2], list_of, args[4], N, length)
        factor = c.fill(args[5], c.lanes)
        for n, aim in enumerate(aims):
            for begin, lanes in c.pieces(length):
                term = c.truncate(b.fmul(factor, c.load(mine, n * length + begin, lanes)))
                c.store(b.fadd(c.load(aim, begin, lanes), term), aim, begin)
        return context.get_dummy_value()

    ints = types.int64
    return types.void(phi, ints, starts, coordinates, ints, types.float64, totals, constants), code


@intrinsic
def clipped_slopes(typingctx: Any, values: Any, sums: Any, limit: Any, steps: Any, slopes: Any) -> Any:
    """slopes = 2 e (limit / max(2 |e| |phi|, limit) steps) for a batch: `shrinking` on four entries at a time.

    e = values - xhat. An entry that the reference kernel leaves out gets zero.
    """

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        lanes, kind = c.lanes, ir.VectorType(ir.DoubleType(), c.lanes)
        observed, pairs, out = (data_of(context, b, signature.args[k], args[k]) for k in (0, 1, 4))
        limit, steps = c.fill(args[2], lanes), c.fill(args[3], lanes)
        most = b.fmul(limit, ir.Constant(kind, [MOST_SHRINKING] * lanes))
        least = ir.Constant(kind, [LEAST_SQUARED] * lanes)
        root, size = (
            declared(b.module, ir.FunctionType(kind, [kind]), f"llvm.{name}.v{lanes}f64") for name in ("sqrt", "fabs")
        )

        def picked(first: Any, other: Any, begin: int) -> Any:
            places = ir.Constant(ir.VectorType(INT32, lanes), [begin + 2 * lane for lane in range(lanes)])
            return b.shuffle_vector(first, other, places)

        for begin in range(0, BATCH, lanes):
            low, high = (c.load(pairs, 2 * begin + half * lanes, lanes) for half in (0, 1))
            slope, squared = b.fsub(c.load(observed, begin, lanes), picked(low, high, 0)), picked(low, high, 1)
            slope = b.fadd(slope, slope)
            norm = b.fmul(b.call(size, [slope]), b.call(root, [squared]))
            larger = b.select(b.fcmp_ordered(">", norm, limit), norm, limit)
            slope = b.fmul(slope, b.fmul(b.fdiv(limit, larger), steps))
            in_range = b.and_(b.fcmp_ordered("<", norm, most), b.fcmp_ordered(">=", squared, least))
            c.store(b.select(in_range, slope, c.zero(lanes)), out, begin)
        return context.get_dummy_value()

    double = types.float64
    return types.void(values, sums, double, double, slopes), code


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
    phi = np.empty(BATCH * coordinates.shape[1] * length)
    sums = np.zeros((BATCH, 2))
    here = np.zeros(BATCH)
    slopes = np.empty(BATCH)
    for first in range(begin, end, BATCH):  # short loops, so that no entry waits for another one's square root
        count = min(BATCH, end - first)
        for k in range(count):
            w = first + k
            cp_features(parameters, starts, coordinates, w, min(w + AHEAD, last), phi, k, sums, constants)
            here[k] = values[w]
        clipped_slopes(here, sums, limit, steps, slopes)  # [K1]
        for k in range(count):
            if slopes[k] != 0.0:
                cp_add_steps(phi, k, starts, coordinates, first + k, slopes[k], totals, constants)  # [K2]


@compiled
def move_whole(sums: Floats, length: int, R: int, totals: Integers) -> None:
    """totals += sums, where the sums are whole numbers in rows of R padded to `length`; the sums become zero."""
    for row in range(sums.size // length):
        for r in range(R):
            totals[row * R + r] += np.int64(sums[row * length + r])
        for r in range(length):
            sums[row * length + r] = 0.0
