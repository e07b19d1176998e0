"""What is left of a budget, for people who plan the next release; nothing here admits anything."""

import math
from fractions import Fraction

from tensorveil.privacy.accounting import filters
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.units import Unit


def share_used(sums: filters.Totals, within: filters.Limits, mode: str | None) -> float:
    """How much of the budget is used, from 0 to 1, by the class that has the most left."""
    if mode is None:
        return 0.0
    if mode == filters.ADDED:
        parts = [(sums.epsilon, within.epsilon), (sums.delta, within.delta)]
        return max(float(spent / filters.exact(limit)) for spent, limit in parts if limit > 0)
    held = filters.holding(sums, within)
    shares = [float(sums.pure / filters.exact(within.epsilon))] if "pure" in held and sums.pure is not None else []
    precision = sums.coordinates / within.coordinates if within.coordinates else 0.0
    sums_and_limits = [(sums.gaussian, within.gaussian), *zip(sums.renyi, within.renyi, strict=True)]
    names = ["gaussian", *(f"renyi:{order}" for order in within.orders)]
    for name, (spent, limit) in zip(names, sums_and_limits, strict=True):
        if name in held and spent is not None:
            shares.append(max(precision, float(spent / filters.exact(limit)) if limit > 0 else 0.0))
    return min(shares, default=0.0)


def largest_pure(sums: filters.Totals, within: filters.Limits, mode: str | None) -> float:
    """The largest epsilon of one more pure release, rounded down."""

    def admitted(epsilon: float) -> bool:
        charge = filters.Charge(Unit("value"), (PureEvent(epsilon),), epsilon)
        more = filters.costs(charge, charge.unit, within.orders)
        return filters.admitted_mode(filters.plus(sums, more), within, mode) is not None

    spent = sums.epsilon if mode == filters.ADDED else sums.pure
    left = 0.0 if spent is None else math.nextafter(float(filters.exact(within.epsilon) - spent), 0.0)
    for epsilon in (math.nextafter(left, math.inf), left):
        if left > 0 and admitted(epsilon):
            left = epsilon
            break
    low, high = 0.0, 2 * within.epsilon
    while high - low > 1e-7 * within.epsilon:
        middle = (low + high) / 2
        low, high = (middle, high) if admitted(middle) else (low, middle)
    found = max(low, left)
    return found if found > 1e-9 * within.epsilon else 0.0  # what rounding left over is nothing


def largest_gaussian(sums: filters.Totals, within: filters.Limits, mode: str | None) -> tuple[float, float]:
    """(epsilon, delta) of the largest Gaussian release that still fits, of few numbers; (0, 0) if none does."""
    if within.delta == 0:
        return 0.0, 0.0
    if mode is None:
        return within.epsilon, within.delta
    if mode == filters.ADDED:
        left = float(filters.exact(within.epsilon) - sums.epsilon), float(filters.exact(within.delta) - sums.delta)
        return left if min(left) > 0 else (0.0, 0.0)
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    if sums.coordinates >= within.coordinates:
        return 0.0, 0.0
    rooms = [filters.exact(within.gaussian) - sums.gaussian] if sums.gaussian is not None else []
    for order, spent, limit in zip(within.orders, sums.renyi, within.renyi, strict=True):
        if spent is not None:
            rooms.append((filters.exact(limit) - spent) * 2 / order)
    squared = float(max(rooms, default=Fraction(0))) / filters.COST_UP
    if squared <= 1e-18:
        return 0.0, 0.0
    return float(get_epsilon_gaussian(squared**-0.5, within.delta)), within.delta
