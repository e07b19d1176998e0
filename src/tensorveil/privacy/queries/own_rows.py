"""What each slice computes from its own observations and released numbers alone, inside a query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import BoundedObservations

Floats = NDArray[np.float64]

OFFSET_RIDGE = 2.0  # residual variance over the variance of a slice's own offset; generic


def own_offsets(shard: BoundedObservations, values: Floats, offsets: Offsets, mode: int) -> Floats:
    """Each index's mean residual, shrunk; reads that index's own observations and released offsets only."""
    residuals = values - offsets.at(shard.coordinates)
    rows, size = shard.index(mode), shard.shape[mode]
    counts = np.bincount(rows, minlength=size)
    return np.asarray(ordered_sums(rows, residuals, size) / (counts + OFFSET_RIDGE))


def ordered_sums(rows: NDArray[np.int64], values: Floats, size: int) -> Floats:
    """Sums by row that do not depend on the order of the observations."""
    steps = np.zeros(size, dtype=np.int64)
    np.add.at(steps, rows, np.rint(values * 2.0**32).astype(np.int64))
    return np.asarray(steps / 2.0**32)
