"""Which releases a budget admits, proven for releases that are chosen by the outputs of earlier ones.

A budget (epsilon, delta) is kept by one of two modes, fixed by the first release before anything was drawn:

- ``classes``: a release is admitted while at least one class of sums stays within its limit: pure epsilon; squared
  Gaussian mu; Rényi divergence at each of a few fixed orders. They share delta among them.
- ``added``: the stated epsilons and deltas are added up. It takes what no class takes, such as a first release that
  is priced at exactly the whole budget.

The proofs are in docs/proofs/ledger.md. Nothing here reads data or files.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, final

from tensorveil import checks
from tensorveil.errors import BudgetError, InputError
from tensorveil.privacy.accounting.divergences import (
    LARGEST_EXPONENT,
    LIMIT_DOWN,
    renyi,
    renyi_limit,
    squared_mu,
    squared_mu_limit,
)
from tensorveil.privacy.accounting.events import Event, PureEvent, SampledGaussianEvent
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

CLASSES, ADDED = "classes", "added"
PRECISION_DELTA = 1 / 16  # share of delta that pays for the finite precision of Gaussian samplers
PRECISION_EPSILON = 2.0**-20  # the same of epsilon
GAUSSIAN_SHARE = 1 / 2  # of the rest of delta, for the class of squared mu; Rényi orders divide the other half
LARGEST_ORDER = 1024
NOMINAL_DELTA = 1e-6  # chooses the orders of a budget without delta, which may be raised to one with it
COST_UP = 1 + 1e-9  # costs are raised by far more than the arithmetic loses


@final
@dataclass(frozen=True)
class Charge:
    """What one release costs, stated before it is drawn; public numbers only.

    Attributes
    ----------
    unit : the unit under which the events hold
    epsilon, delta : the stated price of all events together
    gaussian_coordinates : how many numbers get Gaussian noise; in a one-shot release, how many of them one unit changes
    mode_names : what the numbers of modes are called, so that units can be compared
    title : what it is, for a reader of the ledger
    """

    unit: Unit
    events: tuple[Event, ...]
    epsilon: float
    delta: float = 0.0
    gaussian_coordinates: int = 0
    mode_names: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.unit, Unit):
            raise InputError(f"unit must be a Unit, got {self.unit!r}; write Unit.of('value')")
        object.__setattr__(self, "epsilon", checks.positive_number("epsilon", self.epsilon))
        object.__setattr__(self, "delta", budget_delta(self.delta))
        if not isinstance(self.events, tuple) or not self.events or not all(isinstance(e, Event) for e in self.events):
            raise InputError(f"events must be a tuple of what is drawn, got {self.events!r}; give at least one event")
        if any(isinstance(e, SampledGaussianEvent) and e.replace != self.unit.coordinates_public for e in self.events):
            raise InputError(
                f"replace must be {self.unit.coordinates_public} under the unit {str(self.unit)!r}, got the other; "
                "use True for the units value and slice_values"
            )
        if self.delta == 0 and not self.pure:
            raise InputError("delta must be above 0 for Gaussian events, got 0; state the delta of the release")
        number = self.gaussian_coordinates
        if isinstance(number, bool) or not isinstance(number, Integral) or number < (0 if self.pure else 1):
            raise InputError(
                f"gaussian_coordinates must count the numbers that get Gaussian noise, "
                f"got {self.gaussian_coordinates}; give at least 1"
            )
        object.__setattr__(self, "gaussian_coordinates", int(number))

    @property
    def pure(self) -> bool:
        """Whether every event is pure."""
        return all(isinstance(event, PureEvent) for event in self.events)

    def concerns(self, mode: int | str | None) -> bool:
        """Whether the unit's mode is this one, by number or by name."""
        return mode is not None and self._name(mode) == self._name(self.unit.mode)

    def _name(self, mode: int | str | None) -> int | str | None:
        return self.mode_names[mode] if isinstance(mode, int) and 0 <= mode < len(self.mode_names) else mode


@final
@dataclass(frozen=True)
class Costs:
    """What a charge adds to each sum; None where the class has no finite cost for it."""

    pure: float | None
    gaussian: float | None
    renyi: tuple[float | None, ...]
    coordinates: int
    epsilon: float
    delta: float


@final
@dataclass(frozen=True)
class Limits:
    """How far each sum may go under a budget; 0 where nothing is admitted."""

    epsilon: float
    delta: float
    orders: tuple[int, ...]
    gaussian: float
    renyi: tuple[float, ...]
    coordinates: int


