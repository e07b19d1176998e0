"""Statistics of alternating least squares of CP models on whole vectors, for public coordinates.

The right-hand sides are those of reference/statistics.py, bit for bit. Entries are sorted by the mode (ridge.py).
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from tensorveil.arrays import Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import BATCH, ModeRows, add_gram, gather
from tensorveil.kernels.fast.systems import SYSTEMS_BYTES, solve_systems, subtract_products
from tensorveil.kernels.reference.statistics import INSIDE, SMALLEST_LIMIT, STATISTIC_STEPS
from tensorveil.kernels.vectors import INT32, INT64, Code, alloca, emits, for_range


@emits
def longest(c: Code, P: Any, count: Any, constants: Any) -> Any:
    """The largest |P[w]|^2 of the first `count` rows of P; infinite if one of them is not finite."""
    b = c.builder
    length = c.padded(constants[1])
    kind = ir.VectorType(c.number, c.lanes)
    largest, doubt = alloca(b, kind), alloca(b, kind)
    for place in (largest, doubt):
        b.store(c.zero(c.lanes), place)

    def squares(w: Any) -> Any:
        """A vector whose lanes sum up to |P[w]|^2."""
        row, result = c.pointer(P, b.mul(w, INT64(length))), c.zero(c.lanes)
        for piece in c.pieces(length):
            value = c.load(row, *piece)
            result = c.fma(value, value, result)
        return result

    def note(lengths: Any) -> None:
        old = b.load(largest)
        b.store(b.select(b.fcmp_ordered(">", lengths, old), lengths, old), largest)
        # 0 times a finite length leaves the doubt at 0, while 0 times any other makes it not a number
        b.store(c.fma(lengths, c.zero(c.lanes), b.load(doubt)), doubt)

    fours = b.sdiv(count, INT64(c.lanes))
    with for_range(b, fours) as loop:
        first = b.mul(loop.index, INT64(c.lanes))
        note(c.four_sums([squares(b.add(first, INT64(lane))) for lane in range(c.lanes)]))
    done = b.mul(fours, INT64(c.lanes))
    with for_range(b, b.sub(count, done)) as loop:
        note(c.four_sums([squares(b.add(done, loop.index))] * c.lanes))
    lengths = b.load(largest)
    result = b.extract_element(lengths, INT32(0))
    for lane in range(1, c.lanes):
        one = b.extract_element(lengths, INT32(lane))
        result = b.select(b.fcmp_ordered(">", one, result), one, result)
    is_finite = b.fcmp_ordered("==", c.sum([b.load(doubt)]), ir.Constant(c.number, 0.0))
    return b.select(is_finite, result, ir.Constant(c.number, float("inf")))


@emits
def add_right_sides(c: Code, mode: Any, begin: Any, count: Any, P: Any, scale: Any, g: Any) -> None:
    """g += sum over the first `count` rows of P of scale x P[w], each number of a term rounded towards zero.

    x is the value minus the mean, clipped to [-1, 1]. Terms are whole numbers of at most 2^32, held in doubles, which
    sum up a batch of them exactly.
    """
    b = c.builder
    length = c.padded(mode.constants[1])
    pieces = c.pieces(length)
    sums = [alloca(b, ir.VectorType(c.number, c.lanes)) for _ in pieces]
    for place in sums:
        b.store(c.zero(c.lanes), place)
    values = c.pointer(mode.values, begin)
    low, high = ir.Constant(c.number, -1.0), ir.Constant(c.number, 1.0)
    with for_range(b, count) as loop:
        row = c.pointer(P, b.mul(loop.index, INT64(length)))
        x = b.fsub(c.load_one(values, loop.index), mode.mean)
        x = b.select(b.fcmp_ordered(">", x, low), x, low)
        x = b.select(b.fcmp_ordered("<", x, high), x, high)
        factor = c.fill(b.fmul(x, scale), c.lanes)
        for place, piece in zip(sums, pieces, strict=True):
            b.store(b.fadd(b.load(place), c.truncate(b.fmul(factor, c.load(row, *piece)))), place)
    for place, (first, _) in zip(sums, pieces, strict=True):
        c.add_whole(c.whole(b.load(place)), g, first)


@emits
def triangle_squares(c: Code, H: Any, constants: Any) -> Any:
    """Sum of squares of all numbers of a symmetric matrix, given its lower triangle in rows of the padded length."""
    b, R = c.builder, constants[1]
    sums = [c.zero(c.lanes) for _ in range(4)]
    for a in range(R):
        for first, lanes in c.pieces(a + 1):
            times = [2.0 if first + lane < a else float(first + lane == a) for lane in range(lanes)]
            value = c.load(H, a * c.padded(R) + first, lanes)
            if first + lanes > a + 1:  # numbers beyond the diagonal are not counted, finite or not
                kept = [int(first + lane <= a) for lane in range(lanes)]
                value = b.select(ir.Constant(ir.VectorType(ir.IntType(1), lanes), kept), value, c.zero(lanes))
            twice = b.fmul(value, ir.Constant(ir.VectorType(c.number, lanes), times))
            sums[a % 4] = c.fma(value, twice, sums[a % 4])
    return c.sum(sums)


@compiled
def row_matrices(mode: ModeRows, first: int, last: int, limits: Floats, H: Floats, moments: Floats) -> None:
    """`feature_norms` and `row_matrices` of the reference for rows first to last, with all weights 1.

    Values are not used. limits[k] becomes the largest |phi_w| of the row, at least SMALLEST_LIMIT. H gets no noise
    here, so it is summed in floats: H[k] is the lower triangle, in rows of the padded length, of features before they
    are shortened by INSIDE / limits[k]. moments[k] are the trace of the matrix of shortened features and the sum of the
    squares of all its numbers.
    """
    begins, length, constants = mode.begins, mode.length, mode.constants
    P = np.empty(BATCH * length)
    unused = np.zeros(length)
    for k in range(first, last):
        largest = 0.0
        own = H[k]
        for begin in range(begins[k], begins[k + 1], BATCH):
            count = min(BATCH, begins[k + 1] - begin)
            gather(mode, begin, count, P, unused)
            add_gram(P, count, own, constants)
            largest = max(largest, longest(P, count, constants))
        limits[k] = max(np.sqrt(largest), SMALLEST_LIMIT)
        shrink = INSIDE / limits[k]
        trace = 0.0
        for a in range(mode.D):
            trace += own[a * length + a]
        moments[k, 0] = trace * shrink * shrink
        moments[k, 1] = triangle_squares(own, constants) * shrink * shrink * shrink * shrink


@compiled
def right_sides(mode: ModeRows, first: int, last: int, limits: Floats, g: Integers) -> bool:
    """`right_sides` of the reference for rows first to last, with all weights 1; the same integers, bit for bit.

    False, with g not complete, where features are longer than their row's limit: one factor then does not fit a row.
    """
    begins, length = mode.begins, mode.length
    P = np.empty(BATCH * length)
    unused = np.zeros(length)
    for k in range(first, last):
        if not limits[k] < np.inf:
            continue
        limit = max(limits[k], SMALLEST_LIMIT)
        for begin in range(begins[k], begins[k + 1], BATCH):
            count = min(BATCH, begins[k + 1] - begin)
            gather(mode, begin, count, P, unused)
            if not np.sqrt(longest(P, count, mode.constants)) <= limit:
                return False
            scale = STATISTIC_STEPS * (INSIDE / limit)
            add_right_sides(mode, begin, count, P, scale, g[k])  # [K1]
    return True


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
    """rows[k] = (prior H^2 + residual H + noise I)^-1 prior H g of rows first to last.

    `row_matrices` gives H and limits: H[k] is the matrix of features before they are shortened by INSIDE / limits[k].
    A row whose system is not positive definite in floating-point arithmetic becomes zero.
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
