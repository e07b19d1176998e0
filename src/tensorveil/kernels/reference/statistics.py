"""Right-hand sides and matrices of alternating least squares, as whole numbers on a grid."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import BATCH, SYSTEMS_BYTES, add_gram, gather, solve_systems, subtract_products
from tensorveil.kernels.reference.blocks import features, find_rows, work_size
from tensorveil.kernels.vectors import INT32, INT64, Code, Constants, data_of, intrinsic, padded

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STATISTIC_STEPS = 2.0**32  # grid steps in one
SQUARE_ROOT_OF_TWO = np.sqrt(2.0)
SMALLEST_LIMIT = 1e-12  # of the length of features: shorter ones are not lengthened to one
INSIDE = 1.0 - 2.0**-40  # keeps |phi| <= 1 true whatever the last bits of a division do

for_range: Any = cgutils.for_range
alloca: Any = cgutils.alloca_once


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
def shortening(phi: Floats, first: int, width: int, limit: float) -> float:
    """What features are multiplied by so as to be shorter than one, and the shorter the further below the limit.

    0 where they or the limit are not finite.
    """
    total = 0.0
    for r in range(first, first + width):
        total += phi[r] * phi[r]
    length = np.sqrt(total)
    if not (length < np.inf and limit < np.inf):
        return 0.0
    return float(INSIDE / max(length, limit, SMALLEST_LIMIT))


@compiled
def right_sides(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: NDArray[np.uint32],
    block: int,
    residuals: Floats,
    weights: Floats,
    limits: Floats,
    g: Integers,
) -> None:
    """Add up, for every row k of the block, over its entries w,

        g_k += a_w x_w psi_w,   psi_w = phi_w / max(|phi_w|, limit_k)

    with the residual x_w first clipped to [-1, 1], each term rounded towards zero to the grid, sums exact in int64. A
    term is at most a_w long, because rounding only shortens it. An entry whose features or limit are not finite adds
    nothing. [K1]
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
        shrink = shortening(phi, first, width, limits[k])
        x = min(max(residuals[w], -1.0), 1.0)
        a = weights[w] * STATISTIC_STEPS
        if shrink > 0.0:
            for r in range(width):
                psi = phi[first + r] * shrink
                g[k, r] += np.int64(a * x * psi)  # conversion to a whole number goes towards zero


