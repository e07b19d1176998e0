"""Statistics of alternating least squares of CP models on whole vectors, for public coordinates.

The right-hand sides are those of reference/statistics.py, bit for bit. Entries are sorted by the mode (ridge.py).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import BATCH, ModeRows, add_gram, entry_rows
from tensorveil.kernels.fast.systems import SYSTEMS_BYTES, solve_systems, subtract_products
from tensorveil.kernels.reference.statistics import INSIDE, SMALLEST_LIMIT, STATISTIC_STEPS
from tensorveil.kernels.vectors import BIT, Code, Constants, Row, Value, Variable, emits

AT_ONCE = 2**18  # terms of at most 2^32 whose sum stays below 2^51


class Longest:
    """The largest of squared lengths that are noted four at a time; infinite if one of them is not finite."""

    def __init__(self, c: Code) -> None:
        self.code, self.largest, self.doubt = c, Variable(c.zero), Variable(c.zero)

    def note(self, squares: list[Value]) -> None:
        """Note the lengths of one or of four vectors, of which these are the squares, summed up to four lanes."""
        lengths = self.code.four_sums(squares * (self.code.lanes // len(squares)))
        self.largest.now = self.code.larger(lengths, self.largest.now)
        # 0 times a finite length leaves the doubt at 0, while 0 times any other makes it not a number
        self.doubt.now = self.code.fma(lengths, self.code.zero, self.doubt.now)

    def result(self) -> Value:
        c, lengths = self.code, self.largest.now
        result = lengths[0]
        for lane in range(1, c.lanes):
            result = c.larger(lengths[lane], result)
        return c.choose(c.sum([self.doubt.now]).equals(0.0), result, float("inf"))


def _groups(c: Code, count: Value) -> Iterator[tuple[Value, int]]:
    """(first, size) of groups of four entries, and of the single ones that are left."""
    fours = count // c.lanes
    for k in c.loop(fours):
        yield k * c.lanes, c.lanes
    for k in c.loop(count - fours * c.lanes):
        yield fours * c.lanes + k, 1


def _features(c: Code, mode: Any, constants: tuple[int, ...], w: Value) -> tuple[list[Value], Value]:
    """phi of entry w, and a vector whose lanes sum up to |phi|^2."""
    N, R, _, is_large = constants
    rows = entry_rows(c, mode.parameters, mode.starts, mode.others, w, N - 1, c.padded(R), is_large)
    phi = [c.product([row.vector(begin) for row in rows]) for begin in c.pieces(c.padded(R))]
    squares = c.zero
    for vector in phi:
        squares = c.fma(vector, vector, squares)
    return phi, squares


@emits
def gather_features(c: Code, mode: Any, constants: tuple[int, ...], begin: Value, count: Value, P: Row) -> Value:
    """P[k] = phi of the next `count` entries; returns the largest |phi|^2, infinite if one is not finite."""
    length = c.padded(constants[1])
    longest = Longest(c)
    for first, size in _groups(c, count):
        squares = []
        for k in range(size):
            phi, square = _features(c, mode, constants, begin + first + k)
            squares.append(square)
            for vector, place in zip(phi, c.pieces(length), strict=True):
                P.at((first + k) * length).store(vector, place)
        longest.note(squares)
    return longest.result()


@emits
def add_right_sides(
    c: Code, mode: Any, constants: tuple[int, ...], begin: Value, count: Value, scale: Value, g: Row
) -> Value:
    """g += sum over the next `count` entries of scale x phi, each number of a term rounded towards zero.

    x is the value minus the mean, clipped to [-1, 1]. Terms of at most 2^32 are whole numbers in doubles, which sum up
    AT_ONCE of them exactly. Returns the largest |phi|^2, infinite if one is not finite: the caller compares.
    """
    pieces = c.pieces(c.padded(constants[1]))
    longest = Longest(c)
    sums = [Variable(c.zero) for _ in pieces]
    for first, size in _groups(c, count):
        x = mode.values.vector(begin + first) - mode.mean  # after the last entry there are spare ones
        factors = c.smaller(c.larger(x, -1.0), 1.0) * scale
        squares = []
        for k in range(size):
            phi, square = _features(c, mode, constants, begin + first + k)
            squares.append(square)
            for total, vector in zip(sums, phi, strict=True):
                total.now += c.truncate(vector * factors[k])
        longest.note(squares)
    for total, place in zip(sums, pieces, strict=True):
        g.store(g.vector(place) + c.whole(total.now), place)
    return longest.result()


@emits
def triangle_squares(c: Code, H: Row, constants: tuple[int, ...]) -> Value:
    """Sum of squares of all numbers of a symmetric matrix, given its lower triangle in rows of the padded length."""
    R = constants[1]
    sums = [c.zero for _ in range(4)]
    for a in range(R):
        for first in c.pieces(a + 1):
            columns = range(first, first + c.lanes)
            value = H.vector(a * c.padded(R) + first)
            if first + c.lanes > a + 1:  # numbers beyond the diagonal are not counted, finite or not
                value = c.choose(c.constant([int(b <= a) for b in columns], BIT), value, 0.0)
            twice = value * c.constant([2.0 if b < a else float(b == a) for b in columns])
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
