"""Gradient perturbation: noisy clipped gradients of all blocks at a released state; the rest is post-processing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError
from tensorveil.inference import descent
from tensorveil.mechanisms import base
from tensorveil.mechanisms.planning.noise_range import check_change
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CPModel
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import MOST_OBSERVATIONS
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GRID_BITS, LARGEST_SUM, grid_for
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.gradients import ROW_BITS, JointGradients, RowGradients, check_parameters
from tensorveil.privacy.queries.moments import COUNT_WEIGHT, Counts, UnitMoments
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault

FORMS = ("gaussian", "rows")
LEVEL = "level"  # the name of the first stage

# Tuned on synthetic tensors
GAUSSIAN_STEPS, ROW_STEPS = 50, 16
WANTED_MEAN_ERROR = 0.005  # of centred values: what the first stage's share of the budget aims at
SMALLEST_LEVEL_SHARE, LARGEST_LEVEL_SHARE = 0.02, 0.8


@final
@dataclass(frozen=True)
class Settings:
    """The form, the number of steps and, for Gaussian noise, its standard deviations in clip norms.

    `level_noise` is that of the first stage, `noise` that of the steps.
    """

    form: str
    steps: int
    sampling_probability: float = 1.0
    level_noise: float = 0.0
    noise: float = 0.0


@final
@dataclass(frozen=True)
class GradientPerturbation(base.Mechanism):
    """Gradient descent on clipped gradients with noise on every block.

    Parameters
    ----------
    form : "gaussian" (needs delta > 0; all units) or "rows" (pure epsilon; value, entry); by default "gaussian" if
        delta > 0 and "rows" otherwise
    steps : number of gradients; by default chosen from the request
    sampling_probability : probability that a unit takes part in a step, for "gaussian"

    Guarantee
    ---------
    docs/proofs/gradients.md. A first small stage releases the level of the values: their mean and spread.

    A non-negative model predicts the lower bound plus its factors. Numbers that a step moves below zero become zero.
    That is post-processing: the next gradients are asked for at the state without them.
    """

    name: ClassVar[str] = "gradient"

    form: str | None = None
    steps: int | None = None
    sampling_probability: float = 1.0

    def design(self, request: Request) -> base.Design:
        form = self._form(request)
        parameters = sum(math.prod(block) for block in request.family.block_shapes(request.shape))
        check_parameters(parameters)
        return self._gaussian(request, parameters) if form == "gaussian" else self._rows(request)

    def keeps_nonnegative(self, unit: Unit) -> bool:
        return True

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
            base.need_unit("rows", request.unit, ("value", "entry"), 'use form="gaussian" with delta above 0')
        return form

    def _gaussian(self, request: Request, parameters: int) -> base.Design:
        share, unit = self.sampling_probability, request.unit
        counted = _counted(request)
        moved, norm = _moved(unit), _moments_norm(unit, len(counted))
        steps = self.steps
        if steps is None:  # as many as the sampler's finite precision leaves delta for
            wanted = min(500, math.ceil(GAUSSIAN_STEPS / math.sqrt(share)))
            loss = (1 + math.exp(min(request.epsilon, 700.0))) * GAUSSIAN_DELTA * parameters
            steps = max(1, min(wanted, math.floor(0.4 * request.delta / loss)))
        coordinates = _moments_size(unit) + sum(request.shape[mode] for mode in counted) + steps * parameters
        (whole,) = base.split_budget(request, [1.0], coordinates)
        if not isinstance(whole, GaussianEvent):
            raise InputError('delta must be above 0 for form "gaussian", got 0; use a larger delta')
        part = _level_share(request, whole.noise_multiplier * moved * norm, power=2)
        first = GaussianEvent(whole.noise_multiplier / math.sqrt(part))
        z_step = whole.noise_multiplier * math.sqrt(steps / (1 - part))
        each: Event = GaussianEvent(z_step, steps)
        z, z_level = z_step * moved, first.noise_multiplier * moved
        if share < 1:
            epsilon, delta = base.ideal_budget(request.epsilon, request.delta, coordinates)
            z = calibrate(
                lambda noise: [first, SampledGaussianEvent(noise, share, steps, unit.coordinates_public)],
                epsilon * (1 - base.MARGIN),
                delta,
            )
            each = SampledGaussianEvent(z, share, steps, unit.coordinates_public)
        if MOST_OBSERVATIONS * (2.0 ** (GRID_BITS + 1) / min(z, z_level) + 1) > LARGEST_SUM:  # as the queries will ask
            raise InputError(
                f"noise must be at least a quarter of the clip norm for exact sums, got {min(z, z_level):.3g} of it; "
                "use more steps or a smaller epsilon"
            )
        settings = Settings("gaussian", steps, share, z_level, z)
        level = Sensitivity(moved * norm, Norm.L2, "centred values")
        rule = f"{_in_norms(unit)} (L2), m = clip norm of a unit's joint gradient, set by the released state"
        joint, theorem = Sensitivity(None, Norm.L2, rule), "gradient-joint" if share == 1 else "gradient-sampled"
        moments, model = (
            f"mean, mean square{' and counts' if counted else ''}",
            f"all {parameters:,} numbers of the model",
        )
        stages = (
            Stage(LEVEL, "gradient-joint", first, level, Law.GAUSSIAN, moments),
            Stage(_steps_name(settings), theorem, each, joint, Law.GAUSSIAN, model),
        )
        return base.Design(stages, settings, coordinates, _trusted(unit))

    def _rows(self, request: Request) -> base.Design:
        steps, unit = self.steps or ROW_STEPS, request.unit
        moved, norm = _moved(unit), _moments_norm(unit)
        blocks = _block_names(request, steps)
        part = _level_share(request, math.sqrt(_moments_size(unit) + 1) * (moved * norm) / request.epsilon, power=1)
        first, rest = accounting.shares(request.epsilon, [part, 1 - part])
        counted = _counted(request)
        first, *counting = accounting.shares(first, [1.0] + [0.5 / len(request.shape)] * len(counted))
        budgets = accounting.shares(rest, [1.0] * len(blocks) * steps)[: len(blocks)]  # rounded down: no sum is above
        _check_rows(request, first, counting, budgets)
        theorem, level = "gradient-rows", Sensitivity(moved * norm, Norm.ROWS, "centred values")
        observed = Sensitivity(1.0, Norm.L1, "observations")
        rule = f"{_in_norms(unit)} (L2, one row), m = clip norm of an entry's row gradient, set by the released state"
        stages = [Stage(LEVEL, theorem, PureEvent(first), level, Law.ROWS, "mean and mean square")]
        for mode, budget in zip(counted, counting, strict=True):
            name, event = _counts_name(request, mode), PureEvent(budget)
            stages.append(Stage(name, theorem, event, observed, Law.LAPLACE, "observations of each index"))
        for name, budget in zip(blocks, budgets, strict=True):
            row = Sensitivity(None, Norm.ROWS, rule)
            stages.append(Stage(name, theorem, PureEvent(budget, steps), row, Law.ROWS, "rows"))
        return base.Design(tuple(stages), Settings("rows", steps), 0, _trusted(unit))

    def run(self, vault: Vault, plan: Plan, progress: base.Progress = base.no_progress) -> Completion:
        request, settings = plan.request, plan.settings
        gaussian, steps = settings.form == "gaussian", settings.steps
        size = _usual_size(vault, request)
        moments = _ask_moments(vault, request, settings, size)
        counts = [*moments.counts, np.array([moments.counts[0].sum()])]  # the last of the core
        state = descent.NoisyDescent.start(request.family, vault.shape, moments)
        mean = -1.0 if request.family.nonnegative else moments.mean  # what predictions add to the factors
        model = state.model()
        for step in range(steps):
            progress("gradient steps", step, steps)
            state = state.balanced(descent.SMALLEST_COMPONENT) if step else state
            model = state.model()
            if gaussian:
                mode = vault.unit.mode_number if vault.unit.whole_slices else None
                norm, left = state.joint_clipping(moments.spread, size, mode)
                sums, variances = _ask_joint(vault, settings, model, mean, norm)
            else:
                norms, left = state.clip_norms(moments.spread), 1.0
                sums, variances = _ask_rows(vault, request, settings, model, mean, norms, counts)
            move = state.move(step, steps, descent.LAST_MOVE if gaussian else descent.LAST_ROW_MOVE)
            curved = [descent.UNCLIPPED * settings.sampling_probability * left * count for count in counts]
            # what is summed is minus the gradient, of which the normal equations need half
            state = state.moved(model, sums / 2, [v / 4 for v in variances], curved, left * moments.spread**2, move)
        progress("gradient steps", steps, steps)
        offsets = Offsets(mean, [None] * len(vault.shape))
        return Completion(offsets, state.model(), request.bounds.low, request.bounds.high)


def _check_rows(request: Request, first: float, counting: Sequence[float], budgets: Sequence[float]) -> None:
    """Refuse, while planning, what the vault would refuse later: noise that does not fit the grids of the queries."""
    unit, norm = request.unit, _moments_norm(request.unit)
    (level,) = UnitMoments(1.0, norm, (), grid_for(norm, ROW_BITS), True).sensitivity(unit)
    check_change(PureEvent(first), level, 1, _moments_size(unit))
    for mode, budget in zip(_counted(request), counting, strict=True):
        check_change(PureEvent(budget), Counts(1).sensitivity(unit)[0], request.shape[mode])
    # clip norms follow from released states: the most and the fewest grid steps that any of them has
    norms = np.array([1.0, math.nextafter(2.0, 0.0)])
    any_model, any_rows = CPModel([np.zeros((1, 1))] * 2), (np.ones(1, dtype=np.bool_),) * 2
    changes = RowGradients(any_model, 0.0, norms, any_rows).sensitivity(unit)
    for block, budget in enumerate(budgets):
        for change in changes:
            check_change(PureEvent(budget), change, *base.rows_and_width(request, block))


def _trusted(unit: Unit) -> tuple[str, ...]:
    return () if unit.coordinates_public else ("there are at most 2^30 observations",)


def _moved(unit: Unit) -> float:
    """How far one unit can move a sum of clipped vectors, in clip norms."""
    return 2.0 if unit.coordinates_public else 1.0


def _in_norms(unit: Unit) -> str:
    return "2 m" if unit.coordinates_public else "m"


def _counted(request: Request) -> tuple[int, ...]:
    """The modes whose counts are private and are released by the first stages."""
    return () if request.unit.coordinates_public else tuple(range(len(request.shape)))


def _moments_size(unit: Unit) -> int:
    return 2 if unit.kind == "value" else 3


def _moments_norm(unit: Unit, counted: int = 0) -> float:
    """No observation's (1, y, y^2 - 1/2), or (y, y^2 - 1/2) where its count is public, is longer, for |y| <= 1.

    Each counted mode adds one number, COUNT_WEIGHT, at the index of the observation.
    """
    return math.sqrt((1.25 if unit.kind == "value" else 2.25) + counted * COUNT_WEIGHT**2)


def _level_share(request: Request, noise: float, power: int) -> float:
    """Share of the budget that brings the mean's error near the wanted one, from noise at the whole budget; public."""
    unit = request.unit
    units = request.shape[unit.mode_number] if unit.whole_slices else request.count_or_guess
    return float(np.clip((noise / (units * WANTED_MEAN_ERROR)) ** power, SMALLEST_LEVEL_SHARE, LARGEST_LEVEL_SHARE))


