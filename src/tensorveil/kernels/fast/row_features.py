"""Features of entries whose rows are drawn (scored_rows.py), of CP and Tucker models, in vectors of single numbers."""

import math

from tensorveil.kernels.fast.ridge import entry_rows
from tensorveil.kernels.vectors import Code, Row, Value, emits


@emits
def gather(
    c: Code, rows: Row, starts: list[Value], others: Row, begin: Value, count: Value, P: Row, constants: tuple[int, ...]
) -> None:
    """P[k] = features of the next `count` entries; starts[m] of the modes whose rows are not being drawn."""
    N, R, extra = constants
    length = c.padded(R + extra)
    for k in c.loop(count):
        mine = entry_rows(c, rows, starts, others, begin + k, N - 1, length)
        offsets = _sum([row[R] for row in mine])
        out = P.at(k * length)
        for first in c.pieces(length):
            phi = c.product([row.vector(first) for row in mine])
            out.store(_with_offsets(phi, offsets, R - first), first)


@emits
def gather_tucker(
    c: Code,
    rows: Row,
    starts: list[Value],
    matrices: Row,
    others: Row,
    begin: Value,
    count: Value,
    P: Row,
    constants: tuple[int, ...],
    ranks: tuple[int, ...],
) -> None:
    """P[k] = features of the next `count` entries of a Tucker model.

    The numbers of `ranks` are the place, among the other modes, of the one that `matrices` was made of, and the ranks
    of all other modes.
    """
    (N, R, extra), (contracted, *widths) = constants, ranks
    length = c.padded(R + extra)
    terms = math.prod(widths) // widths[contracted]
    for k in c.loop(count):
        entry = others.at((begin + k) * (N - 1))
        mine = [rows.at(starts[m] + entry[m] * c.padded(width + extra)) for m, width in enumerate(widths)]
        matrix = matrices.at(entry[contracted] * (terms * length))
        offsets = _sum([row[width] for row, width in zip(mine, widths, strict=True)])
        weights = [c.constant(1.0)]
        for m, width in enumerate(widths):
            if m != contracted:
                own = [mine[m][r] for r in range(width)]
                weights = [weight * number for weight in weights for number in own]
        out = P.at(k * length)
        for first in c.pieces(length):
            phi = c.zero
            for term, weight in enumerate(weights):
                phi = c.fma(weight, matrix.vector(term * length + first), phi)
            out.store(_with_offsets(phi, offsets, R - first), first)


def _sum(numbers: list[Value]) -> Value:
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


def _with_offsets(phi: Value, offsets: Value, place: int) -> Value:
    """A vector of features with a one at a place and other offsets at the next, where it reaches as far."""
    for at, value in ((place, 1.0), (place + 1, offsets)):
        if 0 <= at < phi.lanes:
            phi = phi.replaced(at, value)
    return phi
