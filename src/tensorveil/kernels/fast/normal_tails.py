"""Tails of the normal law, four at a time: what draws of latent values spend their time on.

With x = |z| / sqrt(2), the chance beyond |z| is erfc(x) / 2 = e^(-x^2) g(u) / (2 + 4 x), g a polynomial in

    u = (x - K) / (x + K)        (after Shepherd, Laframboise 1981), right to 13 digits.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import INT64, Code, data_of, declared, for_range, intrinsic

Floats = NDArray[np.float64]

FARTHEST = 26.0  # x beyond which a tail is left at what it is there, below 1e-295
K = 3.75
G = (
    1.237512630837793,
    -0.14024059858488735,
    0.003585415492490307,
    0.08227673844999828,
    -0.10880393037584102,
    0.09230432187961407,
    -0.05869339555609487,
    0.028362271532193874,
    -0.009746599595854591,
    0.001755652150221812,
    0.00029379011466685375,
    -0.0002902239191008485,
    5.146994208239465e-05,
    2.249865219405652e-05,
    -1.1180229445294602e-05,
    -1.089368784908766e-06,
    1.5094521102289029e-06,
    1.275627722577113e-08,
    -1.2653418232991095e-07,
)
EXP_TERMS = 12
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # their sum; the first ends with 21 zero bits


@intrinsic
def upper_tails(typingctx: Any, z: Any, tails: Any, count: Any) -> Any:
    """tails = chances beyond |z|; both arrays must have room for `count` rounded up to a multiple of four."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        given, found = (data_of(context, b, signature.args[k], args[k]) for k in (0, 1))
        kind = ir.VectorType(c.number, c.lanes)
        integers = ir.VectorType(INT64, c.lanes)

        def constant(number: float) -> Any:
            return ir.Constant(kind, [number] * c.lanes)

        def function(name: str) -> Any:
            return declared(b.module, ir.FunctionType(kind, [kind]), f"llvm.{name}.v{c.lanes}f64")

        with for_range(b, b.sdiv(b.add(args[2], INT64(c.lanes - 1)), INT64(c.lanes))) as loop:
            place = b.mul(loop.index, INT64(c.lanes))
            x = b.fmul(b.call(function("fabs"), [c.load(given, place, c.lanes)]), constant(math.sqrt(0.5)))
            x = b.select(b.fcmp_ordered("<", x, constant(FARTHEST)), x, constant(FARTHEST))
            u = b.fdiv(b.fsub(x, constant(K)), b.fadd(x, constant(K)))
            g = constant(G[-1])
            for number in G[-2::-1]:
                g = c.fma(g, u, constant(number))
            power = b.fmul(b.fsub(constant(-0.0), x), x)
            n = b.call(function("rint"), [b.fmul(power, constant(1 / math.log(2)))])
            r = c.fma(n, constant(-LN2_LOW), c.fma(n, constant(-LN2_HIGH), power))
            e = constant(1 / math.factorial(EXP_TERMS))
            for term in range(EXP_TERMS - 1, -1, -1):
                e = c.fma(e, r, constant(1 / math.factorial(term)))
            bits = b.shl(
                b.add(c.whole(n), ir.Constant(integers, [1023] * c.lanes)), ir.Constant(integers, [52] * c.lanes)
            )
            e = b.fmul(e, b.bitcast(bits, kind))  # 2^n from the bits of its exponent
            c.store(b.fdiv(b.fmul(e, g), c.fma(x, constant(4.0), constant(2.0))), found, place)
        return context.get_dummy_value()

    return types.void(z, tails, types.int64), code


@compiled
def fill_tails(z: Floats, tails: Floats, count: int) -> None:
    """`upper_tails`, to be called from outside of kernels."""
    upper_tails(z, tails, count)


@compiled
def mass_between(low: float, low_tail: float, high: float, high_tail: float) -> float:
    """Chance of lying between two numbers, from their tails, in the tail where it has most digits."""
    if low > 0.0:
        return low_tail - high_tail
    if high < 0.0:
        return high_tail - low_tail
    return 1.0 - low_tail - high_tail
