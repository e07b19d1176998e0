"""Whether chains have run long enough: split R-hat and effective sample size (Gelman et al., BDA3, 11.4-5).

And what to do if they have not: chains that ended in different modes are weighted by how well they are expected to
predict, which is stacking (Yao, Vehtari, Gelman 2022, "Stacking for non-mixing Bayesian computations").
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STACKING_STEPS = 300  # of expectation maximization; weights of the test are then within 0.02 of the best ones


def split_rhat(draws: Floats) -> Floats:
    """R-hat of every quantity of draws (draws, chains, quantities), the halves of each chain as two; 1 is perfect."""
    half = len(draws) // 2
    parts = np.concatenate([draws[:half], draws[-half:]], axis=1)
    within = parts.var(axis=0, ddof=1).mean(axis=0)
    between = half * parts.mean(axis=0).var(axis=0, ddof=1)
    flat = within <= 0
    ratio = ((half - 1) / half * within + between / half) / np.where(flat, 1.0, within)
    return np.asarray(np.sqrt(np.where(flat, 1.0, ratio)))


def effective_size(draws: Floats) -> Floats:
    """Effective number of independent draws of every quantity of draws (draws, chains, quantities).

    All draws over 1 + 2 times the sum of autocorrelations, whose variance is that within and between chains (BDA3,
    11.8). The sum ends at the first pair of neighbouring lags whose sum is not positive (Geyer 1992).
    """
    count, chains, columns = draws.shape
    means = draws.mean(axis=0)
    spectrum = np.fft.rfft(draws - means, 2 * count, axis=0)
    covariances = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:count].mean(axis=1) / count
    between = means.var(axis=0, ddof=1) if chains > 1 else np.zeros(columns)
    total = covariances[0] + between
    flat = total <= 0
    correlations = 1 - (covariances[0] - covariances) / np.where(flat, 1.0, total)
    pairs = correlations[: 2 * (count // 2)].reshape(-1, 2, columns).sum(axis=1)
    kept = np.cumprod(pairs > 0, axis=0)
    times = 2 * (pairs * kept).sum(axis=0) - 1
    whole = count * chains
    return np.asarray(np.where(flat, whole, whole / np.maximum(times, 1 / count)).clip(1, whole))


def expected_logs(logs: Floats) -> Floats:
    """Expected log probability of another symbol like each of these, from logs (draws, symbols).

    By the widely applicable criterion (Watanabe 2010): the log of the mean probability, less the variance of its log.
    """
    largest = logs.max(axis=0)
    spread = logs.var(axis=0, ddof=1 if len(logs) > 1 else 0)
    return np.asarray(largest + np.log(np.exp(logs - largest).mean(axis=0)) - spread)


def stacking_weights(expected: Sequence[Floats], chance: float) -> Floats:
    """Weights of chains whose mixture predicts best: they maximize the sum of the logs of mixed probabilities.

    Parameters
    ----------
    expected : for each chain the expected log probability of every symbol
    chance : how far the sums of these logs of two chains from one mode may be apart. Every chain counts as the best one
        for so many further symbols, so that chains from one mode have about the same weight.
    """
    logs = np.array(expected)
    chances = np.exp(logs - logs.max(axis=0))
    weights = np.full(len(logs), 1 / len(logs))
    for _ in range(STACKING_STEPS):
        weights = weights * (chances @ (1 / (weights @ chances))) + chance
        weights /= weights.sum()
    return np.asarray(weights)
