"""Whether a chain of draws has run long enough: split R-hat and effective sample size (Gelman et al., BDA3, 11.4-5)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def split_rhat(draws: Floats) -> Floats:
    """R-hat of each column of draws (draws, quantities), the chain's halves taken for two chains; 1 is perfect."""
    half = len(draws) // 2
    parts = np.stack([draws[:half], draws[-half:]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = half * parts.mean(axis=1).var(axis=0, ddof=1)
    flat = within <= 0
    ratio = ((half - 1) / half * within + between / half) / np.where(flat, 1.0, within)
    return np.asarray(np.sqrt(np.where(flat, 1.0, ratio)))


def effective_size(draws: Floats) -> Floats:
    """Effective number of independent draws in each column: n / (1 + 2 sum of autocorrelations).

    The sum ends at the first pair of neighbouring lags whose sum is not positive (Geyer 1992).
    """
    count, columns = draws.shape
    centred = draws - draws.mean(axis=0)
    spectrum = np.fft.rfft(centred, 2 * count, axis=0)
    covariances = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:count]
    flat = covariances[0] <= 0
    correlations = covariances / np.where(flat, 1.0, covariances[0])
    pairs = correlations[: 2 * (count // 2)].reshape(-1, 2, columns).sum(axis=1)
    kept = np.cumprod(pairs > 0, axis=0)
    times = 2 * (pairs * kept).sum(axis=0) - 1
    return np.asarray(np.where(flat, count, count / np.maximum(times, 1 / count)).clip(1, None))
