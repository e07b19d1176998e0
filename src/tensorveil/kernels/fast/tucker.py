"""Descent and ridge rows of Tucker models, with the core as rows of vectors.

Let mode n come first in the core G, G_r be its rows and k the Kronecker product of the entry's rows of all other modes.
Then phi_n[r] = G_r . k, so that the features of one mode take one look at the core, where those of all blocks take
four. Rows of G, and k, are padded with zeros to whole vectors.

For whole blocks, the core is first contracted with all rows of one mode, by a product of matrices, so that an entry
takes a look at a matrix instead of the core.

A step of descent reads and writes the core once. With n the first mode and a the entry's row of its factor,

    P = sum_r a_r G_r  (the core for the other modes),    phi_1[r] = G_r . k,    G_r = shrink G_r + step e a_r k.
"""

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import add_gram
from tensorveil.kernels.reference import blocks
from tensorveil.kernels.reference.blocks import Blocks
from tensorveil.kernels.reference.least_squares import factorize, inverse_trace, multiply_others, substitute
from tensorveil.kernels.vectors import Code, Constants, Row, Value, Variable, emits

BATCH = 128  # entries whose features are gathered at a time


@emits
def read_row(c: Code, core: Row, begin: Value, k: Row, a: Value, P: Row, place: Value, length: Value) -> Value:
    """P[place:] += a G_r, where G_r begins at `begin`; returns G_r . k. The length is a whole number of vectors."""
    total = Variable(c.zero)
    row, out = core.at(begin), P.at(place)
    for vector in c.loop(length // c.lanes):
        at = vector * c.lanes
        numbers = row.vector(at)
        out.store(c.fma(a, numbers, out.vector(at)), at)
        total.now = c.fma(numbers, k.vector(at), total.now)
    return c.sum([total.now])


@emits
def write_row(c: Code, core: Row, begin: Value, k: Row, shrink: Value, move: Value, length: Value) -> None:
    """G_r = shrink G_r + move k."""
    row = core.at(begin)
    for vector in c.loop(length // c.lanes):
        at = vector * c.lanes
        row.store(c.fma(shrink, row.vector(at), k.vector(at) * move), at)


@compiled
def tucker_pass(
    model: Blocks,
    core: Floats,
    length: int,
    coordinates: Coordinates,
    values: Floats,
    scale: float,
    shift: float,
    visits: Integers,
    eta: float,
    penalty: float,
) -> float:
    """Visit the entries in the given order; returns the sum of squared residuals of scale x_w + shift.

    `model` holds the factors and then room for P; its widths are those of the factors and the number of the rest's
    cells; `core` holds the rows of G, each of the padded length.
    """
    parameters, starts, widths = model
    N = coordinates.shape[1]
    R = widths[0]
    room = starts[N]
    k, first = np.zeros(length), np.empty(R)
    phi = np.empty(widths[1:].sum())
    work = np.empty(blocks.work_size(widths[1:], N - 1))
    rows = np.empty(N, np.int64)
    shrink = 1.0 - 2.0 * eta * penalty
    loss = 0.0
    for step in range(visits.size):
        w = visits[step]
        own = starts[0] + np.int64(coordinates[w, 0]) * R
        multiply_others(model, coordinates, w, 0, k)
        for n in range(1, N):
            rows[n - 1] = starts[n] + np.int64(coordinates[w, n]) * widths[n]
        rows[N - 1] = room
        parameters[room : room + length] = 0.0
        xhat = 0.0
        for r in range(R):
            a = parameters[own + r]
            first[r] = read_row(core, r * length, k, a, parameters, room, length)
            xhat += a * first[r]
        blocks.tucker_features(parameters, rows, widths[1:], phi, work)
        e = scale * values[w] + shift - xhat
        if not np.isfinite(e):
            return float(e * e)
        loss += e * e
        move = 2.0 * eta * e
        for r in range(R):
            a = parameters[own + r]
            write_row(core, r * length, k, shrink, move * a, length)
            parameters[own + r] = shrink * a + move * first[r]
        begin = 0
        for n in range(1, N):
            for r in range(widths[n]):
                parameters[rows[n - 1] + r] = shrink * parameters[rows[n - 1] + r] + move * phi[begin + r]
            begin += widths[n]
    return loss


@emits
def dot(c: Code, A: Row, begin: Value, k: Row, length: Value) -> Value:
    """Sum of A[begin + c] k[c] over c < length, a whole number of vectors."""
    total, row = Variable(c.zero), A.at(begin)
    for vector in c.loop(length // c.lanes):
        at = vector * c.lanes
        total.now = c.fma(row.vector(at), k.vector(at), total.now)
    return c.sum([total.now])


@emits
def contract(
    c: Code, k: Row, terms: Value, matrices: Row, begin: Value, out: Row, place: Value, constants: tuple[int, ...]
) -> None:
    """out[place:] = sum of k[t] times row t of the matrix that begins at `begin`; rows of a constant length."""
    [length] = constants
    totals = [Variable(c.zero) for _ in c.pieces(length)]
    for t in c.loop(terms):
        row, weight = matrices.at(begin + t * length), k[t]
        for total, first in zip(totals, c.pieces(length), strict=True):
            total.now = c.fma(weight, row.vector(first), total.now)
    for total, first in zip(totals, c.pieces(length), strict=True):
        out.at(place).store(total.now, first)


@emits
def add_outer(
    c: Code,
    matrices: Row,
    begin: Value,
    k: Row,
    terms: Value,
    factor: Value,
    rows: Row,
    place: Value,
    constants: tuple[int, ...],
) -> None:
    """Add factor k[t] rows[place:] to row t of the matrix that begins at `begin`, for all t."""
    [length] = constants
    vectors = [rows.at(place).vector(first) for first in c.pieces(length)]
    for t in c.loop(terms):
        row, weight = matrices.at(begin + t * length), factor * k[t]
        for vector, first in zip(vectors, c.pieces(length), strict=True):
            row.store(c.fma(weight, vector, row.vector(first)), first)


@compiled
def multiply_between(model: Blocks, coordinates: Coordinates, w: int, n: int, m: int, k: Floats) -> None:
    """k = Kronecker product of entry w's rows of all modes but n and m; the last mode varies fastest."""
    parameters, starts, widths = model
    N = coordinates.shape[1]
    if N == 3:  # the usual case, without loops over modes
        mode = 3 - n - m
        row = starts[mode] + np.int64(coordinates[w, mode]) * widths[mode]
        for r in range(k.size):
            k[r] = parameters[row + r]
        return
    k[0] = 1.0
    size = 1
    for mode in range(N - 1, -1, -1):
        if mode in (n, m):
            continue
        row = starts[mode] + np.int64(coordinates[w, mode]) * widths[mode]
        for r in range(widths[mode] - 1, -1, -1):  # from the back, so that nothing is overwritten too early
            a = parameters[row + r]
            for cell in range(size):
                k[r * size + cell] = a * k[cell]
        size *= widths[mode]


@compiled
def solve_rows(
    model: Blocks,
    matrices: Floats,
    terms: int,
    m: int,
    coordinates: Coordinates,
    values: Floats,
    order: Integers,
    begins: Integers,
    n: int,
    ridge: float,
    whole: Constants,
    constants: Constants,
    length: int,
    first: int,
    last: int,
) -> float:
    """`least_squares.solve_rows` for rows first to last of a Tucker model.

    The core is contracted with every row of mode m: `matrices` holds one matrix per index, of so many terms and of
    rows of a padded length. The features of an entry are its matrix times the Kronecker product of the other rows.
    """
    parameters, starts, widths = model
    R = widths[n]
    k = np.empty(terms)
    P, gram, right = np.empty(BATCH * length), np.empty(length * length), np.empty(length)
    H, g, column = np.empty((R, R)), np.empty(R), np.empty(R)
    effective = 0.0
    for i in range(first, last):
        gram[:] = 0.0
        right[:] = 0.0
        for begin in range(begins[i], begins[i + 1], BATCH):
            count = min(BATCH, begins[i + 1] - begin)
            for number in range(count):
                w = order[begin + number]
                multiply_between(model, coordinates, w, n, m, k)
                matrix = np.int64(coordinates[w, m]) * terms * length
                contract(k, terms, matrices, matrix, P, number * length, constants)
                for r in range(R):
                    right[r] += P[number * length + r] * values[w]
            add_gram(P, count, gram, whole)
        for r in range(R):
            g[r] = right[r]
            for b in range(r + 1):
                H[r, b] = gram[r * length + b]
            H[r, r] += ridge
        if not factorize(H):
            continue
        substitute(H, g)
        effective += R - ridge * inverse_trace(H, column)
        row = starts[n] + i * R
        for r in range(R):
            parameters[row + r] = g[r]
    return effective


@compiled
def core_rows(
    model: Blocks,
    tail: Floats,
    terms: int,
    coordinates: Coordinates,
    values: Floats,
    order: Integers,
    begins: Integers,
    contracted: Floats,
    totals: Floats,
    squares: Floats,
    constants: Constants,
    length: int,
    first: int,
    last: int,
) -> None:
    """For rows i = first to last of the first mode: totals[i - first] = sum_w t_w k_w, squares likewise of k_w^2.

    k_w is the Kronecker product of the entry's rows of the other modes, in rows of the last mode's padded length, and
    t_w = contracted[i - first] . k_w, or the entry's value where `contracted` is empty. `tail` holds the padded rows of
    the last mode.
    """
    N = coordinates.shape[1]
    k, k_squares = np.empty(terms), np.empty(terms)
    P, own_squares = np.zeros(length), np.zeros(length)
    for i in range(first, last):
        place = (i - first) * terms * length
        for position in range(begins[i], begins[i + 1]):
            w = order[position]
            multiply_between(model, coordinates, w, 0, N - 1, k)
            own = np.int64(coordinates[w, N - 1]) * length
            t = values[w]
            if contracted.size > 0:
                contract(k, terms, contracted, place, P, 0, constants)
                t = dot(tail, own, P, length)
            add_outer(totals, place, k, terms, t, tail, own, constants)
            if squares.size > 0:
                for term in range(terms):
                    k_squares[term] = k[term] * k[term]
                for r in range(length):
                    own_squares[r] = tail[own + r] * tail[own + r]
                add_outer(squares, place, k_squares, terms, 1.0, own_squares, 0, constants)
