"""Posterior counts from noisy counts, with a prior that is learned from all of them (post-processing).

The prior is the maximum likelihood distribution of counts on a grid (Kiefer, Wolfowitz 1956; found by EM). Each count
is estimated by its posterior mean, so that noise around zero is not mistaken for counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEP = 0.5  # of the grid, in standard deviations of the noise
GRID = 100
CLEAR = 40.0  # standard deviations above which a count is taken as it is
ROUNDS = 100
CHUNK = 20_000  # counts at a time, and that the law is learned from


def believed_counts(noisy: Floats, variance: float) -> tuple[Floats, Floats]:
    """Posterior mean and variance of every count; without noise, the counts themselves.

    Parameters
    ----------
    noisy : counts with noise
    variance : of the noise on each
    """
    noisy = np.asarray(noisy, dtype=np.float64)
    std = float(np.sqrt(variance))
    means, variances = np.maximum(noisy, 0.0), np.full(len(noisy), float(variance))
    near = np.flatnonzero(noisy < CLEAR * std)
    if not near.size:
        return means, variances
    scaled = noisy[near] / std
    grid: Floats = np.asarray(STEP * np.arange(GRID), dtype=np.float64)
    law = np.full(GRID, 1 / GRID)
    learned = _likelihoods(scaled[:: 1 + len(scaled) // CHUNK], grid)
    for _ in range(ROUNDS):
        weights = learned * law
        law = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    for start in range(0, len(near), CHUNK):
        part = near[start : start + CHUNK]
        weights = _likelihoods(noisy[part] / std, grid) * law
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        found = weights @ grid
        means[part] = std * found
        variances[part] = variance * np.maximum(weights @ grid**2 - found**2, 0.0)
    return means, variances


def _likelihoods(scaled: Floats, grid: Floats) -> Floats:
    """Likelihoods of the grid points, one row per count, in standard deviations of nearly normal noise; at most one."""
    squares = np.square(scaled[:, None] - grid)
    return np.asarray(np.exp(-0.5 * (squares - squares.min(axis=1, keepdims=True))))
