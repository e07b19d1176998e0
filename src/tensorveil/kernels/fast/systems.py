"""Small systems of linear equations, several of them at once: one system per lane.

An array holds one number of all systems, then the next number of all systems; there are SYSTEMS_BYTES of each.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import INT64, Code, alloca, data_of, declared, for_range, intrinsic

SYSTEMS_BYTES = 64  # of one number of all systems that are solved at once


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
