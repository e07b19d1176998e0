"""Gradient perturbation: clipped gradients of all blocks at one released state, with noise; the rest reads no data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.inference.descent import LARGEST_PARAMETER, TINY, Level, NoisyDescent, believed_counts
from tensorveil.kernels import hashing
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference import gradients
from tensorveil.mechanisms.base import (
    MARGIN,
    Design,
    Mechanism,
    Progress,
    ideal_budget,
    need_unit,
    no_progress,
    split_budget,
)
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.noise.source import (
    GAUSSIAN_DELTA,
    GRID_BITS,
    LARGEST_SUM,
    NoiseSource,
    grid_for,
    round_toward_zero,
)
from tensorveil.privacy.plan import Plan, Request, Stage
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit
from tensorveil.solvers.gradient_sums import joint_sums, local_order

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FORMS = ("gaussian", "rows", "loop")
MOST_ENTRIES = 2**30  # data sets of at most this many observations are the domain of the theorems
MOST_PARAMETERS = 2**27  # what the rounding of norms allows for: kernels/reference/gradients.py
ROW_BITS = 22  # a row sum of 2^30 terms of at most 2^23 grid steps is exact as a float
ROUND_UP = 1 + 2.0**-40  # noise scales, against the rounding of their products

# Post-processing, tuned on synthetic tensors
GAUSSIAN_STEPS, ROW_STEPS = 50, 16
FIRST_MOVE, LAST_MOVE, LAST_ROW_MOVE = 0.7, 0.2, 0.4  # share of the way to the new estimate, in first and last step
CORE_MOVE = 0.57  # times that with a core: one more block moves at once, and factors and core can undo each other
COUNT_WEIGHT = 0.5  # of an observation in the counts of a mode, beside its 1 in the count of all
MEAN_ERROR = 0.005  # of centred values: what the level's share of the budget aims at
SMALLEST_LEVEL_SHARE, LARGEST_LEVEL_SHARE = 0.02, 0.8
CLIP_SPREADS = 0.7  # clip norm, in gradients of a residual of one spread
UNCLIPPED = 0.7  # curvature left by that clipping
SMALLEST_COMPONENT = 0.15  # a component is kept at this part of the signal's level while steps go on
LOOP_START = 0.3  # of the signal's level: so much noise hardly moves the start
SIGNAL_SHARE = 0.5  # of the variance of values, taken for signal


@proves("gradient-joint", "gradient-sampled")
def joint_sensitivity(clip_norm: float, unit: Unit) -> float:
    """L2 sensitivity of a sum of vectors, one a unit, each of norm at most `clip_norm`.

    Guarantee: a replaced unit changes one vector of the sum, an added or removed one has one more or less.
    """
    return 2.0 * clip_norm if unit.coordinates_public else clip_norm  # [L1]


@proves("gradient-rows")
def row_sensitivity(clip_norm: float, unit: Unit) -> float:
    """Bound on the change of the one row of a block that an entry touches, and of the sum over rows of such changes."""
    need_unit("rows", unit, ("value", "entry"), 'use form="gaussian" with delta above 0')
    return 2.0 * clip_norm if unit.coordinates_public else clip_norm  # [L2]


@proves("gradient-loop")
def loop_sensitivity(clip_norm: float, unit: Unit) -> float:
    """Bound on the change of the row gradient that a step reads, if the step's entry is the one that changed."""
    need_unit("loop", unit, ("value",), 'use form="rows" for entry, form="gaussian" for slices')
    return 2.0 * clip_norm  # [L3]


