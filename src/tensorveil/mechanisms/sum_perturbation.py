"""Sum perturbation: noisy sums of the values of every index of every mode, and all that can be inferred from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.errors import InputError
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.information import (
    FEATURE_VARIANCE,
    MEAN_VARIANCE,
    OFFSET_VARIANCE,
    RESIDUAL_VARIANCE,
    best_weights,
    declared_count,
    noise_variance,
    pure_is_better,
)
from tensorveil.mechanisms.level import (
    WIDE,
    Level,
    default_level_share,
    level_coordinates,
    level_sensitivity,
    level_stage,
    release_level,
)
from tensorveil.mechanisms.personal import personal_offsets
from tensorveil.mechanisms.private_offsets import RowSums
from tensorveil.mechanisms.sums import check_noise, describe, noisy_totals, slice_weights, whole_sums
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.events import Event, PureEvent
from tensorveil.privacy.noise import NoiseSource
from tensorveil.privacy.plan import Plan, Request, Stage
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit
from tensorveil.solvers.degree_features import degree_features
from tensorveil.solvers.sums_posterior import Effect, SumsPosterior

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WEIGHT_MARGIN = 1 - 2.0**-20  # more than rounding adds to normalised weights
SMALL_MEAN_VARIANCE = 1e-3
PAIR_ROUNDS = 20  # of fitting variances, for one mode at a time
COUNT_PART = 0.4  # what an observation of a slice adds to a count, against at most 1 to a sum


@proves("sums-modes", "sums-pairs")
def sums_sensitivity(unit: Unit) -> float:
    """How far one unit moves the released sums, in L1 for pure and in L2 for Gaussian noise.

    Public coordinates: the sums of all modes and the total together, mode m with weight a_m, sum a_m <= 1 (pure) or sum
    a_m^2 <= 1 (Gaussian); a unit whose values are replaced moves them by 2. Otherwise the paired sums of one mode; a
    unit that comes or goes moves them by 1.
    """
    return 2.0 if unit.coordinates_public else 1.0  # [L1]


@final
@dataclass(frozen=True)
class SumPerturbation(Mechanism):
    """Noisy sums of every mode, then mean and offsets given them (docs/proofs/sum_perturbation.md).

    The way to go where epsilon is small: a sum over many values needs little noise, and the posterior shrinks what the
    noise drowns, down to the private mean. The factor part is zero, but for ``slice``.

    - ``value``, ``slice_values``: the sums of all modes and the total in one release. Their split is found from public
      counts; so are features of who is seen with whom, which say which indices are alike.
    - ``entry``: level, then for one mode after the other pairs of sums (1 + r)/2 and (1 - r)/2 of what is left, which
      tell sums and counts together.
    - ``slice``: sums and counts of the other modes, twice, each slice with a length of at most one and with its own
      level taken off by itself; its offset and row stay with their owner (joint privacy): see `Release.personalize`.
      An owner's row is a regression on the public features of another mode, if given.

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

    def design(self, request: Request) -> Design:
        given = checked_features(self.features, request)
        trusted = ("the features of modes are public: they were not computed from the data",) if given else ()
        sensitivity = sums_sensitivity(request.unit)
        if request.unit.coordinates_public:
            numbers = 1 + sum(request.shape)
            event = self._joint_event(request, numbers)
            check_noise(event, sensitivity)
            stage = Stage(
                "sums of all modes, and the total",
                "sums-modes",
                event,
                f"{sensitivity:g} ({'L1' if isinstance(event, PureEvent) else 'L2'}, centred values, weights of modes "
                "from public counts)",
                f"weighted sums with {describe(event, sensitivity)}",
            )
            return Design((stage,), {}, 0 if isinstance(event, PureEvent) else numbers, trusted)
        modes = self._modes(request)
        level = default_level_share(request)
        numbers = level_coordinates(request) + 2 * sum(request.shape[mode] for mode in modes)
        events = self._events(request, [level] + [(1 - level) / len(modes)] * len(modes), numbers)
        stages = [level_stage(request, events[0])]
        for place, (mode, event) in enumerate(zip(modes, events[1:], strict=True)):
            check_noise(event, sensitivity)
            kind = "L1" if isinstance(event, PureEvent) else "L2"
            what = "sums and counts" if request.unit.kind == "slice" and kind == "L2" else "paired sums"
            again = ", second pass" if mode in modes[:place] else ""
            stages.append(
                Stage(
                    f"{what} of {request.mode_names[mode]}{again}",
                    "sums-pairs",
                    event,
                    f"{sensitivity:g} ({kind}, values within the level)",
                    f"{what} with {describe(event, sensitivity)} on every index",
                )
            )
        pure = all(isinstance(event, PureEvent) for event in events)
        settings = {"modes": modes, "reach": clipping_reach(request, events[-1], modes)}
        return Design(tuple(stages), settings, 0 if pure else numbers, trusted)

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
        request, event = plan.request, plan.events[0]
        sums = WeightedSums(data, event)
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
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        found_level = release_level(data, plan.events[0], noise)
        level = Level(found_level.mean, min(found_level.scale * plan.settings["reach"], 1.0))
        values = (data.centred - level.mean) / level.scale  # clipped only as residuals
        offsets = Offsets.none(len(request.shape))
        mean_variance = level_variance(request, plan.events[0])
        residual = min((found_level.scale / WIDE) ** 2, RESIDUAL_VARIANCE) / level.scale**2
        modes: Sequence[int] = plan.settings["modes"]
        for place, (mode, event) in enumerate(zip(modes, plan.events[1:], strict=True)):
            own = offsets
            if withheld is not None:  # [L6] the slice's own offset, from its own values and released offsets
                own = offsets.with_mode(withheld, personal_offsets(data, values, offsets, withheld))
            residuals = np.clip(values - own.at(data.coordinates), -1.0, 1.0)  # [L7]
            release = release_lengths if withheld is not None and not isinstance(event, PureEvent) else release_pairs
            pairs = release(data, residuals, mode, event, noise)
            mean, found = offsets_of_pairs(
                pairs, given.get(mode), level.scale, typical_weight(request, event), mean_variance, residual
            )
            kept = 0.0 if withheld is not None else mean  # there a mean is each slice's own
            before = offsets.modes[mode]
            whole = found if before is None else before + found  # a second pass sees what the first left
            offsets = Offsets(offsets.mean + kept, offsets.with_mode(mode, whole).modes)
            progress("modes", place + 1, len(modes))
        parts = [None if part is None else part * level.scale for part in offsets.modes]
        factors = zero_factors(request.family, request.shape)
        if withheld is not None:
            factors = feature_factors(factors, given, withheld)
        return Completion(
            Offsets(level.mean + level.scale * offsets.mean, parts),
            factors,
            request.bounds.low,
            request.bounds.high,
            withheld,
        )

    def _modes(self, request: Request) -> tuple[int, ...]:
        """The modes whose pairs are released: the largest first, whose offsets then leave less to the others."""
        withheld = request.unit.mode_number if request.unit.kind == "slice" else None
        modes = [mode for mode in range(len(request.shape)) if mode != withheld]
        modes = sorted(modes, key=lambda mode: (-request.shape[mode], mode))
        # a slice's own level is taken off before other offsets are known: the second pass mends what that cost
        return (*modes, *modes) if withheld is not None else tuple(modes)

    def _joint_event(self, request: Request, numbers: int) -> Event:
        """One event for all modes, with the noise that is smaller."""
        return self._events(request, [1.0], numbers)[0]

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

    All of it but `totals` reads coordinates only.
    """

    def __init__(self, data: BoundedObservations, event: Event) -> None:
        pure = isinstance(event, PureEvent)
        self.shape = data.shape
        self.coordinates = data.coordinates
        self.rows = [np.zeros(len(data), dtype=np.int64), *(data.index(mode) for mode in range(len(data.shape)))]
        self.sizes = (1, *data.shape)
        slices = [slice_weights(data, rows, pure) for rows in self.rows]  # [L2] a unit's part in each is at most one
        shares = best_weights(self.rows, slices, self.sizes, event, sums_sensitivity(data.unit))
        length = math.fsum(shares) if pure else math.sqrt(math.fsum(share**2 for share in shares))
        self.weights = [
            share / length * WEIGHT_MARGIN * part
            for share, part in zip(shares, slices, strict=True)  # [L3]
        ]

    def totals(self, data: BoundedObservations) -> Integers:
        """All sums in grid steps: the total, then each mode's. [L4] Contributions go towards zero: never longer."""
        parts = [
            whole_sums(rows, weights * data.centred, size)
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
        effects = {"mean": Effect(np.asarray(reading.sum(axis=1)), MEAN_VARIANCE, fitted=False)}
        links: list[dict[str, Floats]] = degree_features(self.coordinates, self.shape)
        for mode, size in enumerate(self.shape):
            index = sparse.csr_matrix((np.ones(count), (entries, self.rows[mode + 1])), shape=(count, size))
            design = (reading @ index).tocsr()
            effects[f"offsets {mode}"] = Effect(design, OFFSET_VARIANCE)
            if mode in given:
                links[mode]["given"] = given[mode]
            for name, features in links[mode].items():
                effects[f"{name} {mode}"] = Effect(np.asarray(design @ features), FEATURE_VARIANCE)
        noise = np.full(len(released), variance)
        found = SumsPosterior(released, noise, (reading @ reading.T).tocsr(), RESIDUAL_VARIANCE, effects).coefficients
        parts = []
        for mode in range(len(self.shape)):
            whole = found[f"offsets {mode}"]
            for name, features in links[mode].items():
                whole = whole + features @ found[f"{name} {mode}"]
            parts.append(whole)
        return Offsets(float(found["mean"][0]), parts)


def release_pairs(data: BoundedObservations, residuals: Floats, mode: int, event: Event, noise: NoiseSource) -> RowSums:
    """Sums of a (1 + r)/2 and a (1 - r)/2 for every index of a mode, with noise: sums and counts together."""
    rows, size = data.index(mode), data.shape[mode]
    weights = slice_weights(data, rows, isinstance(event, PureEvent))
    halves = [weights * (1 + sign * residuals) / 2 for sign in (1.0, -1.0)]  # [L8] at least 0, together at most a
    pairs = np.concatenate([whole_sums(rows, half, size) for half in halves])
    released, variance = noisy_totals(noise, event, pairs, sums_sensitivity(data.unit))  # [L9]
    return RowSums(released[:size] - released[size:], released[:size] + released[size:], 2 * variance, 2 * variance)


def release_lengths(
    data: BoundedObservations, residuals: Floats, mode: int, event: Event, noise: NoiseSource
) -> RowSums:
    """Sums of a r and of a COUNT_PART for every index, with Gaussian noise; each slice's own vector has length one.

    The weight a of a slice is one over the length of its own part in both, which reads its own observations alone: a
    slice whose residuals are small is heard better than through pairs.
    """
    rows, size = data.index(mode), data.shape[mode]
    slices, number = data.index(data.unit.mode_number), data.shape[data.unit.mode_number]
    _, place, counts = np.unique(slices * size + rows, return_inverse=True, return_counts=True)
    cells = np.bincount(place, weights=residuals)[place]  # what the slice adds to this row, for a = 1
    squares = cells**2 / counts[place] + COUNT_PART**2 * counts[place]  # a row's square, shared by its observations
    lengths = np.sqrt(np.bincount(slices, weights=squares, minlength=number))  # floats: whole numbers might overflow
    weights = WEIGHT_MARGIN / np.maximum(lengths, COUNT_PART)[slices]  # [L10]
    parts = [weights * residuals, weights * COUNT_PART]
    totals = np.concatenate([whole_sums(rows, part, size) for part in parts])
    released, variance = noisy_totals(noise, event, totals, sums_sensitivity(data.unit))  # [L9]
    return RowSums(released[:size], released[size:] / COUNT_PART, variance, variance / COUNT_PART**2)


def typical_weight(request: Request, event: Event) -> float:
    """A guess, from declared sizes, of the weight that `slice_weights` gives an observation."""
    if not request.unit.whole_slices:
        return 1.0
    each = max(declared_count(request) / request.shape[request.unit.mode_number], 1.0)
    if isinstance(event, PureEvent):
        return 1 / each
    return 1 / math.sqrt(each * (RESIDUAL_VARIANCE + COUNT_PART**2))


def level_variance(request: Request, event: Event) -> float:
    """How far the level's mean may be off, by the known noise, and a little for what clipping moves."""
    units = request.shape[request.unit.mode_number] if request.unit.whole_slices else declared_count(request)
    noise = 2 * noise_variance(event, level_sensitivity(request.unit, isinstance(event, PureEvent)))
    return min(noise / units**2 + SMALL_MEAN_VARIANCE, MEAN_VARIANCE)


def offsets_of_pairs(
    pairs: RowSums, features: Floats | None, scale: float, weight: float, mean_variance: float, residual: float
) -> tuple[float, Floats]:
    """Mean and offsets given the noisy sums and counts of one mode (post-processing).

    `weight` is what one observation typically adds to a count; below 1 it is a guess, and the residual variance is
    fitted, too. `residual` is the variance of what offsets leave of a value.
    """
    from scipy import sparse

    counts = np.maximum(pairs.counts, 0.0)
    noise = np.full(len(counts), pairs.sum_variance + OFFSET_VARIANCE / scale**2 * pairs.count_variance)
    believed = np.maximum(pairs.counts, math.sqrt(pairs.count_variance))
    groups = {"log counts": np.log(believed)[:, None]}
    spread = float(groups["log counts"].std())
    groups = {"log counts": groups["log counts"] / spread} if spread > 1e-9 else {}
    if features is not None:
        groups["given"] = features
    shares = believed / believed.sum()
    groups = {name: group - shares @ group for name, group in groups.items()}  # so that the mean is that of values
    variance = 1 / scale**2  # generic variances are of centred values, these are in units of the level's scale
    effects = {
        "mean": Effect(counts[:, None], mean_variance * variance, fitted=False),
        "offsets": Effect(sparse.diags(counts).tocsr(), OFFSET_VARIANCE * variance),
    }
    for name, group in groups.items():
        effects[name] = Effect(counts[:, None] * group, FEATURE_VARIANCE * variance)
    found = SumsPosterior(
        pairs.sums,
        noise,
        sparse.diags(counts * weight).tocsr(),
        residual,
        effects,
        PAIR_ROUNDS,
        fit_residual=weight < 1,
    ).coefficients
    whole = found["offsets"]
    for name, group in groups.items():
        whole = whole + group @ found[name]
    mean = float(np.clip(found["mean"][0], -1.0, 1.0))
    return mean, np.clip(whole, -1.0 - mean, 1.0 - mean)


def clipping_reach(request: Request, event: Event, modes: Sequence[int]) -> float:
    """How much of the level's three standard deviations is kept: where noise is larger than the spread of a sum, two.

    Clipping costs a bias and saves noise in proportion; it reads declared sizes only.
    """
    count = declared_count(request) / max(request.shape[mode] for mode in modes)
    noise = 2 * noise_variance(event, sums_sensitivity(request.unit))
    return 2 / 3 if not request.unit.whole_slices and noise > RESIDUAL_VARIANCE * count else 1.0


def checked_features(features: Mapping[str, ArrayLike] | None, request: Request) -> dict[int, Floats]:
    """Features by mode number, centred, with mean square one an index, all columns of a mode together."""
    found: dict[int, Floats] = {}
    for name, given in dict(features or {}).items():
        if name not in request.mode_names:
            raise InputError(f"features must be of modes {list(request.mode_names)}, got {name!r}; correct the name")
        mode = request.mode_names.index(name)
        try:
            matrix = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"features of {name!r} must be numbers, got something else; encode them") from error
        matrix = matrix[:, None] if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or len(matrix) != request.shape[mode] or not np.isfinite(matrix).all():
            raise InputError(
                f"features of {name!r} must be a finite matrix with {request.shape[mode]} rows, one an index, "
                f"got shape {matrix.shape}; give one row an index"
            )
        spread = matrix.std(axis=0)
        varying = spread > 1e-12 * np.maximum(1.0, np.abs(matrix).max(axis=0, initial=0.0))
        if varying.any():
            columns = (matrix[:, varying] - matrix[:, varying].mean(axis=0)) / spread[varying]
            found[mode] = columns / math.sqrt(columns.shape[1])
    return found


def zero_factors(family: ModelFamily, shape: tuple[int, ...]) -> FactorModel:
    """The family's model that adds nothing."""
    return family.model([np.zeros(block) for block in family.block_shapes(shape)])


def feature_factors(model: FactorModel, given: dict[int, Floats], withheld: int) -> FactorModel:
    """Factors whose features for the withheld mode are the leading directions of another mode's public features.

    An owner's row is then a regression on these; the withheld mode's own rows stay zero.
    """
    mode = next((mode for mode in sorted(given) if mode != withheld), None)
    if mode is None:
        return model
    blocks: list[Any] = [np.zeros_like(factor) for factor in model.factors]
    width = min(model.ranks[mode], model.ranks[withheld], *given[mode].shape)
    left, singular, _ = np.linalg.svd(given[mode], full_matrices=False)
    blocks[mode][:, :width] = (left * singular)[:, :width]
    for other in range(model.order):
        if other not in (mode, withheld):
            blocks[other][:, : width if model.core is None else 1] = 1.0
    if model.core is not None:
        core = np.zeros_like(model.core)
        for place in range(width):
            core[tuple(place if one in (mode, withheld) else 0 for one in range(model.order))] = 1.0
        blocks.append(core)
    return model.family.model(blocks)
