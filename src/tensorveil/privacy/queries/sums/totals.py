"""Totals of values and of their squares: the level and spread of the data, bought first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Change, Integers, Query
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID, slice_weights, whole_sums
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class Totals(Query):
    """Weighted totals of the centred values y and of y^2, over all observations.

    Public coordinates: (sum a y, sum a y^2). Otherwise (sum a (1+y)/2, sum a (1-y)/2, sum a y^2), which tell the count
    as well. The weights a of a unit add up to at most 1.
    """

    pure: bool

    def theorem(self, unit: Unit) -> str:
        return "level"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        everywhere = np.zeros(len(shard), dtype=np.int64)
        weights = slice_weights(shard, everywhere, self.pure)
        y = shard.centred
        if shard.unit.coordinates_public:
            parts = [weights * y, weights * y**2]
        else:
            parts = [weights * (1 + y) / 2, weights * (1 - y) / 2, weights * y**2]
        return (np.concatenate([whole_sums(everywhere, part, 1) for part in parts]),)  # [L3] towards zero

    @proves("level")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit moves the two totals by 2 and 1; an added one moves the three by 1 together and 1."""
        if unit.coordinates_public:
            bound = 3.0 if self.pure else math.sqrt(5.0)  # [L1]
        else:
            bound = 2.0 if self.pure else math.sqrt(2.0)  # [L2]
        return (Change(Norm.L1 if self.pure else Norm.L2, bound, CONTRIBUTION_GRID),)
