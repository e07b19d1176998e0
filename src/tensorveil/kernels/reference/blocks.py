"""The blocks of a model, and the features of an entry.

A model is one flat vector of numbers, cut into blocks: one factor matrix per mode and, for Tucker, the core last. An
entry w touches one row of each block, and its prediction is linear in each of these rows, with the others held fixed:

    xhat_w = phi_b . row_b        for every block b.

`phi_b` are the features of block b. For CP, xhat_w = sum_r prod_n a^(n)[i_n, r]; for Tucker,
the sum over core cells of g * prod_n a^(n)[i_n, r_n].
"""

from typing import NamedTuple

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fused import LANES, fma


class Blocks(NamedTuple):
    """The numbers of a model in one vector, where each block begins in it, and the length of a row of each block."""

    parameters: Floats
    starts: Integers
    widths: Integers


@compiled
def scratch(model: Blocks, N: int) -> tuple[Integers, Floats, Floats]:
    """Room for what `entry_features` fills in: rows and phi, and for its own work."""
    return np.empty(model.starts.size, np.int64), np.empty(model.widths.sum()), np.empty(work_size(model.widths, N))


@compiled
def work_size(widths: Integers, N: int) -> int:
    """Its scratch space: for Tucker the partly contracted cores, |G| + |G|/r_1 + ... + 1, and as much again."""
    if widths.size == N:
        return 0
    total, size = np.int64(1), widths[N]
    for n in range(N):
        total += size
        size //= widths[n]
    return int(2 * total)


@compiled
def find_rows(coordinates: Coordinates, w: int, starts: Integers, widths: Integers, rows: Integers) -> None:
    """rows[b] = where the row of block b that entry w touches begins in the parameters."""
    N = coordinates.shape[1]
    for n in range(N):
        rows[n] = starts[n] + np.int64(coordinates[w, n]) * widths[n]
    for b in range(N, starts.size):  # the core is one row
        rows[b] = starts[b]


@compiled
def entry_features(model: Blocks, coordinates: Coordinates, w: int, rows: Integers, phi: Floats, work: Floats) -> float:
    """Fill in the rows of entry w and its features of all blocks, one after the other; returns xhat."""
    parameters, starts, widths = model
    find_rows(coordinates, w, starts, widths, rows)
    if widths.size == coordinates.shape[1]:
        return cp_features(parameters, rows, widths[0], phi)
    return tucker_features(parameters, rows, widths, phi, work)


@compiled
def cp_features(parameters: Floats, rows: Integers, R: int, phi: Floats) -> float:
    """phi of mode n = Hadamard product of the rows of all other modes; returns xhat.

    Each is the product of the rows to the left times the product of the rows to the right: no division is needed, so
    rows may hold zeros.
    """
    N = rows.size
    xhat = 0.0
    for r in range(R):
        left = 1.0
        for n in range(N):
            phi[n * R + r] = left
            left *= parameters[rows[n] + r]
        xhat += left
        right = 1.0
        for n in range(N - 1, -1, -1):
            phi[n * R + r] *= right
            right *= parameters[rows[n] + r]
    return xhat


@compiled
def tucker_features(parameters: Floats, rows: Integers, widths: Integers, phi: Floats, work: Floats) -> float:
    """phi of mode n = core contracted with the rows of all other modes, phi of the core = their Kronecker product.

    Forwards, P_n is the core contracted with the first n rows (P_0 the core, P_N = xhat, the last mode varies fastest).
    Backwards, D_n is the Kronecker product of the rows after the first n (D_N = 1, D_0 the core's features). Then

        phi_n[r] = sum over rest of P_(n-1)[r, rest] D_n[rest].
    """
    N = widths.size - 1
    size = widths[N]
    work[:size] = parameters[rows[N] : rows[N] + size]
    begin = np.int64(0)  # of P_n in work
    for n in range(N):
        rest = size // widths[n]
        following = begin + size
        work[following : following + rest] = 0.0
        for r in range(widths[n]):
            a = parameters[rows[n] + r]
            for cell in range(rest):
                work[following + cell] += a * work[begin + r * rest + cell]
        begin = following
        size = rest
    xhat = work[begin]

    product = begin + 1  # of D_n in work
    work[product] = 1.0
    position = widths[:N].sum()  # of phi_n, from the last mode to the first
    for n in range(N - 1, -1, -1):
        begin -= widths[n] * size  # of P_n, the core before this mode was contracted
        position -= widths[n]
        following = product + size
        for r in range(widths[n]):
            a = parameters[rows[n] + r]
            total = 0.0
            for cell in range(size):
                total += work[begin + r * size + cell] * work[product + cell]
                work[following + r * size + cell] = a * work[product + cell]
            phi[position + r] = total
        product = following
        size *= widths[n]
    position = widths[:N].sum()
    phi[position : position + size] = work[product : product + size]
    return float(xhat)


@compiled
def block_row_features(model: Blocks, rows: Integers, N: int, block: int, phi: Floats, work: Floats) -> int:
    """Fill in the features of one block and return where they begin in phi; other parts of phi are undefined.

    Products of CP rows go from the first mode to the last. For four and more modes this order is not that of
    `cp_features`; it is that of the fast kernels that read entries sorted by one mode (fast/ridge.py), and both must
    round alike.
    """
    parameters, widths = model.parameters, model.widths
    first = widths[:block].sum()
    if widths.size != N:
        tucker_features(parameters, rows, widths, phi, work)
        return int(first)
    for r in range(widths[0]):
        product = 1.0
        for n in range(N):
            if n != block:
                product *= parameters[rows[n] + r]
        phi[first + r] = product
    return int(first)


@compiled
def add_products(a: Floats, first: int, b: Floats, second: int, count: int, lanes: Floats) -> None:
    """Add a[first + r] b[second + r] to lanes[r % LANES] for all r < count, in this order.

    A sum of floats depends on its order. The fast kernels keep one partial sum in each lane of a vector, so the
    reference keeps them as well: both must round to the same integers (see vectors.py).
    """
    for r in range(count):
        lanes[r % LANES] = fma(a[first + r], b[second + r], lanes[r % LANES])


@compiled
def sum_of_lanes(lanes: Floats) -> float:
    """Sum of the partial sums, in pairs as the fast kernels add them."""
    return float((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))
