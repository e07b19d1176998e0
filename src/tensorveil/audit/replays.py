"""Replay: give the noisy outputs of one run to a run on a neighbouring data set, and compare the values before noise.

If every statistic before noise differs by no more than its declared sensitivity, calls are equal in number, shape and
scale, and the final release is the same bit for bit, then the release is a function of noisy outputs whose price is
what was declared. (Handing over the noise *draws* instead would compare runs whose states have parted.)
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.data.observations import Observations
from tensorveil.errors import TensorveilError
from tensorveil.models.completion import Completion
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import clip, identities
from tensorveil.privacy.coupled import Coupled
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.noise.secret_words import Coins, RowWords
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.release.fitting import fit
from tensorveil.release.release import Release

TOLERANCE = 1e-9  # relative: sums of square roots
SAME_BY_CHANCE = 1e-9  # probability of equal samples from other coins, below which equal sums are a fault


class ReplayError(TensorveilError, AssertionError):
    """A replay has shown that a declared sensitivity, or the independence of the release from the data, is false."""


@final
@dataclass(frozen=True)
class NoisyCall:
    """One request for noise: its kind, the statistic before noise, its public parameters, and what came out."""

    kind: str
    statistic: NDArray[Any]
    parameters: dict[str, Any]
    output: Any


@final
@dataclass(frozen=True)
class Replay:
    """What a replay found: for each call how much of its declared sensitivity the neighbour used, 1 being all."""

    used: tuple[float, ...]
    calls: tuple[NoisyCall, ...] = field(repr=False)

    @property
    def largest(self) -> float:
        """The largest share of a declared sensitivity that was used."""
        return max(self.used, default=0.0)


Matched = dict[tuple[int, ...], tuple[int, ...] | None]


@final
@dataclass(frozen=True)
class MatchedCoins:
    """The coins of an earlier run, with heads, or the coins of other units, for the units that `matched` names."""

    earlier: Coins
    matched: Matched

    def of(self, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which rows have heads."""
        taken = [self.matched.get(row, row) for row in map(tuple, rows.tolist())]
        others = [row if other is None else other for row, other in zip(rows.tolist(), taken, strict=True)]
        tossed = self.earlier.of(np.array(others, dtype=np.uint32).reshape(rows.shape))
        return tossed | np.array([other is None for other in taken], dtype=np.bool_)


class _Recorder(NoiseSource):
    """Records every call; handed an earlier recording, it answers with that one's outputs.

    `matched` says which unit's earlier coin a unit gets, None being heads; units that it does not name get their own.
    """

    def __init__(
        self,
        seed: int,
        recorded: list[NoisyCall] | None = None,
        fresh_coins: bool = False,
        matched: Matched | None = None,
    ) -> None:
        super().__init__(seed)
        self._fresh_coins = fresh_coins
        self._matched = matched or {}
        self.calls: list[NoisyCall] = []
        self._recorded = recorded

    def laplace(self, statistic: Integers, **parameters: Any) -> Floats:
        return np.asarray(self._answer("laplace", statistic, parameters, super().laplace))

    def gaussian(self, statistic: Integers, **parameters: Any) -> Floats:
        return np.asarray(self._answer("gaussian", statistic, parameters, super().gaussian))

    def rows(self, statistic: Integers, **parameters: Any) -> Floats:
        return np.asarray(self._answer("rows", statistic, parameters, super().rows))

    def symbols(self, read: Callable[..., Integers], query: Symbols, channel: Channel) -> Integers:
        def draw(levels: Integers, **_: Any) -> Integers:
            return read(partial(query.draw, channel=channel), RowWords(super(_Recorder, self).key()))

        return np.asarray(self._answer("channel", read(query.of), {"channel": channel}, draw))

    def channel(self, symbols: Integers, channel: Channel) -> Integers:
        return np.asarray(self._answer("channel", symbols, {"channel": channel}, super().channel))

    def coins(self, probability: float) -> Any:
        """Coins are secret, not released: both runs get the same for the units they share, an added unit gets heads."""
        if self._recorded is None or self._fresh_coins:
            tossed: Any = Coins(RowWords(super().key()), int(math.ldexp(probability, 64)))
        else:
            tossed = MatchedCoins(self._next("coins").output, self._matched)
        self.calls.append(NoisyCall("coins", np.empty(0), {"probability": probability}, tossed))
        return tossed

    def key(self) -> bytes:
        made = super().key() if self._recorded is None else self._next("key").output
        self.calls.append(NoisyCall("key", np.empty(0), {}, made))
        return bytes(made)

    def _next(self, kind: str) -> NoisyCall:
        place = len(self.calls)
        if self._recorded is None or place >= len(self._recorded) or self._recorded[place].kind != kind:
            raise ReplayError(f"call {place} must be the same on neighbouring data, got {kind!r} on one of them only")
        return self._recorded[place]

    def _answer(self, kind: str, statistic: NDArray[Any], parameters: dict[str, Any], draw: Any) -> Any:
        output = draw(statistic, **parameters) if self._recorded is None else self._next(kind).output
        if np.shape(output) != np.shape(statistic):
            raise ReplayError(f"call {len(self.calls)} ({kind}) must have one shape and scale on neighbours, got two")
        self.calls.append(NoisyCall(kind, np.array(statistic), dict(parameters), output))
        return output.copy() if isinstance(output, np.ndarray) else output


