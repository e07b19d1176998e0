"""Ridge regressions of all rows of a CP factor matrix, on whole vectors.

The rows of mode n are the solutions of (H + lambda I) row = g with H = sum_w phi_w phi_w^T, g = sum_w t_w phi_w over
the row's own entries, which lie next to each other in a list sorted by that mode. A row may hold an offset as its last
number: its feature is 1, and the offsets of the other modes are taken off the value,

    t_w = x_w - mean - sum of the other modes' offsets.

Features are gathered in batches that stay in the nearest cache; the lower triangle of H is summed in registers, a few
rows and vectors at a time; several rows are solved at once (systems.py).
"""

from typing import Any, NamedTuple

import numpy as np

from tensorveil.arrays import Coordinates, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.systems import SYSTEMS_BYTES, solve_systems
from tensorveil.kernels.vectors import AHEAD, Code, Constants, Row, Value, Variable, emits

BATCH = 128  # entries whose features are gathered at a time
MOST_SUMS = 12  # vectors of sums kept in registers: the other four hold what is added


class ModeRows(NamedTuple):
    """The rows of a mode, and its entries in their order; rows have the padded `length`, D numbers of it used.

    The entries of row i are begins[i] to begins[i + 1] of `others` (coordinates in the other modes) and `values`. Rows
    of this mode begin at own_start in `parameters`, those of the others at `starts`. Kernels get `Constants` beside it:
    modes, rank, whether rows hold an offset, and whether they fit no near cache. (Inside, they cost 140 us per call.)
    """

    parameters: Any
    starts: Any
    own_start: int
    others: Coordinates
    values: Any
    mean: Any
    begins: Integers
    length: int
    D: int


def entry_rows(
    c: Code, base: Row, starts: list[Value], others: Row, w: Value, count: int, length: int, is_large: int = 1
) -> list[Row]:
    """Rows that the coordinates of entry w name; those of a later entry of a large model are prefetched."""
    entry = others.at(w * count)
    if is_large:
        for row in c.rows(base, starts, entry.at(AHEAD * count), count, length):
            c.prefetch(row, length, write=False)
    return c.rows(base, starts, entry, count, length)


@emits
def gather(c: Code, mode: Any, constants: tuple[int, ...], begin: Value, count: Value, P: Row, g: Row) -> None:
    """P[k] = phi of the next `count` entries, g += sum of t phi."""
    N, R, offset, is_large = constants
    length = c.padded(R + offset)
    sums = [Variable(g.vector(first)) for first in c.pieces(length)]
    for k in c.loop(count):
        w = begin + k
        rows = entry_rows(c, mode.parameters, mode.starts, mode.others, w, N - 1, length, is_large)
        t = mode.values[w] - mode.mean
        if offset:
            for row in rows:
                t = t - row[R]
        out = P.at(k * length)
        for total, first in zip(sums, c.pieces(length), strict=True):
            phi = c.product([row.vector(first) for row in rows])
            if offset and first <= R < first + c.lanes:
                phi = phi.replaced(R - first, 1.0)
            out.store(phi, first)
            total.now = c.fma(t, phi, total.now)
    for total, first in zip(sums, c.pieces(length), strict=True):
        g.store(total.now, first)