@compiled
def row_matrices(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    coordinates: NDArray[np.uint32],
    block: int,
    weights: Floats,
    limits: Floats,
    H: Integers,
) -> None:
    """Add up, for every row k of the block, over its entries w,

        H_k += a_w psi_w psi_w^T

    with psi_w as for `right_sides`, each term rounded towards zero to the grid, sums exact in int64. The upper triangle
    is kept, row by row, numbers off the diagonal times sqrt(2), so that its length is the Frobenius norm. A term is
    then at most a_w long: rounding only shortens it. [K2]
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
        shrink = shortening(phi, first, width, limits[k])
        a = weights[w] * STATISTIC_STEPS
        cell = 0
        for r in range(width if shrink > 0.0 else 0):
            psi = phi[first + r] * shrink
            for c in range(r, width):
                twice = 1.0 if c == r else SQUARE_ROOT_OF_TWO
                H[k, cell] += np.int64(a * twice * psi * (phi[first + c] * shrink))
                cell += 1


@intrinsic
def longest(typingctx: Any, P: Any, count: Any, constants: Any) -> Any:
    """The largest |P[w]|^2 of the first `count` rows of P; infinite where one is not finite."""
    _, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        batch = data_of(context, b, signature.args[0], args[0])
        kind = ir.VectorType(c.number, c.lanes)
        found, total, alone, rest = (alloca(b, kind) for _ in range(4))
        for place in (found, total, alone, rest):
            b.store(c.zero(c.lanes), place)

        def squares(w: Any) -> Any:
            """A vector whose lanes sum up to |P[w]|^2."""
            row, result = c.pointer(batch, b.mul(w, INT64(length))), c.zero(c.lanes)
            for piece in c.pieces(length):
                value = c.load(row, *piece)
                result = c.fma(value, value, result)
            return result

        def note(lengths: Any, largest: Any, sums: Any) -> None:
            old = b.load(largest)
            b.store(b.select(b.fcmp_ordered(">", lengths, old), lengths, old), largest)
            b.store(b.fadd(b.load(sums), lengths), sums)

        fours = b.sdiv(args[1], INT64(c.lanes))
        with for_range(b, fours) as loop:
            first = b.mul(loop.index, INT64(c.lanes))
            note(c.four_sums([squares(b.add(first, INT64(lane))) for lane in range(c.lanes)]), found, total)
        done = b.mul(fours, INT64(c.lanes))
        with for_range(b, b.sub(args[1], done)) as loop:
            note(c.fill(c.sum([squares(b.add(done, loop.index))]), c.lanes), alone, rest)
        largest, last = b.load(found), b.load(alone)
        result = b.extract_element(last, INT32(0))
        for lane in range(c.lanes):
            one = b.extract_element(largest, INT32(lane))
            result = b.select(b.fcmp_ordered(">", one, result), one, result)
        sum_of_all = c.sum([b.fadd(b.load(total), b.load(rest))])
        infinity = ir.Constant(c.number, float("inf"))
        return b.select(b.fcmp_ordered("<", sum_of_all, infinity), result, infinity)

    return types.float64(P, types.int64, constants), code


@intrinsic
def add_right_sides(
    typingctx: Any, P: Any, values: Any, begin: Any, mean: Any, scale: Any, count: Any, g: Any, constants: Any
) -> Any:
    """g += sum over the first `count` rows of P of scale x P[w], each number of a term rounded towards zero.

    x is the value less the mean, clipped to [-1, 1]. Terms are whole numbers of at most 2^32, held in doubles, which
    sum up a batch of them exactly.
    """
    _, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        batch, list_of_values, out = (data_of(context, b, signature.args[k], args[k]) for k in (0, 1, 6))
        pieces = c.pieces(length)
        sums = [alloca(b, ir.VectorType(c.number, c.lanes)) for _ in pieces]
        for place in sums:
            b.store(c.zero(c.lanes), place)
        mine = c.pointer(list_of_values, args[2])
        low, high = ir.Constant(c.number, -1.0), ir.Constant(c.number, 1.0)
        with for_range(b, args[5]) as loop:
            row = c.pointer(batch, b.mul(loop.index, INT64(length)))
            x = b.fsub(c.load_one(mine, loop.index), args[3])
            x = b.select(b.fcmp_ordered(">", x, low), x, low)
            x = b.select(b.fcmp_ordered("<", x, high), x, high)
            factor = c.fill(b.fmul(x, args[4]), c.lanes)
            for place, piece in zip(sums, pieces, strict=True):
                b.store(b.fadd(b.load(place), c.truncate(b.fmul(factor, c.load(row, *piece)))), place)
        for place, (first, _) in zip(sums, pieces, strict=True):
            c.add_whole(c.whole(b.load(place)), out, first)
        return context.get_dummy_value()

    ints, double = types.int64, types.float64
    return types.void(P, values, ints, double, double, ints, g, constants), code


@intrinsic
def triangle_squares(typingctx: Any, H: Any, constants: Any) -> Any:
    """Sum of the squares of all numbers of a symmetric matrix, from its lower triangle in rows of the padded length."""
    _, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R, np.float64)
        matrix = data_of(context, b, signature.args[0], args[0])
        sums = [c.zero(c.lanes) for _ in range(4)]
        for a in range(R):
            for first, lanes in c.pieces(a + 1):
                times = [2.0 if first + lane < a else float(first + lane == a) for lane in range(lanes)]
                value = c.load(matrix, a * length + first, lanes)
                if first + lanes > a + 1:  # what lies beyond the diagonal is not counted, finite or not
                    kept = [int(first + lane <= a) for lane in range(lanes)]
                    value = b.select(ir.Constant(ir.VectorType(ir.IntType(1), lanes), kept), value, c.zero(lanes))
                twice = b.fmul(value, ir.Constant(ir.VectorType(c.number, lanes), times))
                sums[a % 4] = c.fma(value, twice, sums[a % 4])
        return c.sum(sums)

    return types.float64(H, constants), code


@compiled
def spectral_solutions(
    H: Floats,
    limits: Floats,
    length: int,
    g: Floats,
    prior: float,
    residual: float,
    noise: float,
    first: int,
    last: int,
    rows: Floats,
) -> None:
    """rows[k] = (prior H^2 + residual H + noise I)^-1 prior H g of rows first to last, H and limits from above.

    H[k] is the matrix of features before they are shortened by INSIDE / limits[k].

    A row whose system is not positive definite to the last digit becomes zero.
    """
    D = g.shape[1]
    S = SYSTEMS_BYTES // 8
    minus = np.zeros(D * D * S)
    many = np.zeros(D * D * S)
    system = np.zeros(D * D * S)
    right = np.zeros(D * S)
    solution = np.zeros(D * S)
    column = np.zeros(D * S)
    weights = np.zeros(0)  # no traces are asked for
    good = np.ones(S)
    traces = np.zeros(S)
    for begin in range(first, last, S):
        count = min(S, last - begin)
        for k in range(count):
            shrink = INSIDE / limits[begin + k]
            for a in range(D):
                right[a * S + k] = g[begin + k, a]
                for b in range(a + 1):
                    h = H[begin + k, a * length + b] * shrink * shrink
                    many[(a * D + b) * S + k] = h
                    many[(b * D + a) * S + k] = h
        for cell in range(D * D * S):
            minus[cell] = -prior * many[cell]
            system[cell] = residual * many[cell]
        for a in range(D):
            for b in range(a + 1):
                subtract_products(system, a * D + b, minus, a * D, 1, many, b * D, 1, D)
            for k in range(S):
                system[(a * D + a) * S + k] += noise
                solution[a * S + k] = 0.0
            subtract_products(solution, a, minus, a * D, 1, right, 0, 1, D)
        good[:] = 1.0
        solve_systems(D, system, solution, good, column, weights, traces)
        for k in range(count):
            for a in range(D):
                rows[begin + k, a] = solution[a * S + k] if good[k] > 0.0 else 0.0


@compiled
def cp_row_matrices(
    parameters: Floats,
    starts: Any,
    own_start: int,
    others: NDArray[np.uint32],
    values: Floats,
    mean: float,
    begins: Integers,
    constants: Constants,
    length: int,
    first: int,
    last: int,
    D: int,
    limits: Floats,
    H: Floats,
    moments: Floats,
) -> None:
    """`feature_norms` and `row_matrices` of rows first to last of a CP model, all weights 1, for public coordinates.

    Entries are sorted by the mode (ridge.py), and their values are not used. limits[k] becomes the largest |phi_w| of
    the row, at least SMALLEST_LIMIT. H[k], the lower triangle in rows of the padded length, gets no noise: it is summed
    in floats, of features before they are shortened by INSIDE / limits[k]. moments[k] are the trace and the squares of
    all numbers of the matrix of shortened ones.
    """
    P = np.empty(BATCH * length)
    unused = np.zeros(length)
    for k in range(first, last):
        largest = 0.0
        own = H[k]
        for begin in range(begins[k], begins[k + 1], BATCH):
            count = min(BATCH, begins[k + 1] - begin)
            gather(parameters, starts, others, values, mean, begin, count, P, unused, constants)
            add_gram(P, count, own, constants)
            largest = max(largest, longest(P, count, constants))
        limits[k] = max(np.sqrt(largest), SMALLEST_LIMIT)
        shrink = INSIDE / limits[k]
        trace = 0.0
        for a in range(D):
            trace += own[a * length + a]
        moments[k, 0] = trace * shrink * shrink
        moments[k, 1] = triangle_squares(own, constants) * shrink * shrink * shrink * shrink


@compiled
def cp_right_sides(
    parameters: Floats,
    starts: Any,
    own_start: int,
    others: NDArray[np.uint32],
    values: Floats,
    mean: float,
    begins: Integers,
    constants: Constants,
    length: int,
    first: int,
    last: int,
    D: int,
    limits: Floats,
    g: Integers,
) -> bool:
    """`right_sides` of rows first to last of a CP model, all weights 1, entries sorted by the mode.

    False, with g not complete, where features are longer than their row's limit: one factor then does not fit a row.
    """
    P = np.empty(BATCH * length)
    unused = np.zeros(length)
    for k in range(first, last):
        limit = max(limits[k], SMALLEST_LIMIT)
        if not limit < np.inf:
            continue
        for begin in range(begins[k], begins[k + 1], BATCH):
            count = min(BATCH, begins[k + 1] - begin)
            gather(parameters, starts, others, values, mean, begin, count, P, unused, constants)
            if np.sqrt(longest(P, count, constants)) > limit:
                return False
            scale = STATISTIC_STEPS * (INSIDE / limit)
            add_right_sides(P, values, begin, mean, scale, count, g[k], constants)  # [K1]
    return True
