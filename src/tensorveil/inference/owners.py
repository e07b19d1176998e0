"""Joint privacy, on the side of the owners: offset and row of each owner, from the release and the owner's own data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorveil.models.block_features import block_features, largest_feature, typical_feature
from tensorveil.models.completion import Completion

Floats = NDArray[np.float64]

OWNER_LIMIT = 4.0  # the most that a row may add to a prediction, on the centred scale, whose range is 2
OFFSET_RIDGE = 8.0  # variance of residuals over that of offsets: 2/9 over 1/36, as planning takes them to be
ROW_RIDGE = 5.0  # for the row, in units of the features' own size: features explain a fifth of the residuals


def owner_rows(
    coordinates: NDArray[np.uint32], centred: Floats, released: Completion, mode: int
) -> tuple[Floats, Floats]:
    """Offset and row of every owner on the centred scale, each from the release and the owner's own observations.

    An owner's offset and row together are one ridge regression; those of owners without observations are zero.

    Parameters
    ----------
    coordinates, centred : where the owners' values were observed, and the values on the centred scale
    released : the public release
    mode : the mode whose indices are the owners
    """
    model = released.factors
    design = np.column_stack([np.ones(len(centred)), block_features(model, coordinates, mode)])
    ridge = np.full(design.shape[1], max(ROW_RIDGE * typical_feature(model, mode) ** 2, 1e-9))
    ridge[0] = OFFSET_RIDGE
    residuals = centred - released.offsets.at(coordinates)
    solved = np.zeros((released.shape[mode], design.shape[1]))
    order = np.argsort(coordinates[:, mode], kind="stable")
    owners, starts = np.unique(coordinates[order, mode], return_index=True)
    for owner, mine in zip(owners, np.split(order, starts[1:]), strict=True):
        X = design[mine]
        solved[owner] = np.linalg.solve(X.T @ X + np.diag(ridge), X.T @ residuals[mine])
    longest = OWNER_LIMIT / largest_feature(model, mode)
    lengths = np.linalg.norm(solved[:, 1:], axis=1, keepdims=True)
    return np.clip(solved[:, 0], -2.0, 2.0), solved[:, 1:] / np.maximum(1.0, lengths / longest)