@final
@dataclass(frozen=True)
class GradientPerturbation(Mechanism):
    """Gradient descent on clipped gradients with noise on every block.

    Parameters
    ----------
    form : "gaussian" (needs delta > 0; all units), "rows" (pure epsilon; value, entry) or "loop" (pure; value); by
        default "gaussian" if delta > 0 and "rows" otherwise
    steps : number of gradients, or of epochs for "loop"; by default chosen from the request
    sampling_probability : chance of each unit to take part in a step, for "gaussian"

    Guarantee
    ---------
    docs/proofs/gradient_perturbation.md. A first small stage releases the level of the values: their mean and spread.
    """

    name: ClassVar[str] = "gradient"

    form: str | None = None
    steps: int | None = None
    sampling_probability: float = 1.0

    def design(self, request: Request) -> Design:
        form = self._form(request)
        sizes = [math.prod(block) for block in request.family.block_shapes(request.shape)]
        if sum(sizes) > MOST_PARAMETERS:
            raise InputError(f"a model must have at most 2^27 numbers, got {sum(sizes):,}; lower the rank")
        return self._gaussian(request, sum(sizes)) if form == "gaussian" else self._pure(request, form)

    def _form(self, request: Request) -> str:
        form = ("gaussian" if request.delta > 0 else "rows") if self.form is None else self.form
        checks.choice("form", form, FORMS)
        share = checks.positive_number("sampling_probability", self.sampling_probability, "give a share in (0, 1]")
        if share > 1 or (share < 1 and form != "gaussian"):
            raise InputError(
                f"sampling_probability must be in (0, 1], and 1 unless the form is gaussian, got {share!r} with "
                f"form {form!r}; leave it out"
            )
        if self.steps is not None:
            checks.positive_integer("steps", self.steps)
        if form == "gaussian" and request.delta == 0:
            raise InputError('delta must be above 0 for form "gaussian", got 0; give e.g. delta=1e-6, or form="rows"')
        if form == "rows":
            row_sensitivity(1.0, request.unit)
        if form == "loop":
            loop_sensitivity(1.0, request.unit)
        return form

    def _gaussian(self, request: Request, parameters: int) -> Design:
        share, unit = self.sampling_probability, request.unit
        counted = () if unit.coordinates_public else request.shape  # modes whose counts the level releases
        top = _level_norm(unit, len(counted))
        steps = self.steps
        if steps is None:  # as many as the sampler's finite precision leaves delta for
            wanted = min(500, math.ceil(GAUSSIAN_STEPS / math.sqrt(share)))
            loss = (1 + math.exp(min(request.epsilon, 700.0))) * GAUSSIAN_DELTA * parameters
            steps = max(1, min(wanted, math.floor(0.4 * request.delta / loss)))
        coordinates = _level_size(unit) + sum(counted) + steps * parameters
        (whole,) = split_budget(request, [1.0], coordinates)
        if not isinstance(whole, GaussianEvent):
            raise InputError('delta must be above 0 for form "gaussian", got 0; give more')
        part = _level_share(request, whole.noise_multiplier * joint_sensitivity(top, unit), power=2)
        first = GaussianEvent(whole.noise_multiplier / math.sqrt(part))
        z_step = whole.noise_multiplier * math.sqrt(steps / (1 - part))
        theorem, z = "gradient-joint", z_step * joint_sensitivity(1.0, unit)
        each: Event = GaussianEvent(z_step, steps)
        if share < 1:
            epsilon, delta = ideal_budget(request.epsilon, request.delta, coordinates)
            z = accounting.calibrate(
                lambda noise: [first, SampledGaussianEvent(noise, share, steps, unit.coordinates_public)],
                epsilon * (1 - MARGIN),
                delta,
            )
            theorem, each = "gradient-sampled", SampledGaussianEvent(z, share, steps, unit.coordinates_public)
        z_level = first.noise_multiplier * joint_sensitivity(1.0, unit)
        if MOST_ENTRIES * (2.0 ** (GRID_BITS + 1) / min(z, z_level) + 1) > LARGEST_SUM:  # [L4] headroom, public
            raise InputError(
                f"noise must be at least a quarter of the clip norm for exact sums, got {min(z, z_level):.3g} of it; "
                "use more steps, or less epsilon"
            )
        change = "2 m" if unit.coordinates_public else "m"
        drawn = f" on a Poisson sample of {share:g}" if share < 1 else ""
        stages = (
            Stage(
                "level",
                "gradient-joint",
                first,
                f"{joint_sensitivity(top, unit):.4g} (L2)",
                f"mean, mean square{' and counts' if counted else ''} with Gaussian noise of std {z_level * top:.4g}",
            ),
            Stage(
                f"gradients, {steps} steps" + drawn,
                theorem,
                each,
                f"{change} (L2), m = clip norm of a unit's joint gradient, set by the released state",
                f"Gaussian noise of std {z:.4g} m on all {parameters:,} numbers of the model",
            ),
        )
        settings = {"form": "gaussian", "steps": steps, "sampling_probability": share, "noise": z, "level": z_level}
        return Design(stages, settings, coordinates, _trusted(request))

    def _pure(self, request: Request, form: str) -> Design:
        steps = self.steps or (ROW_STEPS if form == "rows" else 1)
        names = [f"factor of {name}" for name in request.mode_names]
        names += ["core"] * (len(request.family.block_shapes(request.shape)) - len(names))
        size, norm = _level_size(request.unit), _level_norm(request.unit)
        scale = math.sqrt(size + 1) * row_sensitivity(norm, request.unit) / request.epsilon
        part = _level_share(request, scale, power=1)
        first, rest = accounting.shares(request.epsilon, [part, 1 - part])
        private = not request.unit.coordinates_public
        first, *counting = accounting.shares(first, [1.0] + [0.5 / len(request.shape)] * len(request.shape) * private)
        budgets = accounting.shares(rest, [1.0] * len(names) * steps)[: len(names)]  # [L5] exact sums stay below
        what, s = ("steps", row_sensitivity) if form == "rows" else ("epochs", loop_sensitivity)
        top = _level_norm(request.unit)
        change = "2 m" if s(1.0, request.unit) == 2 else "m"
        stages = [
            Stage(
                "level",
                "gradient-rows",
                PureEvent(first),
                f"{row_sensitivity(top, request.unit):.4g} (L2)",
                f"mean and mean square with norm-exponential noise, epsilon {first:.4g}",
            )
        ]
        stages += [
            Stage(
                f"counts of {name}",
                "gradient-rows",
                PureEvent(budget),
                "1",
                f"observations of each index with Laplace noise, epsilon {budget:.4g}",
            )
            for name, budget in zip(request.mode_names, counting, strict=False)
        ]
        stages += [
            Stage(
                f"gradients of the {name}, {steps} {what}",
                f"gradient-{form}",
                PureEvent(budget, steps),
                f"{change} (L2, one row), m = clip norm of an entry's row gradient, set by the released state",
                f"norm-exponential noise on rows, scale {s(1.0, request.unit) / budget:.4g} m",
            )
            for name, budget in zip(names, budgets, strict=True)
        ]
        settings = {"form": form, "steps": steps, "epsilons": budgets, "level": first, "counts": tuple(counting)}
        return Design(tuple(stages), settings, 0, _trusted(request))

    def run(
        self, data: BoundedObservations, plan: Plan, noise: NoiseSource, progress: Progress = no_progress
    ) -> Completion:
        if len(data) > MOST_ENTRIES:
            raise InputError("observations must be at most 2^30, got more; complete parts of the tensor")
        level = _release_level(data, plan, noise)
        signal = level.spread * math.sqrt(SIGNAL_SHARE)
        state = NoisyDescent.start(plan.request.family, data.shape, signal, level.counts)
        solve = _loop if plan.settings["form"] == "loop" else _descend
        model = solve(data, plan, noise, level, state, progress)
        offsets = Offsets(level.mean, [None] * len(data.shape))
        return Completion(offsets, model, data.bounds.low, data.bounds.high)


