"""A released mean of the values, and the marginal that agrees with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.values.marginal import Marginal

SMALLEST_ROOM = 1e-3  # of the bounds, that a tail needs
TAIL = 4.0  # standard deviations
MISSED, LARGEST_MISSED = 3.0, 0.3  # standard errors of a mass that may be missed, and the largest such mass
STEEPEST = 60.0  # exponential tilt
BISECTIONS = 60
TRUST_COUNT = 3.0  # degrees of freedom of the marginal's variance
TRUST_ROUNDS = 50
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


def with_mean(marginal: Marginal, mean: float, noise: float) -> tuple[Marginal, float, float]:
    """The marginal with another mean, released with noise of this standard deviation; that mean, and its error.

    Both means are averaged by their precision (`_trust`). If there is room between the masses and the bounds, a
    tail is put there, too small to show in the marginal, but not in the mean: of a few standard deviations, and longer
    where its mass would otherwise be too large to be missed. Without room, masses are tilted exponentially.
    """
    trust = _trust(_mean_variance(marginal), noise**2, mean - marginal.mean())
    wanted, error = marginal.mean() + trust * (mean - marginal.mean()), math.sqrt(trust) * noise
    short = wanted - marginal.mean()
    low, high = (float(end) for end in marginal.quantile(np.array([0.0, 1.0])))
    missed = min(MISSED * marginal.error, LARGEST_MISSED)
    width = max(TAIL * marginal.std(), 2 * abs(short) / max(missed, 1e-9))
    begin, end = (high, min(high + width, 1.0)) if short > 0 else (max(low - width, -1.0), low)
    if end - begin > SMALLEST_ROOM and marginal.places is None:
        share = min(max(short / ((begin + end) / 2 - marginal.mean()), 0.0), 1.0)
        return _with_tail(marginal, begin, end, share), wanted, error
    middles = marginal.middles
    low, high = -STEEPEST, STEEPEST
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        masses = marginal.masses * np.exp(tilt * (middles - 1.0 if tilt > 0 else middles + 1.0))
        masses /= masses.sum()
        low, high = (tilt, high) if masses @ middles < wanted else (low, tilt)
    return replace(marginal, masses=masses), wanted, error


def _trust(variance: float, noise: float, apart: float) -> float:
    """The weight of a released mean, by the variance of its noise, beside a marginal's mean with an expected variance.

    The law of the noise is known, but a marginal may have missed half of the values (two atoms at the bounds, few
    slices). So its variance has a scaled inverse chi-squared prior and is learned from how far both means lie apart, by
    expectation and maximisation.
    """
    learned = variance
    for _ in range(TRUST_ROUNDS):
        trust = learned / max(learned + noise, 1e-300)
        learned = (TRUST_COUNT * variance + (trust * apart) ** 2 + trust * noise) / (TRUST_COUNT + 1)
    return trust


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
