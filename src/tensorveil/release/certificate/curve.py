"""The epsilon(delta) curve of a run, including the cost of the finite precision of its noise."""

import math
from collections.abc import Sequence

from tensorveil.errors import InputError
from tensorveil.mechanisms.base import price
from tensorveil.privacy.accounting.composition import AccountingError, delta_of, epsilon_of
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON
from tensorveil.privacy.plan import Request, rounded_up

FACTORS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # deltas of the curve, times the stated one
PARTS = (1.0, 0.75, 0.5, 0.25, 0.0)  # epsilons of a pure curve, of the stated one
LARGEST_DELTA = 0.1
ATTEMPTS = 4


def curve_of(events: tuple[Event, ...], request: Request, coordinates: int) -> tuple[tuple[float, float], ...]:
    """Pairs (delta, epsilon) at which the run is private, rounded up, by rising delta.

    Parameters
    ----------
    events : what the stages cost with ideal noise
    request : what was asked for; its delta is in the middle of the curve
    coordinates : how many numbers got Gaussian noise, whose finite precision is paid for at every point

    Notes
    -----
    Pure releases are private at delta 0; the other points give the delta that holds at smaller epsilons.
    """
    if all_pure(events):
        total = epsilon_of(events, 0.0)
        points = [(_up(delta_of(events, part * total)) if part < 1 else 0.0, _up(part * total)) for part in PARTS]
        return tuple((delta, epsilon) for delta, epsilon in points if delta < 1)  # a delta of 1 promises nothing
    found = []
    for factor in FACTORS:
        if factor == 1:
            found.append((request.delta, _up(price(events, request, coordinates))))
            continue
        delta = float(f"{request.delta * factor:.6g}")
        cost = None if delta > LARGEST_DELTA else _cost_at(events, delta, coordinates, request.epsilon)
        if cost is not None:
            found.append((delta, _up(cost)))
    return tuple(found)


def _cost_at(events: Sequence[Event], delta: float, coordinates: int, guess: float) -> float | None:
    """Epsilon at this delta, or None where delta does not pay for the noise's finite precision or the transforms.

    With ideal noise (e, d) the sampler gives (e + N a, e^(N a) d + (1 + e^E) N b) for any E of at least the total
    epsilon (docs/proofs/noise.md): E is raised until it is.
    """
    loss, limit = coordinates * GAUSSIAN_EPSILON, guess
    for _ in range(ATTEMPTS):
        left = (delta - (1 + math.exp(min(limit, 700.0))) * coordinates * GAUSSIAN_DELTA) * math.exp(-loss)
        if left < delta / 2:
            return None
        try:
            cost = epsilon_of(events, left) + loss
        except (InputError, AccountingError):
            return None
        if cost <= limit:
            return cost
        limit = 1.01 * cost
    return None


def all_pure(events: Sequence[Event]) -> bool:
    """Whether all events are of pure epsilon."""
    return all(isinstance(event, PureEvent) for event in events)


def _up(number: float) -> float:
    return float(rounded_up(number, 6)) if number else 0.0