def replay(
    observations: Observations,
    neighbour: Observations,
    plan: Plan,
    seed: int = 0,
    run: Callable[..., Release] = fit,
    coupled: tuple[Coupled, Coupled] | None = None,
) -> Replay:
    """Run the plan on the observations, hand its noisy outputs to a run on the neighbour, and compare.

    `run` is called as `fit` is, with `noise`; another one may run the plan elsewhere, e.g. on a cluster. `coupled` are
    the second tables of both; one of the two tables must be the same in both runs, and its answers must be, too.

    Raises
    ------
    ReplayError : where a statistic moves by more than declared, calls differ, costs exceed the plan, samples do not
        depend on the coins that are tossed for them, or the final releases are not the same bit for bit
    """
    tables = ({}, {}) if coupled is None else ({"coupled": coupled[0]}, {"coupled": coupled[1]})
    first = _Recorder(seed)
    release = run(observations, plan, noise=first, **tables[0])
    second = _Recorder(seed, first.calls, matched=_matched(observations, neighbour, plan))
    other = run(neighbour, plan, noise=second, **tables[1])
    if len(first.calls) != len(second.calls):
        raise ReplayError(f"both runs must make one number of calls, got {len(first.calls)} and {len(second.calls)}")
    used = tuple(_share(place, *pair) for place, pair in enumerate(zip(first.calls, second.calls, strict=True)))
    if coupled is None:
        _compare_costs(first.calls, second.calls, plan, _cells(observations, plan, first.calls))
    else:
        _compare_tables(first.calls, second.calls, plan, observations, coupled[0])
    if any(call.kind == "coins" for call in first.calls):
        other_coins = _Recorder(seed + 1, first.calls, fresh_coins=True)
        if not _identical(release.model, run(observations, plan, noise=other_coins).model):
            raise ReplayError(
                "sampling coins must stay secret, got a release that depends on them besides noisy outputs"
            )
        _check_coins_are_read(first.calls, other_coins.calls, _tossed_for(observations, plan))
    if not _identical(release.model, other.model):
        raise ReplayError("the final release must be the same bit for bit given the same noisy outputs, got two")
    return Replay(used, tuple(first.calls))


def _matched(observations: Observations, neighbour: Observations, plan: Plan) -> Matched | None:
    """For each observation of the neighbour, the identity of the same one among the observations.

    Identities are those after `clip`, by which coins of single observations are tossed. A replaced value has that of
    the value that it replaces, an added observation None. None: coins are of whole slices, or there are none.
    """
    request = plan.request
    if request.unit.whole_slices or not any(isinstance(event, SampledGaussianEvent) for event in plan.events):
        return None
    mine, theirs = (
        [
            (tuple(row), step)
            for row, step in zip(identities(data.coordinates).tolist(), data.steps.tolist(), strict=True)
        ]
        for data in (clip(one, request.bounds, request.unit, bytes(32)) for one in (observations, neighbour))
    )
    alike = defaultdict(list)  # observations of one cell and value
    for row, step in mine:
        alike[*row[:-1], step].append(row)
    equal = [(row, alike[*row[:-1], step]) for row, step in theirs]
    matched = {row: found.pop() if found else None for row, found in equal}
    others = [row for found in alike.values() for row in found]
    return {row: others.pop() if found is None and others else found for row, found in matched.items()}


