"""Where continuous values lie, bought first: two private quantiles and a mean, so that no symbol is wasted elsewhere.

Unit `value`: coordinates, and with them the number of values n, are public. What the purchase needs falls with 1 / n;
the rest of the budget is left for the values themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.laws import USUAL_SIGMA
from tensorveil.mechanisms.planning.information import MEAN_VARIANCE
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import float_above
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations, Bounds
from tensorveil.privacy.noise.channels import Channel, LatentPrior, design_channel, dithered_channel
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.theorems import proves

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CELLS = 2**14  # of the public grid over the bounds: quantiles are edges of its cells
EDGE_STEPS = 2 * VALUE_STEPS // CELLS
NARROWEST = 16 * EDGE_STEPS  # of a range: a thousandth of the bounds
TAIL = 0.1  # quantiles bought: 10 % and 90 %
SPREADS = 2.563  # standard deviations of a normal law between them
BEYOND = 0.53  # of their distance, added at both ends: 2.6 standard deviations from the centre
QUANTILE_RANKS = 0.02  # of n, the error of a quantile's rank that is negligible: a tenth of a standard deviation
QUANTILE_WORTH = 8.0  # twice the log of how many cells are as good as wrong to one as good as right
MEAN_ERROR = 0.7  # of the mean: noise over the error that the mean of so many values has anyway
LEAST_EPSILON = 2.0**-28  # below it the noise of a mean has more steps than can be drawn
MOST_FOR_RANGE = 0.5  # of epsilon: where quantiles cost more they are not bought
MEAN_SHARE = 0.1  # of epsilon, for the mean where quantiles are not bought
FEWEST_AN_INDEX = 4.0  # whole values' worth of symbols for each index of a mode: below, the mean alone is bought
USUAL_SPREAD = 0.38  # of values in a range that reaches BEYOND both quantiles
LEVELS = 12  # of the channel, evenly spaced
SHAPE_DOUBT = 0.05  # standard deviations of values, of a mean by numbers that stand for symbols
LEVEL_DOUBT = 0.1  # standard deviations of values between their mean and the model's
LEAST_PRICE = 1e-4  # of a part, for very many values

EVEN_LEVELS = tuple(np.linspace(-1.0, 1.0, LEVELS).tolist())


@final
@dataclass(frozen=True)
class Prices:
    """What each part costs: the pure epsilons of a quantile, of the mean and of the symbols; 0: not bought."""

    quantile: float
    mean: float
    symbols: float


@final
@dataclass(frozen=True)
class PrivateRange:
    """A released range with the values' mean and spread; symbols and model are on its scale, where its ends are -1, 1.

    Attributes
    ----------
    low, high : int
        Ends in steps of the centred scale of the public bounds.
    mean, mean_std : float
        Mean of the values clipped to the range, and the standard deviation of its noise.
    spread : float or None
        Standard deviation of the values as the quantiles tell it; None where these were not bought.
    """

    low: int
    high: int
    mean: float
    mean_std: float
    spread: float | None

    def normalised(self, steps: Integers) -> Floats:
        """Values clipped to the range, from -1 to 1; each from its own value."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.asarray((np.clip(steps, self.low, self.high) - middle) / half)  # [P1]

    @property
    def around(self) -> tuple[float, float]:
        """Mean and spread of the values, a usual spread where none was bought."""
        return self.mean, self.spread or USUAL_SIGMA

    @property
    def level(self) -> tuple[float, float]:
        """Prior mean and variance of the model's mean: that of the values, but for the average of offsets and rows."""
        return self.mean, self.mean_std**2 + (LEVEL_DOUBT * self.around[1]) ** 2

    def told_by(self, stands: Floats, passed: float) -> PrivateRange:
        """The range with the mean that the paid one and numbers that stand for symbols tell together.

        passed : share of the information that the symbols keep; what they do not is known by an assumed law only
        """
        spread = self.around[1]
        own = float(stands.var()) / max(len(stands), 1) * (1 - passed) + (SHAPE_DOUBT * (1 - passed) * spread) ** 2
        trust = own / (own + self.mean_std**2 + 1e-30)
        mean = trust * self.mean + (1 - trust) * min(max(float(stands.mean()), -1.0), 1.0)
        return replace(self, mean=mean, mean_std=math.sqrt(trust) * self.mean_std)

    def channel(self, epsilon: float, optimal: bool) -> Channel:
        """A channel on even levels: the one that tells most of values that spread as these do, or one that is right on
        average for each level, however they spread."""
        if not optimal:
            return dithered_channel(EVEN_LEVELS, epsilon)
        return centred_channel(epsilon, round(self.mean, 1), max(round(self.around[1], 2), 0.01))

    def mean_alone(self, family: ModelFamily, shape: tuple[int, ...]) -> Completion:
        """A model on the scale of the range that predicts the mean everywhere, with intervals of a usual spread."""
        model = family.model([np.zeros(block) for block in family.block_shapes(shape)])
        nothing = np.zeros((1, 1 + sum(shape)), dtype=np.float32)
        spread, doubt = np.array([self.around[1]]), np.array([self.mean_std**2])
        numbers = np.zeros((1, model.parameters.size), dtype=np.float32)
        draws = PosteriorDraws(family, shape, numbers, nothing, spread, doubt, np.empty((1, 0)), np.empty(0))
        return Completion(Offsets(self.mean, [None] * len(shape)), model, -1.0, 1.0, draws=draws)

    def shrunk(self, completion: Completion, share: float, explained: float) -> Completion:
        """A share of a model's deviations from the mean; what it no longer explains of the values widens intervals."""
        moved = (1 - share) * self.mean
        return _rescaled(completion, share, moved, (-1.0, 1.0), noise_ratio=1.0, added=(1 - share**2) * explained)

    def on_bounds(self, completion: Completion, bounds: Bounds) -> Completion:
        """A completion on the scale of the range, brought to that of the public bounds: predictions do not change."""
        ratio = (self.high - self.low) / (2 * VALUE_STEPS)
        moved = (self.high + self.low) / (2 * VALUE_STEPS)
        return _rescaled(completion, ratio, moved, (bounds.low, bounds.high), noise_ratio=ratio, added=0.0)


