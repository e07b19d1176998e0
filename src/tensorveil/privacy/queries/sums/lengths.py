"""Sums and counts of the rows of one mode by whole slices, where it is private which cells are observed."""

from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import UnprovenError
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID, whole_sums
from tensorveil.privacy.queries.sums.row_sums import Rows
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

COUNT_PART = 0.4  # what an observation of a slice adds to a count, against at most 1 to a sum
READ_STEPS = 2**30  # what is read is put on this grid: sums of 2^30 such numbers stay below 2^60
LENGTH_MARGIN = 1 - 2.0**-20  # more than rounding can take off the length of a slice's vector


@final
@dataclass(frozen=True)
class Lengths(Query):
    """For every row the weighted sum of r and the weighted count, where each slice's own vector has length one.

    With R the sum of what is read of a slice's observations in a row and k their number, the slice adds a R and
    a COUNT_PART k to the row. Its weight a is one over the length of the vector of all its R and COUNT_PART k: a slice
    whose residuals are small counts for more than in pairs. All sums come before all counts.
    """

    rows: Rows
    reading: ScoreReading

    def theorem(self, unit: Unit) -> str:
        return "sums-lengths"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        slices = shard.index(shard.unit.mode_number)
        steps = np.rint(self.reading.of(shard) * READ_STEPS).astype(np.int64)  # [L6], [L9]
        cells, place, counts = np.unique(
            slices * self.rows.size + self.rows.of(shard), return_inverse=True, return_counts=True
        )
        owners, rows = np.divmod(cells, self.rows.size)
        sums = np.zeros(len(cells), dtype=np.int64)
        np.add.at(sums, place, steps)  # [L10] exact: one whole number per slice and row
        parts = [sums / READ_STEPS, COUNT_PART * counts]
        squares = np.bincount(owners, weights=parts[0] ** 2 + parts[1] ** 2)
        weights = LENGTH_MARGIN / np.sqrt(squares[owners])  # [L11] a slice with observations is longer than zero
        totals = [whole_sums(rows, weights * part, self.rows.size) for part in parts]  # [L12] rounded once per row
        return (np.concatenate(totals),)

    @proves("sums-lengths")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A slice that comes or goes moves sums and counts by a vector of length 1."""
        if unit.kind != "slice":
            raise UnprovenError(f"sums by the length of slices have a theorem for the unit slice only, got {unit}")
        return (Change(Norm.L2, 1.0, CONTRIBUTION_GRID),)  # [L7]
