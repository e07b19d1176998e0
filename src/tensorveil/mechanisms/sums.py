"""Sum perturbation: noisy sums of latent scores per index of every mode, and all that can be inferred from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.data.features import Features, PublicInput, public_inputs, standardised, waves_by_mode
from tensorveil.errors import InputError
from tensorveil.inference.degree_features import degree_features
from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.sums.groups import grouped
from tensorveil.inference.sums.index import REACH as INDEX_REACH
from tensorveil.inference.sums.index import ROWS as INDEX_ROWS
from tensorveil.inference.sums.latent import LatentPosterior, Split
from tensorveil.inference.sums.linked_factors import item_columns
from tensorveil.inference.sums.total import Total, mean_of_totals, reading_range, with_mean
from tensorveil.inference.values.marginal import Marginal
from tensorveil.inference.values.scale import Scale, scale_of
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.parts.cells import cells_are_better, cells_fit, complete_cells, pure_epsilon
from tensorveil.mechanisms.parts.marginal import (
    ask_marginal,
    marginal_coordinates,
    marginal_shares,
    marginal_stages,
    with_typical_count,
)
from tensorveil.mechanisms.planning.information import noise_variance
from tensorveil.mechanisms.planning.noise_range import check_noise
from tensorveil.mechanisms.planning.sum_stages import INDEX, LEFT, MOST_INDICES, Noise, SumStage, best_reach, sum_stages
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, PureEvent, shares
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.base import LARGEST_RESIDUAL
from tensorveil.privacy.queries.contributions import slice_weights
from tensorveil.privacy.queries.sums.lengths import COUNT_PART, Lengths
from tensorveil.privacy.queries.sums.row_sums import Rows, RowSums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault

Floats = NDArray[np.float64]

MOST_LEVELS = 64
PARTS = "several answers that share this epsilon; one alone would be"
MOST_WAVES = 48  # along a smooth mode: equations of all features are solved many times
COUNT_SHARE = 0.05  # of the budget of sums, for the number of observations where it is private; it tells the mean too


@final
@dataclass(frozen=True)
class SumPerturbation(Mechanism):
    """Noisy sums per index of every mode, then mean and offsets from these (docs/proofs/row_sums.md and lengths.md).

    Use this mechanism for small epsilon: a sum over many values needs little noise, and the posterior shrinks offsets
    that are smaller than the noise, down to the private mean.

    The marginal of the values is released first. It gives a scale on which values are latent scores with a normal law.
    The total of the values follows, then the sums of scores of one mode after the other, by their size, less what is
    known from earlier ones. If the noise allows, the sums of one mode are split by groups of indices of another mode
    (similar in offset, count and features, or all indices of a small mode), which gives factors. At last, scores are
    summed by the sum of all offsets, which tells how values follow it. Shares of the budget and the split follow from
    public numbers.

    - ``value``, ``slice_values``: counts are public, and so are features that show which indices are similar because
      they are observed together.
    - ``entry``: pairs of sums of (1 + r)/2 and (1 - r)/2 of scores r, which give sums and counts together.
    - ``slice``: sums and counts of the other modes, in two passes. With Gaussian noise the contribution of each slice
      has length at most one, and its own offset is subtracted first. Its offset and row stay with their owner (joint
      privacy): see `Release.personalize`. An owner's row is a regression on released offsets, counts and public
      features of the largest other mode.

    Parameters
    ----------
    features : public features of the indices of some modes, e.g. genres of films: mode name -> matrix, one row per
        index; they are assumed to be public
    smooth : waves along the smooth modes, mode name -> what `smooth_features` makes; they link the offsets
    cells : under `entry` with pure noise, whether the sums may be left out: if the released count of the observations
        shows that enough cells are observed for it to be more accurate, a random symbol for every cell, observed or
        not, is bought instead, and a posterior of the model follows from these (parts/cells.py)
    """

    features: Mapping[str, ArrayLike] | None = field(default=None, compare=False, repr=False)
    smooth: Mapping[str, Features] | None = field(default=None, compare=False, repr=False)
    cells: bool = False
    name: ClassVar[str] = "sums"

    @property
    def title(self) -> str:
        return "sum perturbation"

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        return public_inputs(self.features, self.smooth)

    def with_features(self, features: Mapping[str, ArrayLike]) -> SumPerturbation:
        if self.features:
            raise InputError(
                "features must be given once, got features here and on the mechanism; leave one of them out"
            )
        return replace(self, features=features)

    def can_smooth(self, unit: Unit) -> bool:
        return True

    def with_smooth(self, smooth: Mapping[str, Features]) -> SumPerturbation:
        return replace(self, smooth=smooth)

    def design(self, request: Request) -> Design:
        given = checked_features(self.features, request)
        if request.unit.kind == "slice" and request.unit_name in {**(self.features or {}), **(self.smooth or {})}:
            raise InputError(
                f"features and smooth must be of other modes than that of the slices, got {request.unit_name!r}, whose "
                "rows stay with their owners; leave them out"
            )
        request = with_typical_count(request)
        first = marginal_shares(request)
        left = 1 - math.fsum(first)
        columns = {mode: part.shape[1] for mode, part in given.items()}
        events = _whole_events(request, left)
        if self.cells and cells_are_better(request, request.count_or_guess, left * request.epsilon):
            events = events[:1]  # symbols need no delta
        plans = {event: _planned(request, first[0] / left, event, columns) for event in events}
        event = min(plans, key=lambda event: plans[event][0])
        if isinstance(event, PureEvent):
            events = split_budget(replace(request, delta=0.0), [*first, left], 0)
            stage = _stage(request, SumStage(None, 1.0), events[-1], "all modes")
            stage = replace(stage, what=f"{PARTS} {stage.what}")
            if self.cells and cells_fit(request):
                stage = replace(stage, instead="input-cells")
            return Design((*marginal_stages(request, events[:-1]), stage), (), 0)
        asked = plans[event][1]
        numbers = marginal_coordinates(request) + 2 * sum(_size(request, one) for one in asked)
        events = split_budget(request, [*first, *(left * one.share for one in asked)], numbers)
        stages = [*marginal_stages(request, events[: len(first)])]
        for one, event in zip(asked, events[len(first) :], strict=True):
            stage = _stage(request, one, event, _subject(request, one))
            seen = [earlier.name for earlier in stages]
            stages.append(replace(stage, name=f"{stage.name}, second pass") if stage.name in seen else stage)
        return Design(tuple(stages), asked, numbers)

    def learns_offsets(self, unit: Unit) -> bool:
        return True

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        given = checked_features(self.features, plan.request)
        features = _features(vault, given, waves_by_mode(self.smooth, plan.request.mode_names))
        public = len(vault.pattern) if plan.request.unit.kind == "value" else None
        first = len(plan.stages) - max(len(plan.settings), 1)
        marginal = ask_marginal(vault, plan.stages[:first], plan.request.bounds, public)
        last = plan.stages[-1]
        if last.instead and cells_are_better(plan.request, marginal.total, pure_epsilon(last)):
            names, shape = plan.request.mode_names, plan.request.shape
            solver = Posterior().knowing(self.features, self.smooth, names, shape)
            return complete_cells(vault, plan.request, marginal, last, solver, progress)
        widths = {mode: part.shape[1] for mode, part in given.items()}
        request, (total, *paid), totals = _payments(vault, plan, plan.stages[first:], widths)
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        bounds = request.bounds.low, request.bounds.high
        totals.append(_total(vault, request, total, marginal))
        marginal, mean, error = with_mean(marginal, *mean_of_totals(totals))
        scale = scale_of(marginal, MOST_LEVELS, bounds)
        latent = LatentPosterior(scale, mean, error, request.family.zeros(request.shape), withheld)
        columns: dict[int, tuple[Floats, Floats]] = {}
        for place, payment in enumerate(paid):
            one = payment.asked
            if one.mode is None:
                continue
            if one.mode == INDEX:
                index = latent.index()
                reading = _reading(scale, Offsets.none(len(request.shape)), INDEX_REACH)
                rows = Rows(INDEX_ROWS, tuple(index.numbers.items()))
                latent.learn_index(index, _ask(vault, request, payment, rows, reading).scaled(INDEX_REACH))
                continue
            split = None if one.groups == 1 else _split(request, one, columns[one.partner])
            rows = _rows(request, one, split)
            reach = _reach(request, one, payment.event, scale) * math.sqrt(latent.left)
            released = _ask(vault, request, payment, rows, _reading(scale, latent.subtracted, reach)).scaled(reach)
            counts = latent.learn_mode(one.mode, released, reach, features.get(one.mode, []), split)
            columns[one.mode] = item_columns(latent.offsets(one.mode), counts, given.get(one.mode)), counts
            progress("modes", place + 1, len(paid))
        if withheld is not None and columns:
            largest = max(columns, key=lambda mode: request.shape[mode])
            latent.leave_rows(withheld, largest, columns[largest][0])
        return latent.completion(bounds)


def _features(vault: Vault, given: Mapping[int, Floats], waves: Sequence[Floats | None]) -> dict[int, list[Floats]]:
    """Groups of features by mode: from public coordinates, then the given ones, then waves of smooth modes."""
    groups: dict[int, list[Floats]] = {}
    if vault.unit.coordinates_public:
        made = degree_features(vault.pattern.coordinates, vault.shape)
        groups = {mode: list(parts.values()) for mode, parts in enumerate(made)}
    for mode, columns in given.items():
        groups.setdefault(mode, []).append(columns)
    for mode, part in enumerate(waves):
        if part is not None:
            groups.setdefault(mode, []).append(part[:, :MOST_WAVES])
    return groups


@final
@dataclass(frozen=True)
class _Payment:
    """Sums to ask for, the stage that pays for them, and its price."""

    asked: SumStage
    stage: str
    event: Event


def _payments(
    vault: Vault, plan: Plan, stages: Sequence[Stage], features: Mapping[int, int]
) -> tuple[Request, list[_Payment], list[Total]]:
    """The sums to ask for, the request with the number of observations that they were planned for, and a first total.

    Pure noise is paid in parts from one stage, so the parts may follow from the number of observations: it is public,
    or a small part buys it, with a total. Shares that were planned for a guess ten times too large would
    buy sums of single indices and groups that drown in their noise. Gaussian stages are fixed in the plan.
    """
    if plan.settings:
        paid = [_Payment(one, stage.name, stage.event) for one, stage in zip(plan.settings, stages, strict=True)]
        return with_typical_count(plan.request), paid, []
    (stage,) = stages
    pure = [event.epsilon for event in plan.events if isinstance(event, PureEvent)]
    request, whole = with_typical_count(plan.request), pure[-1]
    totals: list[Total] = []
    marginal = pure[0] / whole
    if vault.unit.coordinates_public:
        count = float(len(vault.pattern))
    else:
        small, whole = shares(whole, [COUNT_SHARE, 1 - COUNT_SHARE])
        reading = ScoreReading.linear(0.0, 1.0, Offsets.none(len(request.shape)), own=False)
        counted = _ask(vault, request, _Payment(SumStage(None, 1.0), stage.name, PureEvent(small)), Rows(1), reading)
        doubt = math.sqrt(counted.count_variance)
        count = max(float(counted.counts[0]) - doubt, doubt) / counted.weight
        totals.append(Total(counted, -1.0, 1.0))
    request = replace(request, expected_count=max(round(min(count, math.prod(map(float, request.shape)))), 1))
    _, asked = _planned(request, marginal, PureEvent(whole), features)
    parts = shares(whole, [one.share for one in asked])
    return request, [_Payment(*one) for one in zip(asked, repeat(stage.name), map(PureEvent, parts))], totals


def _whole_events(request: Request, share: float) -> list[Event]:
    """What this share of the budget buys: pure noise, and Gaussian noise if delta covers the sampler's precision."""
    events = split_budget(replace(request, delta=0.0), [share, 1 - share], 0)[:1]
    if request.delta > 0:
        with suppress(InputError):
            most = marginal_coordinates(request) + 2 * (1 + MOST_INDICES * sum(request.shape))
            events += split_budget(request, [share, 1 - share], most)[:1]
    return events


