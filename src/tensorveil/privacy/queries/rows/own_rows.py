"""What queries of rows share: how values are read, the rows of a block, and what each slice computes for itself.

Under the unit `slice` the protected mode has no released offsets and rows. Every slice fits its own to its own
observations, given released numbers; they never leave the vault, and no numbers of two slices meet. All observations of
a slice lie in one shard.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.kernels.reference.blocks import Blocks
from tensorveil.kernels.reference.statistics import STATISTIC_STEPS, right_sides, row_matrices, square_matrices
from tensorveil.privacy.bounds import BoundedObservations, Where
from tensorveil.privacy.queries.base import OwnOffsets, ReleasedOffsets, offsets_at, own_offsets

LARGEST_WIDTH = 4096  # numbers of a row; its length in binary64 is then right to a relative error of 2^-42


@final
@dataclass(frozen=True)
class Reading:
    """How a query reads values: clipped around a released level, less released offsets.

    Every residual is a function of one observation's own value and of released numbers.

    Attributes
    ----------
    mean, scale : values on the centred scale, where the bounds are -1 and 1, become clip((y - mean) / scale, -1, 1)
    offsets : subtracted afterwards
    """

    mean: float
    scale: float
    offsets: ReleasedOffsets

    def __post_init__(self) -> None:
        checks.finite_number("mean", self.mean)  # a number that is not finite would become -2^63 grid steps
        checks.positive_number("scale", self.scale)

    def values(self, shard: BoundedObservations) -> Floats:
        """Values from -1 to 1 around the level."""
        with np.errstate(over="ignore"):  # a warning would tell of the data
            return np.clip((shard.centred - self.mean) / self.scale, -1.0, 1.0)

    def residuals(self, shard: BoundedObservations, own: OwnOffsets | None = None) -> Floats:
        """Values less the offsets; not clipped again."""
        return np.asarray(self.values(shard) - offsets_at(shard, self.offsets, own))


def check_width(width: int) -> None:
    """Refuse rows of more numbers than the proofs' bound on rounded lengths covers."""
    if width > LARGEST_WIDTH:
        raise InputError(f"rows must have at most {LARGEST_WIDTH:,} numbers here, got {width:,}; lower the rank")


def check_rows(rows: Integers, size: int) -> None:
    """Refuse rows of an answer that are asked for twice, also as -1 and the like: they would count twice."""
    if not np.issubdtype(rows.dtype, np.integer) or rows.min(initial=0) < 0 or rows.max(initial=0) >= size:
        raise InputError(f"rows must be whole numbers from 0 to {size - 1}, got others; correct them")
    ascending = rows.ndim == 1 and bool((rows[1:] > rows[:-1]).all())  # then none is repeated
    if not ascending and len(np.unique(rows)) != len(rows):
        raise InputError("rows must be asked for once, got one of them twice; drop the repeats")


def block_rows(where: Where, block: int) -> tuple[Integers, int]:
    """Each observation's row in a block of a model, and how many rows the block has; the core is one row."""
    if block == len(where.shape):
        return np.zeros(len(where), dtype=np.int64), 1
    return where.index(block), where.shape[block]


def with_own_rows(
    shard: BoundedObservations, reading: Reading, model: Blocks, limit: float, ridge: float
) -> tuple[Floats, Blocks]:
    """Residuals after every slice's own offset, and the released model with every slice's own row put in."""
    mode = shard.unit.mode_number
    offsets = own_offsets(shard, reading.values(shard), reading.offsets, mode)
    residuals = reading.residuals(shard, (mode, offsets))
    rows = own_rows(shard, residuals, model, mode, limit, ridge)
    parameters, start = model.parameters.copy(), model.starts[mode]
    parameters[start : start + rows.size] = rows.ravel()
    return residuals, model._replace(parameters=parameters)


def own_rows(
    shard: BoundedObservations, residuals: Floats, model: Blocks, mode: int, limit: float, ridge: float
) -> Floats:
    """The row of each slice by ridge regression on the other blocks, every small system solved by itself. [P2]

    Rows are shortened to the length that those of a public start have, so that features stay of a public size.
    """
    width, size = int(model.widths[mode]), shard.shape[mode]
    weights, limits = np.ones(len(shard)), np.full(size, limit)
    g = np.zeros((size, width), dtype=np.int64)
    H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
    right_sides(model, shard.coordinates, mode, residuals, weights, limits, g)
    row_matrices(model, shard.coordinates, mode, weights, limits, H)
    matrices = square_matrices(H / STATISTIC_STEPS, width)
    values, vectors = np.linalg.eigh(matrices)  # rounding may leave a matrix a little indefinite
    turned = np.einsum("kij,ki->kj", vectors, g / STATISTIC_STEPS) / (np.maximum(values, 0.0) + ridge)
    rows = np.einsum("kij,kj->ki", vectors, turned) / limit
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(1.0, lengths / math.sqrt(width)))
