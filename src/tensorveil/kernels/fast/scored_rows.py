"""Draws of the rows of a model given symbols, on whole vectors of single numbers: the twin of the reference.

Entries are sorted by the mode whose rows are drawn (ridge.py). A packed row is the row of the factor matrix, its
offset, a one, and zeros up to a whole number of vectors. The features of an entry are the products of the rows of the
other modes, a one, and the sum of their offsets, so that the mean of the entry is the product of both:

    m_w = (phi_w, 1, other offsets) . (row, offset, 1).

For Tucker, the core is contracted with all rows of one other mode before, by a product of matrices: `matrices` has one
matrix per index of that mode, and the features of an entry are this matrix times the Kronecker product of the rows of
the modes that remain. The core itself is drawn by `core_scores`: the prediction is linear in the core's product with a
row of the first mode, so that what symbols tell of it is read as for rows. For CP `ranks` and `matrices` are None.

Means, tables and features are single numbers; log likelihoods are summed in double numbers, and systems are solved in
them.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import add_gram
from tensorveil.kernels.fast.row_features import gather, gather_tucker
from tensorveil.kernels.vectors import (
    INT32,
    INT64,
    Code,
    Constants,
    alloca,
    data_of,
    for_range,
    intrinsic,
    padded,
)

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]
Symbols = NDArray[np.uint8]

BATCH = 512  # entries whose features are gathered at a time, a multiple of eight
EXTRA = 2  # numbers of a packed row after those of the factor matrix: the offset, and a one
EIGHT = 8  # lanes of single numbers


def _means(c: Code, batch: Any, first: Any, row: list[Any], length: int) -> Any:
    """Means of eight entries, whose features begin at number `first` of the batch."""
    b = c.builder
    products = []
    for lane in range(EIGHT):
        one = c.pointer(batch, b.mul(b.add(first, INT64(lane)), INT64(length)))
        total = b.fmul(c.load(one, 0, EIGHT), row[0])
        for value, (place, lanes) in zip(row[1:], c.pieces(length)[1:], strict=True):
            total = c.fma(c.load(one, place, lanes), value, total)
        products.append(total)
    return c.eight_sums(products)


@intrinsic
def means_of(typingctx: Any, P: Any, count: Any, row: Any, means: Any, constants: Any) -> Any:
    """means[k] = P[k] . row of the first `count` entries, rounded up to a multiple of eight."""
    _, R, extra = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float32)
        length = padded(R + extra, np.float32)
        batch, own, out = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 3))
        vectors = [c.load(own, *piece) for piece in c.pieces(length)]
        with for_range(b, b.sdiv(b.add(args[1], INT64(EIGHT - 1)), INT64(EIGHT))) as loop:
            first = b.mul(loop.index, INT64(EIGHT))
            c.store(_means(c, batch, first, vectors, length), out, first)
        return context.get_dummy_value()

    return types.void(P, types.int64, row, means, constants), code


@intrinsic
def score(
    typingctx: Any,
    P: Any,
    count: Any,
    row: Any,
    symbols: Any,
    begin: Any,
    table: Any,
    places: Any,
    reach: Any,
    g: Any,
    constants: Any,
) -> Any:
    """g += scores of gathered entries of one row; returns the sum of their log likelihoods.

    Eight at a time; the log likelihood is cubic between the places of the table, and the score is linear.
    """
    _, R, extra = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float32)
        length = padded(R + extra, np.float32)
        batch, own, marks, values, right = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 3, 5, 8))
        count, places, reach = args[1], args[6], args[7]
        pieces = c.pieces(length)
        single, integers = ir.VectorType(c.number, EIGHT), ir.VectorType(INT32, EIGHT)
        doubles = ir.VectorType(ir.DoubleType(), EIGHT)

        def constant(number: float) -> Any:
            return ir.Constant(single, [number] * EIGHT)

        vectors = [c.load(own, *piece) for piece in pieces]
        sums = [[alloca(b, single) for _ in pieces] for _ in range(2)]  # of even and of odd entries
        for place, piece in zip(sums[0], pieces, strict=True):
            b.store(c.load(right, *piece), place)
        for place in sums[1]:
            b.store(c.zero(EIGHT), place)
        total = alloca(b, doubles)
        b.store(ir.Constant(doubles, [0.0] * EIGHT), total)
        cells = b.sub(places, INT64(1))
        last = c.fill(b.sitofp(cells, c.number), EIGHT)
        width = b.fdiv(b.fmul(ir.Constant(c.number, 2.0), reach), b.sitofp(cells, c.number))
        per_unit = c.fill(b.fdiv(ir.Constant(c.number, 1.0), width), EIGHT)
        width, reach = c.fill(width, EIGHT), c.fill(reach, EIGHT)
        stride, largest = (c.fill(b.trunc(n, INT32), EIGHT) for n in (places, b.sub(places, INT64(2))))
        lanes = ir.Constant(integers, list(range(EIGHT)))
        with for_range(b, b.sdiv(b.add(count, INT64(EIGHT - 1)), INT64(EIGHT))) as loop:
            first = b.mul(loop.index, INT64(EIGHT))
            x = b.fmul(b.fadd(_means(c, batch, first, vectors, length), reach), per_unit)
            x = b.select(b.fcmp_ordered("<", x, last), x, last)
            x = b.select(b.fcmp_ordered(">", x, c.zero(EIGHT)), x, c.zero(EIGHT))
            k = b.fptosi(x, integers)
            k = b.select(b.icmp_signed("<", k, largest), k, largest)
            t = b.fsub(x, b.sitofp(k, single))
            bytes_of = ir.VectorType(ir.IntType(8), EIGHT)
            mark = b.gep(marks, [b.add(args[4], first)], source_etype=ir.IntType(8))
            mark = b.load(b.bitcast(mark, bytes_of.as_pointer()), align=1, typ=bytes_of)
            cell = b.add(b.mul(b.zext(mark, integers), stride), k)
            cell = b.add(cell, cell)  # two numbers per place
            low, low_slope, high, high_slope = c.quads(values, cell)
            rest = b.fsub(constant(1.0), t)
            slope = c.fma(t, b.fsub(high_slope, low_slope), low_slope)
            bend = b.fsub(b.fmul(rest, low_slope), b.fmul(t, high_slope))
            share = b.fmul(b.fmul(t, t), b.fsub(constant(3.0), b.fadd(t, t)))
            value = c.fma(share, b.fsub(high, low), low)
            value = c.fma(b.fmul(width, b.fmul(t, rest)), bend, value)
            inside = b.icmp_signed("<", lanes, c.fill(b.trunc(b.sub(count, first), INT32), EIGHT))
            slope, value = (b.select(inside, part, c.zero(EIGHT)) for part in (slope, value))
            b.store(b.fadd(b.load(total), b.fpext(value, doubles)), total)
            for lane in range(EIGHT):
                one = c.pointer(batch, b.mul(b.add(first, INT64(lane)), INT64(length)))
                factor = c.fill(b.extract_element(slope, INT32(lane)), EIGHT)
                for place, piece in zip(sums[lane % 2], pieces, strict=True):
                    b.store(c.fma(factor, c.load(one, *piece), b.load(place)), place)
        for even, odd, (first, _) in zip(*sums, pieces, strict=True):
            c.store(b.fadd(b.load(even), b.load(odd)), right, first)
        found, whole = ir.Constant(ir.DoubleType(), 0.0), b.load(total)
        for lane in range(EIGHT):
            found = b.fadd(found, b.extract_element(whole, INT32(lane)))
        return found

    ints, single = types.int64, types.float32
    return types.float64(P, ints, row, symbols, ints, table, ints, single, g, constants), code


@intrinsic
def rank_of(typingctx: Any, constants: Any) -> Any:
    """The rank, known when the kernel is compiled."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return INT64(constants.numbers[1])

    return types.int64(constants), code


