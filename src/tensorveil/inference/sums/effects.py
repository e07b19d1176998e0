"""Draws of the offsets of one mode from their posterior, given noisy sums and counts per index.

The sum of index i is N_i g(b_i) + residuals + noise: g is the known curve of what is expected to be read of a value
whose latent mean is shifted by b. The offsets are b = X beta + u with u ~ N(0, v) and beta ~ N(0, v_c) for each group c
of features. Standard deviations have half-Cauchy priors (Gelman 2006), so that a mode without signal has offsets near
zero, and no test decides.

The curve may be far from a line (a value that is mostly zero). So what a sum tells about its offset is replaced by a
normal law with the same posterior mean and variance (expectation propagation, Minka 2001), by which standard deviations
and coefficients are drawn with u integrated out: slice sampling (Neal 2003). Offsets then follow with g as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

SCALE = 0.3  # of the half-Cauchy priors, where the latent spread is 1
SHIFT = 0.3  # prior standard deviation of what all offsets share
GRID = np.linspace(-8.0, 8.0, 257)  # offsets at which curves are given
AROUND = np.linspace(-5.0, 5.0, 41)  # standard deviations around a mean, to integrate over
FIRST_ROUNDS = 4  # of normal laws in the place of sums
SMALLEST = 1e-3  # standard deviation of effects
EVERYWHERE = np.linspace(-4.0, 4.0, len(AROUND))
MOST_AT_ENDS = 1e-3  # chance of the first and the last point
WEAKEST = 1e-2  # of the prior precision: what a sum tells at least


@final
@dataclass(frozen=True, eq=False)
class ReadSums:
    """Noisy sums of one mode's indices, and what is known about them before they are explained.

    Attributes
    ----------
    sums, counts : array
        Sums of what is read; sums of weights (posterior means).
    noise : float
        Variance of the noise on a sum.
    doubts : array
        Posterior variance of the counts.
    squares : array
        Sums of squared weights: a residual adds to the variance of a sum by this much.
    """

    sums: Floats
    counts: Floats
    noise: float
    doubts: Floats
    squares: Floats


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """Mean and variance of what is read of a value whose latent mean is shifted by the offsets of GRID."""

    mean: Floats
    variance: Floats


@final
class OffsetSampler:
    """Offsets of one mode, drawn again and again.

    Parameters
    ----------
    read : the sums
    curve : what is read
    features : groups of columns, each with mean square one per index, all columns of a group together
    """

    def __init__(self, read: ReadSums, curve: Curve, features: Sequence[Floats], rng: np.random.Generator) -> None:
        self.curve = curve
        self._read, self._rng = read, rng
        columns = [part for part in features if part.size]
        self._columns = np.column_stack([np.ones((len(read.sums), 1)), *columns])
        self._group: Places = np.repeat(np.arange(len(columns) + 1), [1, *(part.shape[1] for part in columns)])
        self._logs = np.full(1 + len(columns), math.log(SCALE))
        self._around, self._tell = np.zeros(len(read.sums)), np.full(len(read.sums), SCALE**-2)
        for _ in range(FIRST_ROUNDS):
            self._approximate(0.0)

    def step(self, limit: float, added: Floats | float = 0.0) -> tuple[Floats, Floats]:
        """Posterior means of the offsets given a draw of all else, and a draw of the offsets.

        Parameters
        ----------
        limit : standard deviation that the offsets cannot exceed
        added : what other offsets add to the sums
        """
        self._logs = np.minimum(self._logs, math.log(limit))
        self._approximate(added)
        now = self._likelihood(self._logs)
        ends = math.log(SMALLEST), math.log(limit)
        for which in range(len(self._logs)):
            self._logs, now = _slice(self._likelihood, self._logs, which, now, ends, self._rng)
        scales, lower, mean = self._coefficients(self._logs)
        drawn = mean + np.linalg.solve(lower.T, self._rng.standard_normal(len(mean)))
        variance = np.full(len(self._tell), math.exp(2 * self._logs[0]))
        points, chances = self._posterior(self._columns @ (scales * drawn), variance, added)
        upto = np.cumsum(chances, axis=1)
        place = (upto[:, :-1] < self._rng.random(len(points))[:, None]).sum(axis=1)
        inside = (self._rng.random(len(points)) - 0.5) * (points[:, 1] - points[:, 0])
        return np.einsum("ij,ij->i", points, chances), points[np.arange(len(points)), place] + inside

    def _approximate(self, added: Floats | float) -> None:
        """Normal laws in the place of what sums tell: offsets near `around`, with precision `tell`."""
        scales, lower, mean = self._coefficients(self._logs)
        linked = self._columns @ (scales * mean)
        half = np.linalg.solve(lower, (self._columns * scales).T)
        variance = math.exp(2 * self._logs[0]) + np.einsum("ij,ij->j", half, half)
        points, chances = self._posterior(linked, variance, added)
        found = np.einsum("ij,ij->i", points, chances)
        spread = np.einsum("ij,ij->i", (points - found[:, None]) ** 2, chances)
        spread += (points[:, 1] - points[:, 0]) ** 2 / 12  # inside of a point's interval: never zero
        self._tell = np.maximum(1 / spread - 1 / variance, WEAKEST / variance)
        self._around = found + (found - linked) / (variance * self._tell)

    def _posterior(self, linked: Floats, variance: Floats, added: Floats | float) -> tuple[Floats, Floats]:
        """Points and their chances for every offset, if its prior is N(linked, variance).

        Points lie around what the normal law in the place of the sum tells; where that is not near the posterior, so
        that chances pile up at an end, anywhere.
        """
        precision = self._tell + 1 / variance
        points = ((self._tell * self._around + linked / variance) / precision)[:, None]
        points = points + AROUND / np.sqrt(precision)[:, None]
        chances = self._chances(points, linked, variance, added)
        lost = np.maximum(chances[:, 0], chances[:, -1]) > MOST_AT_ENDS
        if lost.any():
            points[lost] = EVERYWHERE
            chances = self._chances(points, linked, variance, added)
        return points, chances

    def _chances(self, points: Floats, linked: Floats, variance: Floats, added: Floats | float) -> Floats:
        read = replace(self._read, sums=self._read.sums - added)
        return _chances(read, self.curve, points, -0.5 * (points - linked[:, None]) ** 2 / variance[:, None])

    def _coefficients(self, logs: Floats) -> tuple[Floats, Floats, Floats]:
        """Prior scales of the coefficients, and the posterior in these units: root of the precision, and mean."""
        scales, inner, right, _ = self._regression(logs)
        lower = np.linalg.cholesky(inner)
        return (
            scales,
            np.asarray(lower, dtype=np.float64),
            np.asarray(np.linalg.solve(lower.T, np.linalg.solve(lower, right))),
        )

    def _regression(self, logs: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Scales of columns, their equations, and the precision of the sums with u integrated out."""
        precision = 1 / (1 / self._tell + math.exp(2 * logs[0]))
        scales = np.exp(np.append(math.log(SHIFT), logs[1:]))[self._group]
        seen = self._columns * precision[:, None]
        inner = np.eye(len(scales)) + scales[:, None] * (seen.T @ self._columns) * scales
        return scales, inner, scales * (seen.T @ self._around), precision

    def _likelihood(self, logs: Floats) -> float:
        """Log density of log standard deviations given the sums, up to a constant."""
        _, inner, right, precision = self._regression(logs)
        lower = np.linalg.cholesky(inner)
        half = np.linalg.solve(lower, right)
        fit = np.log(precision).sum() - 2 * np.log(np.diag(lower)).sum() - precision @ self._around**2 + half @ half
        return float(0.5 * fit + (logs - np.log1p(np.exp(2 * logs) / SCALE**2)).sum())


