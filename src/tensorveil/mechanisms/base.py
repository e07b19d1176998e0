"""What every proven mechanism is: a plan made without data, and a run that reads data only through noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, final

from numpy.typing import ArrayLike

from tensorveil.data.features import Features, PublicInput
from tensorveil.errors import InputError, UnprovenError
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.guarantee import SECRET_NOISE
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON
from tensorveil.privacy.plan import CoupledTable, Plan, Request
from tensorveil.privacy.stages import Stage
from tensorveil.privacy.theorems import covering
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Pattern, Vault

Progress = Callable[[str, int, int], None]  # what is being done, how far, of how many

EARLIER_MODEL = "the model of release"  # how the name of features begins that are rows of an earlier release
APART = "no value of one table is a copy of a value of the other one, nor computed from values of the other one"
MOST_TRIES = 8  # of smaller budgets for an inner mechanism; at a large epsilon the first is 0.1 % too large
MARGIN = 2e-4  # of epsilon: composing many Gaussian stages rounds up more than composing the one they amount to


def no_progress(what: str, done: int, total: int) -> None:
    """Report no progress."""


@final
@dataclass(frozen=True)
class Design:
    """The decisions of a mechanism for a request: its stages in order, and its settings, a frozen dataclass.

    `gaussian_coordinates` is how many numbers get Gaussian noise in the whole run: the sampler's precision is paid for.
    """

    stages: tuple[Stage, ...]
    settings: Any
    gaussian_coordinates: int = 0
    assumptions_trusted: tuple[str, ...] = ()


class Mechanism(ABC):
    """A way to complete a tensor with a proven guarantee. The constructor stores options and nothing else."""

    name: ClassVar[str]

    @property
    def title(self) -> str:
        """The heading of a plan."""
        return f"{self.name} perturbation"

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        """The features that the mechanism was given, as certificates name them."""
        return ()

    def with_features(self, features: Mapping[str, ArrayLike]) -> Mechanism:
        """This mechanism with public features of some modes (mode name -> matrix); an error if it cannot use them."""
        raise InputError(
            f"features must be for a mechanism that can use them, got {self.title}, which cannot; leave them out, "
            "or take input perturbation (not under slice) or sum perturbation"
        )

    def can_smooth(self, unit: Unit) -> bool:
        """Whether its prior can make neighbouring indices of a mode alike (`with_smooth`)."""
        return False

    def with_smooth(self, smooth: Mapping[str, Features]) -> Mechanism:
        """This mechanism with smooth modes (mode name -> waves, see `smooth_features`); an error if it has none."""
        raise InputError(
            f"smooth must be for a mechanism with a posterior, got {self.title}, which has none; leave it out, "
            "or take input perturbation (not under slice) or sum perturbation"
        )

    def plan(
        self,
        model: ModelFamily | None = None,
        bounds: Bounds | tuple[float, float] | None = None,
        unit: str | Unit | None = None,
        epsilon: float | None = None,
        delta: float = 0.0,
        *,
        shape: tuple[int, ...] | None = None,
        mode_names: tuple[str, ...] | None = None,
        expected_count: int | None = None,
        at_most: int | None = None,
        coupled: CoupledTable | None = None,
    ) -> Plan:
        """Fix stages, sensitivities and noise for a request and compute their privacy cost, without reading data.

        Parameters
        ----------
        model : CP(rank) or Tucker(ranks)
        bounds : the public range of values, Bounds(low, high) or (low, high)
        unit : what is protected: "value", "entry", "slice:user", "slice_values:0"
        epsilon, delta : the budget; delta 0 for pure privacy
        shape : public sizes of the modes
        mode_names : names that the unit may refer to
        expected_count : a public guess of the number of observations; a wrong guess only costs accuracy
        at_most : with a slice unit, the number of observations that are kept per slice
        coupled : public facts of a second table that shares a mode (`Coupled.facts`)

        Raises
        ------
        UnprovenError : if no theorem covers the combination
        InputError : if a parameter is invalid
        """
        request = Request.checked(
            model, bounds, unit, epsilon, delta, shape, mode_names, expected_count, at_most, coupled
        )
        covering(self.name, request.unit.kind)
        if request.coupled is not None:
            self.check_coupled(request)
        if request.family.nonnegative and not self.keeps_nonnegative(request.unit):
            raise InputError(
                f"model must not be non-negative for {self.title}, whose factors may be below 0, got {request.family}; "
                "take input or gradient perturbation, or leave out nonnegative"
            )
        design = self.design(request)
        inputs = self.public_inputs
        names = [stage.name for stage in design.stages]
        if len(set(names)) != len(names):
            raise InputError(f"stages must have different names, got {names}; rename modes, or name each block once")
        for stage in design.stages:
            if request.delta == 0 and not isinstance(stage.event, PureEvent):
                raise InputError(
                    f"delta must be above 0 for the Gaussian noise of {stage.name!r}, got 0; "
                    "give e.g. delta=1e-6, or a mechanism with pure noise"
                )
        events = tuple(stage.event for stage in design.stages)
        pure = all(isinstance(event, PureEvent) for event in events)
        cost = price(events, request, design.gaussian_coordinates)
        if cost > request.epsilon:
            raise InputError(
                f"epsilon must cover the cost of all stages, {cost!r}, got {request.epsilon!r}; use a larger epsilon"
            )
        return Plan(
            request,
            self,
            design.stages,
            design.settings,
            cost,
            0.0 if pure else request.delta,
            design.gaussian_coordinates,
            assumptions_checked=self.checked(request),
            assumptions_trusted=(
                *self.trusted(request),
                *design.assumptions_trusted,
                *trusted_features(request.unit, inputs),
            ),
            public_inputs=inputs,
        ).sealed()

    def check_coupled(self, request: Request) -> None:
        """Raise an error where the mechanism cannot complete two tables together (`run_coupled`)."""
        raise self._without_second_table()

    def run_coupled(self, vault: Vault, second: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        """Complete the first table from the answers about both tables; each has a vault, with the same stages."""
        raise self._without_second_table()

    def _without_second_table(self) -> InputError:
        return InputError(
            f"coupled must be for a mechanism that can use a second table, got {self.title}, which cannot; leave it "
            "out, or take input perturbation"
        )

    @abstractmethod
    def design(self, request: Request) -> Design:
        """Stages and settings for a request that has passed its checks."""

    @abstractmethod
    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        """Complete the tensor from the answers of the vault to the queries in the plan, and from public facts."""

    def check_pattern(self, pattern: Pattern, plan: Plan) -> None:
        """Raise an error, before anything is spent, if the public coordinates do not fit the plan."""
        return

    def checked(self, request: Request) -> tuple[str, ...]:
        """What a run checks, as guarantees state it."""
        return checked_by_code(request)

    def trusted(self, request: Request) -> tuple[str, ...]:
        """What no run can check, as guarantees state it."""
        return trusted_to_the_caller(request)

    def learns_offsets(self, unit: Unit) -> bool:
        """Whether its completion has offsets on a latent scale, to which none can be added."""
        return False

    def keeps_nonnegative(self, unit: Unit) -> bool:
        """Whether the factors of its completion stay above zero for a model that is to be non-negative."""
        return False

    @property
    def inner_mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms that this mechanism runs as a part of its own run."""
        return ()