def _tossed_for(observations: Observations, plan: Plan) -> int:
    """How many slices, or cells with observations, coins are tossed for; equal observations of a cell may swap."""
    unit = plan.request.unit
    where = clip(observations, plan.request.bounds, unit, bytes(32)).coordinates
    return len(np.unique(where[:, [unit.mode_number]] if unit.whole_slices else where, axis=0))


def _check_coins_are_read(mine: list[NoisyCall], others: list[NoisyCall], tossed_for: int) -> None:
    """Other coins must give other sums of the samples; else samples are not those that the price is for.

    Sums that are all zero say nothing. Others may be equal by chance, if coins are tossed for few.
    """
    log_chance = 0.0  # of all steps whose sums are equal
    for place, call in enumerate(mine):
        if call.kind == "coins":
            one, two = (next(later for later in run[place:] if later.kind == "gaussian") for run in (mine, others))
            if one.statistic.any() and np.array_equal(one.statistic, two.statistic):
                heads = call.parameters["probability"]
                log_chance += tossed_for * math.log(heads**2 + (1 - heads) ** 2)
    if log_chance < math.log(SAME_BY_CHANCE):
        raise ReplayError("samples must be chosen by the coins that are tossed, got the same sums with other coins")


def _share(place: int, mine: NoisyCall, theirs: NoisyCall) -> float:
    """How much of its declared sensitivity a call used; raises where that is more than all."""
    if mine.kind in ("coins", "key"):
        return 0.0
    if mine.statistic.shape != theirs.statistic.shape or not _same(mine.parameters, theirs.parameters):
        raise ReplayError(f"call {place} ({mine.kind}) must have one shape and scale on neighbours, got two")
    change = theirs.statistic - mine.statistic
    parameters = mine.parameters
    if mine.kind == "channel":  # one symbol may differ for each epsilon of its table; _compare_costs counts them
        return 1.0 if change.any() else 0.0
    if mine.kind in ("laplace", "gaussian"):  # whole numbers, compared without rounding: not one grid step more
        steps = [int(step) for step in change[change != 0]]
        sensitivity = Fraction(parameters["sensitivity"])
        if mine.kind == "laplace":
            moved = Fraction(sum(map(abs, steps)))
            within, share = moved <= sensitivity, float(moved / sensitivity)
        else:
            squares = Fraction(parameters["grid"]) ** 2 * sum(step * step for step in steps)
            within, share = squares <= sensitivity**2, math.sqrt(squares / sensitivity**2)
    else:
        lengths = [math.sqrt(sum(int(step) ** 2 for step in row)) for row in change[change.any(axis=1)]]
        share = math.fsum(lengths) * parameters["grid"] / parameters["sensitivity"]
        within = share <= 1 + TOLERANCE
    if not within:
        raise ReplayError(
            f"call {place} ({mine.kind}) must move by its declared sensitivity at most, got {share:.15g} times it"
        )
    return share


def _cells(observations: Observations, plan: Plan, calls: list[NoisyCall]) -> Integers | None:
    """A number for the cell of each kept observation, in the order that mechanisms read; None if that is private."""
    if not plan.request.unit.coordinates_public:
        return None
    key = next(call.output for call in calls if call.kind == "key")
    where = clip(observations, plan.request.bounds, plan.request.unit, key).coordinates
    return np.unique(where, axis=0, return_inverse=True)[1].ravel()


