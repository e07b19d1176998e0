"""Weights and whole numbers that keep the part of one privacy unit in a sum within one.

What the queries of histograms, sums and normal equations share. The proofs are in docs/proofs/contributions.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorveil.errors import InputError
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.noise.source import row_scale
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:
    from tensorveil.models.factor_model import FactorModel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CONTRIBUTION_STEPS = 2**30  # grid steps of a contribution of one
CONTRIBUTION_GRID = 1.0 / CONTRIBUTION_STEPS
SMALLEST_NOISE = 2.0**-4  # below it the finer grid could overflow
LARGEST_NOISE = 2.0**17  # 2^50 steps of the finest grid in use
LARGEST_WIDTH = 4096  # numbers of a row; its length in binary64 is then right to a relative error of 2^-42


class Where(Protocol):
    """Observations, or the public pattern of them: what weights may read."""

    @property
    def coordinates(self) -> NDArray[np.uint32]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def unit(self) -> Unit: ...

    def __len__(self) -> int: ...

    def index(self, mode: int) -> Integers: ...


def check_noise(event: Event, sensitivity: float) -> None:
    """Refuse, while planning, a budget so small that its noise would not fit the grid."""
    scale = sensitivity / event.epsilon if isinstance(event, PureEvent) else 0.0
    if isinstance(event, GaussianEvent):
        scale = sensitivity * event.noise_multiplier
        if scale < SMALLEST_NOISE:
            raise InputError(
                f"epsilon must leave Gaussian noise of at least {SMALLEST_NOISE:g} of one contribution, "
                f"got {scale:.2g}; use less epsilon"
            )
    if scale > LARGEST_NOISE:
        raise InputError(
            f"epsilon must give every stage noise of at most {LARGEST_NOISE:,.0f} times one contribution, "
            f"got {scale:,.0f}; use more epsilon or fewer stages"
        )


def check_row_noise(event: Event, sensitivity: float, grid: float, count: int, width: int) -> None:
    """`check_noise` for so many rows of so many numbers: pure noise on wide rows reaches further."""
    check_noise(event, sensitivity)
    if isinstance(event, PureEvent):
        row_scale(count, width, grid=grid, sensitivity=sensitivity, epsilon=event.epsilon)


def check_width(width: int) -> None:
    """Refuse rows of more numbers than the proofs' bound on rounded lengths covers."""
    if width > LARGEST_WIDTH:
        raise InputError(f"rows must have at most {LARGEST_WIDTH:,} numbers here, got {width:,}; lower the rank")


def check_rows(rows: Integers, size: int) -> None:
    """Refuse rows of an answer that are asked for twice, also as -1 and the like: they would count twice."""
    if not np.issubdtype(rows.dtype, np.integer) or rows.min(initial=0) < 0 or rows.max(initial=0) >= size:
        raise InputError(f"rows must be whole numbers from 0 to {size - 1}, got others; correct them")
    if len(np.unique(rows)) != len(rows):
        raise InputError("rows must be asked for once, got one of them twice; drop the repeats")


def check_model(where: Where, model: FactorModel) -> None:
    """Refuse a model of another shape: compiled loops would read beyond its numbers."""
    if model.shape != where.shape:
        raise InputError(f"a model must have the shape {where.shape}, got {model.shape}; correct it")


def check_pairs(where: Where, rows: int) -> None:
    """Refuse so many slices and rows that a pair of them could not be numbered in int64; reads the shape alone."""
    if where.unit.whole_slices and where.shape[where.unit.mode_number] * rows >= 2**62:
        raise InputError("slices and rows must have fewer than 2^62 pairs, got more; use fewer labels")


def block_rows(where: Where, block: int) -> tuple[Integers, int]:
    """Each observation's row in a block of a model, and how many rows the block has; the core is one row."""
    if block == len(where.shape):
        return np.zeros(len(where), dtype=np.int64), 1
    return where.index(block), where.shape[block]


def slice_weights(shard: Where, rows: Integers, pure: bool) -> Floats:
    """One weight per observation, such that a whole unit stays bounded however active it is.

    For single observations the weight is 1. For slices, with k_r the number of the slice's observations in row r, all
    of them have the same weight a, where sum_r (k_r a)^2 <= 1 for Gaussian noise and sum_r k_r a <= 1 for pure noise.
    The weight reads the coordinates of that slice alone.
    """
    if not shard.unit.whole_slices:
        return np.ones(len(shard))
    slices = shard.index(shard.unit.mode_number)
    size = shard.shape[shard.unit.mode_number]
    check_pairs(shard, max(shard.shape))  # `Rows` checks its own number of rows
    if pure:
        totals = np.bincount(slices, minlength=size).astype(np.float64)
    else:
        pairs = slices * (int(rows.max(initial=0)) + 1) + rows
        _, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        # sum_r k_r^2 is the sum, over the slice's observations, of the k_r of their row: at most 2^60, exact in int64
        squares = np.zeros(size, dtype=np.int64)
        np.add.at(squares, slices, counts[place])
        totals = np.sqrt(squares)  # [W1]
    return np.asarray((1.0 - 2.0**-40) / np.maximum(totals, 1.0))[slices]  # [W2] the shave covers the last bits


def whole_sums(rows: Integers, contributions: Floats, size: int) -> Integers:
    """Sums per row in grid steps, each contribution rounded towards zero; exact whatever their order. [W3]"""
    totals = np.zeros(size, dtype=np.int64)
    np.add.at(totals, rows, np.trunc(contributions * CONTRIBUTION_STEPS).astype(np.int64))
    return totals
