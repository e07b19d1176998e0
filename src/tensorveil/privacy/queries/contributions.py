"""Weights and whole numbers that keep the part of one privacy unit in a sum within one.

What the queries of histograms, sums and normal equations share. The proofs are in docs/proofs/contributions.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import Where

if TYPE_CHECKING:
    from tensorveil.models.factor_model import FactorModel

CONTRIBUTION_STEPS = 2**30  # grid steps of a contribution of one
CONTRIBUTION_GRID = 1.0 / CONTRIBUTION_STEPS


def check_model(where: Where, model: FactorModel) -> None:
    """Refuse a model of another shape, or with blocks in other places: compiled loops would read beyond its numbers."""
    parameters, starts, widths = model.numbers
    ends = np.cumsum(widths * np.array([*where.shape, 1])[: len(widths)])
    if model.shape != where.shape or not np.array_equal(starts, [0, *ends[:-1]]) or parameters.size != ends[-1]:
        raise InputError(f"a model must have the shape {where.shape}, got {model.shape}; correct it")


def check_pairs(where: Where, rows: int) -> None:
    """Refuse so many slices and rows that a pair of them could not be numbered in int64; reads the shape alone."""
    if where.unit.whole_slices and where.shape[where.unit.mode_number] * rows >= 2**62:
        raise InputError("slices and rows must have fewer than 2^62 pairs, got more; use fewer labels")


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
