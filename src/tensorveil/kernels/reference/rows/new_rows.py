"""Rows of new indices: ordered probit regressions with a normal prior, one per index and draw of the model."""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.kernels.compiling import compiled

STEPS = 4  # of Newton's method; the log posterior is concave, and the prior's mean is near
SMALLEST_MASS = 1e-280  # of a level, below which its nearest end stands for it
ROOT = math.sqrt(0.5)
DENSITY = 1 / math.sqrt(2 * math.pi)


@compiled
def pull(low: float, high: float) -> tuple[float, float]:
    """Mean of a standard normal number between two ends, and by how much its variance is below one."""
    if low > 0:
        mass = (math.erfc(low * ROOT) - math.erfc(high * ROOT)) / 2
    else:
        mass = (math.erfc(-high * ROOT) - math.erfc(-low * ROOT)) / 2
    if mass < SMALLEST_MASS:
        return (low if low > 0 else high), 1.0
    at_low = DENSITY * math.exp(-low * low / 2) if low > -np.inf else 0.0
    at_high = DENSITY * math.exp(-high * high / 2) if high < np.inf else 0.0
    mean = (at_low - at_high) / mass
    slope = (low * at_low if low > -np.inf else 0.0) - (high * at_high if high < np.inf else 0.0)
    return mean, min(max(mean * mean - slope / mass, 1e-9), 1.0)


@compiled
def fold_rows(
    features: Floats,
    bases: Floats,
    levels: Integers,
    ends: Floats,
    starts: Integers,
    prior_mean: Floats,
    prior_precision: Floats,
    noise: Floats,
    rows: Floats,
) -> None:
    """A draw of each new row with its offset, around the likeliest one, by the curvature there.

    Parameters
    ----------
    features : array (entries, width - 1); the last coefficient is the offset, whose feature is one
    bases : latent means of the entries without the new row, in units of the residual spread
    levels : level of each entry
    ends : array (levels + 1), of the levels on the latent scale, the outer ones infinite
    starts : array (people + 1): the entries of each person
    prior_mean, prior_precision : of a row with its offset
    noise : array (people, width) of standard normal numbers
    rows : array (people, width), filled
    """
    width = len(prior_mean)
    right, matrix = np.empty(width), np.empty((width, width))
    feature = np.ones(width)
    for person in range(len(starts) - 1):
        row = rows[person]
        row[:] = prior_mean
        for _ in range(STEPS):
            for i in range(width):
                total = 0.0
                for j in range(width):
                    total += prior_precision[i, j] * (prior_mean[j] - row[j])
                    matrix[i, j] = prior_precision[i, j]
                right[i] = total
            for entry in range(starts[person], starts[person + 1]):
                mean = bases[entry] + row[width - 1]
                for i in range(width - 1):
                    feature[i] = features[entry, i]
                    mean += feature[i] * row[i]
                score, weight = pull(ends[levels[entry]] - mean, ends[levels[entry] + 1] - mean)
                for i in range(width):
                    right[i] += score * feature[i]
                    for j in range(i + 1):
                        matrix[i, j] += weight * feature[i] * feature[j]
            _factorise(matrix)
            _solve_lower(matrix, right)
            _solve_upper(matrix, right)
            for i in range(width):
                row[i] += right[i]
        right[:] = noise[person]
        _solve_upper(matrix, right)  # covariance: the inverse of the matrix
        for i in range(width):
            row[i] += right[i]


@compiled
def _factorise(matrix: Floats) -> None:
    """The lower root of a positive definite matrix, of which the lower half is read, in its place."""
    for i in range(len(matrix)):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = math.sqrt(max(total, 1e-300)) if i == j else total / matrix[j, j]


@compiled
def _solve_lower(root: Floats, right: NDArray[np.float64]) -> None:
    for i in range(len(right)):
        total = right[i]
        for k in range(i):
            total -= root[i, k] * right[k]
        right[i] = total / root[i, i]


@compiled
def _solve_upper(root: Floats, right: NDArray[np.float64]) -> None:
    """By the transposed root."""
    for i in range(len(right) - 1, -1, -1):
        total = right[i]
        for k in range(i + 1, len(right)):
            total -= root[k, i] * right[k]
        right[i] = total / root[i, i]