def _counts_name(request: Request, mode: int) -> str:
    return f"counts of {request.mode_names[mode]}"


def _steps_name(settings: Settings) -> str:
    share = settings.sampling_probability
    return f"gradients, {settings.steps} steps" + (f" on a Poisson sample of {share:g}" if share < 1 else "")


def _block_names(request: Request, steps: int) -> list[str]:
    """The names of the stages that pay for the gradients of each block."""
    blocks = [f"factor of {name}" for name in request.mode_names]
    blocks += ["core"] * (len(request.family.block_shapes(request.shape)) - len(blocks))
    return [f"gradients of the {block}, {steps} steps" for block in blocks]


def _usual_size(vault: Vault, request: Request) -> float:
    """The assumed number of observations per unit; public."""
    unit = vault.unit
    if not unit.whole_slices:
        return 1.0
    count = request.expected_count or (len(vault.pattern) if unit.coordinates_public else request.count_or_guess)
    return max(1.0, min(count / vault.shape[unit.mode_number], unit.at_most or math.inf))


def _ask_moments(vault: Vault, request: Request, settings: Settings, size: float) -> descent.Moments:
    """The released mean and spread of the values, and the counts of all indices, public or released."""
    unit, gaussian = vault.unit, settings.form == "gaussian"
    counted = _counted(request)
    norm = _moments_norm(unit, len(counted) if gaussian else 0)
    grid = grid_for(settings.level_noise * norm) if gaussian else grid_for(norm, ROW_BITS)
    answer = vault.answer(LEVEL, UnitMoments(size, norm, counted if gaussian else (), grid, not gaussian))
    released = answer.values.ravel()
    ends = np.cumsum([_moments_size(unit), *(request.shape[mode] for mode in counted)])[:-1]
    head, *tables = np.split(released, ends) if gaussian else [released]
    number = len(vault.pattern) / size if unit.kind == "value" else float(head[0])
    if unit.coordinates_public:
        counts = [vault.pattern.counts(mode).astype(np.float64) for mode in range(len(vault.shape))]
    elif gaussian:
        scale = size / COUNT_WEIGHT
        variance = (answer.law.scale * scale) ** 2
        counts = [descent.believed_counts(table * scale, variance, number * size) for table in tables]
    else:
        asked = vault.answers([_counts_name(request, mode) for mode in counted], Counts(len(counted)))
        counts = [descent.believed_counts(table.values, table.law.variance, number * size) for table in asked]
    return descent.Moments.of(number, float(head[-2]), float(head[-1]) + number / 2, answer.law.variance, counts)


