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
from tensorveil.inference.degree_features import degree_features
from tensorveil.inference.groups import grouped
from tensorveil.inference.linked_factors import item_columns, linked_factors, zero_factors
from tensorveil.inference.sums import Effect, SumsPosterior
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.level import (
    Level,
    default_level_share,
    level_coordinates,
    level_stage,
    release_level,
)
from tensorveil.mechanisms.noisy_sums import (
    check_noise,
    describe,
    noisy_totals,
    slice_weights,
    sums_sensitivity,
    whole_sums,
)
from tensorveil.mechanisms.paired_sums import (
    WEIGHT_MARGIN,
    both_passes,
    effects_of_groups,
    offsets_of_pairs,
    release_lengths,
    release_pairs,
    typical_weight,
)
from tensorveil.mechanisms.personal import personal_offsets
from tensorveil.mechanisms.planning.information import (
    FEATURE_VARIANCE,
    MEAN_VARIANCE,
    OFFSET_VARIANCE,
    RESIDUAL_VARIANCE,
    best_weights,
    declared_count,
    noise_variance,
    offsets_show,
    pure_is_better,
)
from tensorveil.mechanisms.planning.observation_weights import observation_weights
from tensorveil.mechanisms.planning.windows import Window, best_reach, window
from tensorveil.mechanisms.private_offsets import RowSums
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan, Request, Stage

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SMALLEST_LEVEL = 0.01
LARGEST_LEVEL = 0.05  # of the budget: where a level costs more, values are summed as they are
HALF = 0.5  # where the level alone would cost more, and existence is private, the mean is all there is to buy
MOST_GROUPS = 6
CLEAR = 1.5  # times the noise that the spread of an index's values must have, for each group
OFFSET_SHARE = OFFSET_VARIANCE / (RESIDUAL_VARIANCE + OFFSET_VARIANCE)


