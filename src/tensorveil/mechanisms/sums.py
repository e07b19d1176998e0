"""Sum perturbation: noisy sums of the values of every index of every mode, and all that can be inferred from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.data.features import PublicInput, public_inputs, standardised
from tensorveil.errors import InputError
from tensorveil.inference.level import Level
from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.priors import OFFSET_VARIANCE, RESIDUAL_VARIANCE
from tensorveil.inference.sums.groups import grouped
from tensorveil.inference.sums.linked_factors import item_columns, linked_factors
from tensorveil.inference.sums.modes import offsets_of_sums
from tensorveil.inference.sums.pairs import both_passes, effects_of_groups, mean_of_pairs, offsets_of_pairs
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.parts.level import ask_level, default_level_share, level_coordinates, level_stage
from tensorveil.mechanisms.planning.information import (
    best_weights,
    noise_variance,
    offsets_show,
    pure_is_better,
    typical_weight,
)
from tensorveil.mechanisms.planning.observation_weights import observation_logits
from tensorveil.mechanisms.planning.windows import Window, best_reach, window
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.contributions import check_noise, slice_weights
from tensorveil.privacy.queries.sums.pairs import COUNT_PART, Lengths, Pairs, Rows
from tensorveil.privacy.queries.sums.weighted_sums import ModeSums, ObservationSums
from tensorveil.privacy.queries.sums.windows import WindowReading
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.vault import Pattern, Vault

Floats = NDArray[np.float64]

SMALLEST_LEVEL = 0.01
LARGEST_LEVEL = 0.05  # of the budget: where a level costs more, values are summed as they are
HALF = 0.5  # where the level alone would cost more, and existence is private, the mean is all there is to buy
MOST_GROUPS = 6
CLEAR = 1.5  # times the noise that the spread of an index's values must have, for each group
OFFSET_SHARE = OFFSET_VARIANCE / (RESIDUAL_VARIANCE + OFFSET_VARIANCE)


@final
@dataclass(frozen=True)
class Settings:
    """What is summed.

    Attributes
    ----------
    windows : bool
        If coordinates are public: whether the level is released first and values are clipped to a window around it.
    modes : tuple of int
        If coordinates are private: the modes whose sums are released one after the other; empty: only the total.
    groups : int
        The number of groups of first-mode indices by which the sums of the second mode are split.
    """

    windows: bool = False
    modes: tuple[int, ...] = ()
    groups: int = 1


@final
@dataclass(frozen=True)
class SumPerturbation(Mechanism):
    """Noisy sums per index of every mode, then mean and offsets from these (docs/proofs/weighted_sums.md and pairs.md).

    Use this mechanism for small epsilon: a sum over many values needs little noise, and the posterior shrinks offsets
    that are smaller than the noise, down to the private mean.

    - ``value``, ``slice_values``: the sums of all modes in one release. Public counts determine the weight of each
      observation in each sum, and features that show which indices are similar because they are observed together.
      Under ``value``, a level is released first if it is cheap, and values are clipped to a window around it.
    - ``entry``: the level; then for each mode in turn, pairs of sums of (1 + r)/2 and (1 - r)/2 of residuals r, which
      give sums and counts together. If the noise allows, the sums of the second mode are split by groups of similar
      indices of the first mode (in offset, count and features), which gives factors. On tiny data, only the mean.
    - ``slice``: sums and counts of the other modes, in two passes. The contribution of each slice has length at most
      one, and its own level is subtracted first. Its offset and row stay with their owner (joint privacy): see
      `Release.personalize`. An owner's row is a regression on released offsets, counts and public features of the
      largest other mode.

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
        return self._joint_design(request) if request.unit.coordinates_public else self._design_one_by_one(request)

    def _joint_design(self, request: Request) -> Design:
        """All sums at once; the level first if it is cheap, because windows around it need less noise."""
        level = default_level_share(request, SMALLEST_LEVEL)
        windows = request.unit.kind == "value" and level <= LARGEST_LEVEL
        numbers = sum(request.shape) + (level_coordinates(request) if windows else 1)
        events = self._events(request, [level, 1 - level] if windows else [1.0], numbers)
        event = events[-1]
        (change,) = ModeSums((1.0,), isinstance(event, PureEvent)).sensitivity(request.unit)
        check_noise(event, change.bound)
        of = "observations" if windows else "modes"
        stage = Stage(
            "sums of all modes" if windows else "sums of all modes, and the total",
            "sums-modes",
            event,
            Sensitivity(change.bound, change.norm, f"centred values, weights of {of} from public counts"),
            LAW_OF_NORM[change.norm],
            "weighted sums",
        )
        stages = (level_stage(request, events[0]), stage) if windows else (stage,)
        return Design(stages, Settings(windows=windows), 0 if isinstance(event, PureEvent) else numbers)

    def _design_one_by_one(self, request: Request) -> Design:
        """Level, then one mode after the other; only the paired total if the noise would exceed all offsets."""
        modes = self._modes(request)
        level = default_level_share(request, SMALLEST_LEVEL)
        if request.unit.kind == "entry" and (level > HALF or not self._worth(request, modes, level)):
            events = self._events(request, [1.0], 2)
            stages = [self._stage(request, "all observations", events[0])]
            return Design(tuple(stages), Settings(), 0 if isinstance(events[0], PureEvent) else 2)
        shares = [level] + [(1 - level) / len(modes)] * len(modes)
        groups = self._groups(request, modes, self._events(request, shares, 1)[-1])
        rows = [request.shape[mode] * (groups if place == 1 else 1) for place, mode in enumerate(modes)]
        numbers = level_coordinates(request) + 2 * sum(rows)
        events = self._events(request, shares, numbers)
        stages = [level_stage(request, events[0])]
        for place, (mode, event) in enumerate(zip(modes, events[1:], strict=True)):
            of = request.mode_names[mode]
            if place == 1 and groups > 1:
                of += f" by {groups} groups of {request.mode_names[modes[0]]}"
            stages.append(self._stage(request, of + (", second pass" if mode in modes[:place] else ""), event))
        pure = all(isinstance(event, PureEvent) for event in events)
        return Design(tuple(stages), Settings(modes=modes, groups=groups), 0 if pure else numbers)

    def _stage(self, request: Request, of: str, event: Event) -> Stage:
        query = _sums_and_counts(request, event, Rows(1), WindowReading.of_centred(len(request.shape)))
        (change,) = query.sensitivity(request.unit)
        check_noise(event, change.bound)
        what = "paired sums" if isinstance(query, Pairs) else "sums and counts"
        return Stage(
            f"{what} of {of}",
            query.theorem(request.unit),
            event,
            Sensitivity(change.bound, change.norm, "values within a window"),
            LAW_OF_NORM[change.norm],
            what,
        )

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        given = checked_features(self.features, plan.request)
        if vault.unit.coordinates_public:
            return self._joint(vault, plan, given, progress)
        return self._one_by_one(vault, plan, given, progress)

    def _joint(self, vault: Vault, plan: Plan, given: dict[int, Floats], progress: Progress) -> Completion:
        request, stage, settings = plan.request, plan.stages[-1], plan.settings
        pattern = vault.pattern
        query: ModeSums | ObservationSums
        if settings.windows:
            level = ask_level(vault, plan.events[0])
            query, seen, residual = _window_sums(pattern, stage.event, level)
            known = {"slope": seen.slope, "mean": level.mean}
        else:
            query, residual, known = _mode_sums(pattern, stage.event), RESIDUAL_VARIANCE, {}
        answer = vault.answer(stage.name, query)
        progress("sums", 1, 2)
        weights = query.weights(pattern)
        offsets = offsets_of_sums(
            answer.values, answer.variance, weights, pattern.coordinates, request.shape, given, residual, **known
        )
        progress("sums", 2, 2)
        factors = request.family.zeros(request.shape)
        return Completion(offsets, factors, request.bounds.low, request.bounds.high)

    def _one_by_one(self, vault: Vault, plan: Plan, given: dict[int, Floats], progress: Progress) -> Completion:
        request = plan.request
        low, high, order = request.bounds.low, request.bounds.high, len(request.shape)
        factors = request.family.zeros(request.shape)
        modes, groups = plan.settings.modes, plan.settings.groups
        if not modes:
            pairs = self._ask(vault, request, plan.stages[0], Rows(1), WindowReading.of_centred(order))
            return Completion(Offsets(mean_of_pairs(pairs), [None] * order), factors, low, high)
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        level = ask_level(vault, plan.events[0])
        offsets = Offsets.none(order)
        std = level.std
        columns, counts = np.empty((0, 0)), np.empty(0)
        earlier: dict[int, NoisySums] = {}
        for place, (mode, stage) in enumerate(zip(modes, plan.stages[1:], strict=True)):
            seen = self._window(request, stage.event, level, std, place)
            reading = WindowReading(level.mean, offsets, seen.low, seen.high)
            residual = max(seen.variance - OFFSET_VARIANCE * seen.slope**2, seen.variance / 2)
            size = request.shape[mode]
            if place == 1 and groups > 1:
                labels = grouped(columns, counts, groups)  # of released numbers and public features
                rows = Rows(size * groups, ((mode, groups * np.arange(size)), (modes[0], labels)))
                pairs = self._ask(vault, request, stage, rows, reading)
                effects = effects_of_groups(pairs, groups, seen.slope, residual)
                offsets = offsets.with_mode(mode, effects.mean(axis=1))
                marks = np.eye(groups)[labels]
                factors = linked_factors(factors, modes[0], marks, mode, effects - effects.mean(axis=1, keepdims=True))
            else:
                pairs = self._ask(vault, request, stage, Rows.of_mode(mode, size), reading)
                before, weight = offsets.modes[mode], typical_weight(request, stage.event)
                if before is not None:
                    pairs = both_passes(earlier[mode], pairs, before, seen.slope)
                earlier[mode] = pairs
                told = offsets_of_pairs(pairs, given.get(mode), seen.slope, weight, residual)
                offsets = offsets.with_mode(mode, told.offsets)
                counts = told.counts
                if mode == modes[0]:
                    columns = item_columns(np.asarray(offsets.modes[mode]), counts, told.sizes, given.get(mode))
                explained = float(counts @ np.square(told.offsets)) / max(float(counts.sum()), 1e-300)
                std = math.sqrt(max(std**2 - explained, std**2 / 4))
            progress("modes", place + 1, len(modes))
        if withheld is not None:
            factors = linked_factors(factors, modes[0], columns, withheld)
        return Completion(Offsets(level.mean, offsets.modes), factors, low, high, withheld)

    def _ask(self, vault: Vault, request: Request, stage: Stage, rows: Rows, reading: WindowReading) -> NoisySums:
        """Sums and counts of the rows, with noise."""
        query = _sums_and_counts(request, stage.event, rows, reading)
        answer = vault.answer(stage.name, query)
        if isinstance(query, Pairs):
            return NoisySums.of_pairs(answer.values, answer.variance)
        return NoisySums.of_counts(answer.values, answer.variance, COUNT_PART)

    def _window(self, request: Request, event: Event, level: Level, std: float, place: int) -> Window:
        """The window that residuals are clipped to; for slices it is the scale of the level."""
        if request.unit.whole_slices:
            scale = min(level.scale, 1.0)
            return Window(-scale, scale, 1 / scale, min(level.std**2, RESIDUAL_VARIANCE) / scale**2)
        count = request.count_or_guess / max(request.shape)
        reach = best_reach(_pair_noise(request, event), [count], OFFSET_SHARE)
        if place:
            return window(std, reach)
        return window(std, reach, -1.0 - level.mean, 1.0 - level.mean)

    def _modes(self, request: Request) -> tuple[int, ...]:
        """The modes whose pairs are released: largest first, so that the residuals of later modes are smaller."""
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        modes = [mode for mode in range(len(request.shape)) if mode != withheld]
        modes = sorted(modes, key=lambda mode: (-request.shape[mode], mode))
        # a slice's own level is taken off before other offsets are known: the second pass mends what that cost
        return (*modes, *modes) if withheld is not None else tuple(modes)

    def _worth(self, request: Request, modes: Sequence[int], level: float) -> bool:
        """Whether offsets of some mode are expected to exceed the noise; reads declared sizes."""
        event = self._events(request, [level] + [(1 - level) / len(modes)] * len(modes), 1)[-1]
        noise = _pair_noise(request, event)
        return any(offsets_show(noise, request.count_or_guess, request.shape[mode]) for mode in modes)

    def _groups(self, request: Request, modes: Sequence[int], event: Event) -> int:
        """The number of groups of first-mode indices by which second-mode sums are split, limited by the noise."""
        if request.unit.kind != "entry" or len(modes) < 2:
            return 1
        ranks = request.family.ranks_for(request.shape)
        noise = _pair_noise(request, event)
        spread = RESIDUAL_VARIANCE * request.count_or_guess / request.shape[modes[1]]  # of an index's sum
        most = min(MOST_GROUPS, ranks[modes[0]], ranks[modes[1]], int(spread / max(CLEAR * noise, 1e-12)))
        return max(most, 1)

    def _events(self, request: Request, shares: Sequence[float], numbers: int) -> list[Event]:
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
        parts = len(request.shape) + 1 if request.unit.coordinates_public else 1
        return pure if pure_is_better(pure[-1], gaussian[-1], request.unit, parts) else gaussian