@final
@dataclass(frozen=True)
class Totals:
    """Exact sums of costs, every number taken as it is written in decimal digits; None is infinite."""

    pure: Fraction | None
    gaussian: Fraction | None
    renyi: tuple[Fraction | None, ...]
    coordinates: int
    epsilon: Fraction
    delta: Fraction


def budget_delta(value: object) -> float:
    """A delta: from 0 to below 1."""
    delta = checks.nonnegative_number("delta", value, "give 0 for pure privacy or e.g. 1e-6")
    if delta >= 1:
        raise InputError(f"delta must be in [0, 1), got {value!r}; use less than 1 / (public number of units)")
    return delta


@proves("ledger-units")
def steps_between(charge: Charge, unit: Unit) -> int:
    """How many changes of the charge's unit make one change of this unit; BudgetError where no theorem says.

    One for the same unit, and for one value of a slice; two where something is removed and added again; as many as
    the data set's unit allows observations where a slice is changed one by one.
    """
    have, want, most = charge.unit.kind, unit.kind, unit.at_most
    if have == want and (not unit.whole_slices or charge.concerns(unit.mode)):
        return 1  # [L1]
    if (have, want) == ("slice_values", "value"):
        return 1  # [L2]
    if (have, want) in (("entry", "value"), ("slice", "value"), ("slice", "entry")):
        return 2  # [L3]
    if (have, want) == ("slice", "slice_values") and charge.concerns(unit.mode):
        return 2  # [L3]
    if most is not None and (have, want) in (("entry", "slice"), ("value", "slice_values")):
        return most  # [L4]
    if most is not None and (have, want) == ("entry", "slice_values"):
        return 2 * most  # [L4]
    bound = ", or state at_most when the data set is created" if have == "entry" and unit.whole_slices else ""
    raise BudgetError(
        f"the release's unit must be the data set's unit {str(unit)!r} or one that a theorem converts, "
        f"got {str(charge.unit)!r}; plan for {str(unit)!r}{bound}"
    )


@proves("ledger-units")
def added_price(epsilon: float, delta: float, steps: int) -> tuple[float, float]:
    """The price of so many steps: (k epsilon, (1 + e^epsilon + ... + e^((k-1) epsilon)) delta)."""
    if steps == 1:
        return epsilon, delta
    total = float(Fraction(repr(epsilon)) * steps)
    if delta == 0:
        return total, 0.0
    if total > LARGEST_EXPONENT:
        return total, 1.0
    return total, min(1.0, delta * math.expm1(total) / math.expm1(epsilon) * COST_UP)  # [L5]


@proves("ledger-filter")
def costs(charge: Charge, unit: Unit, orders: tuple[int, ...]) -> Costs:
    """What the charge adds to each sum of a data set with this unit and these orders."""
    steps = steps_between(charge, unit)
    epsilon, delta = added_price(charge.epsilon, charge.delta, steps)
    squared = sum(event.count * squared_mu(event, steps) for event in charge.events)
    divergences = [sum(event.count * renyi(event, steps, order) for event in charge.events) for order in orders]
    return Costs(
        epsilon if charge.pure else None,
        _raised(squared),
        tuple(_raised(divergence) for divergence in divergences),
        0 if charge.pure else charge.gaussian_coordinates * steps,  # [L20]
        epsilon,
        delta,
    )


@proves("ledger-filter")
def limits(epsilon: float, delta: float, orders: tuple[int, ...]) -> Limits:
    """How far each sum may go so that all classes together keep (epsilon, delta)."""
    from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON  # compiles nothing, imports much

    budget, chance = checks.positive_number("epsilon", epsilon), budget_delta(delta)
    if chance == 0 or budget > LARGEST_EXPONENT:
        return Limits(budget, chance, orders, 0.0, (0.0,) * len(orders), 0)
    coordinates = math.floor(
        min(
            PRECISION_DELTA * chance / ((1 + math.exp(budget)) * GAUSSIAN_DELTA),
            PRECISION_EPSILON * budget / GAUSSIAN_EPSILON,
        )
        * LIMIT_DOWN
    )  # [L6]
    ideal_epsilon = budget * (1 - PRECISION_EPSILON)
    ideal_delta = (1 - PRECISION_DELTA) * chance * math.exp(-PRECISION_EPSILON * budget)  # [L7]
    gaussian_delta = ideal_delta * GAUSSIAN_SHARE
    renyi_delta = ideal_delta * (1 - GAUSSIAN_SHARE) / len(orders)
    return Limits(
        budget,
        chance,
        orders,
        squared_mu_limit(ideal_epsilon, gaussian_delta),
        tuple(renyi_limit(ideal_epsilon, renyi_delta, order) for order in orders),
        coordinates,
    )


