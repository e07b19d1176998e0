"""The personal side of joint privacy: each index of the withheld mode computes its own row from its own data."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.rows import square_matrices
from tensorveil.kernels.reference.statistics import STATISTIC_STEPS, row_statistics
from tensorveil.mechanisms.planning.information import OFFSET_VARIANCE, RESIDUAL_VARIANCE
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import BoundedObservations

Floats = NDArray[np.float64]

OFFSET_RIDGE = 2.0  # residual variance over the variance of a personal offset; generic
ROW_RIDGE = 2.0  # the same for a personal row, in units of the features' own size
OWNER_LIMIT = 4.0  # what a row may add to a prediction at most, on the centred scale: more is no taste
OWNER_RIDGE = 5.0  # for the row that an owner predicts with: what features tell of taste is a fifth of what is left


def personal_offsets(data: BoundedObservations, values: Floats, offsets: Offsets, mode: int) -> Floats:
    """Each index's mean residual, shrunk; reads that index's own observations and released offsets only."""
    residuals = values - offsets.at(data.coordinates)
    rows, size = data.index(mode), data.shape[mode]
    counts = np.bincount(rows, minlength=size)
    return np.asarray(ordered_sums(rows, residuals, size) / (counts + OFFSET_RIDGE))


def personal_rows(data: BoundedObservations, values: Floats, offsets: Offsets, model: FactorModel, mode: int) -> Floats:
    """Each index's own row by ridge regression on released blocks; no two indices meet in it. [P1]

    The rows are clipped to the length that a public start has, so that features stay of a public size.
    """
    width = model.ranks[mode]
    size = data.shape[mode]
    limit = largest_feature(model, mode)
    g = np.zeros((size, width), dtype=np.int64)
    H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
    residuals = values - offsets.at(data.coordinates)
    row_statistics(
        model.parameters,
        model.block_starts,
        model.block_widths,
        data.coordinates,
        mode,
        residuals,
        np.ones(len(data)),
        np.full(size, limit),
        g,
        H,
    )
    matrices = square_matrices(H / STATISTIC_STEPS, width)
    ridge = max(ROW_RIDGE * typical_feature(model, mode) ** 2 / limit**2, 1e-9)
    rows = np.linalg.solve(matrices + ridge * np.eye(width), (g / STATISTIC_STEPS)[..., None])[..., 0] / limit
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(1.0, lengths / math.sqrt(width)))


def owner_rows(data: BoundedObservations, released: Completion, mode: int) -> tuple[Floats, Floats]:
    """Offset and row of every owner on the centred scale, each from the release and the owner's own observations.

    An owner's offset and row together are one ridge regression; those of owners without observations are zero.
    """
    model = released.factors
    design = np.column_stack([np.ones(len(data)), own_features(model, data.coordinates, mode)])
    ridge = np.full(design.shape[1], max(OWNER_RIDGE * typical_feature(model, mode) ** 2, 1e-9))
    ridge[0] = RESIDUAL_VARIANCE / OFFSET_VARIANCE
    residuals = data.centred - released.offsets.at(data.coordinates)
    longest = OWNER_LIMIT / largest_feature(model, mode)
    found = np.zeros((data.shape[mode], design.shape[1]))
    order = np.argsort(data.index(mode), kind="stable")
    owners, starts = np.unique(data.index(mode)[order], return_index=True)
    for owner, mine in zip(owners, np.split(order, starts[1:]), strict=True):
        X = design[mine]
        found[owner] = np.linalg.solve(X.T @ X + np.diag(ridge), X.T @ residuals[mine])
    lengths = np.linalg.norm(found[:, 1:], axis=1, keepdims=True)
    return np.clip(found[:, 0], -2.0, 2.0), found[:, 1:] / np.maximum(1.0, lengths / longest)


def own_features(model: FactorModel, coordinates: NDArray[np.uint32], mode: int) -> Floats:
    """What multiplies the row of an index of a mode, for each observation, from released blocks."""
    others = [factor[coordinates[:, place]] for place, factor in enumerate(model.factors) if place != mode]
    if model.core is None:
        return np.asarray(np.prod(others, axis=0))
    found = np.broadcast_to(
        np.moveaxis(model.core, mode, 0), (len(coordinates), *np.moveaxis(model.core, mode, 0).shape)
    )
    for rows in reversed(others):
        found = np.einsum("n...k,nk->n...", found, rows)
    return np.asarray(found)


def largest_feature(model: FactorModel, mode: int) -> float:
    """A bound on |phi| of any entry for this mode, from released blocks alone."""
    lengths = [np.linalg.norm(factor, axis=1).max() for place, factor in enumerate(model.factors) if place != mode]
    core = 1.0 if model.core is None else float(np.linalg.norm(model.core))
    return max(float(np.prod(lengths)) * core, 1e-12)


def typical_feature(model: FactorModel, block: int) -> float:
    """A typical |phi| for this block, from released blocks alone: rows as if independent of each other."""
    moments = [factor.T @ factor / len(factor) for factor in model.factors]
    if block == model.order:  # the core's features are the Kronecker product of the rows
        return max(math.sqrt(float(np.prod([np.trace(moment) for moment in moments]))), 1e-12)
    if model.core is None:
        diagonals = [np.diag(moment) for place, moment in enumerate(moments) if place != block]
        return max(math.sqrt(float(np.prod(diagonals, axis=0).sum())), 1e-12)
    spread = model.core
    for place, moment in enumerate(moments):
        if place != block:
            spread = np.moveaxis(np.tensordot(moment, spread, axes=(1, place)), 0, place)
    return max(math.sqrt(max(float((spread * model.core).sum()), 0.0)), 1e-12)


def ordered_sums(rows: NDArray[np.int64], values: Floats, size: int) -> Floats:
    """Sums by row that do not depend on the order of the observations."""
    steps = np.zeros(size, dtype=np.int64)
    np.add.at(steps, rows, np.rint(values * 2.0**32).astype(np.int64))
    return np.asarray(steps / 2.0**32)
