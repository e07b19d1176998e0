"""Features of the indices of each mode from where values were observed, for linear priors on offsets.

Of the counts of a mode's indices with those of the other modes, divided by the square roots of both degrees, the
leading left singular vectors show which indices occur together. A singular vector grows with the square root of the
degree, so it is divided by it; log degrees are added as a feature. Values are not read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorveil.solvers.directions import leading_directions, pair_counts

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]

MOST_DIRECTIONS = 32
INDICES_PER_DIRECTION = 4


def degree_features(coordinates: Coordinates, shape: tuple[int, ...]) -> list[dict[str, Floats]]:
    """For each mode, groups of features by name; every group has mean square one per index, summed over its columns."""
    return [_of_mode(coordinates, mode, shape) for mode in range(len(shape))]


def _of_mode(coordinates: Coordinates, mode: int, shape: tuple[int, ...]) -> dict[str, Floats]:
    size = shape[mode]
    degrees = np.maximum(np.bincount(coordinates[:, mode], minlength=size), 1).astype(np.float64)
    groups = {"log counts": np.log(degrees)[:, None]}
    most = min(MOST_DIRECTIONS, size // INDICES_PER_DIRECTION)
    if most > 1:
        parts = []
        for other, width in enumerate(shape):
            if other != mode:
                part = pair_counts(coordinates, mode, other, shape)
                others = np.maximum(np.bincount(coordinates[:, other], minlength=width), 1)
                part.data = part.data / np.sqrt(np.repeat(degrees, np.diff(part.indptr)) * others[part.indices])
                parts.append(part)
        values, vectors = leading_directions(parts, most)
        groups["directions"] = vectors * values
        groups["even directions"] = vectors * np.sqrt(values)[None, :] / np.sqrt(degrees)[:, None]
    return {name: made for name, made in ((name, _normalised(group)) for name, group in groups.items()) if made.size}


def _normalised(group: Floats) -> Floats:
    """Centred columns, with mean square one over the indices, all columns together."""
    centred = group - group.mean(axis=0)
    size = float(np.sqrt(np.square(centred).sum(axis=1).mean()))
    return np.asarray(centred / size) if size > 1e-9 else np.empty((len(group), 0))
