"""Clipped gradients of privacy units, rounded towards zero on a grid and summed as whole numbers.

The gradient of (x_w - xhat_w)^2 by the row of block b that entry w touches is -2 e phi_b, e = x_w - xhat_w. What is
summed here is minus that. Whole numbers make the order of entries irrelevant: no sum of many terms is a float.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference.blocks import Coordinates, Floats, Integers, features, find_rows, work_size
from tensorveil.kernels.vectors import INT32, INT64, Code, Constants, data_of, declared, intrinsic, padded

# Computed norms are off by a relative (d + 4) 2^-53 at most, d numbers being squared; this covers d up to 2^27.
INSIDE = 1.0 - 2.0**-24
AHEAD = 8  # entries between asking for rows and using them
BATCH = 32  # entries whose rows stay in the nearest cache


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
    """phi[k] = the features of all modes, sums[k] = (xhat_w, sum over modes of |phi_n|^2) of a CP model.

    Rows of the model, and so phi, are filled up to whole vectors. The rows of entry `later` are asked for meanwhile,
    if the model does not fit a cache.
    """
    N, R, is_large = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        base, list_of, batch, pairs = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 5, 7))
        out = c.pointer(batch, b.mul(args[6], INT64(N * length)))
        for n in range(N if is_large else 0):
            c.prefetch(_row(c, base, args[1], list_of, args[4], n, N, length), length, write=False)
        rows = [_row(c, base, args[1], list_of, args[3], n, N, length) for n in range(N)]
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
    """totals += slope phi[k] of every mode, rounded towards zero: whole numbers, as doubles."""
    N, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        batch, list_of, sums = (data_of(context, b, signature.args[k], args[k]) for k in (0, 3, 6))
        mine = c.pointer(batch, b.mul(args[1], INT64(N * length)))
        aims = [_row(c, sums, args[2], list_of, args[4], n, N, length) for n in range(N)]
        factor = c.fill(args[5], c.lanes)
        for n, aim in enumerate(aims):
            for begin, lanes in c.pieces(length):
                term = c.truncate(b.fmul(factor, c.load(mine, n * length + begin, lanes)))
                c.store(b.fadd(c.load(aim, begin, lanes), term), aim, begin)
        return context.get_dummy_value()

    ints = types.int64
    return types.void(phi, ints, starts, coordinates, ints, types.float64, totals, constants), code


@intrinsic
def clipped_slopes(typingctx: Any, residuals: Any, sums: Any, limit: Any, steps: Any, slopes: Any) -> Any:
    """slopes = 2 e limit / max(2 |e| |phi|, limit) steps of a batch: `shrinking`, four entries at a time.

    e = residuals - xhat. An entry whose gradient is not finite gets zero.
    """

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        lanes, kind = c.lanes, ir.VectorType(ir.DoubleType(), c.lanes)
        values, pairs, out = (data_of(context, b, signature.args[k], args[k]) for k in (0, 1, 4))
        limit, steps = c.fill(args[2], lanes), c.fill(args[3], lanes)
        root, size = (
            declared(b.module, ir.FunctionType(kind, [kind]), f"llvm.{name}.v{lanes}f64") for name in ("sqrt", "fabs")
        )
        infinity = ir.Constant(kind, [float("inf")] * lanes)

        def picked(first: Any, other: Any, begin: int) -> Any:
            places = ir.Constant(ir.VectorType(INT32, lanes), [begin + 2 * lane for lane in range(lanes)])
            return b.shuffle_vector(first, other, places)

        for begin in range(0, BATCH, lanes):
            low, high = (c.load(pairs, 2 * begin + half * lanes, lanes) for half in (0, 1))
            slope = b.fsub(c.load(values, begin, lanes), picked(low, high, 0))
            slope = b.fadd(slope, slope)
            norm = b.fmul(b.call(size, [slope]), b.call(root, [picked(low, high, 1)]))
            larger = b.select(b.fcmp_ordered(">", norm, limit), norm, limit)
            slope = b.fmul(slope, b.fmul(b.fdiv(limit, larger), steps))
            c.store(b.select(b.fcmp_ordered("<", norm, infinity), slope, c.zero(lanes)), out, begin)
        return context.get_dummy_value()

    double = types.float64
    return types.void(residuals, sums, double, double, slopes), code


def _row(c: Code, base: Any, starts: Any, coordinates: Any, w: Any, n: int, N: int, length: int) -> Any:
    """Where the row of mode n that entry w touches begins."""
    b = c.builder
    place = b.gep(coordinates, [b.add(b.mul(w, INT64(N)), INT64(n))], source_etype=INT32)
    index = b.zext(b.load(place, align=4, typ=INT32), INT64)
    return c.pointer(base, b.add(b.extract_value(starts, n), b.mul(index, INT64(length))))


@compiled
def cp_entry_sums(
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
    """`entry_sums` of a CP model over all entries from begin to end; rows of both vectors are filled up with zeros.

    Totals are whole numbers in doubles: exact while (m / grid) times the number of entries stays below 2^53, which the
    caller sees to. An entry whose gradient is not finite adds nothing. The grid must be a power of two.
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
    """totals += sums, whole numbers in rows of R that were filled up to `length`; the sums become zero."""
    for row in range(sums.size // length):
        for r in range(R):
            totals[row * R + r] += np.int64(sums[row * length + r])
        for r in range(length):
            sums[row * length + r] = 0.0
