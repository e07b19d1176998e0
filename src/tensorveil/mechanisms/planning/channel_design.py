"""The design of channels: the table of probabilities that keeps the most information at a given epsilon.

Nothing here is trusted: a `Channel` checks its own table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.privacy.noise.channels import TOTAL, Channel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_LEVELS = 14  # the linear program has 2^levels columns
TELLING_SHARE = 0.05  # of values, through randomized response where the best channel cannot tell all levels
MAX_DESIGN_EPSILON = 16.0  # above it all is kept but 1e-6, and counts would get too small to round
MARGINS = (2.0**-32, 2.0**-24, 2.0**-16)  # share of epsilon left for rounding to whole counts; the first that fits


@final
@dataclass(frozen=True)
class LatentPrior:
    """A public prior for the values: a latent N(theta, spread^2) rounded to a level, theta N(mean, mean_std^2).

    A wrong prior costs accuracy, never privacy.
    """

    mean: float
    mean_std: float
    spread: float

    def __post_init__(self) -> None:
        checks.finite_number("mean", self.mean)
        checks.nonnegative_number("mean_std", self.mean_std)
        checks.positive_number("spread", self.spread)

    @classmethod
    def for_levels(cls, levels: Sequence[float]) -> LatentPrior:
        """Centred, most means in the middle half, a spread of two ninths of the range (0.9 on levels 1 to 5)."""
        width = levels[-1] - levels[0]
        return cls((levels[0] + levels[-1]) / 2, width / 8, 0.225 * width)

    def laws(self, levels: Sequence[float]) -> tuple[Floats, Floats, Floats]:
        """Weights of nine means (Gauss-Hermite), the levels' chances for each, and their derivatives by the mean."""
        from scipy.special import ndtr  # scipy only when a channel is designed

        nodes, weights = np.polynomial.hermite_e.hermegauss(9)
        grid = np.asarray(levels)
        cuts = np.concatenate(([-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]))
        distances = (cuts - (self.mean + self.mean_std * nodes)[:, None]) / self.spread
        density = np.exp(-(distances**2) / 2) / math.sqrt(2 * math.pi)
        return weights / weights.sum(), np.diff(ndtr(distances), axis=1), -np.diff(density, axis=1) / self.spread


