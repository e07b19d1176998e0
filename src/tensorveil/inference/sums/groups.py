"""Interactions between indices of one mode and groups of indices of another mode, from noisy sums.

The sum of an index u over a group g is N_ug t_ug + residuals + noise, and its vector of effects t_u ~ N(0, P), where
the covariance P between groups is fitted to the sums of all indices (EM), held near a generic one by a weak prior.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDS = 30
GROUPING_ROUNDS = 50
PRIOR_COUNT = 4.0  # indices' worth of belief in the generic covariance, for each group
INTERACTION_VARIANCE = 0.01  # generic, where the latent spread is 1


def grouped(columns: Floats, weights: Floats, number: int) -> Integers:
    """Groups of similar rows by weighted k-means, initialized along the direction of largest variance.

    Parameters
    ----------
    columns : one row per index
    weights : nonnegative weight of each index
    """
    if not columns.size:
        return np.zeros(len(columns), dtype=np.int64)
    shares = weights / max(float(weights.sum()), 1e-300)
    centred = columns - shares @ columns
    _, vectors = np.linalg.eigh(centred.T @ (shares[:, None] * centred))
    along = centred @ vectors[:, -1]
    order = np.argsort(along, kind="stable")
    labels = np.empty(len(columns), dtype=np.int64)
    labels[order] = np.minimum((np.cumsum(shares[order]) * number).astype(np.int64), number - 1)
    for _ in range(GROUPING_ROUNDS):
        centres = np.array(
            [
                np.average(centred[labels == one], axis=0, weights=shares[labels == one] + 1e-12)
                if (labels == one).any()
                else np.full(columns.shape[1], 1e9)
                for one in range(number)
            ]
        )
        nearest = np.square(centred[:, None, :] - centres).sum(axis=2).argmin(axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
    return labels


def drawn_interactions(sums: Floats, counts: Floats, errors: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Draws (draws, indices, groups) of the effects of every index on every group.

    Parameters
    ----------
    sums, counts : arrays (indices, groups); sums are less what mean and offsets explain
    errors : variances of the sums around counts times effects
    draws : how many
    """
    size, number = sums.shape
    generic = INTERACTION_VARIANCE * np.eye(number)
    prior, diagonal = generic, np.arange(number)
    for _ in range(ROUNDS):
        covariances = counts[:, :, None] * prior * counts[:, None, :]
        covariances[:, diagonal, diagonal] += errors
        gains = np.linalg.solve(covariances, counts[:, :, None] * prior).swapaxes(1, 2)  # of sums in effects
        effects = np.einsum("ugh,uh->ug", gains, sums)
        remaining = prior - gains @ (counts[:, :, None] * prior)
        found = effects.T @ effects + remaining.sum(axis=0)
        prior = (found + PRIOR_COUNT * number * generic) / (size + PRIOR_COUNT * number)
    values, vectors = np.linalg.eigh((remaining + remaining.swapaxes(1, 2)) / 2)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    return np.asarray(effects + np.einsum("ugh,duh->dug", roots, rng.standard_normal((draws, size, number))))
