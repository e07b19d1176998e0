"""The offset that each slice computes for itself, inside a query, and that never leaves the vault."""

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import ReleasedOffsets, offsets_at

OFFSET_RIDGE = 2.0  # residual variance over the variance of an own offset; generic
OFFSET_STEPS = 2.0**28  # grid steps in one: sums of whole numbers do not depend on the order of the observations
LARGEST_RESIDUAL = 8.0  # so that sums of 2^30 residuals stay below 2^62 steps


def own_offsets(shard: BoundedObservations, values: Floats, offsets: ReleasedOffsets, mode: int) -> Floats:
    """The mean residual of each slice, shrunk; it reads that slice's observations and released offsets only. [P1]"""
    residuals = np.clip(values - offsets_at(shard, offsets), -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
    slices, size = shard.index(mode), shard.shape[mode]
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, slices, np.rint(residuals * OFFSET_STEPS).astype(np.int64))
    return np.asarray(sums / OFFSET_STEPS / (np.bincount(slices, minlength=size) + OFFSET_RIDGE))
