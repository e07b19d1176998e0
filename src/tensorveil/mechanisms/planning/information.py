"""Information in noisy sums, from public numbers and generic priors, to split a budget and to predict the error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.inference.priors import (
    FEATURE_VARIANCE,
    INTERACTION_VARIANCE,
    MEAN_VARIANCE,
    OFFSET_VARIANCE,
    RESIDUAL_VARIANCE,
)
from tensorveil.mechanisms.parts.marginal import marginal_shares
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.plan import Request

# indices have counts of lognormal law, with a log standard deviation of one; a value is of one of these by its count
RELATIVE_COUNTS = np.exp(np.array([-1.38, -0.67, -0.21, 0.21, 0.67, 1.38]) - 0.5)
SKEWED = RELATIVE_COUNTS / RELATIVE_COUNTS.sum()
EFFECTIVE_RANK = 4
LARGEST_EPSILON = 50.0  # beyond it nothing is lost in a channel, and its exponential would overflow
LEAST_WEAKENED = 0.01  # epsilon of symbols of cells of which hardly any is observed
SEEN = 5.0  # standard deviations of noise, above which a count in a histogram is seen
# epsilon and the information that the best channel keeps, on eight levels of equal mass with ten values per index:
# `kept_information` of `design_channel`, whose linear programs would take a quarter of the time of a plan
CHANNEL_INFORMATION = (
    (0.01, 5.249e-6),
    (1.0, 0.05264),
    (1.4, 0.102),
    (2.0, 0.1988),
    (2.4, 0.264),
    (2.8, 0.377),
    (3.3, 0.4694),
    (4.0, 0.5991),
    (4.5, 0.7993),
    (5.0, 0.861),
    (5.7, 0.9178),
    (6.5, 0.9543),
    (8.0, 0.9822),
    (11.0, 0.9921),
    (16.0, 0.9929),
)


def noise_variance(event: Event, sensitivity: float) -> float:
    """The variance of the noise that the vault will add to each sum."""
    if isinstance(event, PureEvent):
        return 2 * (sensitivity / event.epsilon) ** 2
    if isinstance(event, GaussianEvent):
        return (sensitivity * event.noise_multiplier) ** 2
    return math.inf


def expected_error_of_sums(request: Request) -> float:
    """The variance of mean and offsets that sum perturbation leaves, by generic priors, and all of the interactions.

    Pure noise, units `value` and `entry`; on the centred scale. Under `entry` a sum is the difference of two, of which
    one observation moves both together by one.
    """
    count, pure = request.count_or_guess, PureEvent(request.epsilon)
    once = noise_variance(pure, 2.0) if request.unit.coordinates_public else 2 * noise_variance(pure, 1.0)
    noise = once * (len(request.shape) + 1) ** 2
    left = _kept(MEAN_VARIANCE, (noise + RESIDUAL_VARIANCE * count) / count**2)
    for size in request.shape:
        each = _counts(count, size)
        left += SKEWED @ _kept(OFFSET_VARIANCE + FEATURE_VARIANCE, (noise + RESIDUAL_VARIANCE * each) / each**2)
    return float(left + INTERACTION_VARIANCE)


def expected_error_of_channel(request: Request, information: float) -> float:
    """The same for values through a channel that keeps this share of the Fisher information about their mean.

    A value then tells as much as one with residual variance over `information` would. Interactions are learned by rows
    of the model's ranks, from the counts of each mode.
    """
    count = request.count_or_guess
    spread = RESIDUAL_VARIANCE / max(information, 1e-12)
    left = _kept(MEAN_VARIANCE, spread / count)
    ranks = request.family.ranks_for(request.shape)
    known = 1.0
    for size, rank in zip(request.shape, ranks, strict=True):
        each = _counts(count, size)
        left += SKEWED @ _kept(OFFSET_VARIANCE + FEATURE_VARIANCE, spread / each)
        # a row has `rank` numbers, of which the posterior keeps few; they share the variance and the row's values
        numbers = min(rank, EFFECTIVE_RANK)
        known = min(known, float(SKEWED @ (1 / (1 + spread * numbers / (INTERACTION_VARIANCE * each)))))
    return float(left + INTERACTION_VARIANCE * (1 - known))


def expected_error_of_cells(request: Request) -> float:
    """The same for symbols of all cells, observed or not; unit `entry`.

    A symbol tells as much as one of an observed value would at a smaller epsilon, by the chance that its cell is
    observed. For that the counts of two modes are taken to be skewed.
    """
    density = request.count_or_guess / math.prod(map(float, request.shape))
    shares, relative = np.outer(SKEWED, SKEWED).ravel(), np.outer(RELATIVE_COUNTS, RELATIVE_COUNTS).ravel()
    told = [channel_information(weakened(request.epsilon, density * each)) for each in relative]
    return expected_error_of_channel(request, float(shares @ told))


def weakened(epsilon: float, density: float) -> float:
    """The epsilon at which a symbol of a value tells as much as one of a cell that is observed with this chance."""
    return max(math.log1p(min(density, 1.0) * math.expm1(min(epsilon, LARGEST_EPSILON))), LEAST_WEAKENED)


def _counts(count: float, size: int) -> Floats:
    """Typical counts of the indices of a mode, from rare to popular ones."""
    return np.asarray(max(count / size, 1e-9) * RELATIVE_COUNTS)


def sums_are_better(request: Request) -> bool:
    """Whether sums are expected to be more accurate than a channel; unit `value`.

    Where its levels lie, a channel knows from the marginal alone, and bounds are often far too wide: sums, with their
    total, are taken unless the first histogram of the marginal would show that (`seen`).
    """
    if not seen(request.count_or_guess, noise_variance(PureEvent(request.epsilon * marginal_shares(request)[0]), 2.0)):
        return True
    return expected_error_of_sums(request) < expected_error_of_channel(request, channel_information(request.epsilon))


def seen(count: float, noise: float) -> bool:
    """Whether a histogram shows all values in one cell, if they are: whether their count stands out from its noise."""
    return count > SEEN * math.sqrt(noise)


def channel_information(epsilon: float) -> float:
    """The share of the information about latent means that a channel keeps on levels of equal mass: a table."""
    known, shares = np.log(CHANNEL_INFORMATION).T
    # for small budgets it grows with the square of epsilon
    return float(np.exp(np.interp(math.log(epsilon), known, shares))) * min(epsilon / CHANNEL_INFORMATION[0][0], 1) ** 2


def _kept(prior: float, error: Any) -> Any:
    """The posterior variance after an observation with an error of this variance."""
    return prior * error / (prior + error)
