"""Small systems of linear equations, several of them at once: one system per lane.

An array holds one number of all systems, then the next number of all systems; there are SYSTEMS_BYTES of each.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import INT64, Code, alloca, declared, emits, for_range

SYSTEMS_BYTES = 64  # of one number of all systems that are solved at once


def _systems(c: Code) -> list[tuple[int, int]]:
    """Vectors of one number of all systems."""
    return c.pieces(SYSTEMS_BYTES // c.bytes)


def _number(c: Code, array: Any, place: Any) -> Any:
    """Where a number of all systems is."""
    return c.pointer(array, c.builder.mul(place, INT64(SYSTEMS_BYTES // c.bytes)))


@emits
def subtract_products(
    c: Code, A: Any, target: Any, B: Any, one: Any, one_step: Any, C: Any, other: Any, other_step: Any, count: Any
) -> None:
    """A[target] -= sum over c < count of B[one + c one_step] C[other + c other_step], in all systems at once."""
    b = c.builder
    aim = _number(c, A, target)
    sums = [alloca(b, ir.VectorType(c.number, size)) for _, size in _systems(c)]
    for place, piece in zip(sums, _systems(c), strict=True):
        b.store(c.load(aim, *piece), place)
    with for_range(b, count) as loop:
        first = _number(c, B, b.add(one, b.mul(loop.index, one_step)))
        second = _number(c, C, b.add(other, b.mul(loop.index, other_step)))
        for place, piece in zip(sums, _systems(c), strict=True):
            minus = b.fsub(ir.Constant(ir.VectorType(c.number, piece[1]), [-0.0] * piece[1]), c.load(first, *piece))
            b.store(c.fma(minus, c.load(second, *piece), b.load(place)), place)
    for place, piece in zip(sums, _systems(c), strict=True):
        c.store(b.load(place), aim, piece[0])


@emits
def multiply(c: Code, A: Any, target: Any, B: Any, other: Any) -> None:
    """A[target] *= B[other], in all systems."""
    aim, by = _number(c, A, target), _number(c, B, other)
    for piece in _systems(c):
        c.store(c.builder.fmul(c.load(aim, *piece), c.load(by, *piece)), aim, piece[0])


@emits
def inverse_root(c: Code, A: Any, target: Any, good: Any) -> None:
    """A[target] = 1 / sqrt(A[target]) in all systems; where that is not above 0, 0, and good = 0."""
    b = c.builder
    aim = _number(c, A, target)
    for first, size in _systems(c):
        kind = ir.VectorType(c.number, size)
        root = declared(b.module, ir.FunctionType(kind, [kind]), f"llvm.sqrt.v{size}f{8 * c.bytes}")
        value = c.load(aim, first, size)
        one, zero = ir.Constant(kind, [1.0] * size), c.zero(size)
        right = b.fcmp_ordered(">", value, zero)
        result = b.fdiv(one, b.call(root, [b.select(right, value, one)]))
        c.store(b.select(right, result, zero), aim, first)
        c.store(b.select(right, c.load(good, first, size), zero), good, first)


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
