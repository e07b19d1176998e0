"""Draws of the offsets of one mode from their posterior, given noisy sums and counts per index.

The sum of index i is N_i (g(b_i) + delta) + residuals + noise: g is the known curve of what is expected to be read of a
value whose latent mean is shifted by b. The offsets are b = X beta + u with u ~ N(0, v) and beta ~ N(0, v_c) for each
group c of features. Standard deviations have half-Cauchy priors (Gelman 2006), so that a mode without signal has
offsets near zero, and no test decides. They are drawn by slice sampling (Neal 2003) of the marginal likelihood, where g
is taken as linear; the offsets then follow on a grid, with g as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

DRAWS = 64
WARM_UP = 8  # rounds before draws are kept
AT_ONCE = 2  # draws of offsets for one of standard deviations
SCALE = 0.3  # of the half-Cauchy priors, where the latent spread is 1
SHIFT = 0.3  # prior standard deviation of what all offsets share
GRID = np.linspace(-4.0, 4.0, 129)  # of an offset
SMALLEST = 1e-3  # standard deviation of effects


@final
@dataclass(frozen=True, eq=False)
class ReadSums:
    """Noisy sums of one mode's indices, and what is known about them before they are explained.

    Attributes
    ----------
    sums, counts : array
        Sums of what is read, less the expected part; sums of weights (posterior means).
    errors : array
        Variance of noise, per sum.
    doubts : array
        Posterior variance of the counts.
    squares : array
        Sums of squared weights: a residual adds to the variance of a sum by this much.
    variance : float
        Of what is read.
    """

    sums: Floats
    counts: Floats
    errors: Floats
    doubts: Floats
    squares: Floats
    variance: float


@final
class OffsetDraws:
    """Draws of offsets, with their posterior means.

    Parameters
    ----------
    read : the sums
    curve : what is expected to be read at the offsets of GRID, less what is expected at 0
    limit : standard deviation that the offsets of the mode cannot exceed
    features : groups of columns, each with mean square one per index, all columns of a group together
    rounds : draws to keep
    """

    def __init__(
        self,
        read: ReadSums,
        curve: Floats,
        limit: float,
        features: Sequence[Floats],
        rng: np.random.Generator,
        rounds: int = DRAWS,
    ) -> None:
        self._read, self._curve = read, curve
        self._slope = max(float(np.interp(SCALE, GRID, curve) - np.interp(-SCALE, GRID, curve)) / (2 * SCALE), 1e-3)
        columns = [part for part in features if part.size]
        self._columns = np.column_stack([np.ones((len(read.sums), 1)), *columns])
        self._group: Places = np.repeat(np.arange(len(columns) + 1), [1, *(part.shape[1] for part in columns)])
        logs = np.full(1 + len(columns), math.log(min(SCALE, limit) / 3))
        now = self._likelihood(logs)
        means: list[Floats] = []
        draws: list[Floats] = []
        for place in range(WARM_UP + rounds // AT_ONCE):
            for which in range(len(logs)):
                logs, now = _slice(self._likelihood, logs, which, now, (math.log(SMALLEST), math.log(limit)), rng)
            if place >= WARM_UP:
                found = [self._offsets(logs, rng) for _ in range(AT_ONCE)]
                means += [mean for mean, _ in found]
                draws += [draw for _, draw in found]
        self.mean: Floats = np.mean(means, axis=0)
        self.draws: Floats = np.array(draws)

    def _errors(self, variance: float) -> Floats:
        """Variances of the sums around N g(b): noise, doubts about counts, and residuals."""
        read = self._read
        return np.asarray(
            read.errors + variance * read.doubts + max(read.variance - variance, read.variance / 4) * read.squares
        )

    def _regression(self, logs: Floats) -> tuple[float, Floats, Floats, Floats, Floats]:
        """Variance of u, precision of the sums with u integrated out, scales of columns, posterior of coefficients."""
        variance = self._slope**2 * math.exp(2 * logs[0])
        precision = 1 / (self._errors(variance) + variance * self._read.counts**2)
        scales = self._slope * np.exp(np.append(math.log(SHIFT), logs[1:]))[self._group]
        seen = self._columns * (self._read.counts * precision)[:, None]
        inner = np.eye(len(scales)) + scales[:, None] * (seen.T @ (self._columns * self._read.counts[:, None])) * scales
        return variance, precision, scales, inner, scales * (seen.T @ self._read.sums)

    def _likelihood(self, logs: Floats) -> float:
        """Log density of log standard deviations given the sums, up to a constant."""
        _, precision, _, inner, right = self._regression(logs)
        lower = np.linalg.cholesky(inner)
        half = np.linalg.solve(lower, right)
        fit = np.log(precision).sum() - 2 * np.log(np.diag(lower)).sum() - precision @ self._read.sums**2 + half @ half
        return float(0.5 * fit + (logs - np.log1p(np.exp(2 * logs) / SCALE**2)).sum())

    def _offsets(self, logs: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Posterior means of the offsets given one draw of coefficients, and a draw of the offsets."""
        read = self._read
        variance, _, scales, inner, right = self._regression(logs)
        lower = np.linalg.cholesky(inner)
        drawn = np.linalg.solve(inner, right) + np.linalg.solve(lower.T, rng.standard_normal(len(right)))
        shift, linked = scales[0] * drawn[0], (self._columns[:, 1:] @ (scales * drawn)[1:]) / self._slope
        prior = -0.5 * ((GRID - linked[:, None]) / math.exp(logs[0])) ** 2
        left = read.sums[:, None] - read.counts[:, None] * (self._curve + shift)
        chances = prior - 0.5 * left**2 / self._errors(variance)[:, None]
        chances = np.exp(chances - chances.max(axis=1, keepdims=True))
        chances = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
        means = GRID[-1] - chances[:, :-1].sum(axis=1) * (GRID[1] - GRID[0])
        place = (chances[:, :-1] < rng.random(len(means))[:, None]).sum(axis=1)
        return means, GRID[place] + (rng.random(len(means)) - 0.5) * (GRID[1] - GRID[0])


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
    while True:
        moved = point.copy()
        moved[which] = low + (high - low) * rng.random()
        then = density(moved)
        if then > height:
            return moved, then
        if moved[which] < point[which]:
            low = moved[which]
        else:
            high = moved[which]
