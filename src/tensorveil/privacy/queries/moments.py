"""Clipped moments of privacy units, and counts of indices: the level and spread that gradient descent starts from."""

from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.kernels.reference.gradients import INSIDE
from tensorveil.privacy.bounds import MOST_OBSERVATIONS, VALUE_STEPS, BoundedObservations
from tensorveil.privacy.noise.source import LARGEST_SUM
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import check_pairs
from tensorveil.privacy.queries.gradients import check_clipping
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

COUNT_WEIGHT = 0.5  # of an observation in the counts of a mode, beside its 1 in the count of all


@final
@dataclass(frozen=True)
class UnitMoments(Query):
    """Sum over units of their moments and counts, each unit's clipped as one vector.

    The vector of a unit is the sum over its observations of (1, y, y^2 - 1/2) / size, y the centred value, followed by
    one number per index of the counted modes: COUNT_WEIGHT / size for each observation of the unit there. Under `value`
    the 1 is left out, because every unit has exactly one observation.

    Attributes
    ----------
    size : a public typical number of observations per unit, from 1 to 2^30; it sets the scale
    clip_norm : longer vectors are shortened to this L2 norm
    counted : modes whose indices are counted
    grid : one step of the sums, a power of two
    pure : whether the noise is norm-exponential, on one row; otherwise it is Gaussian
    """

    size: float
    clip_norm: float
    counted: tuple[int, ...]
    grid: float
    pure: bool

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MOST_OBSERVATIONS:
            raise InputError(f"size must be from 1 to 2^30 observations, got {self.size!r}; correct it")
        check_clipping(self.clip_norm, self.grid)

    def theorem(self, unit: Unit) -> str:
        return "gradient-rows" if self.pure else "gradient-joint"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        unit, shape = shard.unit, shard.shape
        owners, units = np.arange(len(shard)), len(shard)  # the unit of each observation
        if unit.whole_slices:
            owners, units = shard.index(unit.mode_number), shape[unit.mode_number]
        squares = np.rint(shard.centred**2 * VALUE_STEPS).astype(np.int64) - VALUE_STEPS // 2
        ones = [] if unit.kind == "value" else [np.full(len(shard), VALUE_STEPS)]
        columns = [*ones, shard.steps, squares]  # a unit's sums of them are exact as floats: below 2^53
        sums = [np.bincount(owners, weights=column, minlength=units) for column in columns]  # [M1]
        vectors = np.column_stack(sums) / (VALUE_STEPS * self.size)
        lengths = (vectors**2).sum(axis=1)
        check_pairs(shard, max(shape))
        for mode in self.counted:
            pairs, times = np.unique(owners * shape[mode] + shard.index(mode), return_counts=True)
            repeated = np.zeros(units, dtype=np.int64)
            np.add.at(repeated, pairs // shape[mode], times**2)  # exact: at most 2^60
            lengths += repeated * (COUNT_WEIGHT / self.size) ** 2
        limit = self.clip_norm * INSIDE
        scales = limit / np.maximum(np.sqrt(lengths), limit)  # [M2]
        moments = round_toward_zero(vectors * scales[:, None], self.grid).sum(axis=0)  # [M3]
        if self.pure:
            return (moments[None, :],)
        each = round_toward_zero(scales * (COUNT_WEIGHT / self.size), self.grid)[owners]  # [M4] at least 0
        tables = [np.zeros(shape[mode], dtype=np.int64) for mode in self.counted]
        for mode, table in zip(self.counted, tables, strict=True):
            np.add.at(table, shard.index(mode), each)
        return (np.concatenate([moments, *tables]),)

    @proves("gradient-joint", "gradient-rows")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit changes one vector of the sum; an added or removed unit is one vector more or less."""
        bound = 2.0 * self.clip_norm if unit.coordinates_public else self.clip_norm  # [M5]
        return (Change(Norm.ROWS if self.pure else Norm.L2, bound, self.grid),)


def round_toward_zero(numbers: Floats, grid: float) -> Integers:
    """Whole grid steps, towards zero: no norm grows. The grid is a power of two."""
    steps = np.trunc(numbers / grid)  # [M7]
    if not (np.abs(steps) <= LARGEST_SUM).all():  # false for NaN, too
        raise InputError("numbers must be finite and at most 2^61 grid steps, got others; use a coarser grid")
    return steps.astype(np.int64)


@final
@dataclass(frozen=True)
class Counts(Query):
    """How often each index of each mode is observed: one part per mode of a tensor of this order."""

    order: int

    def theorem(self, unit: Unit) -> str:
        return "gradient-rows"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        return tuple(np.bincount(shard.index(mode), minlength=size) for mode, size in enumerate(shard.shape))

    @proves("gradient-rows")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """An added or removed observation moves one count of each mode by one; a replaced value moves none."""
        return (Change(Norm.L1, 1.0, 1.0),) * self.order  # [M6]
