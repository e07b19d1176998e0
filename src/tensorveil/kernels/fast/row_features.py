"""Features of entries whose rows are drawn (scored_rows.py), of CP and Tucker models, in vectors of single numbers."""

import math
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from tensorveil.kernels.fast.ridge import entry_rows
from tensorveil.kernels.vectors import INT32, INT64, Code, emits, for_range


@emits
def gather(c: Code, rows: Any, starts: Any, others: Any, begin: Any, count: Any, P: Any, constants: Any) -> None:
    """P[k] = features of the next `count` entries; starts[m] of the modes whose rows are not being drawn."""
    b, (N, R, extra) = c.builder, constants
    length = c.padded(R + extra)
    mine = b.gep(others, [b.mul(begin, INT64(N - 1))], source_etype=INT32)
    with for_range(b, count) as loop:
        entry = b.gep(mine, [b.mul(loop.index, INT64(N - 1))], source_etype=INT32)
        found = entry_rows(c, rows, starts, entry, N - 1, length)
        offsets = _sum(c, [c.load_one(one, R) for one in found])
        out = c.pointer(P, b.mul(loop.index, INT64(length)))
        for first, lanes in c.pieces(length):
            phi = c.product([c.load(one, first, lanes) for one in found])
            c.store(_with_offsets(c, phi, offsets, R - first), out, first)


@emits
def gather_tucker(
    c: Code,
    rows: Any,
    starts: Any,
    matrices: Any,
    others: Any,
    begin: Any,
    count: Any,
    P: Any,
    constants: Any,
    ranks: Any,
) -> None:
    """P[k] = features of the next `count` entries of a Tucker model.

    The numbers of `ranks` are the place, among the other modes, of the one that `matrices` was made of, and the ranks
    of all other modes.
    """
    b, (N, R, extra), (contracted, *widths) = c.builder, constants, ranks
    length = c.padded(R + extra)
    terms = math.prod(widths) // widths[contracted]
    mine = b.gep(others, [b.mul(begin, INT64(N - 1))], source_etype=INT32)
    with for_range(b, count) as loop:
        entry = b.gep(mine, [b.mul(loop.index, INT64(N - 1))], source_etype=INT32)
        found = [c.row(rows, starts, entry, m, c.padded(width + extra)) for m, width in enumerate(widths)]
        index = b.load(b.gep(entry, [INT64(contracted)], source_etype=INT32), align=4, typ=INT32)
        matrix = c.pointer(matrices, b.mul(b.zext(index, INT64), INT64(terms * length)))
        offsets = _sum(c, [c.load_one(one, width) for one, width in zip(found, widths, strict=True)])
        weights = [ir.Constant(c.number, 1.0)]
        for m, width in enumerate(widths):
            if m != contracted:
                own = [c.load_one(found[m], r) for r in range(width)]
                weights = [b.fmul(weight, number) for weight in weights for number in own]
        out = c.pointer(P, b.mul(loop.index, INT64(length)))
        for first, lanes in c.pieces(length):
            phi = c.zero(lanes)
            for term, weight in enumerate(weights):
                phi = c.fma(c.fill(weight, lanes), c.load(matrix, term * length + first, lanes), phi)
            c.store(_with_offsets(c, phi, offsets, R - first), out, first)


def _sum(c: Code, numbers: list[Any]) -> Any:
    total = numbers[0]
    for number in numbers[1:]:
        total = c.builder.fadd(total, number)
    return total


def _with_offsets(c: Code, phi: Any, offsets: Any, place: int) -> Any:
    """A vector of features with a one at a place and other offsets at the next, where it reaches as far."""
    for at, value in ((place, ir.Constant(c.number, 1.0)), (place + 1, offsets)):
        if 0 <= at < phi.type.count:
            phi = c.builder.insert_element(phi, value, INT32(at))
    return phi