def _planned(
    request: Request, marginal: float, event: Event, features: Mapping[int, int]
) -> tuple[float, tuple[SumStage, ...]]:
    """The expected error of the best shares of an event, and the stages that they buy."""
    of_total, noise = (_noise(request, SumStage(mode, 1.0), event) for mode in (None, 0))
    return sum_stages(request, marginal, of_total, noise, features)


def _noise(request: Request, one: SumStage, event: Event) -> Noise:
    """The noise of sums for one event, and the typical weight of an observation."""
    pure = isinstance(event, PureEvent)
    query = _query(request, one, event, Rows(1), ScoreReading.linear(0.0, 1.0, Offsets.none(len(request.shape))))
    (change,) = query.sensitivity(request.unit)
    pairs = isinstance(query, RowSums) and not request.unit.coordinates_public
    weight = 1.0
    if request.unit.whole_slices:
        each = max(request.count_or_guess / request.shape[request.unit.mode_number], 1.0)
        weight = 1 / each if pure or one.mode is None else 1 / math.sqrt(each)
        if isinstance(query, Lengths):
            weight = 1 / math.sqrt(each * (LEFT / 4 + COUNT_PART**2))
    return Noise(noise_variance(event, change.bound) * (2 if pairs else 1), pure, weight)


def _query(request: Request, one: SumStage, event: Event, rows: Rows, reading: ScoreReading) -> RowSums | Lengths:
    """Sums and counts by lengths for the modes under slices with Gaussian noise, otherwise by rows."""
    pure = isinstance(event, PureEvent)
    by_length = request.unit.kind == "slice" and not pure and one.mode is not None
    return Lengths(rows, reading) if by_length else RowSums(rows, reading, pure)


