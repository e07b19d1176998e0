"""Rows of a block from noisy least-squares statistics whose noise is known."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers


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
    `smallest_prior` keeps the direction of rows that would otherwise be shrunk to zero; early sweeps need it.
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


@final
@dataclass(frozen=True)
class RidgeMatrices:
    """The matrices H = sum phi phi^T + ridge I of every row of a block, by their eigenvalues and eigenvectors."""

    values: Floats
    vectors: Floats

    @classmethod
    def of(cls, rows: Integers, features: Floats, size: int, ridge: float) -> Self:
        """Of each entry's row and features; `size` is the number of rows."""
        width = features.shape[1]
        H = np.zeros((size, width, width))
        np.add.at(H, rows, features[:, :, None] * features[:, None, :])
        H += ridge * np.eye(width)
        values, vectors = np.linalg.eigh(H)
        return cls(np.maximum(values, ridge), vectors)

    @property
    def roots(self) -> Floats:
        """H^1/2 of each row."""
        return np.asarray(np.einsum("kij,kj,klj->kil", self.vectors, np.sqrt(self.values), self.vectors))

    @property
    def inverse_roots(self) -> Floats:
        """H^-1/2 of each row."""
        return np.asarray(np.einsum("kij,kj,klj->kil", self.vectors, 1 / np.sqrt(self.values), self.vectors))

    def solutions(self, g: Floats, known: NDArray[np.bool_]) -> Floats:
        """Rows H^-1 g; rows that are not known are zero."""
        rotated = np.einsum("kij,ki->kj", self.vectors, np.where(known[:, None], g, 0.0)) / self.values
        return np.asarray(np.einsum("kij,kj->ki", self.vectors, rotated))

    def shrunk_solutions(
        self, g: Floats, known: NDArray[np.bool_], noise_variances: Floats, residual_variance: float
    ) -> Floats:
        """Rows H^-1 g, shrunk by a prior N(0, s^2 I) whose s^2 is found by moments; rows that are not known are zero.

        H^-1/2 g has the residual variance, and along each eigenvector of its row a noise variance: an array (rows,
        width), or (rows, 1) where it is the same along all.
        """
        rotated = np.einsum("kij,ki->kj", self.vectors, np.where(known[:, None], g, 0.0)) / self.values
        spread = (residual_variance + noise_variances) / self.values
        weights = np.where(np.broadcast_to(known[:, None], rotated.shape), 1 / spread**2, 0.0)
        prior = max(float((weights * (rotated**2 - spread)).sum() / max(weights.sum(), 1e-300)), 0.0)
        return np.asarray(np.einsum("kij,kj->ki", self.vectors, rotated * prior / (prior + spread)))
