"""Ridge regressions of all rows of a CP factor matrix at full speed: batches, registers, lanes.

The rows of mode n are the solutions of (H + lambda I) row = g with H = sum_w phi_w phi_w^T, g = sum_w t_w phi_w over
the row's own entries, which lie next to each other in a list sorted by that mode. A row may hold an offset as its last
number: its feature is 1, and the offsets of the other modes are taken off the value,

    t_w = x_w - mean - sum of the other modes' offsets.

Features are gathered in batches that stay in the nearest cache; the lower triangle of H is summed in registers, a few
rows and vectors at a time; SYSTEMS rows are solved at once, one system a lane.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import INT32, INT64, Code, Constants, data_of, declared, intrinsic, padded

Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

BATCH = 128  # entries whose features are gathered at a time
AHEAD = 8  # entries between asking for rows and using them; lists end with so many spare entries
SYSTEMS_BYTES = 64  # of one number of all systems that are solved at once
MOST_SUMS = 12  # vectors of sums kept in registers: the other four hold what is added

for_range: Any = cgutils.for_range
alloca: Any = cgutils.alloca_once


def numpy_type(number: Any) -> Any:
    """NumPy's name of a number type of the compiler's."""
    return np.float64 if number == types.float64 else np.float32


@intrinsic
def gather(
    typingctx: Any,
    parameters: Any,
    starts: Any,
    others: Any,
    values: Any,
    mean: Any,
    begin: Any,
    count: Any,
    P: Any,
    g: Any,
    constants: Any,
) -> Any:
    """P[w] = phi of the next `count` entries, g += sum of t phi; starts[m] of the modes that are not being solved."""
    N, R, offset = constants.numbers
    number = parameters.dtype

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, number)
        length = padded(R + offset, numpy_type(number))
        arrays = [data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 3, 7, 8)]
        base, list_of_others, list_of_values, batch, right = arrays
        pieces = c.pieces(length)
        sums = [alloca(b, ir.VectorType(c.number, lanes)) for _, lanes in pieces]
        for place, (first, lanes) in zip(sums, pieces, strict=True):
            b.store(c.load(right, first, lanes), place)
        mine = b.gep(list_of_others, [b.mul(args[5], INT64(N - 1))], source_etype=INT32)
        my_values = c.pointer(list_of_values, args[5])
        with for_range(b, args[6]) as loop:
            entry = b.gep(mine, [b.mul(loop.index, INT64(N - 1))], source_etype=INT32)

            def row(m: int, later: int) -> Any:
                place = b.gep(entry, [INT64(later * (N - 1) + m)], source_etype=INT32)
                index = b.zext(b.load(place, align=4, typ=INT32), INT64)
                return c.pointer(base, b.add(b.extract_value(args[1], m), b.mul(index, INT64(length))))

            for m in range(N - 1):
                c.prefetch(row(m, AHEAD), length, write=False)
            rows = [row(m, 0) for m in range(N - 1)]
            t = b.fsub(c.load_one(my_values, loop.index), args[4])
            if offset:
                for one in rows:
                    t = b.fsub(t, c.load_one(one, R))
            out = c.pointer(batch, b.mul(loop.index, INT64(length)))
            for place, (first, lanes) in zip(sums, pieces, strict=True):
                phi = c.product([c.load(one, first, lanes) for one in rows])
                if offset and first <= R < first + lanes:
                    phi = b.insert_element(phi, ir.Constant(c.number, 1.0), INT32(R - first))
                c.store(phi, out, first)
                b.store(c.fma(c.fill(t, lanes), phi, b.load(place)), place)
        for place, (first, _) in zip(sums, pieces, strict=True):
            c.store(b.load(place), right, first)
        return context.get_dummy_value()

    ints = types.int64
    return types.void(parameters, starts, others, values, number, ints, ints, P, g, constants), code


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


@intrinsic
def add_gram(typingctx: Any, P: Any, count: Any, H: Any, constants: Any) -> Any:
    """H += P^T P, lower triangle, over the first `count` rows of P; rows of H and P have the padded length."""
    _, R, offset = constants.numbers
    number = P.dtype

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, number)
        length = padded(R + offset, numpy_type(number))
        batch, matrix = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2))
        pieces = c.pieces(length)
        for first, high, vector, width in triangle_tiles(R + offset, c.lanes, len(pieces)):
            mine = pieces[vector : vector + width]
            sums = [[alloca(b, ir.VectorType(c.number, lanes)) for _, lanes in mine] for _ in range(high)]
            for a in range(high):
                for place, (begin, lanes) in zip(sums[a], mine, strict=True):
                    b.store(c.load(matrix, (first + a) * length + begin, lanes), place)
            with for_range(b, args[1]) as loop:
                one = c.pointer(batch, b.mul(loop.index, INT64(length)))
                vectors = [c.load(one, *piece) for piece in mine]
                for a in range(high):
                    left = c.load_one(one, first + a)
                    for place, value in zip(sums[a], vectors, strict=True):
                        b.store(c.fma(c.fill(left, value.type.count), value, b.load(place)), place)
            for a in range(high):
                for place, (begin, _) in zip(sums[a], mine, strict=True):
                    c.store(b.load(place), matrix, (first + a) * length + begin)
        return context.get_dummy_value()

    return types.void(P, types.int64, H, constants), code


def _systems(c: Code) -> list[tuple[int, int]]:
    """Vectors of one number of all systems."""
    lanes = SYSTEMS_BYTES // c.bytes
    return [(begin, c.lanes) for begin in range(0, lanes, c.lanes)]


@intrinsic
def subtract_products(
    typingctx: Any,
    A: Any,
    target: Any,
    B: Any,
    one: Any,
    one_step: Any,
    C: Any,
    other: Any,
    other_step: Any,
    count: Any,
) -> Any:
    """A[target] -= sum over c < count of B[one + c one_step] C[other + c other_step], in all systems at once."""
    number = A.dtype

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, number)
        lanes = SYSTEMS_BYTES // c.bytes
        base, left, right = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 5))
        aim = c.pointer(base, b.mul(args[1], INT64(lanes)))
        sums = [alloca(b, ir.VectorType(c.number, size)) for _, size in _systems(c)]
        for place, piece in zip(sums, _systems(c), strict=True):
            b.store(c.load(aim, *piece), place)
        with for_range(b, args[8]) as loop:
            first = c.pointer(left, b.mul(b.add(args[3], b.mul(loop.index, args[4])), INT64(lanes)))
            second = c.pointer(right, b.mul(b.add(args[6], b.mul(loop.index, args[7])), INT64(lanes)))
            for place, piece in zip(sums, _systems(c), strict=True):
                minus = b.fsub(ir.Constant(ir.VectorType(c.number, piece[1]), [-0.0] * piece[1]), c.load(first, *piece))
                b.store(c.fma(minus, c.load(second, *piece), b.load(place)), place)
        for place, piece in zip(sums, _systems(c), strict=True):
            c.store(b.load(place), aim, piece[0])
        return context.get_dummy_value()

    ints = types.int64
    return types.void(A, ints, B, ints, ints, C, ints, ints, ints), code


@intrinsic
def multiply(typingctx: Any, A: Any, target: Any, B: Any, other: Any) -> Any:
    """A[target] *= B[other], in all systems."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, A.dtype)
        lanes = SYSTEMS_BYTES // c.bytes
        base, right = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2))
        aim, by = c.pointer(base, b.mul(args[1], INT64(lanes))), c.pointer(right, b.mul(args[3], INT64(lanes)))
        for piece in _systems(c):
            c.store(b.fmul(c.load(aim, *piece), c.load(by, *piece)), aim, piece[0])
        return context.get_dummy_value()

    return types.void(A, types.int64, B, types.int64), code


