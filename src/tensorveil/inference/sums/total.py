"""A released mean of the values, and the marginal that agrees with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtri

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.values.marginal import Marginal

Floats = NDArray[np.float64]

SMALLEST_ROOM = 1e-3  # of the bounds, that a tail needs
TAIL = 4.0  # standard deviations
MISSED, LARGEST_MISSED = 3.0, 0.3  # standard errors of a mass that may be missed, and the largest such mass
LARGEST_TRIMMED = 0.45  # share of the mass at each end, beyond which little would be left
STEEPEST = 60.0  # exponential tilt
BISECTIONS = 60
TRUST_COUNT = 3.0  # degrees of freedom of the error of the marginal's mean
ENDS = 0.2  # both parameters of the beta prior of the mean
POINTS = 400  # at which the density of the mean is computed, for each of the laws that it is a product of
NEAREST = 1 - 1e-12  # that the mean is to a bound
COARSE_CELL = 1 / 8  # of the first histogram, centred


def reading_range(marginal: Marginal, noise: float) -> tuple[float, float]:
    """Ends, centred, between which values are read for their mean.

    Values may lie beyond what the marginal shows: a mass p, of the size of its error, at any distance d. If they are
    left out, the mean is wrong by p d, but then the values have a variance of at least p d^2: the squared error of the
    mean as a prediction rises by a share of p at most. If values are read up to a share h of the way to the bounds,
    noise adds (h noise)^2, of the variance s^2 that the marginal shows. (h noise / s)^2 + (1 - h) p is least at
    h = p s^2 / (2 noise^2). So a few values in bounds that are far too wide are not read at the price of the bounds.

    Parameters
    ----------
    noise : standard deviation of the noise on the mean, if values are read over the whole bounds
    """
    low, high = (float(end) for end in marginal.quantile(np.array([0.0, 1.0])))
    share = min(marginal.error * marginal.std() ** 2 / max(2 * noise**2, 1e-300), 1.0)
    return low - share * (low + 1.0), high + share * (1.0 - high)


def surest_spread(marginal: Marginal) -> float:
    """The spread of the values, centred, that is not noise of the marginal: that of a normal law by two quantiles.

    As many standard errors of a mass as may be missed are left out at each end: noise gives a constant tails.
    """
    share = min(MISSED * marginal.error, LARGEST_TRIMMED)
    low, high = marginal.quantile(np.array([share, 1 - share]))
    return float(high - low) / max(-2 * float(ndtri(share)), 1e-300)


@final
@dataclass(frozen=True, eq=False)
class Total:
    """A noisy total of all values, read between low and high, centred, and the noisy count of them."""

    noisy: NoisySums
    low: float
    high: float


def mean_of_totals(totals: Sequence[Total]) -> tuple[float, float]:
    """The mean of the values, centred, and the standard deviation of its noise.

    Each total is divided by the count that all of them tell together: a small share of the budget buys a count that may
    be far off, and a mean of its own would seem more certain than it is.
    """
    precisions = [1 / max(one.noisy.count_variance, 1e-100) for one in totals]
    doubt = 1 / math.fsum(precisions)
    count = doubt * math.fsum(weight * one.noisy.counts[0] for weight, one in zip(precisions, totals, strict=True))
    count = max(float(count), math.sqrt(doubt), 1.0)
    halves = np.array([(one.high - one.low) / 2 for one in totals])
    places = np.clip([float(one.noisy.sums[0]) / count for one in totals], -1.0, 1.0)
    variances = halves**2 * [one.noisy.sum_variance for one in totals] / count**2
    weights = 1 / np.maximum(variances, 1e-200)
    weights /= weights.sum()
    mean = weights @ ([one.low for one in totals] + halves * (1 + places))
    shared = float(weights @ (halves * places)) / count  # by which the mean moves with the count
    return float(mean), math.sqrt(float(weights**2 @ variances) + shared**2 * doubt)


def with_mean(
    marginal: Marginal, mean: float, noise: float, number: int, inside: tuple[float, float] | None = None
) -> tuple[Marginal, Floats]:
    """The marginal with another mean, released with noise of this standard deviation, and the law of that mean.

    If there is room between the masses and the bounds, a tail is put there, too small to show in the marginal, but not
    in the mean: of a few standard deviations, and longer where its mass would otherwise be too large to be missed.
    Without room, masses are tilted exponentially.

    inside : a mean of values that were read in the range of the marginal, and its noise

    Returns
    -------
    The marginal, and so many equally likely means, in increasing order (`_posterior_means`).
    """
    means = _posterior_means(marginal, mean, noise, number, inside)
    wanted = float(means.mean())
    short = wanted - marginal.mean()
    low, high = (float(end) for end in marginal.quantile(np.array([0.0, 1.0])))
    missed = min(MISSED * marginal.error, LARGEST_MISSED)
    width = max(TAIL * marginal.std(), 2 * abs(short) / max(missed, 1e-9))
    begin, end = (high, min(high + width, 1.0)) if short > 0 else (max(low - width, -1.0), low)
    if end - begin > SMALLEST_ROOM and marginal.places is None:
        share = min(max(short / ((begin + end) / 2 - marginal.mean()), 0.0), 1.0)
        return _with_tail(marginal, begin, end, share), means
    middles = marginal.middles
    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        masses = marginal.masses * np.exp(tilt * (middles - 1.0 if tilt > 0 else middles + 1.0))
        masses /= masses.sum()
        low, high = (tilt, high) if masses @ middles < wanted else (low, tilt)
    return replace(marginal, masses=masses), means


def _posterior_means(
    marginal: Marginal, mean: float, noise: float, number: int, inside: tuple[float, float] | None
) -> Floats:
    """Quantiles of the mean of the values, given a released mean with normal noise and the mean of the marginal.

    A marginal may have missed half of the values (two atoms at the bounds, few slices), so the error of its mean has a
    Student law, and so has that of a mean inside of its range. The mean lies between the bounds, and near one of them
    more often than not: counts and amounts have upper bounds that are far too wide. It has a beta prior.

    For values with a spread of 0.02, errors of predictions by this mean, as shares of those by the noisy mean, clipped,
    average to 1.00 with parameters of 0.3 and to 0.95 with 0.2 (simulated; seven means, four sizes of the noise).
    """
    known, doubt = marginal.mean(), math.sqrt(_mean_variance(marginal))
    if inside is not None:
        weight = doubt**2 / (doubt**2 + inside[1] ** 2)
        known, doubt = known + weight * (inside[0] - known), math.sqrt(weight) * inside[1]
    normals = ndtri((np.arange(POINTS) + 0.5) / POINTS)
    places = np.concatenate([np.tanh(3 * normals), mean + 2 * noise * normals, known + 2 * doubt * normals])
    places = np.unique(np.clip(places, -NEAREST, NEAREST))
    logs = -(((places - mean) / noise) ** 2) / 2
    logs -= (TRUST_COUNT + 1) / 2 * np.log1p(((places - known) / doubt) ** 2 / TRUST_COUNT)
    chances = np.exp(logs - logs.max()) * np.gradient(betainc(ENDS, ENDS, (1 + places) / 2))
    below = np.cumsum(chances) - chances / 2
    return np.asarray(np.interp((np.arange(number) + 0.5) / number, below / chances.sum(), places))


def _mean_variance(marginal: Marginal) -> float:
    """The variance of the marginal's mean, centred.

    It has three parts: where in its cell each mass lies; the noise of the masses, of one coarse cell each, over the
    range that they cover; and what a mass of the size of the error, too small to be seen, could add (`reading_range`).
    """
    low, high = (float(end) for end in marginal.quantile(np.array([0.0, 1.0])))
    inside = 0.0 if marginal.places is not None else (marginal.last - marginal.first) / marginal.steps
    coarse = max((high - low) / COARSE_CELL, 1.0)
    return (
        float(np.sum((marginal.masses * inside) ** 2)) / 12
        + marginal.error**2 * coarse * (high - low) ** 2 / 12
        + marginal.error * marginal.std() ** 2
    )


def _with_tail(marginal: Marginal, begin: float, end: float, share: float) -> Marginal:
    """The marginal with this share of the mass spread evenly between two places where there was none.

    Cells are split at multiples of the finest width: atoms are cells of that width (`scale_of`).
    """
    edges = np.append(marginal.first, marginal.last[-1])
    finest = int((marginal.last - marginal.first).min())
    more = finest * np.rint(np.array([begin, end]) * (marginal.steps / finest)).astype(np.int64)
    more[more >= marginal.steps] = edges[-1]  # the last cell holds the upper bound too
    finer = np.unique(np.append(edges, np.maximum(more, edges[0])))
    cells = np.searchsorted(edges, finer[:-1], side="right") - 1
    widths = np.diff(finer)
    masses = marginal.masses[cells] * widths / (marginal.last - marginal.first)[cells]
    inside = (finer[:-1] >= more[0]) & (finer[1:] <= more[1])
    tail = np.where(inside, widths, 0) / max(float(widths[inside].sum()), 1.0)
    return replace(marginal, first=finer[:-1], last=finer[1:], masses=(1 - share) * masses + share * tail)
