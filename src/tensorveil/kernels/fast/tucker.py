"""Descent and ridge rows of Tucker models, with the core as rows of vectors.

Let mode n come first in the core G, G_r be its rows and k the Kronecker product of the entry's rows of all other modes.
Then phi_n[r] = G_r . k, so that the features of one mode take one look at the core, where those of all blocks take
four. Rows of G, and k, are padded with zeros to whole vectors.

A step of descent reads and writes the core once. With n the first mode and a the entry's row of its factor,

    P = sum_r a_r G_r  (the core for the other modes),    phi_1[r] = G_r . k,    G_r = shrink G_r + step e a_r k.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference import blocks
from tensorveil.kernels.reference.blocks import Blocks
from tensorveil.kernels.reference.least_squares import factorize, inverse_trace, multiply_others, substitute
from tensorveil.kernels.vectors import INT64, Code, alloca, data_of, for_range, intrinsic


@intrinsic
def read_row(typingctx: Any, core: Any, begin: Any, k: Any, a: Any, P: Any, place: Any, length: Any) -> Any:
    """P[place:] += a G_r, where G_r begins at `begin`; returns G_r . k. The length is a whole number of vectors."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        rows, product, sums = (data_of(context, b, signature.args[n], args[n]) for n in (0, 2, 4))
        total = alloca(b, ir.VectorType(c.number, c.lanes))
        b.store(c.zero(c.lanes), total)
        factor = c.fill(args[3], c.lanes)
        with for_range(b, b.sdiv(args[6], INT64(c.lanes))) as loop:
            at = b.mul(loop.index, INT64(c.lanes))
            row = c.load(rows, b.add(args[1], at), c.lanes)
            aim = b.add(args[5], at)
            c.store(c.fma(factor, row, c.load(sums, aim, c.lanes)), sums, aim)
            b.store(c.fma(row, c.load(product, at, c.lanes), b.load(total)), total)
        return c.sum([b.load(total)])

    ints = types.int64
    return types.float64(core, ints, k, types.float64, P, ints, ints), code


@intrinsic
def write_row(typingctx: Any, core: Any, begin: Any, k: Any, shrink: Any, move: Any, length: Any) -> Any:
    """G_r = shrink G_r + move k."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        rows, product = (data_of(context, b, signature.args[n], args[n]) for n in (0, 2))
        keep, move_by = c.fill(args[3], c.lanes), c.fill(args[4], c.lanes)
        with for_range(b, b.sdiv(args[5], INT64(c.lanes))) as loop:
            at = b.mul(loop.index, INT64(c.lanes))
            place = b.add(args[1], at)
            moved = b.fmul(move_by, c.load(product, at, c.lanes))
            c.store(c.fma(keep, c.load(rows, place, c.lanes), moved), rows, place)
        return context.get_dummy_value()

    floats, ints = types.float64, types.int64
    return types.void(core, ints, k, floats, floats, ints), code


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


@intrinsic
def dot(typingctx: Any, A: Any, begin: Any, k: Any, length: Any) -> Any:
    """Sum of A[begin + c] k[c] over c < length, a whole number of vectors."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        left, right = (data_of(context, b, signature.args[place], args[place]) for place in (0, 2))
        total = alloca(b, ir.VectorType(c.number, c.lanes))
        b.store(c.zero(c.lanes), total)
        with for_range(b, b.sdiv(args[3], INT64(c.lanes))) as loop:
            at = b.mul(loop.index, INT64(c.lanes))
            value = c.load(left, b.add(args[1], at), c.lanes)
            b.store(c.fma(value, c.load(right, at, c.lanes), b.load(total)), total)
        return c.sum([b.load(total)])

    return types.float64(A, types.int64, k, types.int64), code


@compiled
def solve_rows(
    model: Blocks,
    core: Floats,
    length: int,
    coordinates: Coordinates,
    values: Floats,
    order: Integers,
    begins: Integers,
    n: int,
    ridge: float,
    first: int,
    last: int,
) -> float:
    """`least_squares.solve_rows` for rows first to last of a Tucker model; core[r length:] is G_r, then zeros."""
    parameters, starts, widths = model
    R = widths[n]
    k, phi = np.zeros(length), np.empty(R)
    H, g, column = np.empty((R, R)), np.empty(R), np.empty(R)
    effective = 0.0
    for i in range(first, last):
        H[:] = 0.0
        g[:] = 0.0
        for position in range(begins[i], begins[i + 1]):
            w = order[position]
            multiply_others(model, coordinates, w, n, k)
            x = values[w]
            for r in range(R):
                phi[r] = dot(core, r * length, k, length)
                g[r] += phi[r] * x
                for b in range(r + 1):
                    H[r, b] += phi[r] * phi[b]
        for r in range(R):
            H[r, r] += ridge
        if not factorize(H):
            continue
        substitute(H, g)
        effective += R - ridge * inverse_trace(H, column)
        row = starts[n] + i * R
        for r in range(R):
            parameters[row + r] = g[r]
    return effective