def _trusted(request: Request) -> tuple[str, ...]:
    if request.unit.kind == "value":
        return ("the order of rows in the data reads no values where one cell is observed twice",)
    return ("there are at most 2^30 observations",) if request.unit.kind == "entry" else ()


def _level_size(unit: Unit) -> int:
    return 2 if unit.kind == "value" else 3


def _level_share(request: Request, noise: float, power: int) -> float:
    """Share of the budget that brings the mean's error near MEAN_ERROR, from noise at the whole budget; public."""
    shape, unit = request.shape, request.unit
    count = request.expected_count or _guessed_count(shape)
    units = shape[unit.mode_number] if unit.whole_slices else count
    return float(np.clip((noise / (units * MEAN_ERROR)) ** power, SMALLEST_LEVEL_SHARE, LARGEST_LEVEL_SHARE))


def _guessed_count(shape: tuple[int, ...]) -> float:
    return min(math.prod(shape) / 2, 100.0 * sum(shape))


def _level_norm(unit: Unit, counted: int = 0) -> float:
    """No observation's (1, y, y^2 - 1/2), or (y, y^2 - 1/2) where its count is public, is longer, for |y| <= 1.

    In each counted mode one number more, COUNT_WEIGHT, stands at the observation's index.
    """
    return math.sqrt((1.25 if unit.kind == "value" else 2.25) + counted * COUNT_WEIGHT**2)


