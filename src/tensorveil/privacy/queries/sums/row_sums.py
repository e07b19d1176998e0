"""Sums of what is read of values, for every row; with counts where it is private which cells are observed."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import BoundedObservations, Where
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID, check_pairs, slice_weights, whole_sums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Which row an observation counts for: the sum, over some modes, of the public numbers of its indices.

    Attributes
    ----------
    size : how many rows there are
    numbers : tuple of (mode, array)
        One whole number per index of each mode; their sums lie from 0 to size - 1.
    """

    size: int
    numbers: tuple[tuple[int, Integers], ...] = ()

    def __post_init__(self) -> None:
        copies = tuple((mode, np.array(part)) for mode, part in self.numbers)
        for _, part in copies:
            if part.ndim != 1 or not np.can_cast(part.dtype, np.int64):
                raise InputError(f"rows must be whole numbers, one per index, got {part.dtype} {part.shape}; convert")
            part.setflags(write=False)
        lowest = sum(int(part.min(initial=0)) for _, part in copies)
        highest = sum(int(part.max(initial=0)) for _, part in copies)
        if lowest < 0 or highest >= self.size:
            raise InputError(f"rows must lie from 0 to {self.size - 1}, got {lowest} to {highest}; correct them")
        object.__setattr__(self, "numbers", copies)

    @classmethod
    def of_mode(cls, mode: int, size: int) -> Self:
        """One row per index of a mode."""
        return cls(size, ((mode, np.arange(size)),))

    def of(self, where: Where) -> Integers:
        """The row of every observation; numbers of another shape are refused, whichever cells are observed."""
        check_pairs(where, self.size)
        rows = np.zeros(len(where), dtype=np.int64)
        for mode, numbers in self.numbers:
            if len(numbers) != where.shape[mode]:  # [L5]
                raise InputError(f"rows must be one per index of the shape {where.shape}, got {len(numbers)}; correct")
            rows += numbers[where.index(mode)]
        return rows


@final
@dataclass(frozen=True)
class RowSums(Query):
    """For every row the weighted sum of r, where r in [-1, 1] is what is read of a value.

    Public coordinates: one number per row, sum a r; counts are public. Otherwise two numbers per row, sum a (1+r)/2 and
    sum a (1-r)/2, all of the first before all of the second: their difference is the sum, their total the count.
    """

    rows: Rows
    reading: ScoreReading
    pure: bool

    def theorem(self, unit: Unit) -> str:
        return "sums-rows" if unit.coordinates_public else "sums-pairs"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        rows, read = self.rows.of(shard), self.reading.of(shard)  # [L2]
        weights = slice_weights(shard, rows, self.pure)
        if shard.unit.coordinates_public:
            return (whole_sums(rows, weights * read, self.rows.size),)  # [L3] towards zero: never longer
        halves = [weights * (1 + sign * read) / 2 for sign in (1.0, -1.0)]  # [L4] at least 0, together at most a
        return (np.concatenate([whole_sums(rows, half, self.rows.size) for half in halves]),)

    @proves("sums-rows", "sums-pairs")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit moves the sums by 2; an added or removed one moves the pairs by 1."""
        bound = 2.0 if unit.coordinates_public else 1.0  # [L1]
        return (Change(Norm.L1 if self.pure else Norm.L2, bound, CONTRIBUTION_GRID),)
