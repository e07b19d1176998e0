"""Right-hand sides and matrices of the least-squares rows of one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference.statistics import STATISTIC_STEPS, right_sides, row_matrices
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import check_model, slice_weights
from tensorveil.privacy.queries.rows.own_rows import Reading, block_rows, check_rows, check_width, with_own_rows
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit
from tensorveil.solvers.layouts.sorted_entries import kept_entries

if TYPE_CHECKING:
    from tensorveil.models.factor_model import FactorModel

STATISTIC_GRID = 1.0 / STATISTIC_STEPS
SMALLEST_OWN = (1e-12, 1e-9)  # limit and ridge: every own row is then a number
LARGEST_NUMBER = 2.0**64  # of a model: the squared lengths of its features are then finite, also of six modes


@final
@dataclass(frozen=True, eq=False)
class NormalEquations(Query):
    """For every row k of a block, g_k = sum a x psi and H_k = sum a psi psi^T over the row's observations.

    x is the residual, clipped to [-1, 1]; psi = phi / max(|phi|, limit_k) are features of at most length one, from
    released blocks; a is the weight of the slice. H reads no values: with public coordinates it is public, and the
    answer is g; otherwise the answer has two parts, g and the upper triangles of H (`row_matrices`).

    Attributes
    ----------
    model : the released blocks. Under `slice`, every slice puts its own offset and row in first.
    block : the mode whose rows are asked for, or the order of the model for the core
    limits : one per row of the block. Any numbers keep the sensitivity.
    rows : the rows that are asked for
    own : limit and ridge of the rows that slices fit for themselves. Any numbers keep the sensitivity.
    """

    reading: Reading
    model: FactorModel
    block: int
    limits: Floats
    rows: Integers
    pure: bool
    own: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        check_rows(self.rows, len(self.limits))
        check_width(int(self.model.block_widths[self.block]))
        if not np.abs(self.model.parameters).max() <= LARGEST_NUMBER:
            raise InputError("a model must have numbers of at most 2^64 in magnitude, got others; clip them")
        if not (SMALLEST_OWN[0] <= self.own[0] < np.inf and SMALLEST_OWN[1] <= self.own[1] < np.inf):
            raise InputError(f"own must be a limit and a ridge of at least {SMALLEST_OWN}, got {self.own}; correct it")
        if len(self.limits) != (*self.model.shape, 1)[self.block]:
            raise InputError(f"limits must be one per row of the block, got {len(self.limits)}; correct them")

    def theorem(self, unit: Unit) -> str:
        return {"entry": "statistic-entries", "slice": "statistic-slices"}.get(unit.kind, "statistic-values")

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        check_model(shard, self.model)
        if shard.unit.kind == "value" and worth_compiling(len(shard), self.model.family.name):  # both public
            entries = kept_entries(shard, self.reading, self.reading.residuals)
            fast = entries.right_sides(self.model, self.block, self.limits)
            if fast is not None:
                return (fast[self.rows],)
        residuals, model = self.reading.residuals(shard), self.model.numbers
        if shard.unit.kind == "slice":  # [L2] from the slice's own observations and released numbers
            residuals, model = with_own_rows(shard, self.reading, model, *self.own)
        where, size = block_rows(shard, self.block)
        weights = slice_weights(shard, where, self.pure)
        width = int(model.widths[self.block])
        g = np.zeros((size, width), dtype=np.int64)
        right_sides(model, shard.coordinates, self.block, residuals, weights, self.limits, g)  # [L3]
        if shard.unit.coordinates_public:
            return (g[self.rows],)
        H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
        row_matrices(model, shard.coordinates, self.block, weights, self.limits, H)  # [L4]
        return g[self.rows], H[self.rows]

    @proves("statistic-values", "statistic-entries", "statistic-slices")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit moves g by 2; an added or removed one moves g by 1 and H by 1, in Frobenius norm."""
        norm = Norm.ROWS if self.pure else Norm.L2
        if unit.coordinates_public:
            return (Change(norm, 2.0, STATISTIC_GRID),)  # [L1]
        return Change(norm, 1.0, STATISTIC_GRID), Change(norm, 1.0, STATISTIC_GRID)
