"""Sums of residuals for every index of one mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Change, Integers, Query, Reading
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID, slice_weights, whole_sums
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class RowSums(Query):
    """For every index of a mode, the weighted sum of residuals r in [-1, 1].

    Public coordinates: one number per index, sum a r; counts are public. Otherwise two numbers per index, sum a (1+r)/2
    and sum a (1-r)/2, all of the first before all of the second: their difference is the sum, their total the count.
    """

    reading: Reading
    mode: int
    pure: bool

    def theorem(self, unit: Unit) -> str:
        return "offsets-sums" if unit.coordinates_public else "offsets-pairs"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        rows, size = shard.index(self.mode), shard.shape[self.mode]
        weights = slice_weights(shard, rows, self.pure)
        inside = np.clip(self.reading.residuals(shard), -1.0, 1.0)  # [L2]
        if shard.unit.coordinates_public:
            return (whole_sums(rows, weights * inside, size),)  # [L3] towards zero: never longer
        halves = [weights * (1 + sign * inside) / 2 for sign in (1.0, -1.0)]  # [L4] at least 0, together at most a
        return (np.concatenate([whole_sums(rows, half, size) for half in halves]),)

    @proves("offsets-sums", "offsets-pairs")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit moves the sums by 2; an added or removed one moves the pairs by 1."""
        bound = 2.0 if unit.coordinates_public else 1.0  # [L1]
        return (Change(Norm.L1 if self.pure else Norm.L2, bound, CONTRIBUTION_GRID),)
