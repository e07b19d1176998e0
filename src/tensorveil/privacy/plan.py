"""A plan: everything public about a run, priced before any data are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any, final

from tensorveil import checks
from tensorveil.data.features import PublicInput
from tensorveil.errors import InputError, UnprovenError
from tensorveil.models.factor_model import ModelFamily
from tensorveil.notebook import html_table
from tensorveil.privacy.accounting.events import Event
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.stages import Stage
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:
    from tensorveil.mechanisms.base import Mechanism


@final
@dataclass(frozen=True)
class CoupledTable:
    """Public facts of a second table that shares a mode with the first one; its values are as private.

    Attributes
    ----------
    mode_names, shape : its modes and their sizes
    shared : the mode that both tables have
    joint_size : the number of indices of that mode that are in either table
    bounds : the public range of its values
    count : its number of observations, public under `value`
    levels : the values that can occur, if they are public
    """

    mode_names: tuple[str, ...]
    shape: tuple[int, ...]
    shared: str
    joint_size: int
    bounds: Bounds
    value_name: str
    count: int
    levels: tuple[float, ...] | None = None

    @property
    def mode(self) -> int:
        """The number of the shared mode in this table."""
        return self.mode_names.index(self.shared)

    @property
    def joint_shape(self) -> tuple[int, ...]:
        """Sizes of its modes, of the shared one with the indices that only the first table has."""
        return tuple(self.joint_size if name == self.shared else size for name, size in self._sizes)

    @property
    def _sizes(self) -> tuple[tuple[str, int], ...]:
        return tuple(zip(self.mode_names, self.shape, strict=True))

    def __str__(self) -> str:
        sizes = " x ".join(f"{size:,} {name}" for name, size in self._sizes)
        limits = f"[{self.bounds.low:g}, {self.bounds.high:g}]"
        return f"{self.count:,} values of {self.value_name} in {sizes}, clipped to {limits}"

    def check(self, unit: Unit, shape: tuple[int, ...], mode_names: tuple[str, ...]) -> None:
        """Refuse a table that does not fit the first one, or a unit without a theorem for two tables."""
        if unit.kind != "value":
            raise UnprovenError(
                f"a coupled table must be released under the unit value, got {str(unit)!r}, for which no theorem "
                "covers two tables; complete each table on its own"
            )
        common = [name for name in self.mode_names if name in mode_names]
        if common != [self.shared]:
            raise InputError(
                f"two coupled tables must have one mode of the same name, {self.shared!r}, got {list(mode_names)} and "
                f"{list(self.mode_names)}; rename the others"
            )
        first = shape[mode_names.index(self.shared)]
        if not 2 <= len(self.shape) <= len(shape) or len(self.mode_names) != len(checks.shape(self.shape)):
            raise InputError(
                f"a coupled table must have 2 to {len(shape)} modes, as the first table has {len(shape)}, got "
                f"{len(self.shape)}; exchange the tables, or merge modes"
            )
        if not max(first, self.shape[self.mode]) <= self.joint_size <= first + self.shape[self.mode]:
            raise InputError(
                f"joint_size must count the indices of {self.shared!r} in either table, got {self.joint_size}; make it "
                "with Coupled"
            )
        checks.positive_integer("count", self.count)


@final
@dataclass(frozen=True)
class Request:
    """What the caller asks of a mechanism: all of it public."""

    family: ModelFamily
    bounds: Bounds
    unit: Unit
    epsilon: float
    delta: float
    shape: tuple[int, ...]
    mode_names: tuple[str, ...]
    expected_count: int | None = None
    coupled: CoupledTable | None = None

    @classmethod
    def checked(
        cls,
        model: ModelFamily | None,
        bounds: Bounds | tuple[float, float] | None,
        unit: str | Unit | None,
        epsilon: float | None,
        delta: float,
        shape: tuple[int, ...] | None,
        mode_names: tuple[str, ...] | None,
        expected_count: int | None,
        at_most: int | None,
        coupled: CoupledTable | None = None,
    ) -> Request:
        """A request whose every part keeps its rule; the first that does not is one clear error."""
        if not isinstance(model, ModelFamily):
            raise InputError(f"model must be CP(rank) or Tucker(ranks), got {model!r}; give one")
        stated = bounds_of(bounds)
        check_nonnegative(model, stated)
        if shape is None:
            raise InputError(
                "shape must be given, got None; state the public sizes of the modes, e.g. (943, 1682, 213)"
            )
        sizes = checks.shape(shape)
        model.block_shapes(sizes)
        names = default_names(len(sizes)) if mode_names is None else tuple(mode_names)
        if len(names) != len(sizes) or len(set(names)) != len(names) or isinstance(mode_names, str):
            raise InputError(f"mode_names must be {len(sizes)} different names, one per mode, got {mode_names!r}")
        resolved = Unit.of(unit, at_most).resolved(names)
        budget = checks.positive_number("epsilon", epsilon, "give a finite number above 0, e.g. 1.0")
        chance = checks.nonnegative_number("delta", delta, "give 0 for pure privacy or e.g. 1e-6")
        count = None if expected_count is None else checks.positive_integer("expected_count", expected_count)
        units = sizes[resolved.mode_number] if resolved.whole_slices else count
        if chance >= 1 or (units is not None and chance > 0 and chance >= 1 / units):
            limit = "1" if units is None else f"1/{units:,} = {1 / units:.3g}, one over the public number of units"
            raise InputError(f"delta must be below {limit}, got {delta!r}; use e.g. {0.1 / (units or 1000):.1g}")
        if coupled is not None:
            coupled.check(resolved, sizes, names)
        return cls(model, stated, resolved, budget, chance, sizes, names, count, coupled)

    @property
    def count_or_guess(self) -> float:
        """The declared number of observations, or a guess from the shape; a wrong one costs accuracy only."""
        return self.expected_count or min(math.prod(self.shape) / 2, 100.0 * sum(self.shape))

    @property
    def unit_text(self) -> str:
        """The unit with the name of its mode, e.g. "slice:user"."""
        return f"{self.unit.kind}:{self.unit_name}" if self.unit.whole_slices else self.unit.kind

    @property
    def neighbours(self) -> str:
        """In plain words, how two neighbouring data sets differ."""
        return neighbours_of(self.unit, self.unit_name, self.coupled)

    @property
    def unit_name(self) -> str:
        """The name of the mode that a slice unit protects, or "observation"."""
        return self.mode_names[self.unit.mode_number] if self.unit.whole_slices else "observation"


def bounds_of(bounds: Bounds | tuple[float, float] | None) -> Bounds:
    """The public range of the values, from Bounds or from a pair of numbers (low, high)."""
    if isinstance(bounds, tuple | list) and len(bounds) == 2:
        return Bounds(*bounds)
    if not isinstance(bounds, Bounds):
        raise InputError(
            f"bounds must be Bounds(low, high) or a pair (low, high), got {bounds!r}; "
            "state the public range of values, not that of the data"
        )
    return bounds


def check_nonnegative(model: ModelFamily, bounds: Bounds) -> None:
    """Refuse a non-negative model of values that may be below zero."""
    if model.nonnegative and bounds.low < 0:
        raise InputError(
            f"bounds must not be below 0 for a non-negative model, got [{bounds.low:g}, {bounds.high:g}]; "
            "leave out nonnegative, or state the lower end of counts or amounts, e.g. 0"
        )


def neighbours_of(unit: Unit, mode_name: str | None = None, coupled: CoupledTable | None = None) -> str:
    """In plain words, how two neighbouring data sets differ; with a coupled table, the data set is both tables."""
    if coupled is not None:
        return (
            "one observed value of one of the two tables is replaced by any other; which cells are observed is public "
            "in both tables"
        )
    name = mode_name if mode_name is not None else f"mode {unit.mode}"
    used = "" if unit.at_most is None else f" (at most {unit.at_most} observations of each are used)"
    return {
        "value": "one observed value is replaced by any other; which cells are observed is public",
        "slice_values": f"all values of one {name} are replaced by any others; which cells are observed is public",
        "entry": "one observation is added or removed",
        "slice": f"all observations of one {name} are added or removed",
    }[unit.kind] + used


def public_facts(unit: Unit) -> str:
    """What the guarantee assumes to be public besides shape, labels and bounds."""
    if unit.coordinates_public:
        return "all coordinates: how many observations there are, where, and how many in each row"
    return "nothing"


def rounded_up(number: float, digits: int = 4) -> str:
    """A positive number with so many digits, never less than it is."""
    if math.isinf(number):
        return "infinity"
    exact = Decimal(repr(float(number)))  # what a person would write; reads back as the same float
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_CEILING)
    return f"{float(rounded):g}" if digits <= 6 else str(rounded)


def default_names(order: int) -> tuple[str, ...]:
    """Names of modes that nobody named."""
    return tuple(f"mode_{number}" for number in range(order))


@final
@dataclass(frozen=True)
class Plan:
    """Rules for noise and sensitivity, the stages and their price; frozen, printable, made without data.

    Attributes
    ----------
    settings : object
        Numbers that the mechanism fixed, a frozen dataclass of its own: clip norms, steps, shares. All public.
    gaussian_coordinates : how many numbers get Gaussian noise in the whole run, at most
    epsilon, delta : the price: what `fit` will state, at most what was asked for
    public_inputs : features that the mechanism was given: public, and not derived from what is private
    reason : why this mechanism, where `tensorveil.plan` chose it
    unaltered : whether a mechanism's `plan` made it as it is. `dataclasses.replace` and the constructor leave it False:
        the noise might then not be what the stages pay for, and `fit` refuses.
    """

    request: Request
    mechanism: Mechanism
    stages: tuple[Stage, ...]
    settings: Any
    epsilon: float
    delta: float
    gaussian_coordinates: int = 0
    assumptions_checked: tuple[str, ...] = field(default=())
    assumptions_trusted: tuple[str, ...] = field(default=())
    public_inputs: tuple[PublicInput, ...] = field(default=())
    reason: str = field(default="", compare=False)
    unaltered: bool = field(default=False, init=False, repr=False, compare=False)

    def sealed(self) -> Plan:
        """This plan, marked as whole; for `Mechanism.plan`, which knows that noise and price belong together."""
        object.__setattr__(self, "unaltered", True)
        return self

    def with_names(self, mode_names: tuple[str, ...]) -> Plan:
        """The same plan, its modes called by other names; the unit stays at its number."""
        named = replace(self, request=replace(self.request, mode_names=mode_names))
        return named.sealed() if self.unaltered else named

    def explained(self, reason: str) -> Plan:
        """The same plan with the reason for its mechanism."""
        told = replace(self, reason=reason)
        return told.sealed() if self.unaltered else told

    @property
    def events(self) -> tuple[Event, ...]:
        """What the stages cost."""
        return tuple(stage.event for stage in self.stages)

    def __str__(self) -> str:
        asked = self.request
        lines = [
            f"{self.mechanism.title}, {asked.family}, shape {' x '.join(map(str, asked.shape))}",
            f"unit {asked.unit_text}: {asked.neighbours}",
            f"values clipped to [{asked.bounds.low:g}, {asked.bounds.high:g}]",
            f"price: epsilon {rounded_up(self.epsilon, 6)}"
            + (f", delta {rounded_up(self.delta)}" if self.delta else "")
            + f" (asked for {asked.epsilon:g}"
            + (f", {asked.delta:g})" if asked.delta else ")"),
        ]
        for stage in self.stages:
            lines.append(f"- {stage.name}: {stage.noise}; sensitivity {stage.sensitivity} [{stage.proven_by}]")
        if asked.coupled is not None:
            lines.append(f"coupled by {asked.coupled.shared}: {asked.coupled}; each stage answers about both tables")
        for given in self.public_inputs:
            lines.append(f"public facts about {given.mode}: {given}")
        if self.reason:
            lines.append(f"why this mechanism: {self.reason}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The plan in a notebook: what is asked for, and a table of the stages."""
        asked = self.request
        rows = [
            ("model", f"{asked.family}, shape {' x '.join(map(str, asked.shape))}"),
            ("unit", f"{asked.unit_text}: {asked.neighbours}"),
            ("bounds", f"{asked.bounds.low:g} to {asked.bounds.high:g}"),
            (
                "price",
                f"epsilon {rounded_up(self.epsilon, 6)}" + (f", delta {rounded_up(self.delta)}" if self.delta else ""),
            ),
            *([] if asked.coupled is None else [(f"coupled by {asked.coupled.shared}", str(asked.coupled))]),
            *((f"stage {stage.name}", f"{stage.noise} [{stage.proven_by}]") for stage in self.stages),
        ]
        if self.reason:
            rows.append(("why this mechanism", self.reason))
        return html_table(f"Plan: {self.mechanism.title}", rows)
