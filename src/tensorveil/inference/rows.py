"""Rows of a factor matrix from noisy least-squares statistics whose noise is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def square_matrices(triangles: Floats, width: int) -> Floats:
    """Symmetric matrices from upper triangles whose numbers off the diagonal were scaled by sqrt(2)."""
    first, second = np.triu_indices(width)
    matrices = np.zeros((len(triangles), width, width))
    values = triangles / np.where(first == second, 1.0, np.sqrt(2.0))
    matrices[:, first, second] = values
    matrices[:, second, first] = values
    return matrices


def posterior_rows(
    g: Floats,
    H: Floats,
    noise_variance: float,
    matrix_noise: float,
    residual_variance: float,
    smallest_prior: float,
    largest_prior: float,
) -> Floats:
    """Posterior means of rows c from g = H c + e + n, for a prior c ~ N(0, s^2 I) whose s^2 is found by moments.

    e has the variance residual_variance * H, n noise_variance * I. Where H itself is noisy, with standard deviation
    `matrix_noise` on its diagonal, its spectrum is cut off below the level that noise alone reaches. A positive
    `smallest_prior` keeps the direction of rows that noise would shrink to nothing: early sweeps need it.
    """
    width = g.shape[1]
    values, vectors = np.linalg.eigh(H)
    level = matrix_noise * np.sqrt(2.0 * width)  # the largest eigenvalue of the noise is near this
    values = np.where(values > level, values, 0.0)
    rotated = np.einsum("kij,ki->kj", vectors, g)
    spread = residual_variance * values + noise_variance
    weight = float(np.sum(values**2))
    surplus = float(np.sum(np.where(values > 0, rotated**2 - spread, 0.0)))
    prior = min(max(surplus, smallest_prior * weight), largest_prior * weight) / weight if weight > 0 else 0.0
    shrunk = prior * values * rotated / (prior * values**2 + spread + prior * level**2)
    return np.asarray(np.einsum("kij,kj->ki", vectors, shrunk))
