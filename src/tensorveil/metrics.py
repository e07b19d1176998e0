"""How good a completion is."""

import numpy as np
from numpy.typing import ArrayLike

from tensorveil.errors import InputError


def rmse(truth: ArrayLike, prediction: ArrayLike) -> float:
    """Root mean square error, the measure of the paper's section 5."""
    expected, given = np.asarray(truth, dtype=np.float64), np.asarray(prediction, dtype=np.float64)
    if expected.shape != given.shape or expected.size == 0:
        raise InputError(
            f"truth and prediction must have one common, non-empty shape, got {expected.shape} and {given.shape}; "
            "predict at the coordinates of the truth"
        )
    return float(np.sqrt(np.mean((expected - given) ** 2)))
