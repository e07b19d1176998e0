"""How much every single observation adds to the sum of each of its indices, where coordinates are public.

Privacy limits what an observation adds to all its sums together, but not how this is divided. An index with many
observations needs only a small part of each, and the rest is more useful for the indices of other modes. This module
reads coordinates only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorveil.privacy.queries.sums.weighted_sums import softmax

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROUNDS, FEWEST_ROUNDS = 200, 10
MOST_READINGS = 2e7  # of observations, over all rounds


def observation_logits(
    rows: Sequence[Integers], sizes: Sequence[int], noise: float, offset: float, residual: float, pure: bool
) -> tuple[Floats, ...]:
    """For each mode, one logit per index: the softmax over the modes divides an observation between its sums.

    The weights are these shares (pure) or their roots (Gaussian noise); see `ObservationSums`. The logits make the
    expected variance of offsets as small as local search can: given weights a, an index is known with variance
    (noise + residual * sum a^2) / (sum a)^2, against the prior variance `offset`. Indices count by the root of their
    number of observations: half way between cells as observed and all cells alike.

    Parameters
    ----------
    rows : of each mode, the index of every observation
    noise : variance of the noise on a sum
    offset, residual : variances of offsets, and of a value around them
    """
    from scipy.optimize import minimize

    power = 1.0 if pure else 0.5
    starts = np.cumsum([0, *sizes])
    importance = []
    for row, size in zip(rows, sizes, strict=True):
        roots = np.sqrt(np.bincount(row, minlength=size))
        importance.append(roots / max(float(roots.sum()), 1e-300))

    def error(logits: Floats) -> tuple[float, Floats]:
        parts = np.stack(softmax([logits[start + row] for start, row in zip(starts, rows, strict=False)]))
        total, slopes = 0.0, np.empty_like(parts)
        for mode, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            weights = parts[mode] ** power
            n = np.bincount(row, weights=weights, minlength=size)
            e = noise + residual * np.bincount(row, weights=weights**2, minlength=size)
            below = offset * n**2 + e
            total += float(importance[mode] @ (offset * e / below))
            by_n = -2 * offset**2 * e * n / below**2 * importance[mode]
            by_e = offset**2 * n**2 / below**2 * importance[mode]
            slopes[mode] = power * weights * (by_n[row] + 2 * residual * weights * by_e[row])
        slopes -= parts * slopes.sum(axis=0)
        gradient = [
            np.bincount(row, weights=slope, minlength=size)
            for row, slope, size in zip(rows, slopes, sizes, strict=True)
        ]
        return total / offset, np.concatenate(gradient) / offset

    rounds = int(np.clip(MOST_READINGS / max(len(rows[0]), 1), FEWEST_ROUNDS, MOST_ROUNDS))
    # the gradient of an average is small: the stopping rule of the search would end it at once
    scaled = minimize(
        lambda logits: tuple(1e3 * part for part in error(logits)),
        np.zeros(starts[-1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": rounds},
    )
    return tuple(np.split(scaled.x, starts[1:-1]))
