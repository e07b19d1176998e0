"""The offset and the row that each slice computes for itself, inside a query, and that never leave the vault.

Under the unit `slice` the protected mode has no released offsets and rows. Every slice fits its own to its own
observations, given released numbers; no numbers of two slices meet. All observations of a slice lie in one shard.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tensorveil.kernels.reference.statistics import STATISTIC_STEPS, right_sides, row_matrices
from tensorveil.models.algebra import square_matrices
from tensorveil.models.block_features import largest_feature, typical_feature
from tensorveil.models.factor_model import FactorModel
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Floats, Reading
from tensorveil.privacy.queries.own_offsets import own_offsets

ROW_RIDGE = 2.0  # the same for an own row, in units of the features' own size


def with_own_rows(shard: BoundedObservations, reading: Reading, model: FactorModel) -> tuple[Reading, FactorModel]:
    """The released offsets and the released model, with every slice's own offset and row put in."""
    mode = shard.unit.mode_number
    offsets = own_offsets(shard, reading.values(shard), reading.offsets, mode)
    own = replace(reading, offsets=reading.offsets.with_mode(mode, offsets))
    return own, model.with_block(mode, own_rows(shard, own, model, mode))


def own_rows(shard: BoundedObservations, reading: Reading, model: FactorModel, mode: int) -> Floats:
    """The row of each slice by ridge regression on the other blocks, every small system solved by itself. [P2]

    Rows are shortened to the length that those of a public start have, so that features stay of a public size.
    """
    width, size = model.ranks[mode], shard.shape[mode]
    limit = largest_feature(model, mode)
    blocks = (model.parameters, model.block_starts, model.block_widths, shard.coordinates, mode)
    weights, limits = np.ones(len(shard)), np.full(size, limit)
    g = np.zeros((size, width), dtype=np.int64)
    H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
    right_sides(*blocks, reading.residuals(shard), weights, limits, g)
    row_matrices(*blocks, weights, limits, H)
    matrices = square_matrices(H / STATISTIC_STEPS, width)
    ridge = max(ROW_RIDGE * typical_feature(model, mode) ** 2 / limit**2, 1e-9)
    values, vectors = np.linalg.eigh(matrices)  # rounding may leave a matrix a little indefinite
    turned = np.einsum("kij,ki->kj", vectors, g / STATISTIC_STEPS) / (np.maximum(values, 0.0) + ridge)
    rows = np.einsum("kij,kj->ki", vectors, turned) / limit
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(1.0, lengths / math.sqrt(width)))
