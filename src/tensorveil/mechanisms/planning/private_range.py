"""The budget for continuous values with a private range: two quantiles and a mean first, then symbols.

Unit `value`: coordinates, and with them the number of values n, are public. The cost of the range falls
with 1 / n, and the rest of the budget is spent on the values themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np

from tensorveil.inference.values.centred import information_of
from tensorveil.inference.values.private_range import PrivateRange
from tensorveil.mechanisms.planning.channel_design import LatentPrior, design_channel, dithered_channel
from tensorveil.privacy.accounting.events import float_above
from tensorveil.privacy.noise.channels import Channel

QUANTILE_RANKS = 0.02  # of n, the error of a quantile's rank that is negligible: a tenth of a standard deviation
QUANTILE_WORTH = 8.0  # twice the log of how many cells are as good as wrong to one as good as right
MEAN_ERROR = 0.7  # of the mean: noise over the error that the mean of so many values has anyway
LEAST_EPSILON = 2.0**-28  # below it the noise of a mean has more steps than can be drawn
MOST_FOR_RANGE = 0.5  # of epsilon: where quantiles cost more they are not bought
MEAN_SHARE = 0.1  # of epsilon, for the mean where quantiles are not bought
FEWEST_AN_INDEX = 4.0  # whole values' worth of symbols for each index of a mode: below, the mean alone is bought
USUAL_SPREAD = 0.38  # of values in a range that reaches BEYOND both quantiles
LEVELS = 12  # of the channel, evenly spaced
LEAST_PRICE = 1e-4  # of a part, for very many values

EVEN_LEVELS = tuple(np.linspace(-1.0, 1.0, LEVELS).tolist())


@final
@dataclass(frozen=True)
class Prices:
    """The pure epsilons of a quantile, of the mean and of the symbols; 0 means not released."""

    quantile: float
    mean: float
    symbols: float


def prices(epsilon: float, count: int, indices: int) -> Prices:
    """How the budget is split, by the public number of values and of indices; the parts add up to epsilon at most.

    A quantile's rank errs by about QUANTILE_WORTH / epsilon, so a small part of n costs QUANTILE_WORTH / (part n); the
    noise of the mean of n values from -1 to 1 is 2 sqrt(2) / (n epsilon), against a sampling error of their spread over
    sqrt(n). If symbols would carry too little information for a model, everything is spent on the mean.
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


def range_channel(found: PrivateRange, epsilon: float, optimal: bool) -> Channel:
    """A channel on evenly spaced levels of a released range.

    It is either the most informative one for values with this spread, or one that is unbiased at every level.
    """
    if not optimal:
        return dithered_channel(EVEN_LEVELS, epsilon)
    return centred_channel(epsilon, round(found.mean, 1), max(round(found.around[1], 2), 0.01))


@lru_cache(maxsize=16)
def centred_channel(epsilon: float, mean: float, spread: float) -> Channel:
    """The channel on evenly spaced levels that is most informative about a latent mean.

    The design assumes that the means explain half of the variance of the values. Its means are as widely spread as the
    values, because factors are learned mostly from extreme entries.
    """
    return design_channel(EVEN_LEVELS, epsilon, LatentPrior(mean, spread, spread / math.sqrt(2)))