def _rescaled(
    completion: Completion, ratio: float, moved: float, ends: tuple[float, float], *, noise_ratio: float, added: float
) -> Completion:
    """Predictions times ratio plus moved; spreads of values times noise_ratio, their variances plus added."""
    factors = completion.factors
    first = factors.factors[0].size  # one block carries the scale
    scales = np.where(np.arange(factors.parameters.size) < first, ratio, 1.0)
    modes = [None if part is None else ratio * part for part in completion.offsets.modes]
    draws = completion.draws
    if draws is not None:
        draws = PosteriorDraws(
            draws.family,
            draws.shape,
            draws.parameters * scales.astype(np.float32),
            draws.offsets * np.float32(ratio),
            np.sqrt((noise_ratio * draws.sigmas) ** 2 + added),
            draws.extra * ratio**2,
            draws.cuts,
            draws.levels,
        )
    offsets = Offsets(moved + ratio * completion.offsets.mean, modes)
    model = factors.replace_parameters(scales * factors.parameters)
    return Completion(offsets, model, *ends, draws=draws)


def prices(epsilon: float, count: int, indices: int) -> Prices:
    """How the budget is split, by the public number of values and of indices; the parts add up to epsilon at most.

    A quantile's rank errs by about QUANTILE_WORTH / epsilon, so a small part of n costs QUANTILE_WORTH / (part n); the
    noise of the mean of n values from -1 to 1 is 2 sqrt(2) / (n epsilon), against a sampling error of their spread over
    sqrt(n). Where symbols would tell too little for a model, everything is spent on the mean.
    """
    number = max(count, 1)
    quantile = max(QUANTILE_WORTH / (QUANTILE_RANKS * number), LEAST_PRICE)
    mean = max(2 * math.sqrt(2 / number) / (MEAN_ERROR * USUAL_SPREAD), LEAST_PRICE)
    if min(epsilon, 1.0) ** 2 * number < FEWEST_AN_INDEX * indices:  # no channel keeps more than epsilon^2
        return Prices(0.0, epsilon, 0.0)
    if 2 * quantile + mean > MOST_FOR_RANGE * epsilon:
        quantile, mean = 0.0, MEAN_SHARE * epsilon
    left = -float_above(-(Fraction(epsilon) - 2 * Fraction(quantile) - Fraction(mean)))  # [P2] rounded down
    channel = centred_channel(left, 0.0, USUAL_SPREAD) if quantile > 0 else dithered_channel(EVEN_LEVELS, left)
    if information_of(channel) * number < FEWEST_AN_INDEX * indices:
        return Prices(0.0, epsilon, 0.0)
    return Prices(quantile, mean, left)


