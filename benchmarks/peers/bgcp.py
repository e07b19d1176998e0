"""BGCP: Bayesian Gaussian CP factorisation by Gibbs sampling.

Chen, He and Sun, "A Bayesian tensor decomposition approach for spatiotemporal traffic data imputation", Transportation
Research Part C 98 (2019): a value is the CP model plus Gaussian noise, rows of a mode share a normal law whose mean and
precision have a Gaussian-Wishart prior, the precision of the noise a Gamma prior. All conditional laws are known, and
predictions are means over draws. The constants of the priors are the paper's. Values are not centred, as in the paper;
they are divided by their standard deviation, so that the result does not depend on their unit.

Rank, burn-in and number of draws are those that the paper's authors publish for Birmingham's car parks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import wishart

from peers.cells import Floats, Indices, checked, normal_equations, product

RANK, BURN_IN, DRAWS = 20, 1_000, 500
MEAN_WEIGHT = 1.0  # observations that the prior of a mode's mean is worth
NOISE_SHAPE = NOISE_RATE = 1e-6  # of the Gamma law of the noise's precision
START = 0.1  # standard deviation of the first factors


def complete(
    coordinates: Any,
    values: Any,
    shape: Sequence[int],
    asked: Any,
    seed: int = 0,
    *,
    rank: int = RANK,
    burn_in: int = BURN_IN,
    draws: int = DRAWS,
) -> Floats:
    """Predictions of asked cells; see `peers`."""
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    unit = numbers.std() or 1.0
    numbers = numbers / unit
    random = np.random.default_rng(seed)
    factors = [START * random.standard_normal((size, rank)) for size in shape]
    orders = [np.argsort(where[:, mode], kind="stable") for mode in range(len(shape))]
    precision, total = 1.0, np.zeros(len(wanted))
    for sweep in range(burn_in + draws):
        for mode, order in enumerate(orders):
            mean, spread = _hyperparameters(factors[mode], random)
            sorted_cells = where[order]
            features = product(factors, sorted_cells, mode)
            factors[mode] = _rows(
                features, numbers[order], sorted_cells[:, mode], shape[mode], precision, mean, spread, random
            )
        residuals = numbers - product(factors, where).sum(axis=1)
        precision = random.gamma(NOISE_SHAPE + len(numbers) / 2, 1 / (NOISE_RATE + residuals @ residuals / 2))
        if sweep >= burn_in:
            total += product(factors, wanted).sum(axis=1)
    return unit * total / draws


def _hyperparameters(rows: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Mean and precision of the law of a mode's rows, given these: from the Gaussian-Wishart posterior."""
    count, rank = rows.shape
    average = rows.mean(axis=0)
    centred = rows - average
    weight = count * MEAN_WEIGHT / (count + MEAN_WEIGHT)
    inverse = np.eye(rank) + centred.T @ centred + weight * np.outer(average, average)
    scale = np.linalg.inv(inverse)
    precision = np.atleast_2d(wishart.rvs(count + rank, (scale + scale.T) / 2, random_state=random))
    root = np.linalg.cholesky((count + MEAN_WEIGHT) * precision)
    mean = count * average / (count + MEAN_WEIGHT) + np.linalg.solve(root.T, random.standard_normal(rank))
    return mean, precision


def _rows(
    features: Floats,
    numbers: Floats,
    indices: Indices,
    size: int,
    precision: float,
    mean: Floats,
    spread: Floats,
    random: np.random.Generator,
) -> Floats:
    """A draw of all rows of a mode from their normal laws, given features of their cells, sorted by index."""
    matrices, sides = normal_equations(features, numbers, indices, size)
    roots = np.linalg.cholesky(precision * matrices + spread)
    whitened = np.linalg.solve(roots, (precision * sides + spread @ mean)[:, :, None])
    noise = random.standard_normal((*sides.shape, 1))
    return np.linalg.solve(np.swapaxes(roots, 1, 2), whitened + noise)[:, :, 0]