def _subject(request: Request, one: SumStage) -> str:
    """Of what the sums are."""
    if one.mode is None:
        return "all values"
    if one.mode == INDEX:
        return "all modes together"
    groups = "" if one.groups == 1 else f" by {one.groups} groups of {request.mode_names[one.partner]}"
    return request.mode_names[one.mode] + groups


def _stage(request: Request, one: SumStage, event: Event, of: str) -> Stage:
    query = _query(request, one, event, Rows(1), ScoreReading.linear(0.0, 1.0, Offsets.none(len(request.shape))))
    (change,) = query.sensitivity(request.unit)
    check_noise(event, change.bound)
    counted = "sums" if request.unit.coordinates_public else "sums and counts"
    return Stage(
        f"{counted} of {of}",
        query.theorem(request.unit),
        event,
        Sensitivity(change.bound, change.norm, "scores within a reach"),
        LAW_OF_NORM[change.norm],
        counted,
    )


def _size(request: Request, one: SumStage) -> int:
    """Number of rows."""
    if one.mode == INDEX:
        return INDEX_ROWS
    return 1 if one.mode is None else request.shape[one.mode] * one.groups


def _rows(request: Request, one: SumStage, split: Split | None) -> Rows:
    if one.mode is None:
        return Rows(1)
    numbers = one.groups * np.arange(request.shape[one.mode])
    return Rows(_size(request, one), ((one.mode, numbers), *([] if split is None else [(split.partner, split.labels)])))


