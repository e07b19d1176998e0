"""Statistics of alternating least squares of CP models on whole vectors, for public coordinates.

The right-hand sides are those of reference/statistics.py, bit for bit. Entries are sorted by the mode (ridge.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from tensorveil.arrays import Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import BATCH, ModeRows, add_gram, entry_rows
from tensorveil.kernels.fast.systems import SYSTEMS_BYTES, solve_systems, subtract_products
from tensorveil.kernels.reference.statistics import INSIDE, SMALLEST_LIMIT, STATISTIC_STEPS
from tensorveil.kernels.vectors import INT32, INT64, Code, Constants, alloca, emits, for_range

AT_ONCE = 2**18  # terms of at most 2^32 whose sum stays below 2^51


class Longest:
    """The largest of squared lengths that are noted four at a time; infinite if one of them is not finite."""

    def __init__(self, c: Code) -> None:
        self.code = c
        self.largest, self.doubt = (alloca(c.builder, ir.VectorType(c.number, c.lanes)) for _ in range(2))
        for place in (self.largest, self.doubt):
            c.builder.store(c.zero(c.lanes), place)

    def note(self, lengths: Any) -> None:
        c, b = self.code, self.code.builder
        old = b.load(self.largest)
        b.store(b.select(b.fcmp_ordered(">", lengths, old), lengths, old), self.largest)
        # 0 times a finite length leaves the doubt at 0, while 0 times any other makes it not a number
        b.store(c.fma(lengths, c.zero(c.lanes), b.load(self.doubt)), self.doubt)

    def result(self) -> Any:
        c, b = self.code, self.code.builder
        lengths = b.load(self.largest)
        result = b.extract_element(lengths, INT32(0))
        for lane in range(1, c.lanes):
            one = b.extract_element(lengths, INT32(lane))
            result = b.select(b.fcmp_ordered(">", one, result), one, result)
        is_finite = b.fcmp_ordered("==", c.sum([b.load(self.doubt)]), ir.Constant(c.number, 0.0))
        return b.select(is_finite, result, ir.Constant(c.number, float("inf")))


class Entries:
    """Features of entries in the order of a mode, with the largest of their squared lengths."""

    def __init__(self, c: Code, mode: Any, constants: Any, begin: Any) -> None:
        self.code, self.mode, self.begin = c, mode, begin
        self.N, R, _, self.is_large = constants
        self.length = c.padded(R)
        self.pieces = c.pieces(self.length)
        self.longest = Longest(c)

    def visit(self, count: Any, use: Callable[[Any, list[int], Callable[[int], list[Any]]], None]) -> Any:
        """use(first entry, which entries from there on, features of one of them); four entries at a time."""
        c, b = self.code, self.code.builder
        mine = b.gep(self.mode.others, [b.mul(self.begin, INT64(self.N - 1))], source_etype=INT32)

        def some(first: Any, entries: int) -> None:
            squares = []

            def features(lane: int) -> list[Any]:
                entry = b.gep(mine, [b.mul(b.add(first, INT64(lane)), INT64(self.N - 1))], source_etype=INT32)
                places = self.mode.parameters, self.mode.starts, entry, self.N - 1, self.length
                rows = entry_rows(c, *places, self.is_large)
                phi = [c.product([c.load(one, *piece) for one in rows]) for piece in self.pieces]
                squared = c.zero(c.lanes)
                for vector in phi:
                    squared = c.fma(vector, vector, squared)
                squares.append(squared)
                return phi

            use(first, list(range(entries)), features)
            self.longest.note(c.four_sums(squares * (c.lanes // entries)))

        fours = b.sdiv(count, INT64(c.lanes))
        with for_range(b, fours) as loop:
            some(b.mul(loop.index, INT64(c.lanes)), c.lanes)
        done = b.mul(fours, INT64(c.lanes))
        with for_range(b, b.sub(count, done)) as loop:
            some(b.add(done, loop.index), 1)
        return self.longest.result()


@emits
def gather_features(c: Code, mode: Any, constants: Any, begin: Any, count: Any, P: Any) -> Any:
    """P[w] = phi of the next `count` entries; returns the largest |phi|^2, infinite if one is not finite."""
    entries = Entries(c, mode, constants, begin)

    def keep(first: Any, lanes: list[int], features: Callable[[int], list[Any]]) -> None:
        for lane in lanes:
            out = c.pointer(P, c.builder.mul(c.builder.add(first, INT64(lane)), INT64(entries.length)))
            for vector, (begin, _) in zip(features(lane), entries.pieces, strict=True):
                c.store(vector, out, begin)

    return entries.visit(count, keep)


@emits
def add_right_sides(c: Code, mode: Any, constants: Any, begin: Any, count: Any, scale: Any, g: Any) -> Any:
    """g += sum over the next `count` entries of scale x phi, each number of a term rounded towards zero.

    x is the value minus the mean, clipped to [-1, 1]. Terms of at most 2^32 are whole numbers in doubles, which sum up
    AT_ONCE of them exactly. Returns the largest |phi|^2, infinite if one is not finite: the caller compares.
    """
    b = c.builder
    entries = Entries(c, mode, constants, begin)
    sums = [alloca(b, ir.VectorType(c.number, c.lanes)) for _ in entries.pieces]
    for place in sums:
        b.store(c.zero(c.lanes), place)
    values = c.pointer(mode.values, begin)
    low, high = (c.fill(ir.Constant(c.number, bound), c.lanes) for bound in (-1.0, 1.0))

    def add(first: Any, lanes: list[int], features: Callable[[int], list[Any]]) -> None:
        x = b.fsub(c.load(values, first, c.lanes), c.fill(mode.mean, c.lanes))
        x = b.select(b.fcmp_ordered(">", x, low), x, low)
        x = b.select(b.fcmp_ordered("<", x, high), x, high)
        factors = b.fmul(x, c.fill(scale, c.lanes))
        for lane in lanes:
            factor = c.picked(factors, factors, [lane] * c.lanes)
            for place, phi in zip(sums, features(lane), strict=True):
                b.store(b.fadd(b.load(place), c.truncate(b.fmul(factor, phi))), place)

    largest = entries.visit(count, add)
    for place, (first, _) in zip(sums, entries.pieces, strict=True):
        c.add_whole(c.whole(b.load(place)), g, first)
    return largest


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
def row_matrices(
    mode: ModeRows, constants: Constants, first: int, last: int, limits: Floats, H: Floats, moments: Floats
) -> None:
    """`feature_norms` and `row_matrices` of the reference for rows first to last, with all weights 1.

    Values are not used. limits[k] becomes the largest |phi_w| of the row, at least SMALLEST_LIMIT. H gets no noise
    here, so it is summed in floats: H[k] is the lower triangle, in rows of the padded length, of features before they
    are shortened by INSIDE / limits[k]. moments[k] are the trace of the matrix of shortened features and the sum of the
    squares of all its numbers.
    """
    begins, length = mode.begins, mode.length
    P = np.empty(BATCH * length)
    for k in range(first, last):
        largest = 0.0
        own = H[k]
        for begin in range(begins[k], begins[k + 1], BATCH):
            count = min(BATCH, begins[k + 1] - begin)
            largest = max(largest, gather_features(mode, constants, begin, count, P))
            add_gram(P, count, own, constants)
        limits[k] = max(np.sqrt(largest), SMALLEST_LIMIT)
        shrink = INSIDE / limits[k]
        trace = 0.0
        for a in range(mode.D):
            trace += own[a * length + a]
        moments[k, 0] = trace * shrink * shrink
        moments[k, 1] = triangle_squares(own, constants) * shrink * shrink * shrink * shrink


@compiled
def right_sides(mode: ModeRows, constants: Constants, first: int, last: int, limits: Floats, g: Integers) -> bool:
    """`right_sides` of the reference for rows first to last, with all weights 1; the same integers, bit for bit.

    False, with g not complete, where features are longer than their row's limit: one factor then does not fit a row.
    """
    begins = mode.begins
    for k in range(first, last):
        if not limits[k] < np.inf:
            continue
        limit = max(limits[k], SMALLEST_LIMIT)
        scale = STATISTIC_STEPS * (INSIDE / limit)
        for begin in range(begins[k], begins[k + 1], AT_ONCE):
            count = min(AT_ONCE, begins[k + 1] - begin)
            largest = add_right_sides(mode, constants, begin, count, scale, g[k])  # [K1]
            if not np.sqrt(largest) <= limit:
                return False
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