@compiled
def factorize(H: Floats, D: int) -> bool:
    """H = U^T U with U above the diagonal, in place of H; False if H is not positive definite in floating point."""
    for a in range(D):
        if not H[a, a] > 0.0:
            return False
        scale = 1.0 / math.sqrt(H[a, a])
        for c in range(a, D):
            H[a, c] *= scale
        for b in range(a + 1, D):
            factor = H[a, b]
            for c in range(b, D):
                H[b, c] -= factor * H[a, c]
    return True


@compiled
def predict_means(
    constants: Constants,
    ranks: Constants | None,
    matrices: Singles | None,
    rows: Singles,
    starts: Any,
    others: Coordinates,
    begins: Integers,
    means: Singles,
    begin: int,
    end: int,
) -> None:
    """Means of the entries of rows begin to end of the first mode, in the order of its list."""
    length = (rank_of(constants) + EXTRA + EIGHT - 1) // EIGHT * EIGHT
    P = np.zeros(BATCH * length, np.float32)
    found = np.empty(BATCH, np.float32)
    for i in range(begin, end):
        row = rows[i * length : (i + 1) * length]
        for first in range(begins[i], begins[i + 1], BATCH):
            count = min(BATCH, begins[i + 1] - first)
            if matrices is None:
                gather(rows, starts, others, first, count, P, constants)
            else:
                gather_tucker(rows, starts, matrices, others, first, count, P, constants, ranks)
            means_of(P, count, row, found, constants)
            means[first : first + count] = found[:count]


