"""Clipped gradients of privacy units, rounded towards zero on a grid and summed as whole numbers.

The gradient of (x_w - xhat_w)^2 by the row of block b that entry w touches is -2 e phi_b, e = x_w - xhat_w. What is
summed here is minus that. Whole numbers make the order of entries irrelevant: no sum of many terms is a float.
"""

from typing import Any

import numpy as np
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels.blocks import Coordinates, Floats, Integers, features, find_rows, work_size
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import INT32, INT64, Code, Constants, data_of, intrinsic, padded

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
    typingctx: Any, parameters: Any, starts: Any, coordinates: Any, w: Any, later: Any, constants: Any
) -> Any:
    """(xhat_w, sum over modes of |phi_n|^2) of a CP model whose rows are filled up to whole vectors.

    The rows of entry `later` are asked for meanwhile.
    """
    N, R = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        base = data_of(context, b, signature.args[0], args[0])
        list_of = data_of(context, b, signature.args[2], args[2])
        for n in range(N):
            c.prefetch(_row(c, base, args[1], list_of, args[4], n, N, length), length)
        rows = [_row(c, base, args[1], list_of, args[3], n, N, length) for n in range(N)]
        products, squares = [], []
        for piece in c.pieces(length):
            values = [c.load(row, *piece) for row in rows]
            phi = c.others(values)
            products.append(b.fmul(phi[-1], values[-1]))
            squares += [b.fmul(one, one) for one in phi]
        return context.make_tuple(b, signature.return_type, [c.sum(products), c.sum(squares)])

    pair: Any = types.containers.UniTuple(types.float64, 2)  # type: ignore[no-untyped-call]
    return pair(parameters, starts, coordinates, types.int64, types.int64, constants), code


@intrinsic
def cp_add_steps(
    typingctx: Any, parameters: Any, starts: Any, coordinates: Any, w: Any, slope: Any, totals: Any, constants: Any
) -> Any:
    """totals += slope phi of every mode, rounded towards zero; |slope phi| must be finite and below 2^51."""
    N, R = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        base, list_of, sums = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 5))
        rows = [_row(c, base, args[1], list_of, args[3], n, N, length) for n in range(N)]
        aims = [_row(c, sums, args[1], list_of, args[3], n, N, length) for n in range(N)]  # integers are as long
        for begin, lanes in c.pieces(length):
            phi = c.others([c.load(row, begin, lanes) for row in rows])
            factor = c.fill(args[4], lanes)
            for aim, one in zip(aims, phi, strict=True):
                c.add_whole(c.whole(b.fmul(factor, one)), aim, begin)
        return context.get_dummy_value()

    return types.void(parameters, starts, coordinates, types.int64, types.float64, totals, constants), code


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
    chosen: NDArray[np.bool_],
    m: float,
    grid: float,
    totals: Integers,
    constants: Constants,
    begin: int,
    end: int,
) -> None:
    """`entry_sums` of a CP model over entries begin to end, with rows of parameters and totals filled up with zeros.

    An entry whose gradient is not finite adds nothing. m / grid must be below 2^50, grid a power of two.
    """
    steps = 1.0 / grid
    limit = m * INSIDE
    last = end - 1
    slopes = np.empty(BATCH)
    norms = np.empty(BATCH)
    for first in range(begin, end, BATCH):  # three short loops, so that no entry waits for another one's square root
        count = min(BATCH, end - first)
        for k in range(count):
            w = first + k
            xhat, squared = cp_features(parameters, starts, coordinates, w, min(w + AHEAD, last), constants)
            slopes[k] = 2.0 * (values[w] - xhat)
            norms[k] = squared
        for k in range(count):
            norm = abs(slopes[k]) * np.sqrt(norms[k])
            slope = slopes[k] * (limit / max(norm, limit)) * steps  # `shrinking`, without a branch
            slopes[k] = slope if norm < np.inf else 0.0
        for k in range(count):
            if slopes[k] != 0.0 and chosen[first + k]:
                cp_add_steps(parameters, starts, coordinates, first + k, slopes[k], totals, constants)  # [K2]
