"""Every cell of the box: what was observed there, or a public default."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.values.values import VALUE_GRID
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class DenseCells(Query):
    """For every cell of the box the sum of its values' deviations from the default, clipped so that the sum with the
    default keeps to the bounds; zero where nothing was observed.

    Attributes
    ----------
    default : the public value of a missing cell, in steps of 2^-20 from the middle of the bounds
    """

    shape: tuple[int, ...]
    default: int
    pure: bool

    def theorem(self, unit: Unit) -> str:
        return "input-dense"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        if self.shape != shard.shape:  # numpy would refuse cells outside, if any are observed there
            raise InputError(f"the box must have the shape {shard.shape}, got {self.shape}; correct it")
        cells = np.zeros(math.prod(self.shape), dtype=np.int64)
        np.add.at(cells, np.ravel_multi_index(tuple(shard.coordinates.T), self.shape), shard.steps - self.default)
        return (cells,)

    def finish(self, totals: tuple[Integers, ...]) -> tuple[Integers, ...]:
        """A cell with several observations keeps to the range that one of them has."""
        return (np.clip(totals[0], -VALUE_STEPS - self.default, VALUE_STEPS - self.default),)  # [L4]

    def changes(self, unit: Unit) -> int:
        """How many cells one unit changes at most."""
        if not unit.whole_slices:
            return 1
        cells = math.prod(self.shape) // self.shape[unit.mode_number]
        return min(unit.at_most or cells, cells)  # [L5]

    @proves("input-dense")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """Of every cell that changes, the larger of the default's distances from the bounds."""
        changes = self.changes(unit)
        largest = (VALUE_STEPS + abs(self.default)) * VALUE_GRID  # [L6] max(high - d, d - low)
        if self.pure:
            return (Change(Norm.L1, changes * largest, VALUE_GRID, changes),)  # [L7]
        root = math.nextafter(math.sqrt(changes), math.inf)
        return (Change(Norm.L2, math.nextafter(root * largest, math.inf), VALUE_GRID, changes),)  # both rounded up
