"""What an attacker can gain at most by a release, in numbers that are never told too small.

With pure epsilon the odds of any two situations grow by at most e^epsilon, whatever is released. With delta above 0
they may grow by more, and the probability of that may be larger than delta. What epsilon and delta then bound are
tests and guesses: probabilities of events before the release is seen.
"""

import math
from decimal import ROUND_CEILING, Decimal

from tensorveil.privacy.guarantee import factor_text
from tensorveil.privacy.plan import rounded_up

LEVEL = 0.05  # of the test whose greatest power is told first
LEVELS = (0.01, 0.05, 0.1)
PRIORS = (0.01, 0.1, 0.5)


def gains(epsilon: float, delta: float) -> list[tuple[str, str]]:
    """Rows of a table: what an attacker has before the release, and at most after it."""
    if delta == 0:
        odds = [("odds of 1 to 1", f"{factor_text(epsilon)} to 1")]
        odds += [(f"suspicion of {percent_up(one)}", percent_up(suspicion(one, epsilon))) for one in PRIORS]
        return [*odds, _test(epsilon, delta, LEVEL)]
    guess = ("right guess between two equally likely situations: 50 %", percent_up(best_guess(epsilon, delta)))
    return [guess, *(_test(epsilon, delta, level) for level in LEVELS)]


def _test(epsilon: float, delta: float, level: float) -> tuple[str, str]:
    share = percent_up(level)
    return f"power of a test with {share} false alarms: {share}", percent_up(max_power(epsilon, delta, level))


def max_power(epsilon: float, delta: float, level: float = LEVEL) -> float:
    """The greatest power that a test of this level can have against one unit, by the trade-off of (epsilon, delta).

    Rejecting is an event: its chance in one world is at most e^epsilon times that in the other, plus delta. So is not
    rejecting, with the worlds exchanged. (Wasserman and Zhou 2010, arXiv:0811.2501, Theorem 2.4, with delta.)

    Examples
    --------
    >>> round(max_power(1.0, 0.0), 6)
    0.135914
    """
    small = level * math.exp(epsilon) + delta if epsilon < 700 else 1.0
    return max(level, min(1.0, small, 1 - math.exp(-epsilon) * (1 - delta - level)))


def best_guess(epsilon: float, delta: float) -> float:
    """The greatest chance to guess right which of two equally likely neighbouring data sets was released.

    A guess is right with chance (p + q) / 2, p and q its chances in the two worlds. Both p + e^epsilon q and
    q + e^epsilon p are at most e^epsilon + delta, so p + q is at most 2 (e^epsilon + delta) / (1 + e^epsilon).

    Examples
    --------
    >>> round(best_guess(1.0, 0.0), 6), round(best_guess(1.0, 0.1), 6)
    (0.731059, 0.757953)
    """
    other = math.exp(-epsilon)
    return min(1.0, (1 + delta * other) / (1 + other))


def suspicion(prior: float, epsilon: float) -> float:
    """What a suspicion of this probability grows to at most when its odds grow by e^epsilon; for delta 0.

    Examples
    --------
    >>> round(suspicion(0.5, 1.0), 6)
    0.731059
    """
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))


def chance_up(delta: float) -> str:
    """A small chance as a decimal, never less than it is; a tiny one as a power of ten."""
    if delta == 0:
        return "0"
    text = rounded_up(delta)
    return f"{Decimal(text).normalize():f}" if delta >= 1e-8 else text


def percent_up(share: float) -> str:
    """A share in per cent, one decimal below 99.9, never less than it is."""
    percent = Decimal(repr(share)) * 100
    rounded = percent.quantize(Decimal("0.1") if percent < Decimal("99.9") else Decimal("0.001"), ROUND_CEILING)
    return f"{rounded.normalize():f} %"