def _usual_size(data: BoundedObservations, plan: Plan) -> float:
    """Observations of one unit to reckon with: public."""
    unit = data.unit
    if not unit.whole_slices:
        return 1.0
    size = data.shape[unit.mode_number]
    count = plan.request.expected_count or (len(data) if unit.coordinates_public else _guessed_count(data.shape))
    return max(1.0, min(count / size, unit.at_most or math.inf))


def _release_level(data: BoundedObservations, plan: Plan, noise: NoiseSource) -> Level:
    """Sums over units of (1, y, y^2 - 1/2) and, where counts are private, of how often an index occurs; with noise."""
    unit, settings = data.unit, plan.settings
    steps = np.column_stack(
        [
            np.full(len(data), VALUE_STEPS, dtype=np.int64),
            data.steps,
            np.rint(data.centred**2 * VALUE_STEPS).astype(np.int64) - VALUE_STEPS // 2,
        ]
    )[:, 3 - _level_size(unit) :]
    k = _usual_size(data, plan)
    owners, units = np.arange(len(data)), len(data)  # the unit of each observation
    sums = steps.astype(np.float64)
    if unit.whole_slices:  # exact in floats: whole numbers below 2^53
        owners, units = data.index(unit.mode_number), data.shape[unit.mode_number]
        sums = np.column_stack([np.bincount(owners, weights=column, minlength=units) for column in steps.T])
    vectors = sums / (VALUE_STEPS * k)
    gaussian = settings["form"] == "gaussian"
    counted = range(len(data.shape)) if gaussian and not unit.coordinates_public else range(0)
    squares = (vectors**2).sum(axis=1)
    for mode in counted:  # sum over indices of (times the unit has it)^2 = sum over observations of the times of theirs
        pairs = owners * data.shape[mode] + data.index(mode) if unit.whole_slices else owners
        _, which, times = np.unique(pairs, return_inverse=True, return_counts=True)
        squares += np.bincount(owners, weights=times[which], minlength=units) * (COUNT_WEIGHT / k) ** 2
    m = _level_norm(unit, len(counted))
    limit, norms = m * gradients.INSIDE, np.sqrt(squares)
    scales = np.where(norms > limit, limit / np.maximum(norms, TINY), 1.0)
    vectors *= scales[:, None]  # [L6]
    tables: list[Floats] = []
    if gaussian:
        std = settings["level"] * m * ROUND_UP
        grid = grid_for(std)
        totals = [round_toward_zero(vectors, grid).sum(axis=0)]
        each = round_toward_zero(scales * (COUNT_WEIGHT / k), grid)[owners]
        for mode in counted:
            totals.append(np.zeros(data.shape[mode], dtype=np.int64))
            np.add.at(totals[-1], data.index(mode), each)  # [L20] each observation rounded down: no norm grows
        sensitivity = joint_sensitivity(m, unit)
        released = noise.gaussian(np.concatenate(totals), grid=grid, sensitivity=sensitivity, noise_std=std)
        head, *tables = np.split(released, np.cumsum([len(part) for part in totals])[:-1])
        tables = [table * (k / COUNT_WEIGHT) for table in tables]
        variance, table_variance = std**2, (std * k / COUNT_WEIGHT) ** 2
    else:
        sensitivity, grid, epsilon = row_sensitivity(m, unit), grid_for(m, ROW_BITS), settings["level"]
        whole = round_toward_zero(vectors, grid).sum(axis=0)
        head = noise.rows(whole[None, :], grid=grid, sensitivity=sensitivity, epsilon=epsilon)[0]
        variance, table_variance = (len(whole) + 1) * (sensitivity / epsilon) ** 2, 0.0
        for mode, budget in enumerate(settings["counts"]):
            times = _times(data, mode).astype(np.int64)
            tables.append(noise.laplace(times, grid=1.0, sensitivity=1, epsilon=budget))  # [L21] an entry adds 1 to one
            table_variance = 2 / budget**2
    number = len(data) / k if unit.kind == "value" else float(head[0])
    counts = [believed_counts(table, table_variance, number * k) for table in tables]
    if unit.coordinates_public:
        counts = [_times(data, mode) for mode in range(len(data.shape))]
    return Level.of(number, float(head[-2]), float(head[-1]) + number / 2, variance, counts)


