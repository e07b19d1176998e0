"""Clipped gradients of a factor model at a released state: of all blocks jointly, or of the rows of each block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference import gradients
from tensorveil.privacy.bounds import MOST_OBSERVATIONS, VALUE_STEPS, BoundedObservations
from tensorveil.privacy.noise.source import LARGEST_SUM, checked_grid, grid_for
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import check_model
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit
from tensorveil.solvers.gradient_sums import joint_sums, local_order

if TYPE_CHECKING:
    from tensorveil.models.factor_model import FactorModel

LARGEST_NUMBER = 2.0**8  # of a state: the norms of its gradients are then far from overflow
MOST_PARAMETERS = 2**27  # what the rounding of norms allows for: kernels/reference/gradients.py
SMALLEST_NORM = 2.0**-30  # far above numbers whose squares vanish
ROW_BITS = 22  # a sum of 2^30 rows of at most 2^23 grid steps is exact as a float


def check_parameters(count: int) -> None:
    """Refuse models of more numbers than the proof's bound on rounded norms covers."""
    if count > MOST_PARAMETERS:
        raise InputError(f"a model must have at most 2^27 numbers, got {count:,}; lower the rank")


def check_norm(norm: float) -> None:
    """Refuse clip norms so small that the norms compared with them could not be computed."""
    if not SMALLEST_NORM <= norm < np.inf:  # false for NaN, too
        raise InputError(f"a clip norm must be at least 2^-30 and finite, got {norm!r}; rescale the model")


def check_clipping(norm: float, grid: float) -> None:
    """Refuse a clip norm and a grid on which a sum of 2^30 clipped vectors might not fit."""
    check_norm(norm)
    steps = math.ceil(norm / checked_grid(grid)) + 1
    if MOST_OBSERVATIONS * steps > LARGEST_SUM:
        raise InputError(f"a sum must stay below 2^61 grid steps, got 2^30 terms of {steps}; use a coarser grid")


def _check_state(model: FactorModel, mean: float) -> None:
    """Refuse states at which a gradient might not be a finite number."""
    check_parameters(model.parameters.size)
    if not (np.abs(model.parameters).max() <= LARGEST_NUMBER and abs(mean) <= 1):
        raise InputError(
            f"a state must have numbers of at most {LARGEST_NUMBER:g} and a mean of at most 1 in magnitude, "
            "got others; clip them"
        )


@final
@dataclass(frozen=True)
class JointGradients(Query):
    """Sum over units of their negative gradients by all numbers of the model, each clipped over all blocks jointly.

    The gradient of a unit is that of its squared residuals, summed over its observations.

    Attributes
    ----------
    model : the released state
    mean : released; subtracted from the centred values
    clip_norm : longer gradients are shortened to this L2 norm
    grid : one step of the sums, a power of two
    sampled : whether the stage pays for a Poisson sample of the units, which the vault draws
    """

    model: FactorModel
    mean: float
    clip_norm: float
    grid: float
    sampled: bool

    def __post_init__(self) -> None:
        _check_state(self.model, self.mean)
        check_clipping(self.clip_norm, self.grid)  # [L4]

    def theorem(self, unit: Unit) -> str:
        return "gradient-sampled" if self.sampled else "gradient-joint"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        check_model(shard, self.model)
        where, steps = self._arranged(shard)
        values = steps / VALUE_STEPS - self.mean
        if not shard.unit.whole_slices:
            fast = worth_compiling(math.prod(shard.shape), self.model.family.name)  # the shape is public
            return (joint_sums(self.model, where, values, self.clip_norm, self.grid, fast=fast),)  # [L11]
        slices = where[:, shard.unit.mode_number].astype(np.int64)
        totals = np.zeros(self.model.parameters.size, dtype=np.int64)
        gradients.slice_sums(self.model.numbers, where, values, slices, self.clip_norm, self.grid, totals)  # [L10]
        return (totals,)

    @proves("gradient-joint", "gradient-sampled")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit changes one vector of the sum; an added or removed unit is one vector more or less."""
        bound = 2.0 * self.clip_norm if unit.coordinates_public else self.clip_norm  # [L1]
        return (Change(Norm.L2, bound, self.grid),)

    def _arranged(self, shard: BoundedObservations) -> tuple[NDArray[np.uint32], Integers]:
        """Coordinates and steps in the order in which they are summed; kept with the shard from step to step."""
        if self.sampled and not shard.unit.whole_slices:  # read only once, and sums of whole numbers have no order
            return shard.coordinates, shard.steps
        if type(self) not in shard.layouts:
            where = shard.coordinates
            if shard.unit.whole_slices:  # [L7] the stable sort keeps the order of coordinates and values in each slice
                order = np.argsort(where[:, shard.unit.mode_number], kind="stable")
            else:
                order = local_order(where, self.model)
            shard.layouts[type(self)] = np.ascontiguousarray(where[order]), shard.steps[order]
        arranged: tuple[NDArray[np.uint32], Integers] = shard.layouts[type(self)]
        return arranged


@final
@dataclass(frozen=True)
class RowGradients(Query):
    """For every block of the model, sums over observations of the negative gradients by the row that each touches.

    Attributes
    ----------
    model : the released state
    mean : released; subtracted from the centred values
    clip_norms : for each block, the L2 norm that longer row gradients are shortened to
    rows : for each block, which rows are answered: public
    """

    model: FactorModel
    mean: float
    clip_norms: Floats
    rows: tuple[NDArray[np.bool_], ...]

    def __post_init__(self) -> None:
        _check_state(self.model, self.mean)
        for norm in self.clip_norms:
            check_norm(float(norm))
        if any(rows.dtype != np.bool_ for rows in self.rows):  # numbers could name a row twice
            raise InputError("rows must be true or false for each row of a block, got numbers; convert them")

    def theorem(self, unit: Unit) -> str:
        return "gradient-rows"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        check_model(shard, self.model)
        starts, widths = self.model.block_starts, self.model.block_widths
        grids = np.array([change.grid for change in self.sensitivity(shard.unit)])
        totals = np.zeros(self.model.parameters.size, dtype=np.int64)
        values = shard.centred - self.mean
        gradients.row_sums(self.model.numbers, shard.coordinates, values, self.clip_norms, grids, totals)  # [L13]
        blocks = [part.reshape(-1, width) for part, width in zip(np.split(totals, starts[1:]), widths, strict=True)]
        return tuple(block[rows] for block, rows in zip(blocks, self.rows, strict=True))  # [L15]

    @proves("gradient-rows")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """An observation touches one row of each block: a replaced one moves it by two clip norms, another by one."""
        factor = 2.0 if unit.coordinates_public else 1.0  # [L2]
        norms = [float(norm) for norm in self.clip_norms]
        return tuple(Change(Norm.ROWS, factor * norm, grid_for(norm, ROW_BITS)) for norm in norms)
