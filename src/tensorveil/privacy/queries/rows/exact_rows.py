"""Sums of whitened features times values: the part of ridge rows that reads values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.kernels.reference.statistics import block_features
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations, Where
from tensorveil.privacy.queries.base import Change, Norm, Query
from tensorveil.privacy.queries.contributions import check_model
from tensorveil.privacy.queries.rows.own_rows import block_rows, check_rows, check_width
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:
    from tensorveil.models.factor_model import FactorModel

LONGEST = (1 - 2.0**-42) / 2  # of a whitened feature; a half less the last bits of a length
MOST_BITS = 41  # of whitened features and of the count of a row together: sums then stay below 2^60


@final
@dataclass(frozen=True, eq=False)
class ExactRows(Query):
    """For every row k of a block, sum of t y over the row's observations, t = S_k^-1 phi / s_k at most a half long.

    Only the centred value y is private: coordinates are public, features phi come from released blocks. t is a whole
    multiple of 2^-bits. With s_k = 2 max |S_k^-1 phi| over the row, some neighbour moves the sum by the whole bound.

    Attributes
    ----------
    model : the released blocks. None: the rows are offsets, whose features are one.
    block : a mode, or the order of the model for the core
    whitening : array (rows of the block, width, width)
        S^-1 of each row. Any numbers keep the sensitivity, as do any scales.
    scales, rows : s of each row, and the rows that are asked for
    bits : so few that no sum can overflow, by the public counts of all shards; `of` checks its own
    """

    model: FactorModel | None
    block: int
    whitening: Floats
    scales: Floats
    rows: Integers
    bits: int
    pure: bool

    def __post_init__(self) -> None:
        check_width(self.whitening.shape[-1])
        check_rows(self.rows, len(self.scales))

    def theorem(self, unit: Unit) -> str:
        return "output-exact"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        where, phi = row_features(shard, self.model, self.block)
        most = int(np.bincount(where).max(initial=0))
        if self.bits + most.bit_length() > MOST_BITS:  # [L2] counts are public
            raise InputError(f"bits must be at most {MOST_BITS - most.bit_length()} for {most} values in a row")
        white = np.einsum("kij,kj->ki", self.whitening[where], phi) / self.scales[where, None]
        short = np.linalg.norm(white, axis=1) <= LONGEST  # [L3] not so where a number is not finite
        pieces = np.trunc(np.where(short[:, None], white, 0.0) * 2.0**self.bits).astype(np.int64)
        totals = np.zeros((len(self.scales), phi.shape[1]), dtype=np.int64)
        np.add.at(totals, where, pieces * shard.steps[:, None])  # [L4] a value moves by at most 2 * 2^20 steps
        return (totals[self.rows],)

    @proves("output-exact")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A replaced value moves by 2 at most, its feature is a half long at most, and it lies in one row."""
        grid = 2.0**-self.bits / VALUE_STEPS
        return (Change(Norm.ROWS if self.pure else Norm.L2, 1.0, grid),)  # [L1]


def row_features(where: Where, model: FactorModel | None, block: int) -> tuple[Integers, Floats]:
    """Each observation's row in a block, and what multiplies that row in its prediction: for offsets, one."""
    rows, _ = block_rows(where, block)
    if model is None:
        return rows, np.ones((len(where), 1))
    check_model(where, model)
    table = np.empty((len(where), int(model.block_widths[block])))
    block_features(model.numbers, where.coordinates, block, table)
    return rows, table