def _sums_and_counts(request: Request, event: Event, rows: Rows, reading: WindowReading) -> Pairs | Lengths:
    """The query for sums and counts: by lengths for slices with Gaussian noise, otherwise as pairs."""
    pure = isinstance(event, PureEvent)
    if request.unit.kind == "slice" and not pure:
        return Lengths(rows, reading)
    return Pairs(rows, reading, pure)


def _pair_noise(request: Request, event: Event) -> float:
    """The variance of the noise on the difference of a pair of sums."""
    query = _sums_and_counts(request, event, Rows(1), WindowReading.of_centred(len(request.shape)))
    return 2 * noise_variance(event, query.sensitivity(request.unit)[0].bound)


def _mode_sums(pattern: Pattern, event: Event) -> ModeSums:
    """Sums of centred values: the total and all modes, with weights from public counts."""
    pure = isinstance(event, PureEvent)
    sizes = (1, *pattern.shape)
    rows = [np.zeros(len(pattern), dtype=np.int64), *(pattern.index(mode) for mode in range(len(pattern.shape)))]
    slices = [slice_weights(pattern, row, pure) for row in rows]
    (change,) = ModeSums((1.0,), pure).sensitivity(pattern.unit)
    return ModeSums(best_weights(rows, slices, sizes, event, change.bound), pure)