def _ask_joint(
    vault: Vault, settings: Settings, model: FactorModel, mean: float, norm: float
) -> tuple[Floats, list[float]]:
    """Noisy sums of clipped joint gradients, and the variance of the noise in each block."""
    grid = grid_for(settings.noise * norm)
    query = JointGradients(model, mean, norm, grid, sampled=settings.sampling_probability < 1)
    answer = vault.answer(_steps_name(settings), query)
    return answer.values, [answer.law.variance] * len(model.block_starts)


def _ask_rows(
    vault: Vault,
    request: Request,
    settings: Settings,
    model: FactorModel,
    mean: float,
    norms: Floats,
    counts: list[Floats],
) -> tuple[Floats, list[float]]:
    """Noisy sums of clipped row gradients, and the variance of the noise in each block."""
    every = [np.ones(len(count), dtype=np.bool_) for count in counts[: len(norms)]]
    rows = [count > 0 for count in counts[: len(norms)]] if vault.unit.coordinates_public else every
    query = RowGradients(model, mean, norms, tuple(rows))
    answers = vault.answers(_block_names(request, settings.steps), query)
    blocks = []
    for answer, known, width in zip(answers, rows, model.block_widths, strict=True):
        blocks.append(np.zeros((len(known), width)))  # rows without observations have no gradient, which is public
        blocks[-1][known] = answer.values
    return np.concatenate([block.ravel() for block in blocks]), [answer.law.variance for answer in answers]