def checked_by_code(request: Request) -> tuple[str, ...]:
    """What every run checks, as guarantees state it."""
    looked = "without looking at any value" if request.unit.coordinates_public else "before the data are read"
    public = ", from public coordinates" if request.unit.coordinates_public else ""
    second = request.coupled
    limits = "" if second is None else f" ({second.value_name}: [{second.bounds.low:g}, {second.bounds.high:g}])"
    return (
        f"values are clipped to [{request.bounds.low:g}, {request.bounds.high:g}]{limits} before anything reads them",
        f"shape, bounds, ranks, steps and the price of every stage are fixed {looked}; "
        f"noise scales follow from the plan{public} and from earlier answers",
        SECRET_NOISE,
    )


def trusted_features(unit: Unit, inputs: Sequence[PublicInput]) -> tuple[str, ...]:
    """What no run can check about features, as guarantees state it."""
    private = "values" if unit.coordinates_public else "values, nor from which cells are observed"
    return tuple(
        f"the features of {given.mode!r} ({given.name}) are "
        + (
            "numbers of that release, as it was published"
            if given.name.startswith(EARLIER_MODEL)
            else f"taken as public: they were not derived from the {private}"
        )
        for given in inputs
    )


def one_unit(unit: Unit) -> str:
    """What the unit must mean for the people in the data, as guarantees state it."""
    if unit.kind in ("slice", "slice_values"):
        return "each slice holds all data of one person, and nobody has data in two slices"
    what = "value" if unit.kind == "value" else "observation"
    return f"protecting one {what} at a time is enough: for a person with several of them, epsilon adds up"


def trusted_to_the_caller(request: Request) -> tuple[str, ...]:
    """What no run can check, as guarantees state it."""
    chosen = "bounds, shape, labels and expected count were chosen without looking at the data"
    if request.unit.coordinates_public:
        chosen = "bounds and expected count were chosen without looking at the values"
    return (
        chosen,
        *([] if request.coupled is None else [APART]),
        one_unit(request.unit),
        "running time and memory are not observed",
    )


