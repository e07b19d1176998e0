"""Free side information: if it is public where values were observed, this shows which indices are similar.

The prior mean of a row of index i is sum_j w_j / sqrt(count_i) over the indices j of the other modes that i was seen
with, w_j unknown (as the implicit feedback of SVD++; Koren 2008): a linear map of the rows of a public 0/1 matrix, here
of its leading singular directions, which carry most of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.errors import InputError
from tensorveil.solvers.directions import leading_directions, pair_counts

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]

MOST_FEATURES = 100
ROWS_PER_FEATURE = 4


@final
class Links:
    """Features of the indices of one mode, made orthogonal: F^T F = I_n times the identity, the constant first.

    A row's prior mean is F beta, beta_k ~ N(0, weights_k / kappa): equal priors of the features as they were given.
    Each group of features has a kappa of its own, so that an uninformative group does not weaken
    the others. Each group is made orthogonal to the groups before it.

    Waves along a smooth mode are the first group, after the constant. All factors share one kappa of the waves: whether
    neighbours are alike is a fact about the mode. With a kappa per factor, smooth modes that are in no order had 5 %
    more error (made_up of tests/inference/test_smooth.py, epsilon 4, mean of seeds 0 to 2: 1.03 without waves, 1.08
    with a kappa per factor, 1.03 with a shared one; where days are smooth 1.02, 0.80 and 0.80).
    """

    def __init__(self, groups: Sequence[Floats], size: int, waves: Floats | None = None) -> None:
        self.features: Floats = np.ones((size, 1))
        self.weights: Floats = np.ones(1)
        self.groups: list[slice] = []  # where the features of a group are
        self.shared: slice | None = None  # where the waves are
        for group in groups if waves is None else [waves, *groups]:
            left_over = group - self.features @ (self.features.T @ group) / size
            left, singular, _ = np.linalg.svd(left_over, full_matrices=False)
            used = singular > 1e-4 * math.sqrt(size)  # of mean square one; less is rounding, or tells nothing
            if used.any():
                self.groups.append(slice(len(self.weights), len(self.weights) + int(used.sum())))
                self.shared = self.groups[-1] if group is waves else self.shared
                self.features = np.column_stack([self.features, math.sqrt(size) * left[:, used]])
                self.weights = np.concatenate([self.weights, singular[used] ** 2 / size])

    @property
    def size(self) -> int:
        """Number of features besides the constant."""
        return int(self.features.shape[1]) - 1


def pattern_features(coordinates: Coordinates, shape: tuple[int, ...]) -> list[Floats]:
    """One matrix per mode: log counts, and leading singular directions of the co-occurrence of indices.

    Rows of the pattern are scaled to length one, so the directions of a mode together have mean square one. The log
    counts have mean square one as well.
    """
    return [
        np.column_stack([_log_counts(coordinates, mode, shape), *_directions(coordinates, mode, shape)])
        for mode in range(len(shape))
    ]


def given_features(features: Sequence[ArrayLike | None], shape: tuple[int, ...]) -> list[Floats]:
    """Checked and centred feature matrices with mean square one per index; None for a mode without features."""
    if len(features) != len(shape):
        raise InputError(f"features must be one matrix or None per mode, got {len(features)} for {len(shape)} modes")
    made = []
    for mode, part in enumerate(features):
        if part is None:
            made.append(np.empty((shape[mode], 0)))
            continue
        matrix = np.asarray(part, dtype=np.float64)
        if matrix.ndim != 2 or len(matrix) != shape[mode] or not np.isfinite(matrix).all():
            raise InputError(
                f"features[{mode}] must be finite, one row per index ({shape[mode]}), got shape {matrix.shape}"
            )
        spread = matrix.std(axis=0)
        varying = spread > 0
        columns = (matrix[:, varying] - matrix[:, varying].mean(axis=0)) / spread[varying]
        made.append(columns / math.sqrt(max(columns.shape[1], 1)))  # together as much as the pattern
    return made


def _log_counts(coordinates: Coordinates, mode: int, shape: tuple[int, ...]) -> Floats:
    logs = np.log1p(np.bincount(coordinates[:, mode], minlength=shape[mode]))
    spread = float(logs.std())
    return np.asarray((logs - logs.mean()) / spread if spread > 1e-9 else 0 * logs)[:, None]


def _directions(coordinates: Coordinates, mode: int, shape: tuple[int, ...]) -> list[Floats]:
    """U S of the 0/1 patterns of the mode with each other mode, side by side, rows of length at most one."""
    size = shape[mode]
    most = min(MOST_FEATURES, size // ROWS_PER_FEATURE, size - 1)
    if most == 0 or not len(coordinates):
        return []
    parts = []
    for other in range(len(shape)):
        if other != mode:
            part = pair_counts(coordinates, mode, other, shape)
            seen = np.diff(part.indptr)
            part.data = np.repeat(1 / np.sqrt(np.maximum(seen, 1) * (len(shape) - 1)), seen)
            parts.append(part)
    values, vectors = leading_directions(parts, most)
    return [vectors * np.sqrt(values)]
