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
from functools import partial
from typing import Any

import numpy as np
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import add_gram
from tensorveil.kernels.fast.row_features import gather, gather_tucker
from tensorveil.kernels.vectors import DOUBLE, INT32, INT64, Code, Constants, Row, Value, Variable, emits

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]
Symbols = NDArray[np.uint8]

BATCH = 512  # entries whose features are gathered at a time, a multiple of eight
EXTRA = 2  # numbers of a packed row after those of the factor matrix: the offset, and a one
EIGHT = 8  # lanes of single numbers


def _means(c: Code, P: Row, first: Value, row: list[Value], length: int) -> Value:
    """Means of eight entries, whose features begin at number `first` of the batch."""
    products = []
    for lane in range(EIGHT):
        features = P.at((first + lane) * length)
        total = features.vector(0) * row[0]
        for value, place in zip(row[1:], c.pieces(length)[1:], strict=True):
            total = c.fma(features.vector(place), value, total)
        products.append(total)
    return c.eight_sums(products)


@emits
def means_of(c: Code, P: Row, count: Value, row: Row, means: Row, constants: tuple[int, ...]) -> None:
    """means[k] = P[k] . row of the first `count` entries, rounded up to a multiple of eight."""
    _, R, extra = constants
    length = c.padded(R + extra)
    vectors = [row.vector(place) for place in c.pieces(length)]
    for group in c.loop((count + (EIGHT - 1)) // EIGHT):
        means.store(_means(c, P, group * EIGHT, vectors, length), group * EIGHT)


@partial(emits, result=types.float64)
def score(
    c: Code,
    P: Row,
    count: Value,
    row: Row,
    symbols: Row,
    begin: Value,
    table: Row,
    places: Value,
    reach: Value,
    g: Row,
    constants: tuple[int, ...],
) -> Value:
    """g += scores of gathered entries of one row; returns the sum of their log likelihoods.

    Eight at a time; the log likelihood is cubic between the places of the table, and the score is linear.
    """
    _, R, extra = constants
    length = c.padded(R + extra)
    pieces = c.pieces(length)
    vectors = [row.vector(place) for place in pieces]
    sums = [[Variable(g.vector(place)) for place in pieces], [Variable(c.zero) for _ in pieces]]  # of even and odd ones
    total = Variable(c.constant([0.0] * EIGHT, DOUBLE))
    cells = (places - 1).converted(c.number)
    width = reach * 2.0 / cells
    per_unit = 1.0 / width
    stride, largest = places.converted(INT32), (places - 2).converted(INT32)
    lanes = c.constant([*range(EIGHT)], INT32)
    for group in c.loop((count + (EIGHT - 1)) // EIGHT):
        first = group * EIGHT
        x = (_means(c, P, first, vectors, length) + reach) * per_unit
        x = c.larger(c.smaller(x, cells), 0.0)
        k = c.smaller(x.converted(INT32), largest)
        t = x - k.converted(c.number)
        mark = symbols.vector(begin + first, EIGHT).converted(INT32)
        cell = mark * stride + k
        low, low_slope, high, high_slope = c.quads(table, cell + cell)  # two numbers per place
        rest = 1.0 - t
        slope = c.fma(t, high_slope - low_slope, low_slope)
        bend = rest * low_slope - t * high_slope
        share = t * t * (3.0 - (t + t))
        value = c.fma(share, high - low, low)
        value = c.fma(t * rest * width, bend, value)
        inside = lanes < (count - first).converted(INT32)
        slope, value = c.choose(inside, slope, 0.0), c.choose(inside, value, 0.0)
        total.now += value.converted(DOUBLE)
        for lane in range(EIGHT):
            features = P.at((first + lane) * length)
            for own, place in zip(sums[lane % 2], pieces, strict=True):
                own.now = c.fma(slope[lane], features.vector(place), own.now)
    for even, odd, place in zip(*sums, pieces, strict=True):
        g.store(even.now + odd.now, place)
    likelihood = c.constant(0.0, DOUBLE)
    for lane in range(EIGHT):
        likelihood = likelihood + total.now[lane]
    return likelihood


@partial(emits, result=types.int64)
def rank_of(c: Code, constants: tuple[int, ...]) -> Value:
    """The rank, known when the kernel is compiled."""
    return c.constant(constants[1], INT64)


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