def _window_sums(pattern: Pattern, event: Event, level: Level) -> tuple[ObservationSums, Window, float]:
    """Sums of values clipped to a window around the level; also the window and the residual variance in it."""
    pure, shape = isinstance(event, PureEvent), pattern.shape
    whole = WindowReading.of_centred(len(shape))
    (change,) = ObservationSums(whole, (), pure).sensitivity(pattern.unit)
    noise = noise_variance(event, change.bound)
    counts = [len(pattern) / size / len(shape) for size in shape]
    seen = window(level.std, best_reach(noise, counts, OFFSET_SHARE), -1.0 - level.mean, 1.0 - level.mean)
    offset = OFFSET_VARIANCE * seen.slope**2
    residual = max(seen.variance - offset, seen.variance / 2)
    rows = [pattern.index(mode) for mode in range(len(shape))]
    logits = observation_logits(rows, shape, noise, offset, residual, pure)
    reading = replace(whole, mean=level.mean, low=seen.low, high=seen.high)
    return ObservationSums(reading, logits, pure), seen, residual


def checked_features(features: Mapping[str, ArrayLike] | None, request: Request) -> dict[int, Floats]:
    """Features by mode number, centred, with mean square one per index, all columns of a mode together."""
    return standardised(features, request.mode_names, request.shape)