@compiled
def draw_rows(
    constants: Constants,
    ranks: Constants | None,
    matrices: Singles | None,
    rows: Singles,
    starts: Any,
    others: Coordinates,
    begins: Integers,
    symbols: Symbols,
    table: Singles,
    reach: np.float32,
    information: float,
    keep: float,
    parameters: Floats,
    offsets: Floats,
    prior_means: Floats,
    prior_precisions: Floats,
    key: np.uint64,
    begin: int,
    end: int,
) -> int:
    """Draw rows begin to end of a factor matrix with their offsets; returns how many proposals were accepted.

    Parameters and offsets are those of the mode alone, and are changed; `rows` are packed rows of all modes.
    """
    R = rank_of(constants)
    D = R + 1
    length = (R + EXTRA + EIGHT - 1) // EIGHT * EIGHT
    places = table.shape[1]
    P = np.zeros(BATCH * length, np.float32)
    gram = np.empty((R + EXTRA) * length, np.float32)
    g = np.empty(length, np.float32)
    here = np.zeros(length, np.float32)
    here[D] = 1.0
    old, new, z, y, H = np.empty(D), np.empty(D), np.empty(D), np.empty(D), np.empty((D, D))
    accepted = 0
    fresh = math.sqrt(1.0 - keep * keep)
    for i in range(begin, end):
        first_entry, last_entry = begins[i], begins[i + 1]
        for a in range(R):
            old[a] = parameters[i * R + a]
        old[R] = offsets[i]
        state = normals.stream(key, i)
        log_ratio = 0.0
        gram[:] = 0.0
        good = True
        for side in range(2):  # there, and back
            value = 0.0
            row = old if side == 0 else new
            for a in range(D):
                here[a] = row[a]
            g[:] = 0.0
            for first in range(first_entry, last_entry, BATCH):
                count = min(BATCH, last_entry - first)
                if side == 0 or last_entry - first_entry > BATCH:  # else they are there
                    if matrices is None:
                        gather(rows, starts, others, first, count, P, constants)
                    else:
                        gather_tucker(rows, starts, matrices, others, first, count, P, constants, ranks)
                if side == 0:
                    add_gram(P, count, gram, constants)
                value += score(P, count, here, symbols, first, table, places, reach, g, constants)
            for a in range(D):
                miss = prior_means[i, a] - row[a]
                y[a] = g[a] + prior_precisions[a] * miss
                value -= 0.5 * prior_precisions[a] * miss * miss
            if side == 0:
                for a in range(D):
                    for b in range(a, D):
                        H[a, b] = information * gram[b * length + a]
                    H[a, a] += prior_precisions[a]
                good = factorize(H, D)
                if not good:
                    break
            for a in range(D):  # y becomes U^-T y
                y[a] /= H[a, a]
                for c in range(a + 1, D):
                    y[c] -= H[a, c] * y[a]
            if side == 0:
                log_ratio -= value
                for a in range(D):
                    state += normals.STEP
                    z[a] = normals.quantile(normals.uniform(state))
                    log_ratio += 0.5 * z[a] * z[a]
                    z[a] = (1.0 - keep) * y[a] + fresh * z[a]
                for a in range(D - 1, -1, -1):  # U (new - old) = (1 - a) U^-T g + z
                    total = z[a]
                    for c in range(a + 1, D):
                        total -= H[a, c] * z[c]
                    z[a] = total / H[a, a]
                    new[a] = old[a] + z[a]
            else:
                log_ratio += value
                for a in range(D):  # U (old - new) - (1 - a) U^-T g'
                    total = -(1.0 - keep) * y[a]
                    for c in range(a, D):
                        total -= H[a, c] * z[c]
                    log_ratio -= 0.5 * total * total / (fresh * fresh)
        state += normals.STEP
        if good and math.log(normals.uniform(state)) < log_ratio:
            for a in range(R):
                parameters[i * R + a] = new[a]
            offsets[i] = new[R]
            accepted += 1
    return accepted


