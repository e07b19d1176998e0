"""The vault: the only object that holds private values. Every way out adds noise and uses up a paid stage of the plan.

A mechanism gets a vault and a plan, and nothing else. What it learns about the data are answers with noise of the
stage's event, fitted to the sensitivity that the query proves; so a run is an adaptive composition of the stages that
its plan has priced, whatever the mechanism does (docs/proofs/vault.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.data.cells import places_in_cells, stable_order
from tensorveil.engines.local import Engine, LocalEngine
from tensorveil.errors import InputError, UnprovenError, VaultError
from tensorveil.privacy.accounting.events import Event, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import BoundedObservations, Where, identities
from tensorveil.privacy.noise.laws import Law, NoiseLaw
from tensorveil.privacy.noise.source import LARGEST_SUM, NoiseSource, grid_for
from tensorveil.privacy.queries.base import LAW_OF_NORM, Change, Norm, PaidStage, Query, ReleasedOffsets, residual_shard
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:  # the vault takes any query; these name what some of its methods ask of one
    from tensorveil.privacy.noise.channels import Channel
    from tensorveil.privacy.noise.secret_words import Coins
    from tensorveil.privacy.queries.values.cell_symbols import CellSymbols
    from tensorveil.privacy.queries.values.symbols import Symbols
    from tensorveil.privacy.queries.values.values import Values

T = TypeVar("T", np.float64, np.int64)

ROUND_UP = 1 + 2.0**-40  # noise scales, against the rounding of their products
SAMPLED = "gradient-sampled"  # the theorem that covers Poisson samples of the units
FINEST = 2**20  # how much finer than the query's grid that of Gaussian noise may be


@final
@dataclass(frozen=True)
class Answer:
    """Numbers with noise, and the law of the noise on each."""

    values: Floats
    law: NoiseLaw


@final
@dataclass(frozen=True)
class Receipt:
    """One answer that left the vault: which stage paid, for which query, and how much."""

    stage: PaidStage
    query: str
    paid: Event


@final
class Pattern(Where):
    """Where values were observed: public under `value` and `slice_values`, in the order of the coordinates."""

    def counts(self, mode: int) -> Integers:
        """How often each index of a mode is observed."""
        return np.bincount(self.coordinates[:, mode], minlength=self.shape[mode])

    def sorted_in_cells(self, numbers: NDArray[T]) -> NDArray[T]:
        """One number per observation, those of each cell in ascending order: the order of rows is not public."""
        places = np.arange(len(self)) - places_in_cells(self.coordinates)  # where the cell of each begins
        return numbers if (np.diff(places) > 0).all() else numbers[np.lexsort((numbers, places))]


@dataclass
class _Meter:
    """What is still unpaid of the stages of a plan, and what was answered."""

    stages: dict[str, PaidStage]
    gaussian_coordinates: int
    spent: dict[str, Fraction] = field(default_factory=dict)  # in answers, of pure stages in epsilon
    receipts: list[Receipt] = field(default_factory=list)
    pattern: tuple[Pattern, Integers] | None = None  # and, for each of its rows, the place in the shards' order
    lock: Lock = field(default_factory=Lock)  # two threads must not pay with the same budget

    def due(self, name: str, law: Law, unit: Unit, theorem: str, epsilon: float | None) -> tuple[PaidStage, Event]:
        """The stage and the price of one answer; an error where the plan does not cover it."""
        stage = self.stages.get(name)
        if stage is None:
            raise VaultError(f"the plan must price what is asked, got the stage {name!r}, which it does not have")
        if theorem not in (stage.theorem, stage.instead) or unit.kind not in THEOREMS[theorem].units:
            raise VaultError(f"stage {name!r} is priced by {stage.theorem}, got a query of {theorem} under {unit}")
        priced = stage.law if theorem == stage.theorem else Law.CHANNEL
        if priced is not law:
            raise VaultError(f"stage {name!r} is priced for {priced}, got a query for {law}")
        if isinstance(stage.event, SampledGaussianEvent):
            if theorem != SAMPLED:
                raise VaultError(f"stage {name!r} is priced for a sample of the units, which {theorem} does not cover")
            if stage.event.replace != unit.coordinates_public:
                raise VaultError(f"stage {name!r} is priced for another kind of neighbours than those of {unit}")
        if (law is Law.GAUSSIAN) == isinstance(stage.event, PureEvent):
            raise VaultError(f"stage {name!r} pays {stage.event}, which does not buy {law}")
        one = replace(stage.event, count=1)
        if epsilon is not None:
            if not isinstance(one, PureEvent) or stage.event.count != 1:  # c epsilon at once tells more than c answers
                raise VaultError(f"stage {name!r} must be one pure answer to be paid in parts, got {stage.event!r}")
            one = PureEvent(epsilon)
        self._spent_with(name, one)
        return stage, one

    def pay(self, name: str, paid: Event, query: object) -> None:
        """Use up the price of one answer. Called before anything is drawn."""
        with self.lock:
            self.spent[name] = self._spent_with(name, paid)
            self.receipts.append(Receipt(self.stages[name], type(query).__qualname__, paid))

    def use_coordinates(self, count: int) -> None:
        """Use up the precision of so many numbers with Gaussian noise. Called before they are drawn."""
        with self.lock:
            self.gaussian_coordinates -= count
            if self.gaussian_coordinates < 0:
                raise VaultError("the plan must price the precision of every noisy number, got more numbers than that")

    def _spent_with(self, name: str, one: Event) -> Fraction:
        """What is spent of a stage with one more answer; an error where that is more than the stage has."""
        price = Fraction(one.epsilon) if isinstance(one, PureEvent) else Fraction(1)
        event = self.stages[name].event
        whole = Fraction(event.count) * (Fraction(event.epsilon) if isinstance(event, PureEvent) else 1)
        spent = self.spent.get(name, Fraction(0)) + price
        if spent > whole:
            raise VaultError(f"stage {name!r} is used up: the plan prices no further answer")
        return spent


@final
class Vault:
    """Shards of clipped observations, a source of noise, and the unpaid stages of a plan.

    The engine knows where the shards are. Each cell lies in one of them and, under slice units, each slice.
    `gaussian_coordinates` is how many numbers may get Gaussian noise in all.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        stages: Sequence[PaidStage],
        gaussian_coordinates: int,
        noise: NoiseSource,
        engine: Engine | None = None,
    ) -> None:
        by_name = {stage.name: stage for stage in stages}
        if len(by_name) != len(stages):
            raise InputError("stages must have different names, got one twice; rename it")
        self._shards = shards
        self._meter = _Meter(by_name, gaussian_coordinates)
        self._noise = noise
        self._engine: Engine = LocalEngine() if engine is None else engine
        self._prefix = ""
        facts: tuple[Unit, tuple[int, ...]] = self._engine.map(attrgetter("unit", "shape"), self._shards[:1])[0]
        self.unit, self.shape = facts

    @property
    def pattern(self) -> Pattern:
        """Where values were observed, if the unit makes that public."""
        if not self.unit.coordinates_public:
            raise UnprovenError(
                f"coordinates must be public to be read, got the unit {self.unit}, which hides them; ask a query"
            )
        if self._meter.pattern is None:
            where, order = self._read(attrgetter("coordinates")), np.arange(0)
            if len(self._shards) > 1:  # else they are in order
                order = stable_order(tuple(where.T), self.shape)  # stable: observations of a cell keep theirs
                where = where[order]
            self._meter.pattern = Pattern(where, self.shape, self.unit), order
        return self._meter.pattern[0]

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """What was answered so far, in order."""
        return tuple(self._meter.receipts)

    def inner(self, prefix: str) -> Vault:
        """The same vault for a mechanism inside another one, whose stages the plan lists under a prefix."""
        return self._view(self._shards, f"{self._prefix}{prefix}, ")

    def residuals(self, offsets: ReleasedOffsets) -> Vault:
        """The same vault with every value replaced by its residual after released offsets."""
        return self._view(self._engine.keep(partial(residual_shard, offsets=offsets), self._shards), self._prefix)

    def answer(self, stage: str, query: Query, *, epsilon: float | None = None) -> Answer:
        """The sum of a query of one part, with noise; `epsilon` pays a part of a pure stage of one answer only."""
        return self.answers([stage], query, epsilon=epsilon)[0]

    def answers(self, stages: Sequence[str], query: Query, *, epsilon: float | None = None) -> list[Answer]:
        """The sums of a query with noise, each part paid by a stage of its own; the data are read once."""
        changes = query.sensitivity(self.unit)
        events = self._paid(stages, query, changes, epsilon)
        sampled = [event for event in events if isinstance(event, SampledGaussianEvent)]
        if sampled and len(events) > 1:
            raise VaultError("a query of a sample of the units must have one part, got several")
        coins = [self._noise.coins(event.sampling_probability) for event in sampled]  # one per unit and answer, secret
        totals = self._engine.sum(partial(_of_sample, query) if sampled else query.of, self._shards, *coins)
        return [self._noised(*part) for part in zip(query.finish(totals), events, changes, strict=True)]

    def values(self, stage: str, query: Values) -> Answer:
        """One noisy number per observed value, in the order of the pattern, those of one cell in ascending order."""
        pattern = self.pattern
        change = query.sensitivity(pattern)
        (event,) = self._paid([stage], query, (change,))
        answer = self._noised(self._read(query.of), event, change)
        return replace(answer, values=pattern.sorted_in_cells(answer.values))  # [L9]

    def symbols(self, stage: str, query: Symbols, channel: Channel) -> Integers:
        """One random symbol per observed value, in the order of the pattern, those of one cell in ascending order."""
        self._pay_channel(stage, query, query.changes(self.pattern), channel)
        return self.pattern.sorted_in_cells(self._noise.symbols(self._read, query, channel))  # [L9]

    def cells(self, stage: str, query: CellSymbols, channel: Channel) -> Integers:
        """One random symbol per cell of the box, observed or not, in the order of the cells."""
        self._pay_channel(stage, query, query.changes(self.unit), channel)
        return self._noise.channel(query.finish(self._engine.sum(query.of, self._shards)), channel)

    def _pay_channel(self, stage: str, query: Symbols | CellSymbols, changes: int, channel: Channel) -> None:
        """Pay for symbols, so many of which may change; an error, and nothing is paid, where the stage is too small."""
        name = self._prefix + stage
        query.check(channel)
        _, event = self._meter.due(name, Law.CHANNEL, self.unit, query.theorem(self.unit), None)
        if not isinstance(event, PureEvent) or Fraction(channel.epsilon) * changes > Fraction(event.epsilon):  # [L10]
            raise VaultError(f"stage {name!r} pays {event}, got {changes} symbols at {channel.epsilon} each")
        self._meter.pay(name, event, query)

    def _paid(
        self, stages: Sequence[str], query: Query | Values, changes: Sequence[Change], epsilon: float | None = None
    ) -> list[Event]:
        """What the stages pay for the parts of a query; an error, and nothing is paid, where one does not cover it."""
        names = [self._prefix + stage for stage in stages]
        if len(set(names)) != len(names):
            raise VaultError(f"parts of a query need stages of their own, got {names}")
        if len(changes) != len(names):
            raise VaultError(f"a query of {len(changes)} parts needs as many stages, got {len(names)}")
        events = []
        for name, change in zip(names, changes, strict=True):
            law, theorem = LAW_OF_NORM[change.norm], query.theorem(self.unit)
            stage, event = self._meter.due(name, law, self.unit, theorem, epsilon)
            priced = stage.sensitivity.bound
            if priced is not None and change.bound > priced * ROUND_UP:
                raise VaultError(f"stage {name!r} is priced for a sensitivity of {priced}, got {change.bound}")
            events.append(event)
        for name, event in zip(names, events, strict=True):
            self._meter.pay(name, event, query)
        return events

    def _read(self, function: Callable[..., NDArray[Any]], *secrets: object) -> NDArray[Any]:
        """A function's numbers for all observations, in the order of the pattern if that has been read."""
        parts, pattern = self._engine.map(function, self._shards, *secrets), self._meter.pattern
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole if len(parts) == 1 or pattern is None else whole[pattern[1]]

    def _view(self, shards: Sequence[Any], prefix: str) -> Vault:
        view = object.__new__(Vault)
        view.__dict__.update(self.__dict__)
        view._shards, view._prefix = shards, prefix
        return view

    def _noised(self, total: Integers, event: Event, change: Change) -> Answer:
        law = _law(event, change, total.shape[-1] if total.ndim > 1 else 1)
        if change.norm is Norm.L1 and isinstance(event, PureEvent):
            steps = int(np.ceil(change.bound / change.grid))
            values = self._noise.laplace(total, grid=change.grid, sensitivity=steps, epsilon=event.epsilon)
        elif change.norm is Norm.ROWS and isinstance(event, PureEvent):
            values = self._noise.rows(total, grid=change.grid, sensitivity=change.bound, epsilon=event.epsilon)
        else:
            self._meter.use_coordinates(min(total.size, change.changed or total.size))
            grid = min(change.grid, grid_for(law.scale))  # powers of two
            factor = round(change.grid / grid)
            if factor > FINEST:
                raise InputError(
                    "the noise must be at least 2^-20 of the largest single contribution, "
                    f"got std {law.scale:.3g}; use less epsilon"
                )
            limit = LARGEST_SUM // factor  # clamping enlarges no change, and no product overflows
            finer = np.clip(total, -limit, limit) * np.int64(factor)
            values = self._noise.gaussian(finer, grid=grid, sensitivity=change.bound, noise_std=law.scale)
        return Answer(values, law)


def _of_sample(query: Query, shard: BoundedObservations, coins: Coins) -> tuple[Integers, ...]:
    """What a Poisson sample of the units contributes."""
    if shard.unit.whole_slices:
        return query.of(shard.kept(coins.of(shard.coordinates[:, [shard.unit.mode_number]])))
    return query.of(shard.kept(coins.of(identities(shard.coordinates))))


def _law(event: Event, change: Change, width: int) -> NoiseLaw:
    """The noise that an event buys for a change of a sum."""
    if isinstance(event, PureEvent):
        return NoiseLaw(LAW_OF_NORM[change.norm], change.bound / event.epsilon, width)
    clipped = change.bound / 2 if isinstance(event, SampledGaussianEvent) and event.replace else change.bound
    return NoiseLaw(Law.GAUSSIAN, event.noise_multiplier * clipped * ROUND_UP)