def _split(request: Request, one: SumStage, columns: tuple[Floats, Floats]) -> Split:
    """Groups of the partner's indices, from released numbers and public features."""
    size = request.shape[one.partner]
    labels = np.arange(size) if one.groups == size else grouped(*columns, one.groups)
    return Split(one.partner, labels, one.groups)


def _reach(request: Request, one: SumStage, event: Event, scale: Scale) -> float:
    """In standard deviations of what is left."""
    noise = _noise(request, one, event)
    count = request.count_or_guess * noise.weight / _size(request, one)
    return best_reach(noise.whole, count, noise.weight, lambda at: scale.value(at + 0.5) - scale.value(at - 0.5) + 1e-9)


def _reading(scale: Scale, offsets: Offsets, reach: float) -> ScoreReading:
    places, scores = scale.table()
    return ScoreReading(places, np.clip(scores, -LARGEST_RESIDUAL, LARGEST_RESIDUAL), offsets, reach)


def _ask(vault: Vault, request: Request, paid: _Payment, rows: Rows, reading: ScoreReading) -> NoisySums:
    """Sums and counts of the rows, with noise."""
    event = paid.event
    query = _query(request, paid.asked, event, rows, reading)
    answer = vault.answer(paid.stage, query, epsilon=event.epsilon if isinstance(event, PureEvent) else None)
    weight = _noise(request, paid.asked, event).weight
    if isinstance(query, Lengths):
        return replace(NoisySums.of_counts(answer.values, answer.law.variance, COUNT_PART), weight=weight)
    if not vault.unit.coordinates_public:
        return replace(NoisySums.of_pairs(answer.values, answer.law.variance), weight=weight)
    numbers = rows.of(vault.pattern)
    weights = slice_weights(vault.pattern, numbers, query.pure)
    counts = np.bincount(numbers, weights=weights, minlength=rows.size).astype(np.float64)
    weight = float(weights @ weights) / max(float(weights.sum()), 1e-300)
    return NoisySums(answer.values, counts, answer.law.variance, 0.0, weight)


def _total(vault: Vault, request: Request, paid: _Payment, marginal: Marginal) -> Total:
    """The total of the values."""
    noise = _noise(request, paid.asked, paid.event)
    low, high = reading_range(marginal, math.sqrt(noise.whole) / max(request.count_or_guess * noise.weight, 1.0))
    reading = ScoreReading.linear((low + high) / 2, (high - low) / 2, Offsets.none(len(request.shape)), own=False)
    return Total(_ask(vault, request, paid, Rows(1), reading), low, high)


def checked_features(features: Mapping[str, ArrayLike] | None, request: Request) -> dict[int, Floats]:
    """Features by mode number, centred, with mean square one per index, all columns of a mode together."""
    return standardised(features, request.mode_names, request.shape)
