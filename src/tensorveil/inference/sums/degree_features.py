"""Features of the indices of each mode from where values were observed, for linear priors on offsets.

Of the counts of a mode's indices with those of the other modes, divided by the square roots of both degrees, the
leading left singular vectors show which indices occur together. A singular vector grows with the square root of the
degree, so it is divided by it; log degrees are added as a feature. Values are not read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]

MOST_DIRECTIONS = 32
INDICES_A_DIRECTION = 4
DENSE_MODE = 500


def degree_features(coordinates: Coordinates, shape: tuple[int, ...]) -> list[dict[str, Floats]]:
    """For each mode, groups of features by name; every group has mean square one per index, summed over its columns."""
    return [_of_mode(coordinates, mode, shape) for mode in range(len(shape))]


def _of_mode(coordinates: Coordinates, mode: int, shape: tuple[int, ...]) -> dict[str, Floats]:
    from scipy import sparse

    size = shape[mode]
    degrees = np.maximum(np.bincount(coordinates[:, mode], minlength=size), 1).astype(np.float64)
    groups = {"log counts": np.log(degrees)[:, None]}
    most = min(MOST_DIRECTIONS, size // INDICES_A_DIRECTION)
    if most > 1:
        parts = []
        for other, width in enumerate(shape):
            if other != mode:
                others = np.maximum(np.bincount(coordinates[:, other], minlength=width), 1)
                weights = 1 / np.sqrt(degrees[coordinates[:, mode]] * others[coordinates[:, other]])
                rows, columns = coordinates[:, mode].astype(np.int64), coordinates[:, other].astype(np.int64)
                parts.append(sparse.csr_matrix((weights, (rows, columns)), shape=(size, width)))
        seen = sparse.hstack(parts).tocsr()
        products = seen @ seen.T
        if size <= DENSE_MODE:
            values, vectors = np.linalg.eigh(products.toarray())
            values, vectors = values[-most:], vectors[:, -most:]
        else:
            from scipy.sparse.linalg import eigsh

            values, vectors = eigsh(products, most, which="LA", v0=np.ones(size), tol=1e-4)
        values = np.maximum(values, 0.0)
        groups["directions"] = vectors * values
        groups["even directions"] = vectors * np.sqrt(values)[None, :] / np.sqrt(degrees)[:, None]
    return {name: made for name, made in ((name, _normalised(group)) for name, group in groups.items()) if made.size}


def _normalised(group: Floats) -> Floats:
    """Centred columns, with mean square one over the indices, all columns together."""
    centred = group - group.mean(axis=0)
    size = float(np.sqrt(np.square(centred).sum(axis=1).mean()))
    return np.asarray(centred / size) if size > 1e-9 else np.empty((len(group), 0))