def ideal_budget(epsilon: float, delta: float, coordinates: int) -> tuple[float, float]:
    """The budget for ideal Gaussian noise, after subtracting the cost of the sampler's finite precision.

    With ideal noise (epsilon', delta'), the sampler gives (epsilon' + N a, e^(N a) delta' + (1 + e^epsilon) N b), where
    N is the number of coordinates that get Gaussian noise in the whole run (docs/proofs/noise.md). If delta does not
    cover that at so large an epsilon, less of epsilon is spent, down to half of it.
    """
    if not coordinates or delta == 0:
        return epsilon, delta
    loss, missed = coordinates * GAUSSIAN_EPSILON, coordinates * GAUSSIAN_DELTA
    affordable = min(epsilon, math.log(max(delta / (2 * missed) - 1, 1e-300)))  # missed deltas are at most half
    if affordable < epsilon / 2 or loss > affordable / 2:
        needed = 2 * (1 + math.exp(min(epsilon / 2, 700.0))) * missed
        raise InputError(
            f"delta must be above {needed:.2g} to cover the finite precision of {coordinates:,} noisy numbers, "
            f"got {delta!r}; use a larger delta, a smaller epsilon or a smaller rank"
        )
    return affordable - loss, (delta - (1 + math.exp(affordable)) * missed) * math.exp(-loss)


def price(events: tuple[Event, ...], request: Request, coordinates: int) -> float:
    """The cost of the events at the delta of the request, including the finite precision of the sampler."""
    if all(isinstance(event, PureEvent) for event in events):
        return _composed(events, request.delta)
    epsilon, delta = ideal_budget(request.epsilon, request.delta, coordinates)
    return _composed(events, delta) + (request.epsilon - epsilon)


@lru_cache(maxsize=256)
def _composed(events: tuple[Event, ...], delta: float) -> float:
    return accounting.epsilon_of(events, delta)


def split_budget(request: Request, shares: Sequence[float], coordinates: int) -> list[Event]:
    """Events of several stages that share the request's budget: pure at delta 0, Gaussian otherwise.

    Pure budgets add up. Gaussian stages with noise multipliers z / sqrt(share) compose to one with multiplier z.
    `coordinates` is how many numbers get Gaussian noise in the whole run.
    """
    if request.delta == 0:
        return [PureEvent(part) for part in accounting.shares(request.epsilon, shares)]
    epsilon, delta = ideal_budget(request.epsilon, request.delta, coordinates)
    total = math.fsum(shares)
    multiplier = calibrate(lambda z: [GaussianEvent(z)], epsilon * (1 - MARGIN), delta)
    return [GaussianEvent(multiplier / math.sqrt(share / total)) for share in shares]


def budget_with(
    request: Request, inner: Mechanism, inner_share: float, shares: Sequence[float], coordinates: int
) -> tuple[list[Event], Plan, int]:
    """Events of own stages, the plan of an inner mechanism for its share of the budget, and all noisy numbers.

    `coordinates` is how many numbers the own stages noise.
    """

    def inner_plan(budget: float) -> Plan:
        return inner.plan(
            request.family,
            request.bounds,
            request.unit,
            budget,
            request.delta,
            shape=request.shape,
            mode_names=request.mode_names,
            expected_count=request.expected_count,
        )

    total = coordinates + inner.design(request).gaussian_coordinates
    for _ in range(2):
        whole, *events = split_budget(request, [inner_share, *shares], total)
        # what the inner mechanism may spend: as much as one stage with its share would
        _, ideal_delta = ideal_budget(request.epsilon, request.delta, total)
        budget = accounting.epsilon_of([whole], ideal_delta)
        plan = inner_plan(budget if request.delta == 0 else budget * (1 - MARGIN))
        if coordinates + plan.gaussian_coordinates <= total:
            break
        total = coordinates + plan.gaussian_coordinates  # with less to spend it may take more steps
    total = max(total, coordinates + plan.gaussian_coordinates)
    if request.delta > 0 and all(isinstance(event, PureEvent) for event in plan.events):
        # pure and Gaussian stages: epsilons are added, which is never too little
        events = split_budget(replace(request, epsilon=request.epsilon * (1 - inner_share)), shares, total)
        plan = inner_plan(request.epsilon * inner_share)
    for _ in range(MOST_TRIES):
        # the inner plan has its own, smaller, cost of finite precision: at a large epsilon its noise is then too small
        cost = price((*events, *plan.events), request, total)
        if cost <= request.epsilon:
            break
        budget = plan.epsilon * (request.epsilon / cost) ** 2
        plan = inner_plan(budget)
        total = max(total, coordinates + plan.gaussian_coordinates)
    return events, plan, total


def rows_and_width(request: Request, block: int) -> tuple[int, int]:
    """Number of rows of a block of the model, and of numbers per row; the core is one row."""
    shape = request.family.block_shapes(request.shape)[block]
    return (1, math.prod(shape)) if block == len(request.shape) else (shape[0], shape[1])


def need_unit(mechanism: str, unit: Unit, kinds: tuple[str, ...], instead: str) -> None:
    """Raise UnprovenError for a unit without a theorem for this form of a mechanism."""
    if unit.kind not in kinds:
        raise UnprovenError(
            f"{mechanism} must be used with a unit that a theorem covers, got {unit.kind!r}, which has none; {instead}"
        )