def normal_told(read: ReadSums, curve: Curve, start: Floats, variance: float) -> tuple[Floats, Floats]:
    """What sums tell of effects on means that start there, as normal laws: their means and precisions.

    They have the posterior mean and variance of an effect with a normal prior of this variance, as in `OffsetSampler`.
    Where the curve is nearly flat below and steep above, a line of its slope at the start would turn a small misfit of
    a sum into a huge effect (MIMIC at epsilon 10 under `entry`: five to seven times the error of the mean).
    """
    points = math.sqrt(variance) * AROUND
    chances = _chances(read, curve, start[:, None] + points, -0.5 * points**2 / variance)
    found = chances @ points
    spread = chances @ points**2 - found**2 + (points[1] - points[0]) ** 2 / 12
    precision = np.maximum(1 / spread - 1 / variance, WEAKEST / variance)
    return found + found / (variance * precision), precision


def _chances(read: ReadSums, curve: Curve, means: Floats, prior: Floats) -> Floats:
    """Chances of means (indices, points) by the sums, given the logs of their chances before."""
    level, spread = (np.interp(means, GRID, part) for part in (curve.mean, curve.variance))
    error = read.noise + read.doubts[:, None] * level**2 + read.squares[:, None] * spread
    missed = read.sums[:, None] - read.counts[:, None] * level
    logs = prior - 0.5 * (missed**2 / error + np.log(error))
    chances = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def _slice(
    density: Callable[[Floats], float],
    point: Floats,
    which: int,
    now: float,
    limits: tuple[float, float],
    rng: np.random.Generator,
) -> tuple[Floats, float]:
    """One coordinate of a point drawn anew by slice sampling: the whole range is shrunk around the old place."""
    height = now - rng.exponential()
    low, high = limits
    while low < high:
        moved = point.copy()
        moved[which] = low + (high - low) * rng.random()
        then = density(moved)
        if then > height:
            return moved, then
        if moved[which] < point[which]:
            low = moved[which]
        else:
            high = moved[which]
    return point, now  # the range has shrunk to the old place, as far as floats tell
