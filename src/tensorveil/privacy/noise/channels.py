"""Finite channels: the number of a level goes in, a random symbol comes out.

The promise is one line: no symbol is more than e^epsilon times likelier under one level than under another. It is
checked on the matrix of whole numbers from which the noise source samples, so that nothing is lost between the proof
and the coin. How a table is designed (planning/channel_design.py) is a matter of accuracy alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError

BITS = 62  # each row of counts adds up to 2^BITS exactly
TOTAL = 2**BITS
MOST_LEVELS = 64
DIGITS = 60


@final
@dataclass(frozen=True, eq=False)
class Channel:
    """A table of chances in whole numbers.

    Attributes
    ----------
    epsilon : what is promised: ratio() is at most this, or the channel cannot be made
    counts : array (levels, symbols) of int64
        Q(symbol | level) = counts / 2^BITS.
    """

    epsilon: float
    counts: Integers

    def __post_init__(self) -> None:
        promised = checks.positive_number("epsilon", self.epsilon)
        counts = np.array(self.counts)
        if counts.dtype != np.int64 or counts.ndim != 2 or not 2 <= len(counts) <= MOST_LEVELS:
            raise InputError(
                f"counts must be int64 with one row per level, 2 to {MOST_LEVELS} rows, "
                f"got {counts.dtype} {counts.shape}; transpose it or merge levels"
            )
        if (counts < 0).any() or any(sum(row) != TOTAL for row in counts.tolist()):
            raise InputError(f"counts must be at least 0 and add up to 2^{BITS} in every row, got others; round again")
        counts = np.frombuffer(counts.tobytes(), dtype=np.int64).reshape(counts.shape)  # of bytes: never writeable
        object.__setattr__(self, "counts", counts)
        if not self.ratio() <= promised:
            raise InputError(f"counts must keep within epsilon = {promised!r}, got {self.ratio()!r}; use a wider one")

    def ratio(self) -> float:
        """The largest log ratio of two chances of one symbol, rounded up; infinite if a symbol excludes a level."""
        largest = Decimal(0)
        with localcontext() as context:
            context.prec = DIGITS
            for column in self.counts.T.tolist():
                if max(column) > 0:
                    if min(column) == 0:
                        return math.inf
                    context.rounding = ROUND_CEILING  # [L1] the quotient is rounded up
                    quotient = Decimal(max(column)) / Decimal(min(column))
                    largest = max(
                        largest, quotient.ln().next_plus()
                    )  # [L2] ln is right to half a digit: one more is up
            result = float(largest)
            return result if Decimal(result) >= largest else math.nextafter(result, math.inf)  # [L3]

    def drawn(self, levels: Integers, draw: Callable[[int], NDArray[np.uint64]]) -> Integers:
        """One symbol per number of a level, each by a random word of its own; without error, by the integer table."""
        if levels.size and not (levels.min() >= 0 and levels.max() < len(self.counts)):
            raise InputError(f"symbols must be from 0 to {len(self.counts) - 1}, got others; number the levels from 0")
        outputs, flat = np.empty(levels.size, dtype=np.int64), levels.ravel()
        words = draw(levels.size) >> np.uint64(64 - BITS)
        for level, counts in enumerate(self.counts):
            chosen = flat == level
            ends = np.cumsum(counts).astype(np.uint64)  # [L4] the last is 2^BITS, above every word
            outputs[chosen] = np.searchsorted(ends, words[chosen], side="right")
        return outputs.reshape(levels.shape)

    @cached_property
    def chances(self) -> Floats:
        """Q(symbol | level) as floats."""
        return self.counts / float(TOTAL)
