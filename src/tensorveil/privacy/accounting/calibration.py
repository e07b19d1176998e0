"""The noise that meets a budget: a search over what events cost."""

import functools
import math
from collections.abc import Callable, Sequence

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.privacy.accounting.composition import AccountingError, epsilon_of, rough_epsilon
from tensorveil.privacy.accounting.events import LARGEST_NOISE, SMALLEST_NOISE, Event

CLOSE = 1e-4  # relative precision of calibrated noise
WASTE = 1e-2  # a calibration that leaves more of its budget unused is an error


def calibrate(make_events: Callable[[float], Sequence[Event]], epsilon: float, delta: float) -> float:
    """The smallest noise multiplier whose events cost at most `epsilon` at `delta`.

    Parameters
    ----------
    make_events : from a noise multiplier to the events of the whole run; more noise must not cost more
    epsilon, delta : the budget of the whole run

    Returns
    -------
    float
        z, at most a relative 1e-4 above the smallest: `epsilon_of(make_events(z), delta)` is at most `epsilon` and
        at least 99 % of it.
    """
    budget = checks.positive_number("epsilon", epsilon)
    chance = checks.nonnegative_number("delta", delta)
    rough = _smallest_noise(lambda noise: rough_epsilon(make_events(noise), chance), budget, 1.0, 2.0)
    noise = _smallest_noise(lambda noise: epsilon_of(make_events(noise), chance), budget, rough, 1 + 2 * CLOSE)
    stated = epsilon_of(make_events(noise), chance)
    if not (1 - WASTE) * budget <= stated <= budget:
        raise AccountingError(
            f"calibration must use the budget to within {WASTE:.0%}, got epsilon {stated!r} of {budget!r}; "
            "make the events depend on the noise continuously and on nothing else"
        )
    return noise


def _smallest_noise(spent: Callable[[float], float], budget: float, guess: float, factor: float) -> float:
    """The smallest noise that spends at most the budget, found from a guess, at most CLOSE above it."""
    spent = functools.cache(spent)
    low = high = guess
    while spent(high) > budget:
        if high >= LARGEST_NOISE:
            raise InputError(
                f"epsilon must be above what the events cost with any amount of noise, got {budget!r}; "
                "give more epsilon or more delta, or spend less on the stages that this noise does not reach"
            )
        low, high, factor = high, min(high * factor, LARGEST_NOISE), factor**2
    while spent(low) <= budget:
        if low <= SMALLEST_NOISE:
            raise InputError(
                f"epsilon must be below what the events cost at a noise multiplier of {SMALLEST_NOISE:g}, "
                f"got {budget!r}; give less epsilon"
            )
        low, high, factor = max(low / factor, SMALLEST_NOISE), low, factor**2
    repeated, last_was_high = 0, False
    while high > low * (1 + CLOSE):
        # epsilon is close to a power of the noise: interpolate logarithms, then step a little over the crossing so that
        # the bracket closes from both sides; halve it where that fails
        above, below, width = spent(low), max(spent(high), budget / 1000), math.log(high / low)
        step = 0.3 * CLOSE if not last_was_high else -0.3 * CLOSE
        place = math.log(above / budget) / math.log(above / below) + step / width
        middle = low * math.exp(width * (0.5 if repeated > 1 else min(max(place, 0.02), 0.98)))
        is_high = spent(middle) <= budget
        repeated = repeated + 1 if is_high == last_was_high else 0
        last_was_high = is_high
        low, high = (low, middle) if is_high else (middle, high)
    return high