@compiled
def core_scores(
    constants: Constants,
    ranks: Constants | None,
    matrices: Singles,
    rows: Singles,
    starts: Any,
    others: Coordinates,
    begins: Integers,
    symbols: Symbols,
    table: Singles,
    reach: np.float32,
    factor: Floats,
    own: Singles,
    g: Floats,
    H: Floats | None,
    begin: int,
    end: int,
) -> float:
    """Add what the symbols of rows begin to end of the first mode tell of the core; returns their log likelihood.

    With d_w the Kronecker product of the rows of all modes but the first, a_i a row of the first factor matrix and v_i
    its product with the core, the mean of an entry of row i is v_i . d_w and offsets. So

        g += sum_i a_i (x) sum_w f' d_w,        H += sum_i a_i a_i^T (x) sum_w d_w d_w^T.

    `own` holds the packed rows (v_i, offset, 1); without H only g is added to.
    """
    K = rank_of(constants)
    length = (K + EXTRA + EIGHT - 1) // EIGHT * EIGHT
    P = np.zeros(BATCH * length, np.float32)
    gram = np.empty((K + EXTRA) * length, np.float32)
    slopes = np.empty(length, np.float32)
    total = 0.0
    for i in range(begin, end):
        gram[:] = 0.0
        slopes[:] = 0.0
        row = own[i * length : (i + 1) * length]
        for first in range(begins[i], begins[i + 1], BATCH):
            count = min(BATCH, begins[i + 1] - first)
            gather_tucker(rows, starts, matrices, others, first, count, P, constants, ranks)
            if H is not None:
                add_gram(P, count, gram, constants)
            total += score(P, count, row, symbols, first, table, table.shape[1], reach, slopes, constants)
        for r in range(factor.shape[1]):
            for s in range(K):
                g[r * K + s] += factor[i, r] * slopes[s]
        if H is not None:
            for s in range(K):
                for t in range(s + 1, K):
                    gram[s * length + t] = gram[t * length + s]
            for r in range(factor.shape[1]):
                for q in range(r + 1):
                    weight = factor[i, r] * factor[i, q]
                    for s in range(K):
                        for t in range(K):
                            H[r * K + s, q * K + t] += weight * gram[s * length + t]
    return total
