"""Ridge rows of one factor matrix of a Tucker model, features of that mode alone.

With the core's modes turned so that mode n comes first, and k the Kronecker product of the entry's rows of all other
modes, phi[r] = G_r . k: one look at the core an entry, where the features of all blocks take four.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import alloca, for_range
from tensorveil.kernels.reference.least_squares import factorize, inverse_trace, substitute
from tensorveil.kernels.vectors import INT64, Code, data_of, intrinsic

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]


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
    parameters: Floats,
    starts: Integers,
    widths: Integers,
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
    N = coordinates.shape[1]
    R = widths[n]
    k = np.zeros(length)
    phi = np.empty(R)
    H = np.empty((R, R))
    g = np.empty(R)
    column = np.empty(R)
    effective = 0.0
    for i in range(first, last):
        H[:] = 0.0
        g[:] = 0.0
        for position in range(begins[i], begins[i + 1]):
            w = order[position]
            k[0] = 1.0
            size = 1
            for m in range(N - 1, -1, -1):  # the last mode varies fastest; from the back: nothing is overwritten
                if m == n:
                    continue
                other = starts[m] + np.int64(coordinates[w, m]) * widths[m]
                for r in range(widths[m] - 1, -1, -1):
                    a = parameters[other + r]
                    for cell in range(size):
                        k[r * size + cell] = a * k[cell]
                size *= widths[m]
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