def orders_for(epsilon: float, delta: float) -> tuple[int, ...]:
    """The Rényi orders of a data set, from its first budget: around the one that admits the least Gaussian noise."""
    steps = (-2, -1, 0, 1)  # powers of sqrt(2); much smaller orders admit nothing, much larger ones little
    chance = (delta or NOMINAL_DELTA) * (1 - PRECISION_DELTA) * (1 - GAUSSIAN_SHARE) / len(steps)
    best = max(range(2, LARGEST_ORDER + 1), key=lambda order: (renyi_limit(epsilon, chance, order) / order, order))
    return tuple(sorted({min(max(round(best * 2 ** (step / 2)), 2), LARGEST_ORDER) for step in steps}))


@proves("ledger-filter")
def total(parts: Iterable[Costs], orders: tuple[int, ...]) -> Totals:
    """The exact sums of costs."""
    every = list(parts)
    return Totals(
        _sum(one.pure for one in every),
        _sum(one.gaussian for one in every),
        tuple(_sum(one.renyi[place] for one in every) for place in range(len(orders))),
        sum(one.coordinates for one in every),
        sum((exact(one.epsilon) for one in every), Fraction(0)),
        sum((exact(one.delta) for one in every), Fraction(0)),
    )


@proves("ledger-filter")
def holding(sums: Totals, within: Limits) -> tuple[str, ...]:
    """The classes whose sums are within their limits."""
    found = []
    if sums.pure is not None and sums.pure <= exact(within.epsilon):  # [L8]
        found.append("pure")
    if within.delta > 0 and sums.coordinates <= within.coordinates:  # [L9]
        if sums.gaussian is not None and sums.gaussian <= exact(within.gaussian):
            found.append("gaussian")
        for order, spent, limit in zip(within.orders, sums.renyi, within.renyi, strict=True):
            if spent is not None and spent <= exact(limit):
                found.append(f"renyi:{order}")
    return tuple(found)


@proves("ledger-filter")
def admitted_mode(sums: Totals, within: Limits, mode: str | None) -> str | None:
    """The mode in which these sums, the new release included, are within the budget; None where they are not.

    `mode` is the one that earlier releases fixed, or None if there are none.
    """
    if mode in (None, CLASSES) and holding(sums, within):
        return CLASSES
    fits = sums.epsilon <= exact(within.epsilon) and sums.delta <= exact(within.delta)  # [L10]
    return ADDED if mode in (None, ADDED) and fits else None


@proves("ledger-filter")
def raised_limits(within: Limits, sums: Totals, epsilon: float, delta: float) -> Limits:
    """The limits of a larger budget; InputError if it is not larger, BudgetError if a limit would fall."""
    budget, chance = checks.positive_number("epsilon", epsilon), budget_delta(delta)
    if budget < within.epsilon or chance < within.delta or (budget, chance) == (within.epsilon, within.delta):
        raise InputError(
            f"the new budget must be above the old one, got epsilon {budget!r} and delta {chance!r} "
            f"for epsilon {within.epsilon!r} and delta {within.delta!r}; give the new total, not the addition"
        )
    new = limits(budget, chance, within.orders)
    falls = new.gaussian < within.gaussian or any(
        after < before for after, before in zip(new.renyi, within.renyi, strict=True)
    )
    if falls or new.coordinates < sums.coordinates:  # [L11]
        raise BudgetError(
            "the new budget must cover what is spent, the finite precision of Gaussian noise included, "
            f"got epsilon {budget!r} with delta {chance!r}; raise epsilon less or delta more"
        )
    return new


def _raised(cost: float) -> float | None:
    return cost * COST_UP if math.isfinite(cost) else None


def exact(number: float) -> Fraction:
    """The number as it is written: ten releases of 0.1 are 1."""
    return Fraction(repr(float(number)))


def _sum(numbers: Iterable[float | None]) -> Fraction | None:
    every = list(numbers)
    known = [exact(number) for number in every if number is not None]
    return sum(known, Fraction(0)) if len(known) == len(every) else None


def plus(sums: Totals, more: Costs) -> Totals:
    """Totals with the costs of one more release."""

    def added(spent: Fraction | None, cost: float | None) -> Fraction | None:
        return None if spent is None or cost is None else spent + exact(cost)

    return Totals(
        added(sums.pure, more.pure),
        added(sums.gaussian, more.gaussian),
        tuple(added(*both) for both in zip(sums.renyi, more.renyi, strict=True)),
        sums.coordinates + more.coordinates,
        sums.epsilon + exact(more.epsilon),
        sums.delta + exact(more.delta),
    )


def as_json(found: Costs | Limits) -> dict[str, Any]:
    """Plain values of costs or limits, for an entry of the ledger."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(found).items()}