def _times(data: BoundedObservations, mode: int) -> Floats:
    """How often each index of a mode is observed."""
    return np.bincount(data.index(mode), minlength=data.shape[mode]).astype(np.float64)


def _descend(
    data: BoundedObservations, plan: Plan, noise: NoiseSource, level: Level, state: NoisyDescent, progress: Progress
) -> FactorModel:
    """Full-batch steps, or Poisson batches; returns the last state, shrunk by what its noise makes of it."""
    unit, settings = data.unit, plan.settings
    form, steps = settings["form"], settings["steps"]
    share = settings.get("sampling_probability", 1.0)
    order = np.arange(len(data)) if share < 1 else local_order(data.coordinates, state.model())
    if unit.whole_slices:  # [L7] a rule that reads one slice's own observations only
        columns = [data.steps, *data.coordinates.T, data.coordinates[:, unit.mode_number]]
        order = np.lexsort(tuple(columns))
    where = np.ascontiguousarray(data.coordinates[order])
    values = data.centred[order] - level.mean
    counts = [*level.counts, np.array([level.counts[0].sum()])]  # the last of the core
    usual = _usual_size(data, plan)
    model = state.model()
    for step in range(steps):
        progress("gradient steps", step, steps)
        state = state.balanced(SMALLEST_COMPONENT) if step else state
        model = state.model()
        lengths, left = state.feature_norms(), 1.0
        if form == "gaussian":
            length = float(np.linalg.norm(lengths))
            m = 2 * CLIP_SPREADS * level.spread * length * math.sqrt(usual)
            if unit.whole_slices:  # a slice's residuals that agree add up in its own row: more is clipped
                agreeing = 2 * usual * float(lengths[unit.mode_number]) * level.spread
                left = min(1.0, m / math.hypot(m, agreeing))
            noisy, variance = _joint_step(data, where, values, model, m, settings["noise"], share, noise)
            variances = [variance] * len(lengths)
        else:
            norms = 2 * CLIP_SPREADS * level.spread * lengths
            noisy, variances = _row_step(data, where, values, model, norms, settings["epsilons"], counts, noise)
        last = LAST_MOVE if form == "gaussian" else LAST_ROW_MOVE
        move = (FIRST_MOVE if state.core is None else FIRST_MOVE * CORE_MOVE) * (last / FIRST_MOVE) ** (
            step / max(steps - 1, 1)
        )
        believed = [UNCLIPPED * share * left * count for count in counts]
        # what is summed is minus the gradient, of which the normal equations need half
        state = state.moved(model, noisy / 2, [v / 4 for v in variances], believed, left * level.spread**2, move)
    progress("gradient steps", steps, steps)
    return state.model()


def _joint_step(
    data: BoundedObservations,
    where: NDArray[np.uint32],
    values: Floats,
    model: FactorModel,
    m: float,
    noise_multiplier: float,
    share: float,
    noise: NoiseSource,
) -> tuple[Floats, float]:
    """Sum of clipped joint gradients with Gaussian noise on every number of the model, and the noise's variance."""
    unit = data.unit
    units = data.shape[unit.mode_number] if unit.whole_slices else len(data)
    std = noise_multiplier * m * ROUND_UP  # [L8]
    grid = grid_for(std)
    chosen = np.ones(units, dtype=np.bool_)
    if share < 1:
        chosen = noise.coins(max(units, 1), share)  # [L9] one coin a unit, fresh in every step
    totals = np.zeros(model.parameters.size, dtype=np.int64)
    layout = (model.parameters, model.block_starts, model.block_widths, where, values)
    if unit.whole_slices:
        slices = where[:, unit.mode_number].astype(np.int64)
        gradients.slice_sums(*layout, slices, chosen, m, grid, totals)  # [L10]
    else:
        fast = worth_compiling(math.prod(data.shape), model.family.name)  # the shape is public, len(data) is not
        totals = joint_sums(model, where, values, chosen, m, grid, fast=fast)  # [L11]
    released = noise.gaussian(totals, grid=grid, sensitivity=joint_sensitivity(m, unit), noise_std=std)  # [L12]
    return released, std**2