def triangle_tiles(rows: int, lanes: int, vectors: int) -> list[tuple[int, int, int, int]]:
    """(first row, rows, first vector, vectors) of pieces that cover the lower triangle and fit the registers."""
    found = []
    first = 0
    while first < rows:
        high = min(8 if first + 8 <= lanes else 4, rows - first)
        needed = min((first + high - 1) // lanes + 1, vectors)
        if high == 4 and needed == 2:
            high = min(6, rows - first, 2 * lanes - first)
        width = MOST_SUMS // high
        for vector in range(0, needed, width):
            found.append((first, high, vector, min(width, needed - vector)))
        first += high
    return found


@emits
def add_gram(c: Code, P: Row, count: Value, H: Row, constants: tuple[int, ...]) -> None:
    """H += P^T P, lower triangle, over the first `count` rows of P; rows of H and P have the padded length."""
    R, offset = constants[1:3]
    length = c.padded(R + offset)
    pieces = c.pieces(length)
    for first, high, vector, width in triangle_tiles(R + offset, c.lanes, len(pieces)):
        mine = pieces[vector : vector + width]
        cells = [(a, begin) for a in range(first, first + high) for begin in mine]
        sums = {(a, begin): Variable(H.vector(a * length + begin)) for a, begin in cells}
        for k in c.loop(count):
            row = P.at(k * length)
            vectors = {begin: row.vector(begin) for begin in mine}
            left = {a: row[a] for a in range(first, first + high)}
            for a, begin in cells:
                sums[a, begin].now = c.fma(left[a], vectors[begin], sums[a, begin].now)
        for a, begin in cells:
            H.store(sums[a, begin].now, a * length + begin)


@compiled
def solve_rows(mode: ModeRows, constants: Constants, first: int, last: int, ridges: Any) -> float:
    """Set rows first to last of a factor matrix to their ridge solutions; returns their effective number of parameters.

    ridges[d] is added to the diagonal. A row without entries becomes zero; one whose matrix is not positive definite in
    floating-point arithmetic stays. The effective number is sum over rows of tr(H (H + ridges)^-1).
    """
    values, begins, length, D = mode.values, mode.begins, mode.length, mode.D
    S = SYSTEMS_BYTES // values.itemsize
    P = np.empty(BATCH * length, values.dtype)
    H = np.empty(D * length, values.dtype)
    g = np.empty(length, values.dtype)
    many = np.zeros(D * D * S, values.dtype)
    right = np.zeros(D * S, values.dtype)
    column = np.zeros(D * S, values.dtype)
    good = np.ones(S, values.dtype)
    traces = np.zeros(S, values.dtype)
    effective = 0.0
    for i in range(first, last):
        system = (i - first) % S
        H[:] = 0.0
        g[:] = 0.0
        for begin in range(begins[i], begins[i + 1], BATCH):
            count = min(BATCH, begins[i + 1] - begin)
            gather(mode, constants, begin, count, P, g)
            add_gram(P, count, H, constants)
        for a in range(D):
            for b in range(a + 1):
                many[(a * D + b) * S + system] = H[a * length + b]
            many[(a * D + a) * S + system] += ridges[a]
            right[a * S + system] = g[a]
        if system == S - 1 or i == last - 1:
            for empty in range(system + 1, S):
                for a in range(D):
                    for b in range(a):
                        many[(a * D + b) * S + empty] = 0.0
                    many[(a * D + a) * S + empty] = 1.0
                    right[a * S + empty] = 0.0
            good[:] = 1.0
            solve_systems(D, many, right, good, column, ridges, traces)
            for done in range(system + 1):
                if good[done] > 0.0:
                    effective += D - traces[done]
                    row = mode.own_start + (i - system + done) * length
                    for a in range(D):
                        mode.parameters[row + a] = right[a * S + done]
    return effective


@emits
def residual(c: Code, mode: Any, constants: tuple[int, ...], w: Value, own: Value) -> Value:
    """x_w - mean - offsets - xhat_w, with the row of the sorted mode beginning at `own`."""
    N, R, offset, is_large = constants
    length = c.padded(R + offset)
    rows = entry_rows(c, mode.parameters, mode.starts, mode.others, w, N - 1, length, is_large)
    rows.append(mode.parameters.at(own))
    t: Value = mode.values[w] - mode.mean
    if offset:
        for row in rows:
            t = t - row[R]
    products = []
    for first in c.pieces(length):
        value = c.product([row.vector(first) for row in rows])
        products.append(value.replaced(R - first, 0.0) if offset and first <= R < first + c.lanes else value)
    return t - c.sum(products)


@compiled
def sum_residuals(mode: ModeRows, constants: Constants, first: int, last: int) -> tuple[float, float]:
    """Sum and sum of squares of the residuals of all entries of rows first to last."""
    total = 0.0
    squares = 0.0
    for i in range(first, last):
        own = mode.own_start + i * mode.length
        for w in range(mode.begins[i], mode.begins[i + 1]):
            e = np.float64(residual(mode, constants, w, own))
            total += e
            squares += e * e
    return total, squares


@compiled
def sort_by_mode(
    coordinates: Coordinates, values: Any, n: int, begins: Integers, others: Coordinates, sorted_values: Any
) -> None:
    """Entries in the order of mode n: coordinates in the other modes, and values; row i begins at begins[i]."""
    filled = begins[:-1].copy()
    for w in range(coordinates.shape[0]):
        i = np.int64(coordinates[w, n])
        place = filled[i]
        filled[i] += 1
        column = 0
        for m in range(coordinates.shape[1]):
            if m != n:
                others[place, column] = coordinates[w, m]
                column += 1
        sorted_values[place] = values[w]
    others[coordinates.shape[0] :] = 0  # the spare entries name rows that exist


@compiled
def mode_sums(
    coordinates: Coordinates, values: Any, mean: float, firsts: Integers, sums: Any, counts: Integers
) -> None:
    """Sums of x_w - mean and numbers of entries of all indices of all modes; those of mode n begin at firsts[n]."""
    for w in range(coordinates.shape[0]):
        e = values[w] - mean
        for n in range(coordinates.shape[1]):
            place = firsts[n] + np.int64(coordinates[w, n])
            sums[place] += e
            counts[place] += 1
