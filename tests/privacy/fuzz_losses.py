"""How much the answers of two runs on neighbouring data can tell, exactly, for replay_fuzz.py."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
from scipy.special import log_ndtr

from tensorveil.audit.replays import NoisyCall, ReplayError
from tensorveil.privacy.accounting.events import Event, PureEvent, SampledGaussianEvent
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.plan import Plan

TOLERANCE = 1e-9  # relative: logarithms and square roots
FEW_SHIFTS = 2**14  # log ratios of composed pure losses that are kept apart


def laplace_loss(mine: NoisyCall, theirs: NoisyCall, cells: np.ndarray) -> Fraction:
    """The largest log ratio of discrete Laplace noise on two statistics."""
    moved = sum(abs(step) for step in _steps(mine, theirs))
    return Fraction(moved) * Fraction(mine.parameters["epsilon"]) / Fraction(mine.parameters["sensitivity"])


def rows_loss(mine: NoisyCall, theirs: NoisyCall, cells: np.ndarray) -> Fraction:
    """The largest log ratio of norm-exponential noise on the rows of two statistics."""
    change = theirs.statistic - mine.statistic
    lengths = math.fsum(math.sqrt(sum(int(step) ** 2 for step in row)) for row in change[change.any(axis=1)])
    given = mine.parameters
    return Fraction(lengths) * Fraction(given["grid"]) * Fraction(given["epsilon"]) / Fraction(given["sensitivity"])


def gaussian_loss(mine: NoisyCall, theirs: NoisyCall, cells: np.ndarray) -> Fraction:
    """The squared distance of two statistics in standard deviations of the noise."""
    squares = sum(step * step for step in _steps(mine, theirs))
    return squares * (Fraction(mine.parameters["grid"]) / Fraction(mine.parameters["noise_std"])) ** 2


def channel_loss(mine: NoisyCall, theirs: NoisyCall, cells: np.ndarray) -> Fraction:
    """The largest log ratio of the symbols' chances, summed over values; those of one cell are a multiset.

    cells : a number for the cell of each symbol
    """
    channel = mine.parameters["channel"]
    changed = np.isin(cells, cells[mine.statistic != theirs.statistic])
    before, after = (
        Counter(zip(cells[changed].tolist(), call.statistic[changed].tolist(), strict=True)) for call in (mine, theirs)
    )
    pairs = zip(sorted((before - after).elements()), sorted((after - before).elements()), strict=True)
    return Fraction(math.fsum(_log_ratio(channel, one[1], other[1]) for one, other in pairs))


def _log_ratio(channel: Channel, one: int, other: int) -> float:
    first, second = channel.counts[one].tolist(), channel.counts[other].tolist()
    if any((a == 0) != (b == 0) for a, b in zip(first, second, strict=True)):
        return math.inf
    return max(abs(math.log(a) - math.log(b)) for a, b in zip(first, second, strict=True) if a)


def _steps(mine: NoisyCall, theirs: NoisyCall) -> list[int]:
    change = theirs.statistic - mine.statistic
    return change[change != 0].tolist()


LOSSES = {
    "laplace": laplace_loss,
    "rows": rows_loss,
    "gaussian": gaussian_loss,
    "channel": channel_loss,
}


def allowed(event: Event) -> Fraction:
    """What one answer of an event may lose: epsilon, or a squared distance in standard deviations."""
    if isinstance(event, PureEvent):
        return Fraction(event.epsilon)
    moved = 2 if isinstance(event, SampledGaussianEvent) and event.replace else 1
    return (moved / Fraction(event.noise_multiplier)) ** 2


def spent(plan: Plan, pure: list[Fraction], distance: float) -> float:
    """Losses of a whole run as a share of the plan's epsilon, by exact curves and not by the accountant.

    A pure loss is dominated by randomised response, whose log ratios are plus and minus the loss.
    """
    if plan.delta == 0:
        if sum(pure) > Fraction(plan.epsilon) * Fraction(1 + TOLERANCE):
            raise ReplayError(f"the plan pays epsilon {plan.epsilon}, got a loss of {float(sum(pure))}")
        return float(sum(pure)) / plan.epsilon
    shifts, chances, rounded = np.zeros(1), np.ones(1), 0.0
    grid = float(sum(pure)) / FEW_SHIFTS or 1.0
    for loss in map(float, pure):
        likely = 1 / (1 + math.exp(-loss))
        shifts, chances = np.append(shifts + loss, shifts - loss), np.append(chances * likely, chances * (1 - likely))
        if len(shifts) > FEW_SHIFTS:  # up to a grid, and together where they are equal
            steps, place = np.unique(np.ceil(shifts / grid), return_inverse=True)
            shifts, chances, rounded = steps * grid, np.bincount(place, weights=chances), rounded + grid

    def delta(epsilon: float) -> float:
        left = epsilon - shifts
        if not distance:
            return float(chances @ np.maximum(0.0, -np.expm1(left)))
        ends = log_ndtr(distance / 2 - left / distance), log_ndtr(-distance / 2 - left / distance)
        return float(chances @ (np.exp(ends[0]) - np.exp(left + ends[1])))

    low, high = 0.0, plan.epsilon
    least = delta(high + rounded)
    if least > plan.delta * (1 + TOLERANCE):
        raise ReplayError(f"the plan pays ({plan.epsilon}, {plan.delta}), got delta {least} at that epsilon")
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > plan.delta else (low, middle)
    return high / plan.epsilon
