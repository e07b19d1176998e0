"""Optimal finite channels: a value of a public grid goes in, a random symbol comes out.

The promise is one line: no symbol is more than e^epsilon times likelier under one level than under another. It is
checked on the matrix of whole numbers from which noise.py samples, so that nothing is lost between the proof and
the coin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BITS = 62  # each row of counts adds up to 2^BITS exactly
TOTAL = 2**BITS
TELLING_SHARE = 0.05  # of values, through randomized response where the best channel cannot tell all levels
MAX_LEVELS = 14  # the linear program has 2^levels columns
MAX_DESIGN_EPSILON = 16.0  # above it all is kept but 1e-6, and counts would get too small to round
MARGINS = (2.0**-32, 2.0**-24, 2.0**-16)  # share of epsilon left for rounding to whole counts; the first that fits
DIGITS = 60


@final
@dataclass(frozen=True)
class LatentPrior:
    """A public belief about the values: a latent N(theta, spread^2) rounded to a level, theta N(mean, mean_std^2).

    A wrong belief costs accuracy, never privacy.
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
class Channel:
    """A table of chances in whole numbers.

    Attributes
    ----------
    epsilon : float
        What is promised: ratio() is at most this, or the channel cannot be made.
    levels : tuple of float
        The public values that may go in, increasing.
    counts : array (levels, symbols) of int64
        Q(symbol | level) = counts / 2^BITS.
    weights : array
        Public chance of each level, for the pseudo-values.
    information : float
        Share of the Fisher information about the latent mean that passes, under the prior of the design.
    """

    epsilon: float
    levels: tuple[float, ...]
    counts: Integers
    weights: Floats
    information: float = math.nan

    def __post_init__(self) -> None:
        promised = checks.positive_number("epsilon", self.epsilon)
        grid = _levels(self.levels)
        counts = np.array(self.counts)
        weights = np.array(self.weights, dtype=np.float64)
        if counts.dtype != np.int64 or counts.ndim != 2 or counts.shape[0] != len(grid):
            raise InputError(f"counts must be int64 with one row a level, got {counts.dtype} {counts.shape}; transpose")
        if (counts < 0).any() or any(sum(row) != TOTAL for row in counts.tolist()):
            raise InputError(f"counts must be at least 0 and add up to 2^{BITS} in every row, got others; round again")
        if weights.shape != (len(grid),) or not (weights > 0).all():
            raise InputError(f"weights must be one positive number a level, got {weights.shape}; use equal ones")
        counts.flags.writeable = False
        object.__setattr__(self, "levels", grid)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "weights", weights / weights.sum())
        if not self.ratio() <= promised:
            raise InputError(f"counts must keep within epsilon = {promised!r}, got {self.ratio()!r}; use a wider one")

    def ratio(self) -> float:
        """The largest log ratio of two chances of one symbol, rounded up; infinite if a symbol excludes a level."""
        largest = Decimal(0)
        with localcontext() as context:
            context.prec = DIGITS
            for column in self.counts.T.tolist():
                if max(column) > 0:
                    if min(column) == 0:
                        return math.inf
                    context.rounding = ROUND_CEILING  # [L1] the quotient is rounded up
                    quotient = Decimal(max(column)) / Decimal(min(column))
                    largest = max(
                        largest, quotient.ln().next_plus()
                    )  # [L2] ln is right to half a digit: one more is up
            result = float(largest)
            return result if Decimal(result) >= largest else math.nextafter(result, math.inf)  # [L3]

    @cached_property
    def chances(self) -> Floats:
        """Q(symbol | level) as floats."""
        return self.counts / float(TOTAL)

    @cached_property
    def pseudo_values(self) -> Floats:
        """A number for each symbol that stands for the value it came from.

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


def quantize(values: Floats, levels: Sequence[float]) -> Integers:
    """The index of the nearest level of each value, the upper one half-way between two."""
    grid = np.asarray(_levels(levels))
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; drop them while reading")
    return np.searchsorted((grid[1:] + grid[:-1]) / 2, numbers, side="right").astype(np.int64)


def between_levels(values: Floats, levels: Sequence[float]) -> tuple[Integers, NDArray[np.uint64]]:
    """The index of the level below each value, and the share of the way to the next one in whole 2^-BITS.

    Values beyond the levels count as the first or the last.
    """
    grid = np.asarray(_levels(levels))
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; drop them while reading")
    places = np.asarray(np.interp(numbers, grid, np.arange(len(grid))))
    below = np.floor(places)
    return below.astype(np.int64), ((places - below) * 2.0**BITS).astype(np.uint64)


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

    grid = _levels(levels)
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
    """A channel, mixed with a little randomized response, whose symbols tell how often each level occurs.

    The best channel may take levels for one. How often each of them occurs is then known to the prior alone, and with
    it where cuts and means lie: a bias of all predictions. One value in twenty goes through randomized response.
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


def _levels(levels: Sequence[float]) -> tuple[float, ...]:
    grid = tuple(checks.finite_number(f"levels[{place}]", float(level)) for place, level in enumerate(levels))
    if not 2 <= len(grid) <= MAX_LEVELS:
        raise InputError(f"levels must be 2 to {MAX_LEVELS} numbers, got {len(grid)}; merge some into bins")
    if not all(low < high for low, high in pairwise(grid)):
        raise InputError(f"levels must increase, got {grid}; sort them and drop doubles")
    return grid
