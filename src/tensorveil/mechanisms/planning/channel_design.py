"""The design of channels: the table of probabilities that keeps the most information at a given epsilon.

Nothing here is trusted: a `Channel` checks its own table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.privacy.noise.channels import TOTAL, Channel, checked_levels

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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


def design_channel(levels: Sequence[float], epsilon: float, prior: LatentPrior | None = None) -> Channel:
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
            return Channel(promised, grid, counts, weights, float(gains[support] @ masses) / before)
        except InputError:
            continue  # rounding took more than the margin
    raise InputError(f"epsilon = {promised!r} on {len(grid)} levels could not be rounded safely; use fewer levels")


def telling_channel(best: Channel, epsilon: float) -> Channel:
    """A channel, mixed with a little randomized response, whose symbols show how often each level occurs.

    The best channel may merge levels. Only the prior then determines how often each of them occurs, which biases cuts,
    means and all predictions. One value in twenty goes through randomized response.
    `best` must keep a little less than epsilon, for rounding.
    """
    levels = best.levels
    belief = LatentPrior.for_levels(levels).laws(levels)
    other = math.exp(-min(best.epsilon, MAX_DESIGN_EPSILON))
    response = np.where(np.eye(len(levels)) == 1, 1.0, other) / (1 + (len(levels) - 1) * other)
    columns = np.vstack([(1 - TELLING_SHARE) * best.chances.T, TELLING_SHARE * response])
    chances, derivatives = belief[1], belief[2]
    before = float(belief[0] @ (derivatives**2 / np.maximum(chances, 1e-300)).sum(axis=1))
    kept = float(((columns @ derivatives.T) ** 2 / (columns @ chances.T)).sum(axis=0) @ belief[0]) / before
    return Channel(epsilon, levels, _whole_counts(columns), best.weights, kept)


@lru_cache(maxsize=16)
def dithered_channel(levels: tuple[float, ...], epsilon: float) -> Channel:
    """A channel for continuous values: evenly spaced levels, each rounded at random to one of fewer, so no mean shifts.

    The best channel takes neighbouring levels for one and is right on average over the prior only; a fit to very many
    values would see its steps. Mixing the rows of a smaller channel, of which every level's mean is right, keeps its
    ratios; of all such sizes the one of least variance is taken.
    """
    inner = epsilon * (1 - 2.0**-30)  # what rounding to whole counts may take
    places = np.arange(len(levels)) / (len(levels) - 1)
    best, least = None, math.inf
    for size in range(2, len(levels) + 1):
        small = design_channel(tuple(np.linspace(levels[0], levels[-1], size).tolist()), inner)
        if not small.unbiased:
            break
        below = np.minimum((places * (size - 1)).astype(np.int64), size - 2)
        upper = (places * (size - 1) - below)[:, None]
        mixed = (1 - upper) * small.chances[below] + upper * small.chances[below + 1]
        weights = LatentPrior.for_levels(levels).laws(levels)
        channel = Channel(epsilon, levels, _whole_counts(mixed.T), np.maximum(weights[0] @ weights[1], 1e-12))
        variance = float(channel.weights @ channel.variances)
        if variance < least:
            best, least = channel, variance
    if best is None:
        raise InputError(f"epsilon = {epsilon!r} must leave a channel of two levels, got none; use noise='laplace'")
    return best


def recalibrated(channel: Channel, symbols: Integers) -> Channel:
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
    found = np.bincount(symbols, minlength=channel.counts.shape[1])
    likelihoods = np.log(np.maximum(chances @ channel.chances, 1e-300)) @ found
    expected = math.hypot(prior.mean_std, prior.spread)
    likelihoods -= (2 * np.log(spreads / expected)) ** 2 / 2 + ((means - prior.mean) / width) ** 2
    weights = np.maximum(chances[np.unravel_index(likelihoods.argmax(), likelihoods.shape)], 1e-12)
    return replace(channel, weights=weights)


def _whole_counts(columns: Floats) -> Integers:
    """Chances (symbols, levels) as counts (levels, symbols): rounded down, what is missing goes to the likeliest."""
    counts = np.floor(columns.T * float(TOTAL)).astype(np.int64)
    for row in counts:
        row[row.argmax()] += TOTAL - sum(row.tolist())
    return counts
