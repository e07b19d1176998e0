"""Histogram: how many values lie in each of several cells of the bounds."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID, slice_weights, whole_sums
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True, eq=False)
class Histogram(Query):
    """For every cell, the weighted count of the values in it; values outside all cells are not counted.

    An observation weighs 1 and, under the two slice units, 1/k, where k is the number of observations of its slice,
    whichever cells they lie in. A count of one is exactly 2^30 grid steps.

    Attributes
    ----------
    first, last : cell c holds the values whose steps s satisfy first[c] <= s < last[c]. Cells increase, do not overlap,
        and lie in the bounds, whose steps are -2^20 to 2^20; so the largest possible `last` is 2^20 + 1.
    pure : whether the noise is Laplace; otherwise it is Gaussian
    """

    first: Integers
    last: Integers
    pure: bool

    def __post_init__(self) -> None:
        first, last = np.array(self.first), np.array(self.last)
        if first.dtype != np.int64 or last.dtype != np.int64 or first.ndim != 1 or first.shape != last.shape:
            raise InputError(
                "first and last must be int64, one number per cell, "
                f"got {first.dtype} {first.shape} and {last.dtype} {last.shape}; convert them"
            )
        inside = first.size > 0 and first[0] >= -VALUE_STEPS and last[-1] <= VALUE_STEPS + 1
        if not (inside and (first < last).all() and (last[:-1] <= first[1:]).all()):  # [H1]
            raise InputError(
                "cells must be one or more intervals of the steps -2^20 to 2^20, in increasing order and without "
                f"overlap, got {len(first)} that are not; sort them"
            )
        for name, ends in (("first", first), ("last", last)):
            ends.setflags(write=False)
            object.__setattr__(self, name, ends)

    def theorem(self, unit: Unit) -> str:
        return "histogram"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        cells = np.searchsorted(self.first, shard.steps, side="right") - 1  # the last cell that begins at or below
        counted = (cells >= 0) & (shard.steps < self.last[cells])  # [H2] one cell at most
        weights = slice_weights(shard, np.zeros(len(shard), dtype=np.int64), pure=True)  # [H3] of all observations
        return (whole_sums(cells[counted], weights[counted], len(self.first)),)  # [H4] towards zero

    @proves("histogram")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit takes a weight of 1 from some cells to others; an added or removed one brings or takes it."""
        norm = Norm.L1 if self.pure else Norm.L2
        if unit.coordinates_public:
            return (Change(norm, 2.0 if self.pure else math.sqrt(2.0), CONTRIBUTION_GRID),)  # [H5]
        return (Change(norm, 1.0, CONTRIBUTION_GRID),)  # [H6]
