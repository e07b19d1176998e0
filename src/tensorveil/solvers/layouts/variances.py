"""Variances of effects and residuals, by moments."""

import math

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.solvers.block_updates import Entries

SURE = 2.5  # standard errors by which effects must show before they count


def between_variance(remainder: Floats, data: Entries, mode: int) -> float:
    """Variance between the indices of a mode beyond what the spread within explains, by moments; 0 if there is none."""
    counts = data.counts(mode)
    sums = np.bincount(data.coordinates[:, mode], remainder, minlength=len(counts)).astype(np.float64)
    return excess_variance(sums, counts, float(remainder.sum()), float((remainder**2).sum()))


def excess_variance(sums: Floats, counts: Integers, whole: float, squares: float) -> float:
    """`_between_variance` from sums and numbers of entries by index, the sum of all values and of their squares."""
    used = counts > 0
    total, groups = int(counts.sum()), int(used.sum())
    if groups < 2 or total <= groups:
        return 0.0
    grouped = float((sums[used] ** 2 / counts[used]).sum())
    between = grouped - whole**2 / total
    within = (squares - grouped) / (total - groups)
    weight = total - float((counts.astype(np.float64) ** 2).sum()) / total
    excess = between - (groups - 1) * within
    return excess / weight if excess > SURE * math.sqrt(2 * (groups - 1)) * within else 0.0


def believable(errors: Floats, added: Floats, limit: float) -> bool:
    """Whether the factors explain errors of the offsets beyond chance, with a variance within the limit."""
    size = float(np.linalg.norm(errors) * np.linalg.norm(added))
    return float(errors @ added) * math.sqrt(len(errors)) > SURE * size and mean_square(added) <= limit


def mean_square(numbers: Floats) -> float:
    return float((numbers**2).mean())