def _row_step(
    data: BoundedObservations,
    where: NDArray[np.uint32],
    values: Floats,
    model: FactorModel,
    norms: Floats,
    epsilons: Sequence[float],
    counts: Sequence[Floats],
    noise: NoiseSource,
) -> tuple[Floats, list[float]]:
    """Sums of clipped row gradients with norm-exponential noise on rows, and the noise's variance in each block."""
    grids = np.array([grid_for(float(m), ROW_BITS) for m in norms])
    totals = np.zeros(model.parameters.size, dtype=np.int64)
    layout = (model.parameters, model.block_starts, model.block_widths, where, values)
    gradients.row_sums(*layout, norms, grids, totals)  # [L13]
    released = np.zeros(totals.size)
    variances = []
    ends = np.append(model.block_starts[1:], totals.size)
    for b, (start, end, width) in enumerate(zip(model.block_starts, ends, model.block_widths, strict=True)):
        s = row_sensitivity(float(norms[b]), data.unit)
        steps = totals[start:end].reshape(-1, width)  # [L14] whole numbers
        table, active = np.zeros(steps.shape), np.ones(len(steps), dtype=np.bool_)
        if data.unit.coordinates_public:  # [L15] rows without observations are public, and hold nothing
            active = counts[b] > 0
        if active.any():
            table[active] = noise.rows(steps[active], grid=grids[b], sensitivity=s, epsilon=epsilons[b])  # [L16]
        released[start:end] = table.ravel()
        variances.append((width + 1) * (s / epsilons[b]) ** 2)
    return released, variances


def _loop(
    data: BoundedObservations, plan: Plan, noise: NoiseSource, level: Level, state: NoisyDescent, progress: Progress
) -> FactorModel:
    """The paper's loop: one entry a step, noise on the row it touches in every block.

    The gain of a row falls as it is visited: that of a scalar Kalman filter that knows the noise.
    """
    epochs, epsilons = plan.settings["steps"], plan.settings["epsilons"]
    hashes = np.empty(len(data), dtype=np.uint64)
    hashing.hash_rows(data.coordinates, np.uint64(1), np.uint64(2), hashes)
    visits = np.argsort(hashes, kind="stable")  # [L17] reads coordinates only
    state = state.balanced(LOOP_START, exactly=True)
    model = state.model()
    parameters, starts, widths = model.parameters.copy(), model.block_starts, model.block_widths
    lengths = state.feature_norms()
    norms = 2 * CLIP_SPREADS * level.spread * lengths
    curvatures = UNCLIPPED * lengths**2 / widths
    prior = float((parameters**2).mean())
    trust: dict[int, float] = {}  # variance of each visited row around the truth
    values = data.centred - level.mean
    totals = np.zeros(parameters.size, dtype=np.int64)
    grids = np.array([grid_for(float(m), ROW_BITS) for m in norms])
    for step in range(epochs * len(data)):
        if step % 1000 == 0:
            progress("gradient steps", step, epochs * len(data))
        w = visits[step % len(data)]
        row = [int(s + i * d) for s, i, d in zip(starts, data.coordinates[w], widths, strict=False)]
        row += [int(s) for s in starts[len(row) :]]
        one = slice(w, w + 1)
        gradients.row_sums(
            parameters, starts, widths, data.coordinates[one], values[one], norms, grids, totals
        )  # [L18]
        for b, place in enumerate(row):
            cells = slice(place, place + int(widths[b]))
            s = loop_sensitivity(float(norms[b]), data.unit)
            exact = totals[None, cells].copy()
            totals[cells] = 0
            noisy = noise.rows(exact, grid=grids[b], sensitivity=s, epsilon=epsilons[b])[0] / 2  # [L19]
            variance = (widths[b] + 1) * (s / epsilons[b]) ** 2 / 4 + curvatures[b] * level.spread**2
            spread = trust.get(place, prior)
            gain = spread * curvatures[b] / (curvatures[b] ** 2 * spread + variance)
            trust[place] = spread * (1 - gain * curvatures[b])
            moved = parameters[cells] + gain * noisy
            parameters[cells] = np.clip(moved, -LARGEST_PARAMETER, LARGEST_PARAMETER)
    progress("gradient steps", epochs * len(data), epochs * len(data))
    return model.replace_parameters(parameters)
