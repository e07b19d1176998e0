"""A released mean of the values, and the marginal that agrees with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tensorveil.inference.marginal import Marginal
from tensorveil.inference.offsets import NoisySums

SMALLEST_ROOM = 1e-3  # of the bounds, that a tail needs
STEEPEST = 60.0  # exponential tilt
BISECTIONS = 60


def reading_range(marginal: Marginal, noise: float) -> tuple[float, float]:
    """Ends, centred, between which values are read for their mean.

    Values may lie beyond what the marginal shows: a mass of the size of its error, anywhere up to the bounds. If values
    are read up to a share h of the way to the bounds, the mean errs by h times the noise, and by 1 - h times that mass.
    The sum of both squares is least at h = error^2 / (error^2 + noise^2).

    Parameters
    ----------
    noise : standard deviation of the noise on the mean, if values are read over the whole bounds
    """
    low, high = (float(end) for end in marginal.quantile(np.array([0.0, 1.0])))
    share = marginal.error**2 / max(marginal.error**2 + noise**2, 1e-300)
    return low - share * (low + 1.0), high + share * (1.0 - high)


def mean_of_total(total: NoisySums, low: float, high: float) -> tuple[float, float]:
    """The mean of the values, read between low and high, and the standard deviation of its noise."""
    count = max(float(total.counts[0]), math.sqrt(total.count_variance), 1.0)
    place = min(max(float(total.sums[0]) / count, -1.0), 1.0)
    variance = (total.sum_variance + place**2 * total.count_variance) / count**2
    half = (high - low) / 2
    return low + half * (1 + place), half * math.sqrt(variance)


def with_mean(marginal: Marginal, mean: float, noise: float) -> tuple[Marginal, float, float]:
    """The marginal with another mean, released with noise of this standard deviation; that mean, and its error.

    Both means are averaged by their precision. If there is room between the masses and the bounds, a mass is put there:
    too small to show in the marginal, but not in the mean. Otherwise masses are tilted exponentially.
    """
    trust = marginal.error**2 / max(marginal.error**2 + noise**2, 1e-300)
    wanted, error = marginal.mean() + trust * (mean - marginal.mean()), math.sqrt(trust) * noise
    held = np.flatnonzero(marginal.masses)
    upwards = wanted > marginal.mean()
    beyond = np.arange(len(marginal.masses)) > held[-1] if upwards else np.arange(len(marginal.masses)) < held[0]
    widths = np.where(beyond, marginal.last - marginal.first, 0).astype(np.float64)
    middles = marginal.centred((marginal.first + marginal.last - 1) / 2)
    if widths.sum() > SMALLEST_ROOM * 2 * marginal.steps:
        tail = widths / widths.sum()
        share = min(max((wanted - marginal.mean()) / (float(tail @ middles) - marginal.mean()), 0.0), 1.0)
        return replace(marginal, masses=(1 - share) * marginal.masses + share * tail), wanted, error
    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        masses = marginal.masses * np.exp(tilt * (middles - middles[held].max() if tilt > 0 else middles + 1.0))
        masses /= masses.sum()
        low, high = (tilt, high) if masses @ middles < wanted else (low, tilt)
    return replace(marginal, masses=masses), wanted, error