@intrinsic
def inverse_root(typingctx: Any, A: Any, target: Any, good: Any) -> Any:
    """A[target] = 1 / sqrt(A[target]) in all systems; where that is not above 0, 0, and good = 0."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, A.dtype)
        lanes = SYSTEMS_BYTES // c.bytes
        base, flags = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2))
        aim = c.pointer(base, b.mul(args[1], INT64(lanes)))
        for first, size in _systems(c):
            kind = ir.VectorType(c.number, size)
            letter = "f64" if c.bytes == 8 else "f32"
            root = declared(b.module, ir.FunctionType(kind, [kind]), f"llvm.sqrt.v{size}{letter}")
            value = c.load(aim, first, size)
            one, zero = ir.Constant(kind, [1.0] * size), c.zero(size)
            right = b.fcmp_ordered(">", value, zero)
            result = b.fdiv(one, b.call(root, [b.select(right, value, one)]))
            c.store(b.select(right, result, zero), aim, first)
            c.store(b.select(right, c.load(flags, first, size), zero), flags, first)
        return context.get_dummy_value()

    return types.void(A, types.int64, good), code


@compiled
def factorize_systems(D: int, H: Any, good: Any) -> None:
    """H becomes its Cholesky factor in all systems, with the inverse of the diagonal in the diagonal's place.

    H[a D + b] is the lower triangle, one number of each system. Systems that are not positive definite to the last
    digit get good = 0.
    """
    for a in range(D):
        for b in range(a):
            subtract_products(H, a * D + b, H, a * D, 1, H, b * D, 1, b)
            multiply(H, a * D + b, H, b * D + b)
        subtract_products(H, a * D + a, H, a * D, 1, H, a * D, 1, a)
        inverse_root(H, a * D + a, good)


@compiled
def solve_systems(D: int, H: Any, g: Any, good: Any, column: Any, weights: Any, traces: Any) -> None:
    """g = H^-1 g in all systems; traces = sum over d of weights[d] (H^-1)[d, d], or 0 without weights.

    H becomes its Cholesky factor, see `factorize_systems`.
    """
    factorize_systems(D, H, good)
    for a in range(D):
        subtract_products(g, a, H, a * D, 1, g, 0, 1, a)
        multiply(g, a, H, a * D + a)
    for a in range(D - 1, -1, -1):
        subtract_products(g, a, H, (a + 1) * D + a, D, g, a + 1, 1, D - 1 - a)
        multiply(g, a, H, a * D + a)
    lanes = good.size
    for system in range(lanes):
        traces[system] = 0.0
    for d in range(weights.size):  # column d of the inverse factor; the squares of its numbers sum up to (H^-1)[d, d]
        for system in range(lanes):
            column[d * lanes + system] = H[(d * D + d) * lanes + system]
        for a in range(d + 1, D):
            for system in range(lanes):
                column[a * lanes + system] = 0.0
            subtract_products(column, a, H, a * D + d, 1, column, d, 1, a - d)
            multiply(column, a, H, a * D + a)
        weight = weights[d]
        for a in range(d, D):
            for system in range(lanes):
                traces[system] += weight * column[a * lanes + system] * column[a * lanes + system]


@compiled
def solve_rows(
    parameters: Any,
    starts: Any,
    own_start: int,
    others: Coordinates,
    values: Any,
    mean: Any,
    begins: Integers,
    constants: Constants,
    length: int,
    first: int,
    last: int,
    D: int,
    ridges: Any,
) -> float:
    """Set rows first to last of a factor matrix to their ridge solutions; returns their effective number of parameters.

    The entries of row i are begins[i] to begins[i + 1] of `others` (coordinates in the other modes) and `values`;
    ridges[d] is added to the diagonal. A row without entries becomes zero; one whose matrix is not positive definite to
    the last digit stays. The effective number is sum over rows of tr(H (H + ridges)^-1).
    """
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
            gather(parameters, starts, others, values, mean, begin, count, P, g, constants)
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
                    row = own_start + (i - system + done) * length
                    for a in range(D):
                        parameters[row + a] = right[a * S + done]
    return effective


@intrinsic
def residual(
    typingctx: Any, parameters: Any, starts: Any, others: Any, values: Any, mean: Any, w: Any, own: Any, constants: Any
) -> Any:
    """x_w - mean - offsets - xhat_w, with the row of the sorted mode beginning at `own`."""
    N, R, offset = constants.numbers
    number = parameters.dtype

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, number)
        length = padded(R + offset, numpy_type(number))
        base, list_of_others, list_of_values = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 3))
        entry = b.gep(list_of_others, [b.mul(args[5], INT64(N - 1))], source_etype=INT32)

        def row(m: int, later: int) -> Any:
            place = b.gep(entry, [INT64(later * (N - 1) + m)], source_etype=INT32)
            index = b.zext(b.load(place, align=4, typ=INT32), INT64)
            return c.pointer(base, b.add(b.extract_value(args[1], m), b.mul(index, INT64(length))))

        for m in range(N - 1):
            c.prefetch(row(m, AHEAD), length, write=False)
        rows = [*(row(m, 0) for m in range(N - 1)), c.pointer(base, args[6])]
        t = b.fsub(c.load_one(list_of_values, args[5]), args[4])
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

    ints = types.int64
    return number(parameters, starts, others, values, number, ints, ints, constants), code


@compiled
def sum_residuals(
    parameters: Any,
    starts: Any,
    own_start: int,
    others: Coordinates,
    values: Any,
    mean: Any,
    begins: Integers,
    constants: Constants,
    length: int,
    first: int,
    last: int,
) -> tuple[float, float]:
    """Sum and sum of squares of the residuals of all entries of rows first to last."""
    total = 0.0
    squares = 0.0
    for i in range(first, last):
        own = own_start + i * length
        for w in range(begins[i], begins[i + 1]):
            e = np.float64(residual(parameters, starts, others, values, mean, w, own, constants))
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