@final
@dataclass(frozen=True)
class SumPerturbation(Mechanism):
    """Noisy sums of every mode, then mean and offsets given them (docs/proofs/sum_perturbation.md).

    The way to go where epsilon is small: a sum over many values needs little noise, and the posterior shrinks what the
    noise drowns, down to the private mean.

    - ``value``, ``slice_values``: the sums of all modes in one release. How much of each observation goes to which sum
      is found from public counts; so are features of who is seen with whom, which say which indices are alike. Under
      ``value`` a level is bought first, where it is cheap, and values are read within a window around it.
    - ``entry``: level, then for one mode after the other pairs of sums (1 + r)/2 and (1 - r)/2 of what is left, which
      tell sums and counts together; where noise allows, those of the second mode by groups of the first one's indices
      that are alike in offset, count and features, which gives factors. On tiny data the mean alone.
    - ``slice``: sums and counts of the other modes, twice, each slice with a length of at most one
      and with its own level taken off by itself; its offset and row stay with their owner (joint privacy): see
      `Release.personalize`. An owner's row is a regression on released offsets, counts and public features of the
      largest other mode.

    Parameters
    ----------
    features : public features of the indices of some modes, e.g. genres of films: mode name -> matrix, one row an
        index; they are taken for public
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
            raise InputError("features must be given once, got them here and on the mechanism; leave one out")
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
        """All sums at once; before them the level, where it is cheap: windows around it need less noise."""
        level = default_level_share(request, SMALLEST_LEVEL)
        windows = request.unit.kind == "value" and level <= LARGEST_LEVEL
        numbers = sum(request.shape) + (level_coordinates(request) if windows else 1)
        events = self._events(request, [level, 1 - level] if windows else [1.0], numbers)
        sensitivity, event = sums_sensitivity(request.unit), events[-1]
        check_noise(event, sensitivity)
        stage = Stage(
            "sums of all modes" if windows else "sums of all modes, and the total",
            "sums-modes",
            event,
            f"{sensitivity:g} ({'L1' if isinstance(event, PureEvent) else 'L2'}, centred values, weights of "
            f"{'observations' if windows else 'modes'} from public counts)",
            f"weighted sums with {describe(event, sensitivity)}",
        )
        stages = (level_stage(request, events[0]), stage) if windows else (stage,)
        return Design(stages, {"windows": windows}, 0 if isinstance(event, PureEvent) else numbers)

    def _design_one_by_one(self, request: Request) -> Design:
        """Level, then one mode after the other; the paired total alone where noise would drown all offsets."""
        modes = self._modes(request)
        level = default_level_share(request, SMALLEST_LEVEL)
        if request.unit.kind == "entry" and (level > HALF or not self._worth(request, modes, level)):
            events = self._events(request, [1.0], 2)
            stages = [self._stage(request, "paired sums of all observations", events[0])]
            return Design(tuple(stages), {"modes": ()}, 0 if isinstance(events[0], PureEvent) else 2)
        shares = [level] + [(1 - level) / len(modes)] * len(modes)
        groups = self._groups(request, modes, self._events(request, shares, 1)[-1])
        rows = [request.shape[mode] * (groups if place == 1 else 1) for place, mode in enumerate(modes)]
        numbers = level_coordinates(request) + 2 * sum(rows)
        events = self._events(request, shares, numbers)
        stages = [level_stage(request, events[0])]
        for place, (mode, event) in enumerate(zip(modes, events[1:], strict=True)):
            gaussian_slices = request.unit.kind == "slice" and not isinstance(event, PureEvent)
            name = f"{'sums and counts' if gaussian_slices else 'paired sums'} of {request.mode_names[mode]}"
            if place == 1 and groups > 1:
                name += f" by {groups} groups of {request.mode_names[modes[0]]}"
            stages.append(self._stage(request, name + (", second pass" if mode in modes[:place] else ""), event))
        pure = all(isinstance(event, PureEvent) for event in events)
        return Design(tuple(stages), {"modes": modes, "groups": groups}, 0 if pure else numbers)

    def _stage(self, request: Request, name: str, event: Event) -> Stage:
        sensitivity = sums_sensitivity(request.unit)
        check_noise(event, sensitivity)
        kind = "L1" if isinstance(event, PureEvent) else "L2"
        noise = f"{name.split(' of ')[0]} with {describe(event, sensitivity)} on every index"
        return Stage(name, "sums-pairs", event, f"{sensitivity:g} ({kind}, values within a window)", noise)

    def run(
        self, data: BoundedObservations, plan: Plan, noise: NoiseSource, progress: Progress = no_progress
    ) -> Completion:
        given = checked_features(self.features, plan.request)
        if data.unit.coordinates_public:
            return self._joint(data, plan, noise, given, progress)
        return self._one_by_one(data, plan, noise, given, progress)

    def _joint(
        self,
        data: BoundedObservations,
        plan: Plan,
        noise: NoiseSource,
        given: dict[int, Floats],
        progress: Progress,
    ) -> Completion:
        request, event = plan.request, plan.events[-1]
        level = release_level(data, plan.events[0], noise) if plan.settings["windows"] else None
        sums = WeightedSums(data, event, level)
        released, variance = noisy_totals(noise, event, sums.totals(data), sums_sensitivity(data.unit))  # [L5]
        progress("sums", 1, 2)
        found = sums.posterior(released, variance, given)  # reads coordinates, which are public, and released sums
        progress("sums", 2, 2)
        return Completion(found, zero_factors(request.family, request.shape), request.bounds.low, request.bounds.high)

    def _one_by_one(
        self,
        data: BoundedObservations,
        plan: Plan,
        noise: NoiseSource,
        given: dict[int, Floats],
        progress: Progress,
    ) -> Completion:
        request = plan.request
        low, high = request.bounds.low, request.bounds.high
        factors = zero_factors(request.family, request.shape)
        modes: Sequence[int] = plan.settings["modes"]
        if not modes:
            everywhere = np.zeros(len(data), dtype=np.int64)
            pairs = release_pairs(data, data.centred, everywhere, 1, plan.events[0], noise)
            return Completion(Offsets(mean_of_pairs(pairs), [None] * len(request.shape)), factors, low, high)
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        level = release_level(data, plan.events[0], noise)
        values = data.centred - level.mean
        offsets = Offsets.none(len(request.shape))
        std, groups = level.std, plan.settings["groups"]
        columns, counts = np.empty((0, 0)), np.empty(0)
        earlier: dict[int, RowSums] = {}
        for place, (mode, event) in enumerate(zip(modes, plan.events[1:], strict=True)):
            own = offsets
            if withheld is not None:  # [L6] the slice's own offset, from its own values and released offsets
                own = offsets.with_mode(withheld, personal_offsets(data, values, offsets, withheld))
            seen = self._window(request, event, level, std, place)
            read = seen.read(values - own.at(data.coordinates))  # [L7]
            residual = max(seen.variance - OFFSET_VARIANCE * seen.slope**2, seen.variance / 2)
            rows, size = data.index(mode), request.shape[mode]
            if place == 1 and groups > 1:
                labels = grouped(columns, counts, groups)  # of released numbers and public features
                pairs = release_pairs(
                    data, read, rows * groups + labels[data.index(modes[0])], size * groups, event, noise
                )
                effects = effects_of_groups(pairs, groups, seen.slope, residual)
                offsets = offsets.with_mode(mode, effects.mean(axis=1))
                marks = np.eye(groups)[labels]
                factors = linked_factors(factors, modes[0], marks, mode, effects - effects.mean(axis=1, keepdims=True))
            else:
                if withheld is not None and not isinstance(event, PureEvent):
                    pairs = release_lengths(data, read, mode, event, noise)
                else:
                    pairs = release_pairs(data, read, rows, size, event, noise)
                before, weight = offsets.modes[mode], typical_weight(request, event)
                if before is not None:
                    pairs = both_passes(earlier[mode], pairs, before, seen.slope)
                earlier[mode] = pairs
                found = offsets_of_pairs(pairs, given.get(mode), seen.slope, weight, residual)
                offsets = offsets.with_mode(mode, found.offsets)
                counts = found.counts
                if mode == modes[0]:
                    columns = item_columns(np.asarray(offsets.modes[mode]), counts, found.sizes, given.get(mode))
                told = float(counts @ np.square(found.offsets)) / max(float(counts.sum()), 1e-300)
                std = math.sqrt(max(std**2 - told, std**2 / 4))
            progress("modes", place + 1, len(modes))
        if withheld is not None:
            factors = linked_factors(factors, modes[0], columns, withheld)
        return Completion(Offsets(level.mean, offsets.modes), factors, low, high, withheld)

    def _window(self, request: Request, event: Event, level: Level, std: float, place: int) -> Window:
        """What is read of residuals: for slices all within the level's scale, as their weights know their lengths."""
        if request.unit.whole_slices:
            scale = min(level.scale, 1.0)
            return Window(-scale, scale, 1 / scale, min(level.std**2, RESIDUAL_VARIANCE) / scale**2)
        count = declared_count(request) / max(request.shape)
        reach = best_reach(2 * noise_variance(event, sums_sensitivity(request.unit)), [count], OFFSET_SHARE)
        if place:
            return window(std, reach)
        return window(std, reach, -1.0 - level.mean, 1.0 - level.mean)

    def _modes(self, request: Request) -> tuple[int, ...]:
        """The modes whose pairs are released: the largest first, whose offsets then leave less to the others."""
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        modes = [mode for mode in range(len(request.shape)) if mode != withheld]
        modes = sorted(modes, key=lambda mode: (-request.shape[mode], mode))
        # a slice's own level is taken off before other offsets are known: the second pass mends what that cost
        return (*modes, *modes) if withheld is not None else tuple(modes)

    def _worth(self, request: Request, modes: Sequence[int], level: float) -> bool:
        """Whether offsets of some mode are expected to show; reads declared sizes."""
        event = self._events(request, [level] + [(1 - level) / len(modes)] * len(modes), 1)[-1]
        noise = 2 * noise_variance(event, sums_sensitivity(request.unit))
        return any(offsets_show(noise, declared_count(request), request.shape[mode]) for mode in modes)

    def _groups(self, request: Request, modes: Sequence[int], event: Event) -> int:
        """How many groups of the first mode's indices the second mode's are summed by: noise must not drown them."""
        if request.unit.kind != "entry" or len(modes) < 2:
            return 1
        ranks = request.family.ranks_for(request.shape)
        noise = 2 * noise_variance(event, sums_sensitivity(request.unit))
        spread = RESIDUAL_VARIANCE * declared_count(request) / request.shape[modes[1]]  # of an index's sum
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