@final
@dataclass(frozen=True, eq=False)
class LevelChannel:
    """A channel on public levels, and numbers that represent its symbols.

    Attributes
    ----------
    table : Channel
    levels : tuple of float
        The public values of the levels, increasing.
    weights : array
        Public chance of each level, for the pseudo-values; their sum is one.
    information : float
        Share of the Fisher information about the latent mean that passes, under the prior of the design.
    """

    table: Channel
    levels: tuple[float, ...]
    weights: Floats
    information: float

    @property
    def chances(self) -> Floats:
        """Q(symbol | level)."""
        return self.table.chances

    @cached_property
    def pseudo_values(self) -> Floats:
        """A number for each symbol that represents the value it came from.

        With at least as many (independent) symbols as levels it is unbiased: its mean, given any level, is the level,
        and its variance over `weights` is the least possible. With fewer no unbiased one exists: the mean follows the
        levels as closely as it can (least squares over `weights`) and is then stretched about the overall mean until
        its slope on the level is one, so that averages over many levels are not shrunk.
        """
        grid = np.asarray(self.levels)
        roots = np.sqrt(self.weights)[:, None]
        columns = np.sqrt(self.weights @ self.chances)
        overall = float(self.weights @ grid)
        solution = np.linalg.lstsq(roots * self.chances / columns, roots[:, 0] * (grid - overall), rcond=1e-9)[0]
        values = solution / columns
        slope = float((self.weights * (grid - overall)) @ (self.chances @ values))
        return np.asarray(overall + values * float(self.weights @ (grid - overall) ** 2) / slope)

    @cached_property
    def means(self) -> Floats:
        """Mean of the pseudo-value given each level."""
        return self.chances @ self.pseudo_values

    @cached_property
    def variances(self) -> Floats:
        """Variance of the pseudo-value given each level."""
        return np.asarray((self.chances * (self.pseudo_values - self.means[:, None]) ** 2).sum(axis=1))

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the pseudo-value is the level, for every level, to 1e-6 of the range."""
        grid = np.asarray(self.levels)
        return bool(np.abs(self.means - grid).max() <= 1e-6 * (grid[-1] - grid[0]))


def design_channel(levels: Sequence[float], epsilon: float, prior: LatentPrior | None = None) -> LevelChannel:
    """The epsilon-private channel that keeps most of the Fisher information about a latent mean.

    With theta_i, w_i the nodes of the prior, p_i the levels' chances given theta_i and d_i their derivatives, a column
    q of the channel adds

        f(q) = sum_i w_i (d_i . q)^2 / (p_i . q)

    to the mean information. f is convex and homogeneous of degree one, so columns that take two values c and
    c e^epsilon are optimal (Kairouz, Oh, Viswanath, JMLR 2016, Theorem 2), and how much of each pattern is
    a linear program.

    Guarantee
    ---------
    Pure epsilon for the replacement of one value by any other, on the matrix of whole numbers: Channel checks it.
    """
    from scipy.optimize import linprog

    grid = checked_levels(levels)
    promised = checks.positive_number("epsilon", epsilon)
    belief = LatentPrior.for_levels(grid) if prior is None else prior
    nodes, chances, derivatives = belief.laws(grid)
    used = chances > 0
    before = float(nodes @ np.where(used, derivatives**2 / np.where(used, chances, 1.0), 0.0).sum(axis=1))
    designed = min(promised, MAX_DESIGN_EPSILON)
    patterns = (np.arange(1, 2 ** len(grid))[:, None] >> np.arange(len(grid))) & 1
    for margin in MARGINS:
        columns = np.where(patterns == 1, 1.0, math.exp(-designed * (1 - margin)))
        gains = (columns @ derivatives.T) ** 2 / (columns @ chances.T) @ nodes
        solution = linprog(-gains / gains.max(), A_eq=columns.T, b_eq=np.ones(len(grid)), method="highs-ds")
        if solution.status != 0:
            raise InputError(f"no channel was found for {len(grid)} levels, {solution.message}; use fewer levels")
        support = solution.x > 1e-12
        kept, masses = columns[support], solution.x[support]
        masses = masses + np.linalg.lstsq(kept.T, 1 - kept.T @ masses, rcond=None)[0]  # the solver's last digits
        counts = _whole_counts(masses[:, None] * kept)
        weights = np.maximum(nodes @ chances, 1e-12)
        try:
            table = Channel(promised, counts)
        except InputError:
            continue  # rounding took more than the margin
        return LevelChannel(table, grid, weights / weights.sum(), float(gains[support] @ masses) / before)
    raise InputError(f"epsilon = {promised!r} on {len(grid)} levels could not be rounded safely; use fewer levels")


def telling_channel(best: LevelChannel, epsilon: float) -> LevelChannel:
    """A channel, mixed with a little randomized response, whose symbols show how often each level occurs.

    The best channel may merge levels. Only the prior then determines how often each of them occurs, which biases cuts,
    means and all predictions. One value in twenty goes through randomized response.
    `best` must keep a little less than epsilon, for rounding.
    """
    levels = best.levels
    belief = LatentPrior.for_levels(levels).laws(levels)
    other = math.exp(-min(best.table.epsilon, MAX_DESIGN_EPSILON))
    response = np.where(np.eye(len(levels)) == 1, 1.0, other) / (1 + (len(levels) - 1) * other)
    columns = np.vstack([(1 - TELLING_SHARE) * best.chances.T, TELLING_SHARE * response])
    chances, derivatives = belief[1], belief[2]
    before = float(belief[0] @ (derivatives**2 / np.maximum(chances, 1e-300)).sum(axis=1))
    kept = float(((columns @ derivatives.T) ** 2 / (columns @ chances.T)).sum(axis=0) @ belief[0]) / before
    return LevelChannel(Channel(epsilon, _whole_counts(columns)), levels, best.weights, kept)


def recalibrated(channel: LevelChannel, symbols: Integers) -> LevelChannel:
    """The same channel with weights of the levels that fit the symbols it gave: post-processing.

    With fewer symbols than levels the numbers that stand for symbols depend on how the values are spread. Here the
    likeliest of the rounded normal laws is taken; its spread has a prior of a factor of 1.6 about that of the design,
    which stands where there are two symbols, for these say nothing of the spread.
    """
    from scipy.special import ndtr  # scipy only when a channel is used

    if channel.unbiased:
        return channel
    grid = np.asarray(channel.levels)
    width, prior = grid[-1] - grid[0], LatentPrior.for_levels(channel.levels)
    cuts = np.concatenate(([-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]))
    spreads = np.geomspace(width / 50, width, 40)[:, None]
    means = np.linspace(grid[0], grid[-1], 81)[None, :]
    chances = np.diff(ndtr((cuts - means[..., None]) / spreads[..., None]), axis=-1)
    found = np.bincount(symbols, minlength=channel.chances.shape[1])
    likelihoods = np.log(np.maximum(chances @ channel.chances, 1e-300)) @ found
    expected = math.hypot(prior.mean_std, prior.spread)
    likelihoods -= (2 * np.log(spreads / expected)) ** 2 / 2 + ((means - prior.mean) / width) ** 2
    weights = np.maximum(chances[np.unravel_index(likelihoods.argmax(), likelihoods.shape)], 1e-12)
    return replace(channel, weights=weights / weights.sum())


def _whole_counts(columns: Floats) -> Integers:
    """Chances (symbols, levels) as counts (levels, symbols): rounded down, what is missing goes to the likeliest."""
    counts = np.floor(columns.T * float(TOTAL)).astype(np.int64)
    for row in counts:
        row[row.argmax()] += TOTAL - sum(row.tolist())
    return counts


def checked_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Levels that a channel can be designed for: increasing, and not too many."""
    grid = tuple(checks.finite_number(f"levels[{place}]", float(level)) for place, level in enumerate(levels))
    if not 2 <= len(grid) <= MAX_LEVELS:
        raise InputError(f"levels must be 2 to {MAX_LEVELS} numbers, got {len(grid)}; merge some into bins")
    if not all(low < high for low, high in pairwise(grid)):
        raise InputError(f"levels must increase, got {grid}; sort them and drop doubles")
    return grid
