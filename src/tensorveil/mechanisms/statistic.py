"""Statistic perturbation: alternating least squares on statistics that get noise once per half-sweep."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError, SizeError
from tensorveil.inference.level import Level
from tensorveil.inference.priors import LEVELLED_VARIANCE
from tensorveil.inference.rows import posterior_rows
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference.least_squares import feature_norms
from tensorveil.kernels.reference.statistics import row_matrices, square_matrices
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, rows_and_width, split_budget
from tensorveil.mechanisms.parts.marginal import ask_marginal, marginal_coordinates, marginal_shares, marginal_stages
from tensorveil.mechanisms.parts.offsets import ask_offsets, offset_coordinates, offset_modes, offset_stages
from tensorveil.mechanisms.planning.noise_range import check_row_noise
from tensorveil.models.block_features import largest_feature, typical_feature
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CPModel
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.contributions import slice_weights
from tensorveil.privacy.queries.rows.normal_equations import STATISTIC_GRID, NormalEquations
from tensorveil.privacy.queries.rows.own_rows import Reading, block_rows, check_width
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.vault import Pattern, Vault
from tensorveil.solvers.layouts.sorted_entries import SortedEntries
from tensorveil.solvers.layouts.strata import sensible_threads
from tensorveil.solvers.start import public_start

START_STD = 0.5
SMALLEST_PRIOR = 1e-3  # before the last sweep: a start that noise shrinks to nothing would never come back
LARGEST_PRIOR = 1.0  # variance of a number in a row, on the scale of normalised features
ROW_RIDGE = 2.0  # residual variance over the variance of an own row, in units of the features' own size
GENEROUS_LIMIT = 2.0  # features up to twice their typical length pass unclipped under entry and slice
MAX_CORE_CELLS = 512  # its matrix has as many rows and columns


@final
@dataclass(frozen=True)
class Settings:
    """The modes that get offsets, and the blocks of a sweep in the order they are updated."""

    offset_modes: tuple[int, ...]
    blocks: tuple[int, ...]


@final
@dataclass(frozen=True)
class StatisticPerturbation(Mechanism):
    """Private alternating least squares (docs/proofs/normal_equations.md).

    - ``value``, ``slice_values``: noise on the right-hand sides g; the matrices H read no values and are free.
    - ``entry``: noise on g and H of every row, with or without data (needs delta above 0).
    - ``slice``: the same with weights that bound a whole slice; the slice's own rows and offsets stay with their owners
      (joint privacy, needs delta above 0): see `Release.personalize`.

    Parameters
    ----------
    sweeps : number of updates per block
    marginal_share : share of the budget for the marginal law of the values; by default it falls with the expected count
    offsets_share : share of the remaining budget for offsets; the rest is split evenly over the updates
    """

    sweeps: int = 2
    marginal_share: float | None = None
    offsets_share: float = 0.25
    name: ClassVar[str] = "statistic"

    def __post_init__(self) -> None:
        checks.positive_integer("sweeps", self.sweeps)
        checks.fraction("offsets_share", self.offsets_share)
        if self.marginal_share is not None:
            checks.fraction("marginal_share", self.marginal_share)

    def design(self, request: Request) -> Design:
        if request.delta == 0 and not request.unit.coordinates_public:
            raise InputError(
                f"delta must be above 0 for the unit {request.unit}, where matrices get noise as well, got 0; "
                "give e.g. delta=1e-6, or use input or gradient perturbation for pure privacy"
            )
        ranks = request.family.ranks_for(request.shape)
        if request.family.name == "tucker" and np.prod(ranks) > MAX_CORE_CELLS:
            raise SizeError(
                f"the core must have at most {MAX_CORE_CELLS} cells here, got {np.prod(ranks)} for ranks {ranks}; "
                "lower them or use gradient perturbation"
            )
        check_width(max(ranks))
        modes, blocks = offset_modes(request, _withheld(request)), _blocks(request)
        parts = 1 if request.unit.coordinates_public else 2
        shares = marginal_shares(request, self.marginal_share)
        first, left = len(shares), 1 - math.fsum(shares)
        shares += [left * self.offsets_share / len(modes)] * len(modes)
        rest = left * (1 - self.offsets_share)
        shares += [rest / (self.sweeps * len(blocks) * parts)] * (self.sweeps * len(blocks) * parts)
        coordinates = (
            marginal_coordinates(request)
            + offset_coordinates(request, modes)
            + self.sweeps * sum(_numbers(request, block, parts) for block in blocks)
        )
        events = split_budget(request, shares, coordinates)
        stages = [
            *marginal_stages(request, events[:first]),
            *offset_stages(request, modes, events[first : first + len(modes)]),
        ]
        # theorem and bounds are the same for every model
        any_model, any_reading = CPModel([np.zeros((1, 1))] * 2), Reading(0.0, 1.0, Offsets.none(2))
        query = NormalEquations(any_reading, any_model, 0, np.ones(1), np.arange(1), pure=request.delta == 0)
        changes = query.sensitivity(request.unit)
        remaining = iter(events[first + len(modes) :])
        for sweep in range(self.sweeps):
            for block in blocks:
                name = "core" if block == len(request.shape) else request.mode_names[block]
                for what, change in zip(("right-hand sides", "matrices"), changes, strict=False):
                    event = next(remaining)
                    check_row_noise(event, change, *rows_and_width(request, block))
                    full, theorem = f"sweep {sweep + 1}, {name}, {what}", query.theorem(request.unit)
                    sensitivity = Sensitivity(change.bound, change.norm, "normalised features")
                    stages.append(Stage(full, theorem, event, sensitivity, LAW_OF_NORM[change.norm], what))
        return Design(tuple(stages), Settings(modes, blocks), coordinates)

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        request, settings = plan.request, plan.settings
        first = len(marginal_shares(request))
        level = Level.of(ask_marginal(vault, plan.stages[:first], plan.request.bounds))
        others = plan.stages[first:]
        offsets = ask_offsets(vault, level, settings.offset_modes, others[: len(settings.offset_modes)])
        reading = Reading(level.mean, level.scale, offsets)
        model = public_start(request.family, request.shape, std=START_STD)
        entries = _sorted_pattern(vault, model)
        remaining = iter(others[len(settings.offset_modes) :])
        done, total = 0, self.sweeps * len(settings.blocks)
        for sweep in range(self.sweeps):
            smallest = 0.0 if sweep == self.sweeps - 1 else SMALLEST_PRIOR
            for block in settings.blocks:
                stages = [next(remaining) for _ in range(1 if vault.unit.coordinates_public else 2)]
                model = model.with_block(block, _half_sweep(vault, stages, reading, model, block, entries, smallest))
                done += 1
                progress("half-sweeps", done, total)
        withheld = _withheld(request)
        if withheld is not None:
            model = model.with_block(withheld, np.zeros_like(model.factors[withheld]))
        return level.completion(offsets, model, (request.bounds.low, request.bounds.high), withheld)


def _half_sweep(
    vault: Vault,
    stages: Sequence[Stage],
    reading: Reading,
    model: FactorModel,
    block: int,
    entries: SortedEntries | None,
    smallest: float,
) -> Floats:
    """New rows of one block, from answers and, with public coordinates, from limits and matrices that are free."""
    pure = isinstance(stages[0].event, PureEvent)
    size, width = 1 if block == model.order else model.shape[block], int(model.block_widths[block])
    if entries is not None:
        matrices = entries.row_matrices(model, block)
        limits, rows = matrices.limits, entries.lists[block].rows
    elif vault.unit.coordinates_public:
        limits, rows, triangles = _public_matrices(vault.pattern, model, block, pure)
    else:
        limits, rows = np.full(size, GENEROUS_LIMIT * typical_feature(model, block)), np.arange(size)
    own = (1.0, 1.0)
    if vault.unit.kind == "slice":
        mode = vault.unit.mode_number
        own_limit = largest_feature(model, mode)
        own = (own_limit, max(ROW_RIDGE * typical_feature(model, mode) ** 2 / own_limit**2, 1e-9))
    query = NormalEquations(reading, model, block, limits, rows, pure, own)
    answers = vault.answers([stage.name for stage in stages], query)
    right = np.zeros((size, width))
    right[rows] = answers[0].values
    prior = (LEVELLED_VARIANCE, smallest, LARGEST_PRIOR)
    if entries is not None:
        scaled = matrices.posterior_rows(right, answers[0].law.variance, *prior)
    else:
        matrix_noise = 0.0
        if not vault.unit.coordinates_public:
            triangles, matrix_noise = answers[1].values, float(np.sqrt(answers[1].law.variance))
        H = square_matrices(triangles, width)
        scaled = posterior_rows(right, H, answers[0].law.variance, matrix_noise, *prior)
    return np.asarray(scaled / limits[:, None])


def _public_matrices(pattern: Pattern, model: FactorModel, block: int, pure: bool) -> tuple[Floats, Integers, Floats]:
    """The largest length of the features in each row, the rows with data, and the triangles of H."""
    blocks = (model.numbers, pattern.coordinates, block)
    where, size = block_rows(pattern, block)
    width = int(model.block_widths[block])
    limits = np.zeros(size)
    feature_norms(*blocks, limits)
    H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
    row_matrices(*blocks, slice_weights(pattern, where, pure), limits, H)
    return limits, np.flatnonzero(np.bincount(where, minlength=size)), np.asarray(H * STATISTIC_GRID)


def _sorted_pattern(vault: Vault, model: FactorModel) -> SortedEntries | None:
    """Public coordinates in the order of every mode, where there are many and all weights are 1."""
    if vault.unit.kind != "value" or not worth_compiling(len(vault.pattern), model.family.name):
        return None
    pattern = vault.pattern
    threads = sensible_threads(None, len(pattern), model.order)
    return SortedEntries.of(pattern.coordinates, np.zeros(len(pattern)), pattern.shape, threads, np.float64)


def _withheld(request: Request) -> int | None:
    """Under joint privacy, the mode whose rows and offsets stay with their owners."""
    return request.unit.mode_number if request.unit.kind == "slice" else None


def _blocks(request: Request) -> tuple[int, ...]:
    """Blocks in the order they are updated: large modes first, the core last."""
    modes = sorted(
        (mode for mode in range(len(request.shape)) if mode != _withheld(request)),
        key=lambda mode: (-request.shape[mode], mode),
    )
    return (*modes, len(request.shape)) if request.family.name == "tucker" else tuple(modes)


def _numbers(request: Request, block: int, parts: int) -> int:
    """How many numbers get noise in one half-sweep."""
    rows, width = rows_and_width(request, block)
    return rows * (width + (parts - 1) * width * (width + 1) // 2)