@final
class WeightedSums:
    """The sums that are released under public coordinates: their weights, and the posterior given them.

    All of it but `totals` reads coordinates, a released level and released sums only.
    """

    def __init__(self, data: BoundedObservations, event: Event, level: Level | None = None) -> None:
        pure = isinstance(event, PureEvent)
        self.shape = data.shape
        self.coordinates = data.coordinates
        self.level = level
        self.rows = [data.index(mode) for mode in range(len(data.shape))]
        self.window: Window | None = None
        self.sizes: tuple[int, ...] = data.shape
        sensitivity = sums_sensitivity(data.unit)
        if level is not None:
            counts = [len(data) / size / len(data.shape) for size in data.shape]
            reach = best_reach(noise_variance(event, sensitivity), counts, OFFSET_SHARE)
            seen = window(level.std, reach, -1.0 - level.mean, 1.0 - level.mean)
            offset, noise = OFFSET_VARIANCE * seen.slope**2, noise_variance(event, sensitivity)
            self.window, self.residual = seen, max(seen.variance - offset, seen.variance / 2)
            parts = observation_weights(self.rows, self.sizes, noise, offset, self.residual, pure)
            lengths = sum(parts) if pure else np.sqrt(sum(part**2 for part in parts))
            self.weights = [part / np.maximum(lengths, 1.0) * WEIGHT_MARGIN for part in parts]  # [L11]
            return
        self.residual = RESIDUAL_VARIANCE
        self.rows.insert(0, np.zeros(len(data), dtype=np.int64))
        self.sizes = (1, *data.shape)
        slices = [slice_weights(data, rows, pure) for rows in self.rows]  # [L2] a unit's part in each is at most one
        shares = best_weights(self.rows, slices, self.sizes, event, sensitivity)
        length = math.fsum(shares) if pure else math.sqrt(math.fsum(share**2 for share in shares))
        self.weights = [
            share / length * WEIGHT_MARGIN * part
            for share, part in zip(shares, slices, strict=True)  # [L3]
        ]

    def totals(self, data: BoundedObservations) -> Integers:
        """All sums in grid steps. [L4] Contributions go towards zero: never longer."""
        read = data.centred
        if self.window is not None and self.level is not None:
            read = self.window.read(data.centred - self.level.mean)
        parts = [
            whole_sums(rows, weights * read, size)
            for rows, weights, size in zip(self.rows, self.weights, self.sizes, strict=True)
        ]
        return np.concatenate(parts)

    def posterior(self, released: Floats, variance: float, given: dict[int, Floats]) -> Offsets:
        """Mean and offsets given the released sums."""
        from scipy import sparse

        count = len(self.coordinates)
        entries = np.arange(count)
        reading = sparse.vstack(
            [
                sparse.csr_matrix((weights, (rows, entries)), shape=(size, count))
                for rows, weights, size in zip(self.rows, self.weights, self.sizes, strict=True)
            ]
        ).tocsr()  # A: the sums are A y
        slope = 1.0 if self.window is None else self.window.slope
        effects = {"mean": Effect(np.asarray(reading.sum(axis=1)), MEAN_VARIANCE * slope**2, fitted=False)}
        links: list[dict[str, Floats]] = degree_features(self.coordinates, self.shape)
        for mode, size in enumerate(self.shape):
            where = self.coordinates[:, mode].astype(np.int64)
            index = sparse.csr_matrix((np.ones(count), (entries, where)), shape=(count, size))
            design = (reading @ index).tocsr()
            effects[f"offsets {mode}"] = Effect(design, OFFSET_VARIANCE * slope**2, group=mode)
            if mode in given:
                links[mode]["given"] = given[mode]
            for name, features in links[mode].items():
                effects[f"{name} {mode}"] = Effect(
                    np.asarray(design @ features), FEATURE_VARIANCE * slope**2, group=mode
                )
        noise = np.full(len(released), variance)
        found = SumsPosterior(released, noise, (reading @ reading.T).tocsr(), self.residual, effects).coefficients
        parts = []
        for mode in range(len(self.shape)):
            whole = found[f"offsets {mode}"]
            for name, features in links[mode].items():
                whole = whole + features @ found[f"{name} {mode}"]
            parts.append(whole / slope)
        if self.level is None:
            return Offsets(float(found["mean"][0]), parts)
        # the mean of values is the level's: that of what a window reads of them is another
        middles = [float(part[self.coordinates[:, mode]].mean()) if count else 0.0 for mode, part in enumerate(parts)]
        return Offsets(self.level.mean - math.fsum(middles), parts)


def checked_features(features: Mapping[str, ArrayLike] | None, request: Request) -> dict[int, Floats]:
    """Features by mode number, centred, with mean square one an index, all columns of a mode together."""
    return standardised(features, request.mode_names, request.shape)


def mean_of_pairs(pairs: RowSums) -> float:
    """The mean on the centred scale given a noisy sum and count, shrunk to the middle where noise drowns it."""
    count = max(float(pairs.counts[0]), math.sqrt(pairs.count_variance), 1.0)
    believed = 1 / (1 + pairs.sum_variance / (MEAN_VARIANCE * count**2))
    return min(max(believed * float(pairs.sums[0]) / count, -1.0), 1.0)