@proves("input-centred")
def rank_sensitivity() -> int:
    """How far one replaced value moves the number of values below any edge, and with it the score of the edge."""
    return 1  # [P3]


@proves("input-centred")
def mean_sensitivity(low: int, high: int) -> int:
    """How far one replaced value moves the sum of values clipped to a released range, in steps."""
    return high - low  # [P4]


def private_range(data: BoundedObservations, paid: Prices, noise: NoiseSource) -> PrivateRange:
    """Buy quantiles and mean; without quantiles the range is that of the public bounds."""
    low, high, spread = -VALUE_STEPS, VALUE_STEPS, None
    if paid.quantile > 0:
        scores = rank_scores(data.steps)
        ends = sorted(
            int(noise.choose(score, sensitivity=rank_sensitivity(), epsilon=paid.quantile)) for score in scores
        )
        first, last = (-VALUE_STEPS + EDGE_STEPS * end for end in ends)
        beyond = max(round(BEYOND * (last - first)), (NARROWEST - (last - first) + 1) // 2)
        low, high = max(low, first - beyond), min(high, last + beyond)  # [P5] reads released edges only
        if high - low < NARROWEST:  # at an end of the bounds
            low, high = min(low, high - NARROWEST), max(high, low + NARROWEST)
            low, high = max(low, -VALUE_STEPS), min(high, VALUE_STEPS)
        spread = 2 * max(last - first, EDGE_STEPS) / SPREADS / (high - low)
    half = (high - low) / 2
    change = mean_sensitivity(low, high)
    total = np.array([int(np.clip(data.steps, low, high).sum())], dtype=np.int64)  # [P6] whole numbers
    noisy = float(noise.laplace(total, grid=1.0, sensitivity=change, epsilon=paid.mean)[0])
    number = max(len(data), 1)
    mean = min(max((noisy / number - (low + high) / 2) / half, -1.0), 1.0)
    error = math.sqrt(2) * change / paid.mean / number / half
    trust = MEAN_VARIANCE / (MEAN_VARIANCE + error**2)  # of a mean that noise drowns: the middle of the range
    return PrivateRange(low, high, trust * mean, math.sqrt(trust) * error, spread)


def rank_scores(steps: Integers) -> list[Floats]:
    """For each quantile, minus the distance of the number of values below each edge from the wanted rank."""
    cells = np.bincount((steps + VALUE_STEPS) // EDGE_STEPS, minlength=CELLS + 1)
    below = np.concatenate([[0], np.cumsum(cells[:CELLS])])
    wanted = [math.floor(share * len(steps)) for share in (TAIL, 1 - TAIL)]  # [P7] whole: so are scores
    return [-np.abs(below - rank).astype(np.float64) for rank in wanted]


def information_of(channel: Channel) -> float:
    """Share of the information about a value's mean that passes a channel, by its design or by the noise it adds."""
    if not math.isnan(channel.information):
        return channel.information
    return USUAL_SIGMA**2 / (USUAL_SIGMA**2 + float(channel.weights @ channel.variances))


@lru_cache(maxsize=16)
def centred_channel(epsilon: float, mean: float, spread: float) -> Channel:
    """The channel on even levels that tells most of a latent mean.

    Values spread about their means by what is left where these explain half of the variance; the means of the design
    spread as widely as values do, for factors are learned from the entries that lie far out.
    """
    return design_channel(EVEN_LEVELS, epsilon, LatentPrior(mean, spread, spread / math.sqrt(2)))
