"""Small systems of linear equations, several of them at once: one system per lane.

An array holds one number of all systems, then the next number of all systems; there are SYSTEMS_BYTES of each.
"""

from typing import Any

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import Code, Row, Value, Variable, emits

SYSTEMS_BYTES = 64  # of one number of all systems that are solved at once


def _number(c: Code, array: Row, place: Value) -> Row:
    """One number of all systems."""
    return array.at(place * (SYSTEMS_BYTES // c.bytes))


def _pieces(c: Code) -> range:
    """Vectors of one number of all systems."""
    return c.pieces(SYSTEMS_BYTES // c.bytes)


@emits
def subtract_products(
    c: Code,
    A: Row,
    target: Value,
    B: Row,
    one: Value,
    one_step: Value,
    C: Row,
    other: Value,
    other_step: Value,
    count: Value,
) -> None:
    """A[target] -= sum over k < count of B[one + k one_step] C[other + k other_step], in all systems at once."""
    aim = _number(c, A, target)
    sums = [Variable(aim.vector(begin)) for begin in _pieces(c)]
    for k in c.loop(count):
        first, second = _number(c, B, one + k * one_step), _number(c, C, other + k * other_step)
        for total, begin in zip(sums, _pieces(c), strict=True):
            total.now = c.fma(-first.vector(begin), second.vector(begin), total.now)
    for total, begin in zip(sums, _pieces(c), strict=True):
        aim.store(total.now, begin)


@emits
def multiply(c: Code, A: Row, target: Value, B: Row, other: Value) -> None:
    """A[target] *= B[other], in all systems."""
    aim, by = _number(c, A, target), _number(c, B, other)
    for begin in _pieces(c):
        aim.store(aim.vector(begin) * by.vector(begin), begin)


@emits
def inverse_root(c: Code, A: Row, target: Value, good: Row) -> None:
    """A[target] = 1 / sqrt(A[target]) in all systems; where that is not above 0, 0, and good = 0."""
    aim = _number(c, A, target)
    for begin in _pieces(c):
        value = aim.vector(begin)
        right = value > 0.0
        aim.store(c.choose(right, 1.0 / c.root(c.choose(right, value, 1.0)), 0.0), begin)
        good.store(c.choose(right, good.vector(begin), 0.0), begin)


@compiled
def factorize_systems(D: int, H: Any, good: Any) -> None:
    """H becomes its Cholesky factor in all systems, with the inverse of the diagonal in the diagonal's place.

    H[a D + b] is the lower triangle, one number of each system. Systems that are not positive definite in
    floating-point arithmetic get good = 0.
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
