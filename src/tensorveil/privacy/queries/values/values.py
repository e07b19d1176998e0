"""The values themselves, each with noise of its own."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations, Where
from tensorveil.privacy.queries.base import Change, Norm
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

VALUE_GRID = 1.0 / VALUE_STEPS  # of centred values


@proves("input-values")
def changed_values(where: Where) -> int:
    """How many observed values one unit changes at most; coordinates are public."""
    if not where.unit.whole_slices:
        return 1
    return max(1, int(np.bincount(where.index(where.unit.mode_number)).max(initial=0)))  # [L1]


@proves("input-values")
def values_change(changes: int, pure: bool) -> Change:
    """How far centred values move where so many of them change: each by 2."""
    if pure:
        return Change(Norm.L1, 2.0 * changes, VALUE_GRID, changes)  # [L2]
    return Change(Norm.L2, math.nextafter(2 * math.sqrt(changes), math.inf), VALUE_GRID, changes)  # [L3]


@final
@dataclass(frozen=True)
class Values:
    """Every observed value on the centred scale, where the bounds are -1 and 1: one number per observation."""

    pure: bool

    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds what noisy values tell."""
        return "input-values"

    def of(self, shard: BoundedObservations) -> Integers:
        """The values of one shard, in steps of 2^-20, in the order of its rows."""
        return shard.steps

    @proves("input-values")
    def sensitivity(self, where: Where) -> Change:
        """How far all values together move where those of one unit change."""
        return values_change(changed_values(where), self.pure)