def _changed(mine: NoisyCall, theirs: NoisyCall, cells: Integers | None) -> int:
    """How many numbers of a statistic differ. Of one number per observation, several of one cell are a multiset."""
    if cells is None or mine.statistic.shape != cells.shape:
        return int((mine.statistic != theirs.statistic).sum())
    before, after = (Counter(zip(cells.tolist(), call.statistic.tolist(), strict=True)) for call in (mine, theirs))
    return (before - after).total()


def _compare_costs(mine: list[NoisyCall], theirs: list[NoisyCall], plan: Plan, cells: Integers | None) -> None:
    """The calls must cost no more than the events of the plan."""
    pure = precision = sampled = 0.0
    sampling = False
    for call, other in zip(mine, theirs, strict=True):
        if call.kind in ("laplace", "rows"):
            pure += call.parameters["epsilon"]
        elif call.kind == "channel":
            pure += call.parameters["channel"].epsilon * _changed(call, other, cells)
        elif call.kind == "coins":
            sampling = True
        elif call.kind == "gaussian":
            cost = (call.parameters["sensitivity"] / call.parameters["noise_std"]) ** 2
            precision, sampled = (precision, sampled + cost) if sampling else (precision + cost, sampled)
            sampling = False
    allowed = math.fsum(event.epsilon * event.count for event in plan.events if isinstance(event, PureEvent))
    precisions = math.fsum(
        event.count / event.noise_multiplier**2 for event in plan.events if isinstance(event, GaussianEvent)
    )
    samplings = math.fsum(
        event.count * ((2.0 if event.replace else 1.0) / event.noise_multiplier) ** 2
        for event in plan.events
        if isinstance(event, SampledGaussianEvent)
    )
    noisy = [pair for pair in zip(mine, theirs, strict=True) if pair[0].kind == "gaussian"]
    if any(stage.theorem.startswith("input-") for stage in plan.stages):  # its Lemma 1: only numbers that change count
        noised = sum(_changed(call, other, cells) for call, other in noisy)
    else:
        noised = sum(call.statistic.size for call, _ in noisy)
    if noised > plan.gaussian_coordinates:
        raise ReplayError(f"at most {plan.gaussian_coordinates} numbers must get Gaussian noise, got {noised}")
    for name, spent, planned in (
        ("pure epsilon", pure, allowed),
        ("Gaussian precision", precision, precisions),
        ("sampled Gaussian precision", sampled, samplings),
    ):
        if spent > planned * (1 + TOLERANCE):
            raise ReplayError(f"{name} must be at most what the plan pays, {planned:.6g}, got {spent:.6g}")


def _compare_tables(
    mine: list[NoisyCall], theirs: list[NoisyCall], plan: Plan, observations: Observations, coupled: Coupled
) -> None:
    """The calls about each table must cost no more than the plan, and those about one of them must not differ."""
    end = 1 + next(place for place, call in enumerate(mine) if call.kind == "channel")  # of those about the first one
    changed = []
    for table, part in ((observations, slice(end)), (coupled.joined(observations), slice(end, None))):
        _compare_costs(mine[part], theirs[part], plan, _cells(table, plan, mine))
        pairs = zip(mine[part], theirs[part], strict=True)
        changed.append(any((one.statistic != other.statistic).any() for one, other in pairs))
    if all(changed):
        raise ReplayError("neighbours must differ in one of the two tables, got answers that differ for both")


def _same(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return mine.keys() == theirs.keys() and all(
        mine[name] is theirs[name]
        or (
            np.array_equal(mine[name], theirs[name])
            if not isinstance(mine[name], Channel)
            else np.array_equal(mine[name].counts, theirs[name].counts)
        )
        for name in mine
    )


def _identical(mine: Completion, theirs: Completion) -> bool:
    return (mine.low, mine.high, mine.withheld_mode) == (theirs.low, theirs.high, theirs.withheld_mode) and _bits(
        mine
    ) == _bits(theirs)


def _bits(completion: Completion) -> list[bytes]:
    draws = [] if completion.draws is None else completion.draws.arrays().values()
    parts = [np.float64(completion.offsets.mean), *completion.offsets.modes, completion.factors.parameters, *draws]
    return [b"" if part is None else part.tobytes() for part in parts]
