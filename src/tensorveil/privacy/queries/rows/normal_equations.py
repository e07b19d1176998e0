"""Right-hand sides and matrices of the least-squares rows of one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.errors import InputError
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference.statistics import STATISTIC_STEPS, right_sides, row_matrices
from tensorveil.models.factor_model import FactorModel
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Change, Floats, Integers, Query, Reading
from tensorveil.privacy.queries.contributions import block_rows, check_model, check_rows, check_width, slice_weights
from tensorveil.privacy.queries.rows.own_rows import with_own_rows
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit
from tensorveil.solvers.layouts.sorted_entries import SortedEntries
from tensorveil.solvers.layouts.strata import sensible_threads

STATISTIC_GRID = 1.0 / STATISTIC_STEPS
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
    reading : Reading
    model : FactorModel
        The released blocks. Under `slice`, every slice puts its own offset and row in first.
    block : int
        The mode whose rows are asked for, or the order of the model for the core.
    limits : array
        One per row of the block. Any numbers keep the sensitivity.
    rows : array
        The rows that are asked for.
    pure : bool
    """

    reading: Reading
    model: FactorModel
    block: int
    limits: Floats
    rows: Integers
    pure: bool

    def __post_init__(self) -> None:
        check_rows(self.rows, len(self.limits))
        check_width(int(self.model.block_widths[self.block]))
        if not np.abs(self.model.parameters).max() <= LARGEST_NUMBER:
            raise InputError("a model must have numbers of at most 2^64 in magnitude, got others; clip them")
        if len(self.limits) != (*self.model.shape, 1)[self.block]:
            raise InputError(f"limits must be one per row of the block, got {len(self.limits)}; correct them")

    def theorem(self, unit: Unit) -> str:
        return {"entry": "statistic-entries", "slice": "statistic-slices"}.get(unit.kind, "statistic-values")

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        reading, model = self.reading, self.model
        check_model(shard, model)
        if shard.unit.kind == "slice":  # [L2] from the slice's own observations and released numbers
            reading, model = with_own_rows(shard, reading, model)
        if shard.unit.kind == "value" and worth_compiling(len(shard), model.family.name):  # both public
            fast = _sorted_residuals(shard, reading).right_sides(model, self.block, self.limits)
            if fast is not None:
                return (fast[self.rows],)
        where, size = block_rows(shard, self.block)
        weights = slice_weights(shard, where, self.pure)
        blocks = (model.parameters, model.block_starts, model.block_widths, shard.coordinates, self.block)
        width = int(model.block_widths[self.block])
        g = np.zeros((size, width), dtype=np.int64)
        right_sides(*blocks, reading.residuals(shard), weights, self.limits, g)  # [L3]
        if shard.unit.coordinates_public:
            return (g[self.rows],)
        H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
        row_matrices(*blocks, weights, self.limits, H)  # [L4]
        return g[self.rows], H[self.rows]

    @proves("statistic-values", "statistic-entries", "statistic-slices")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced unit moves g by 2; an added or removed one moves g by 1 and H by 1, in Frobenius norm."""
        norm = Norm.ROWS if self.pure else Norm.L2
        if unit.coordinates_public:
            return (Change(norm, 2.0, STATISTIC_GRID),)  # [L1]
        return Change(norm, 1.0, STATISTIC_GRID), Change(norm, 1.0, STATISTIC_GRID)


def _sorted_residuals(shard: BoundedObservations, reading: Reading) -> SortedEntries:
    """The shard's residuals in the order of every mode, kept from one half-sweep to the next."""
    kept = shard.layouts.get("sorted residuals")
    if kept is None or kept[0] != reading:
        threads = sensible_threads(None, len(shard), len(shard.shape))
        entries = SortedEntries.of(shard.coordinates, reading.residuals(shard), shard.shape, threads, np.float64)
        kept = shard.layouts["sorted residuals"] = (reading, entries)
    found: SortedEntries = kept[1]
    return found
