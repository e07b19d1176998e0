"""Sum perturbation: noisy sums of latent scores per index of every mode, and all that can be inferred from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.data.features import PublicInput, public_inputs, standardised
from tensorveil.errors import InputError
from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.degree_features import degree_features
from tensorveil.inference.sums.groups import grouped
from tensorveil.inference.sums.latent import LatentPosterior, Split
from tensorveil.inference.sums.linked_factors import item_columns
from tensorveil.inference.sums.total import mean_of_total, reading_range, with_mean
from tensorveil.inference.values.marginal import Marginal
from tensorveil.inference.values.scale import Scale, scale_of
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.parts.marginal import ask_marginal, marginal_coordinates, marginal_shares, marginal_stages
from tensorveil.mechanisms.planning.information import noise_variance, pure_is_better
from tensorveil.mechanisms.planning.sum_stages import LEFT, Noise, SumStage, best_reach, sum_stages
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.contributions import check_noise, slice_weights
from tensorveil.privacy.queries.own_offsets import LARGEST_RESIDUAL
from tensorveil.privacy.queries.sums.lengths import COUNT_PART, Lengths
from tensorveil.privacy.queries.sums.row_sums import Rows, RowSums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault

Floats = NDArray[np.float64]

MOST_LEVELS = 64


@final
@dataclass(frozen=True)
class SumPerturbation(Mechanism):
    """Noisy sums per index of every mode, then mean and offsets from these (docs/proofs/row_sums.md and lengths.md).

    Use this mechanism for small epsilon: a sum over many values needs little noise, and the posterior shrinks offsets
    that are smaller than the noise, down to the private mean.

    The marginal of the values is released first. It gives a scale on which values are latent scores with a normal law.
    The total of the values follows, then the sums of scores of one mode after the other, largest first, less what is
    known from earlier ones. If the noise allows, the sums of one mode are split by groups of indices of another mode
    (similar in offset, count and features, or all indices of a small mode), which gives factors. Shares of the budget
    and the split follow from public numbers.

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
    """

    features: Mapping[str, ArrayLike] | None = field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "sums"

    @property
    def title(self) -> str:
        return "sum perturbation"

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        return public_inputs(self.features)

    def with_features(self, features: Mapping[str, ArrayLike]) -> SumPerturbation:
        if self.features:
            raise InputError(
                "features must be given once, got features here and on the mechanism; leave one of them out"
            )
        return replace(self, features=features)

    def design(self, request: Request) -> Design:
        given = checked_features(self.features, request)
        if request.unit.kind == "slice" and request.unit.mode_number in given:
            raise InputError(
                f"features must be of other modes than that of the slices, got {request.unit_name!r}, whose rows stay "
                "with their owners; leave them out"
            )
        shares = marginal_shares(request)
        first, left = len(shares), 1 - math.fsum(shares)
        whole = _events(request, [left, 1 - left], 1)[0]
        columns = {mode: part.shape[1] for mode, part in given.items()}
        asked = sum_stages(request, _noise(request, SumStage(0, 1.0), whole), columns)
        numbers = marginal_coordinates(request) + sum(_size(request, one) for one in asked) * (
            1 if request.unit.coordinates_public else 2
        )
        shares += [left * one.share for one in asked]
        events = _events(request, shares, numbers)
        stages = [*marginal_stages(request, events[:first])]
        for one, event in zip(asked, events[first:], strict=True):
            stage = _stage(request, one, event)
            seen = [earlier.name for earlier in stages]
            stages.append(replace(stage, name=f"{stage.name}, second pass") if stage.name in seen else stage)
        pure = all(isinstance(event, PureEvent) for event in events)
        return Design(tuple(stages), asked, 0 if pure else numbers)

    def learns_offsets(self, unit: Unit) -> bool:
        return True

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        request, asked = plan.request, plan.settings
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        given = checked_features(self.features, request)
        features = _features(vault, given)
        bounds = request.bounds.low, request.bounds.high
        first = len(plan.stages) - len(asked)
        marginal = ask_marginal(vault, plan.stages[:first], request.bounds)
        marginal, mean, error = with_mean(marginal, *_total(vault, request, plan.stages[first], marginal))
        scale = scale_of(marginal, MOST_LEVELS, bounds)
        latent = LatentPosterior(scale, mean, error, request.family.zeros(request.shape), withheld)
        columns: dict[int, tuple[Floats, Floats]] = {}
        for place, (one, stage) in enumerate(zip(asked[1:], plan.stages[first + 1 :], strict=True)):
            split = None if one.groups == 1 else _split(request, one, columns[one.partner])
            rows = _rows(request, one, split)
            reach = _reach(request, one, stage.event, scale) * math.sqrt(latent.left)
            released = _ask(vault, request, stage, one, rows, _reading(scale, latent.subtracted, reach)).scaled(reach)
            counts = latent.learn_mode(one.mode, released, reach, features.get(one.mode, []), split)
            columns[one.mode] = item_columns(latent.offsets(one.mode), counts, given.get(one.mode)), counts
            progress("modes", place + 1, len(asked) - 1)
        if withheld is not None and columns:
            largest = max(columns, key=lambda mode: request.shape[mode])
            latent.leave_rows(withheld, largest, columns[largest][0])
        return latent.completion(bounds)


def _features(vault: Vault, given: Mapping[int, Floats]) -> dict[int, list[Floats]]:
    """Groups of features by mode: from public coordinates, then the given ones."""
    groups: dict[int, list[Floats]] = {}
    if vault.unit.coordinates_public:
        made = degree_features(vault.pattern.coordinates, vault.shape)
        groups = {mode: list(parts.values()) for mode, parts in enumerate(made)}
    for mode, columns in given.items():
        groups.setdefault(mode, []).append(columns)
    return groups


def _events(request: Request, shares: Sequence[float], numbers: int) -> list[Event]:
    """Pure events where delta is 0 or pure noise is smaller, Gaussian ones otherwise."""
    pure = split_budget(replace(request, delta=0.0), shares, 0)
    if request.delta == 0:
        return pure
    try:
        gaussian = split_budget(request, shares, numbers)
    except InputError:  # delta does not cover the sampler's precision at so large an epsilon
        if request.unit.whole_slices:
            raise
        return pure
    return pure if pure_is_better(pure[-1], gaussian[-1], request.unit, 1) else gaussian


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


def _stage(request: Request, one: SumStage, event: Event) -> Stage:
    query = _query(request, one, event, Rows(1), ScoreReading.linear(0.0, 1.0, Offsets.none(len(request.shape))))
    (change,) = query.sensitivity(request.unit)
    check_noise(event, change.bound)
    of = "all values" if one.mode is None else request.mode_names[one.mode]
    if one.groups > 1:
        of += f" by {one.groups} groups of {request.mode_names[one.partner]}"
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


def _ask(vault: Vault, request: Request, stage: Stage, one: SumStage, rows: Rows, reading: ScoreReading) -> NoisySums:
    """Sums and counts of the rows, with noise."""
    query = _query(request, one, stage.event, rows, reading)
    answer = vault.answer(stage.name, query)
    weight = _noise(request, one, stage.event).weight
    if isinstance(query, Lengths):
        return replace(NoisySums.of_counts(answer.values, answer.variance, COUNT_PART), weight=weight)
    if not vault.unit.coordinates_public:
        return replace(NoisySums.of_pairs(answer.values, answer.variance), weight=weight)
    numbers = rows.of(vault.pattern)
    weights = slice_weights(vault.pattern, numbers, query.pure)
    counts = np.bincount(numbers, weights=weights, minlength=rows.size).astype(np.float64)
    weight = float(weights @ weights) / max(float(weights.sum()), 1e-300)
    return NoisySums(answer.values, counts, answer.variance, 0.0, weight)


def _total(vault: Vault, request: Request, stage: Stage, marginal: Marginal) -> tuple[float, float]:
    """The mean of the values, and the standard deviation of its noise."""
    one = SumStage(None, 1.0)
    noise = _noise(request, one, stage.event)
    low, high = reading_range(marginal, math.sqrt(noise.whole) / max(request.count_or_guess * noise.weight, 1.0))
    reading = ScoreReading.linear((low + high) / 2, (high - low) / 2, Offsets.none(len(request.shape)), own=False)
    return mean_of_total(_ask(vault, request, stage, one, Rows(1), reading), low, high)


def checked_features(features: Mapping[str, ArrayLike] | None, request: Request) -> dict[int, Floats]:
    """Features by mode number, centred, with mean square one per index, all columns of a mode together."""
    return standardised(features, request.mode_names, request.shape)
