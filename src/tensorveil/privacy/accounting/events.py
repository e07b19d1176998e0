"""What stages of a mechanism cost, in words that do not depend on any accounting library.

An event says how much one or several equal stages can tell about one unit (docs/choose_a_mechanism.md). Events are
plain and frozen: a plan holds them, `accounting` prices them, a guarantee prints them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, final

from tensorveil import checks
from tensorveil.errors import InputError

# Beyond these the accountants lose their digits; no useful mechanism comes near.
SMALLEST_NOISE = 1e-3
LARGEST_NOISE = 1e9
SMALLEST_SAMPLING = 1e-7
LARGEST_COUNT = 10**6


@dataclass(frozen=True)
class _Priced:
    """What all kinds of events share."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Plain values, read back by `event_from_json`."""
        return {"kind": self.kind, **asdict(self)}


@final
@dataclass(frozen=True)
class PureEvent(_Priced):
    """Stages of pure epsilon, by any mechanism: Laplace, norm-exponential noise, a finite channel, exponential choice.

    Attributes
    ----------
    epsilon : what one stage costs
    count : how many such stages read the same units
    """

    epsilon: float
    count: int = 1
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive_number("epsilon", self.epsilon))
        object.__setattr__(self, "count", _count(self.count))


@final
@dataclass(frozen=True)
class GaussianEvent(_Priced):
    """Stages of Gaussian noise on all units.

    Attributes
    ----------
    noise_multiplier : noise std / TRUE L2 sensitivity for the unit: std / m under `entry` and `slice`, std / (2 m)
        under `value`
    count : how many such stages read the same units
    """

    noise_multiplier: float
    count: int = 1
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", _noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "count", _count(self.count))


@final
@dataclass(frozen=True)
class SampledGaussianEvent(_Priced):
    """Steps of Gaussian noise on a Poisson sample of the units, each clipped to norm m.

    Attributes
    ----------
    noise_multiplier : noise std / clip norm m, under both values of `replace`
    sampling_probability : the chance of each unit to take part in a step, in (0, 1], drawn anew and independently every
        step
    count : the number of steps
    replace : False: a unit is added or removed (`entry`, `slice`). True: a unit's values are replaced (`value`,
        `slice_values`), the pair (1-q) N(0) + q N(m) against (1-q) N(0) + q N(-m) of gradient-sampled.
    """

    noise_multiplier: float
    sampling_probability: float
    count: int
    replace: bool
    kind: ClassVar[str] = "sampled gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", _noise_multiplier(self.noise_multiplier))
        remedy = f"give the chance of a unit to be in a step, from {SMALLEST_SAMPLING:g} to 1"
        probability = checks.positive_number("sampling_probability", self.sampling_probability, remedy)
        if not SMALLEST_SAMPLING <= probability <= 1:
            raise InputError(
                f"sampling_probability must be from {SMALLEST_SAMPLING:g} to 1, "
                f"got {self.sampling_probability!r}; {remedy}"
            )
        object.__setattr__(self, "sampling_probability", probability)
        object.__setattr__(self, "count", _count(self.count))
        if not isinstance(self.replace, bool):
            raise InputError(
                f"replace must be True or False, got {self.replace!r}; use True for the units value and slice_values"
            )


Event = PureEvent | GaussianEvent | SampledGaussianEvent
KINDS: dict[str, type[Event]] = {event.kind: event for event in (PureEvent, GaussianEvent, SampledGaussianEvent)}


def event_from_json(plain: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote; unknown, missing or wrong fields are an error."""
    given = dict(plain)
    kind = checks.choice("kind", given.pop("kind", None), tuple(KINDS))
    expected = [field.name for field in fields(KINDS[kind])]
    if sorted(given) != sorted(expected):
        raise InputError(
            f"a {kind} event must have the fields {', '.join(expected)}, "
            f"got {', '.join(given) or 'none'}; write it with to_json"
        )
    return KINDS[kind](**given)


def joined(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events with equal ones counted together: at least one, and sampled ones under one neighbouring relation."""
    if isinstance(events, Event) or not isinstance(events, Sequence):
        raise InputError(f"events must be a sequence of events, got {events!r}; put them into a list")
    counts: dict[Event, int] = {}
    for event in events:
        if not isinstance(event, Event):
            raise InputError(f"events must be pure, Gaussian or sampled Gaussian, got {event!r}; use the event classes")
        single = replace(event, count=1)
        counts[single] = counts.get(single, 0) + event.count
    if not counts:
        raise InputError("events must name at least one stage, got none; what reads no data needs no accounting")
    if len({event.replace for event in counts if isinstance(event, SampledGaussianEvent)}) > 1:
        raise InputError("replace must be the same for all sampled events, got both; a run has one unit")
    return tuple(replace(event, count=count) for event, count in counts.items())


def pure_epsilon(events: Sequence[Event]) -> float:
    """The exact sum of the pure events' epsilons, rounded up: where the sum is a float, that float."""
    pure = (event for event in events if isinstance(event, PureEvent))
    return float_above(sum((Fraction(event.epsilon) * event.count for event in pure), Fraction(0)))


def gaussian_precision(events: Sequence[Event]) -> float:
    """1/z^2 of all unsampled Gaussians: together they are one Gaussian (arXiv:1905.02383, Corollary 3.3)."""
    return math.fsum(event.count / event.noise_multiplier**2 for event in events if isinstance(event, GaussianEvent))


def shares(epsilon: float, weights: Sequence[float]) -> tuple[float, ...]:
    """Split a budget in proportion to weights; the exact sum of the shares never exceeds it.

    Pure epsilon adds up, and so does 1/z^2 of Gaussian stages: a stage with the share s of 1/z^2 gets the noise
    multiplier s ** -0.5.
    """
    budget = Fraction(checks.positive_number("epsilon", epsilon))
    if len(weights) == 0:
        raise InputError("weights must name at least one stage, got none; give one weight a stage")
    exact = [Fraction(checks.positive_number(f"weights[{place}]", weight)) for place, weight in enumerate(weights)]
    result = tuple(-float_above(-budget * weight / sum(exact)) for weight in exact)
    if min(result) <= 0:
        raise InputError(f"weights must leave every stage a share above 0, got {min(weights)!r}; drop that stage")
    return result


def float_above(number: Fraction) -> float:
    """The smallest float that is at least this number."""
    try:
        nearest = float(number)
    except OverflowError as error:
        raise InputError("events must have a finite total, got more than floats can hold; use less epsilon") from error
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def _noise_multiplier(value: object) -> float:
    remedy = "divide the noise std by a sensitivity above 0; a sensitivity of 0 means that nothing is read"
    number = checks.positive_number("noise_multiplier", value, remedy)
    if not SMALLEST_NOISE <= number <= LARGEST_NOISE:
        raise InputError(
            f"noise_multiplier must be from {SMALLEST_NOISE:g} to {LARGEST_NOISE:g}, got {value!r}; {remedy}"
        )
    return number


def _count(value: object) -> int:
    count = checks.positive_integer("count", value)
    if count > LARGEST_COUNT:
        raise InputError(f"count must be at most {LARGEST_COUNT:,}, got {count:,}; plan fewer steps")
    return count
