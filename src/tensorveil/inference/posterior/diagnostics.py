"""Whether chains have run long enough: split R-hat and effective sample size (Gelman et al., BDA3, 11.4-5)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
