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
from llvmlite import ir  # type: ignore[import-untyped]

from tensorveil.arrays import Coordinates, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.systems import SYSTEMS_BYTES, solve_systems
from tensorveil.kernels.vectors import AHEAD, INT32, INT64, Code, Constants, alloca, emits, for_range

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


def entry_rows(c: Code, base: Any, starts: Any, entry: Any, count: int, length: int, is_large: int = 1) -> list[Any]:
    """Where the rows that an entry's words name begin; those of a later entry of a large model are prefetched."""
    later = c.builder.gep(entry, [INT64(AHEAD * count)], source_etype=INT32)
    for m in range(count if is_large else 0):
        c.prefetch(c.row(base, starts, later, m, length), length, write=False)
    return [c.row(base, starts, entry, m, length) for m in range(count)]


@emits
def gather(c: Code, mode: Any, constants: Any, begin: Any, count: Any, P: Any, g: Any) -> None:
    """P[w] = phi of the next `count` entries, g += sum of t phi."""
    b = c.builder
    N, R, offset, is_large = constants
    length = c.padded(R + offset)
    pieces = c.pieces(length)
    sums = [alloca(b, ir.VectorType(c.number, lanes)) for _, lanes in pieces]
    for place, (first, lanes) in zip(sums, pieces, strict=True):
        b.store(c.load(g, first, lanes), place)
    mine = b.gep(mode.others, [b.mul(begin, INT64(N - 1))], source_etype=INT32)
    values = c.pointer(mode.values, begin)
    with for_range(b, count) as loop:
        entry = b.gep(mine, [b.mul(loop.index, INT64(N - 1))], source_etype=INT32)
        rows = entry_rows(c, mode.parameters, mode.starts, entry, N - 1, length, is_large)
        t = b.fsub(c.load_one(values, loop.index), mode.mean)
        if offset:
            for one in rows:
                t = b.fsub(t, c.load_one(one, R))
        out = c.pointer(P, b.mul(loop.index, INT64(length)))
        for place, (first, lanes) in zip(sums, pieces, strict=True):
            phi = c.product([c.load(one, first, lanes) for one in rows])
            if offset and first <= R < first + lanes:
                phi = b.insert_element(phi, ir.Constant(c.number, 1.0), INT32(R - first))
            c.store(phi, out, first)
            b.store(c.fma(c.fill(t, lanes), phi, b.load(place)), place)
    for place, (first, _) in zip(sums, pieces, strict=True):
        c.store(b.load(place), g, first)


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
def add_gram(c: Code, P: Any, count: Any, H: Any, constants: Any) -> None:
    """H += P^T P, lower triangle, over the first `count` rows of P; rows of H and P have the padded length."""
    b = c.builder
    R, offset = constants[1:3]
    length = c.padded(R + offset)
    pieces = c.pieces(length)
    for first, high, vector, width in triangle_tiles(R + offset, c.lanes, len(pieces)):
        mine = pieces[vector : vector + width]
        sums = [[alloca(b, ir.VectorType(c.number, lanes)) for _, lanes in mine] for _ in range(high)]
        for a in range(high):
            for place, (begin, lanes) in zip(sums[a], mine, strict=True):
                b.store(c.load(H, (first + a) * length + begin, lanes), place)
        with for_range(b, count) as loop:
            one = c.pointer(P, b.mul(loop.index, INT64(length)))
            vectors = [c.load(one, *piece) for piece in mine]
            for a in range(high):
                left = c.load_one(one, first + a)
                for place, value in zip(sums[a], vectors, strict=True):
                    b.store(c.fma(c.fill(left, value.type.count), value, b.load(place)), place)
        for a in range(high):
            for place, (begin, _) in zip(sums[a], mine, strict=True):
                c.store(b.load(place), H, (first + a) * length + begin)


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
def residual(c: Code, mode: Any, constants: Any, w: Any, own: Any) -> Any:
    """x_w - mean - offsets - xhat_w, with the row of the sorted mode beginning at `own`."""
    b = c.builder
    N, R, offset, is_large = constants
    length = c.padded(R + offset)
    entry = b.gep(mode.others, [b.mul(w, INT64(N - 1))], source_etype=INT32)
    others = entry_rows(c, mode.parameters, mode.starts, entry, N - 1, length, is_large)
    rows = [*others, c.pointer(mode.parameters, own)]
    t = b.fsub(c.load_one(mode.values, w), mode.mean)
    if offset:
        for one in rows:
            t = b.fsub(t, c.load_one(one, R))
    products = []
    for first, lanes in c.pieces(length):
        value = c.product([c.load(one, first, lanes) for one in rows])
        if offset and first <= R < first + lanes:
            value = b.insert_element(value, ir.Constant(c.number, 0.0), INT32(R - first))
        products.append(value)
    return b.fsub(t, c.sum(products))


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
