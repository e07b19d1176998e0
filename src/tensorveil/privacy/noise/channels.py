"""Finite channels: a value of a public grid goes in, a random symbol comes out.

The promise is one line: no symbol is more than e^epsilon times likelier under one level than under another. It is
checked on the matrix of whole numbers from which the noise source samples, so that nothing is lost between the proof
and the coin. How a table is designed (planning/channel_design.py) is a matter of accuracy alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BITS = 62  # each row of counts adds up to 2^BITS exactly
TOTAL = 2**BITS
MAX_LEVELS = 14  # the linear program of the design has 2^levels columns
DIGITS = 60


@final
@dataclass(frozen=True, eq=False)
class Channel:
    """A table of chances in whole numbers.

    Attributes
    ----------
    epsilon : float
        What is promised: ratio() is at most this, or the channel cannot be made.
    levels : tuple of float
        The public values that may go in, increasing.
    counts : array (levels, symbols) of int64
        Q(symbol | level) = counts / 2^BITS.
    weights : array
        Public chance of each level, for the pseudo-values.
    information : float
        Share of the Fisher information about the latent mean that passes, under the prior of the design.
    """

    epsilon: float
    levels: tuple[float, ...]
    counts: Integers
    weights: Floats
    information: float = math.nan

    def __post_init__(self) -> None:
        promised = checks.positive_number("epsilon", self.epsilon)
        grid = checked_levels(self.levels)
        counts = np.array(self.counts)
        weights = np.array(self.weights, dtype=np.float64)
        if counts.dtype != np.int64 or counts.ndim != 2 or counts.shape[0] != len(grid):
            raise InputError(f"counts must be int64 with one row a level, got {counts.dtype} {counts.shape}; transpose")
        if (counts < 0).any() or any(sum(row) != TOTAL for row in counts.tolist()):
            raise InputError(f"counts must be at least 0 and add up to 2^{BITS} in every row, got others; round again")
        if weights.shape != (len(grid),) or not (weights > 0).all():
            raise InputError(f"weights must be one positive number a level, got {weights.shape}; use equal ones")
        counts = np.frombuffer(counts.tobytes(), dtype=np.int64).reshape(counts.shape)  # of bytes: never writeable
        object.__setattr__(self, "levels", grid)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "weights", weights / weights.sum())
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

    @cached_property
    def chances(self) -> Floats:
        """Q(symbol | level) as floats."""
        return self.counts / float(TOTAL)

    @cached_property
    def pseudo_values(self) -> Floats:
        """A number for each symbol that stands for the value it came from.

        With at least as many (independent) symbols as levels it is unbiased: its mean, given any level, is the level,
        and its variance over `weights` is the least possible. With fewer no unbiased one exists: the mean follows the
        levels as closely as it can (least squares over `weights`) and is then stretched about the overall mean until
        its slope on the level is one, so that averages over many levels are not shrunk.
        """
        grid = np.asarray(self.levels)
        roots = np.sqrt(self.weights)[:, None]
        columns = np.sqrt(self.weights @ self.chances)
        overall = float(self.weights @ grid)
        solution = np.linalg.lstsq(roots * self.chances / columns, roots[:, 0] * (grid - overall), rcond=1e-9)[0]
        values = solution / columns
        slope = float((self.weights * (grid - overall)) @ (self.chances @ values))
        return np.asarray(overall + values * float(self.weights @ (grid - overall) ** 2) / slope)

    @cached_property
    def means(self) -> Floats:
        """Mean of the pseudo-value given each level."""
        return self.chances @ self.pseudo_values

    @cached_property
    def variances(self) -> Floats:
        """Variance of the pseudo-value given each level."""
        return np.asarray((self.chances * (self.pseudo_values - self.means[:, None]) ** 2).sum(axis=1))

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the pseudo-value is the level, for every level, to 1e-6 of the range."""
        grid = np.asarray(self.levels)
        return bool(np.abs(self.means - grid).max() <= 1e-6 * (grid[-1] - grid[0]))


def quantize(values: Floats, levels: Sequence[float]) -> Integers:
    """The index of the nearest level of each value, the upper one half-way between two."""
    grid = np.asarray(checked_levels(levels))
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; drop them while reading")
    return np.searchsorted((grid[1:] + grid[:-1]) / 2, numbers, side="right").astype(np.int64)


def between_levels(values: Floats, levels: Sequence[float]) -> tuple[Integers, NDArray[np.uint64]]:
    """The index of the level below each value, and the share of the way to the next one in whole 2^-BITS.

    Values beyond the levels count as the first or the last.
    """
    grid = np.asarray(checked_levels(levels))
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; drop them while reading")
    places = np.asarray(np.interp(numbers, grid, np.arange(len(grid))))
    below = np.floor(places)
    return below.astype(np.int64), ((places - below) * 2.0**BITS).astype(np.uint64)


def checked_levels(levels: Sequence[float]) -> tuple[float, ...]:
    grid = tuple(checks.finite_number(f"levels[{place}]", float(level)) for place, level in enumerate(levels))
    if not 2 <= len(grid) <= MAX_LEVELS:
        raise InputError(f"levels must be 2 to {MAX_LEVELS} numbers, got {len(grid)}; merge some into bins")
    if not all(low < high for low, high in pairwise(grid)):
        raise InputError(f"levels must increase, got {grid}; sort them and drop doubles")
    return grid
