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


def recall(ranked: ArrayLike, relevant: ArrayLike) -> float:
    """The share of the relevant items that a ranked list holds.

    Examples
    --------
    >>> recall([7, 3, 5], relevant=[3, 9])
    0.5
    """
    wanted = set(np.asarray(relevant).tolist())
    if not wanted:
        raise InputError("relevant must hold at least one item, got none; leave this list out")
    return len(wanted & set(np.asarray(ranked).tolist())) / len(wanted)


def ndcg(ranked: ArrayLike, relevant: ArrayLike) -> float:
    """Normalised discounted cumulative gain: each relevant item at rank r counts 1 / log2(r + 1), over the best list.

    Examples
    --------
    >>> ndcg([3, 7], relevant=[3]), round(ndcg([7, 3], relevant=[3]), 4)
    (1.0, 0.6309)
    """
    items, wanted = np.asarray(ranked).tolist(), set(np.asarray(relevant).tolist())
    if not wanted or not items:
        raise InputError("ranked and relevant must hold at least one item each, got none; leave this list out")
    discounts = 1 / np.log2(np.arange(len(items)) + 2)
    hits = np.array([item in wanted for item in items])
    return float(discounts[hits].sum() / discounts[: len(wanted)].sum())
