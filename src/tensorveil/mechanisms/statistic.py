"""Statistic perturbation: alternating least squares in which every half-sweep reads the data through noise once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError, SizeError
from tensorveil.inference.rows import posterior_rows, square_matrices
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference.statistics import STATISTIC_STEPS, feature_norms, row_statistics
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.level import Level, default_level_share, level_coordinates, level_stage, release_level
from tensorveil.mechanisms.noisy_sums import check_noise, noisy_rows, slice_weights
from tensorveil.mechanisms.personal import personal_offsets, personal_rows, typical_feature
from tensorveil.mechanisms.private_offsets import offset_coordinates, offset_modes, offset_stages, release_offsets
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.bounds import BoundedObservations, Bounds
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan, Request, Stage
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit
from tensorveil.solvers.layouts.sorted_entries import SortedEntries
from tensorveil.solvers.layouts.strata import sensible_threads
from tensorveil.solvers.start import public_start

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

RESIDUAL_VARIANCE = 1 / 9  # of values brought to three standard deviations of their level; weighs noise only
SMALLEST_PRIOR = 1e-3  # before the last sweep: a start that noise shrinks to nothing would never come back
LARGEST_PRIOR = 1.0  # variance of a number in a row, on the scale of normalised features
GENEROUS_LIMIT = 2.0  # features up to twice their typical length pass unclipped under entry and slice
MAX_CORE_CELLS = 512  # its matrix has as many rows and columns


@proves("statistic-values", "statistic-entries", "statistic-slices")
def statistic_sensitivity(unit: Unit) -> float:
    """How far one unit moves g, or H in Frobenius norm: 1 added or removed, 2 replaced.

    Features are at most 1 long, residuals at most 1, and the weights of a unit satisfy sum_r (sum a)^2 <= 1 (Gaussian)
    or sum a <= 1 (pure), so that a unit's part in g, and in H, is at most 1 in the norm of the noise.
    """
    return 2.0 if unit.coordinates_public else 1.0  # [L1]


@final
@dataclass(frozen=True)
class StatisticPerturbation(Mechanism):
    """Private alternating least squares (docs/proofs/statistic_perturbation.md).

    - ``value``, ``slice_values``: noise on the right-hand sides g; the matrices H read no values and are free.
    - ``entry``: noise on g and on H, on every row, data or not (needs delta above 0).
    - ``slice``: the same with weights that bound a whole slice; the slice's own rows and offsets stay with their owners
      (joint privacy, needs delta above 0): see `Release.personalize`.

    Parameters
    ----------
    sweeps : how often each block is updated
    level_share : share of the budget for level and spread; default: what brings the mean's noise to a hundredth of the
        width of the bounds, by the expected count
    offsets_share : share of the rest for offsets; what remains is split evenly
    """

    sweeps: int = 2
    level_share: float | None = None
    offsets_share: float = 0.25
    name: ClassVar[str] = "statistic"

    def __post_init__(self) -> None:
        checks.positive_integer("sweeps", self.sweeps)
        checks.fraction("offsets_share", self.offsets_share)
        if self.level_share is not None:
            checks.fraction("level_share", self.level_share)

    def design(self, request: Request) -> Design:
        if request.delta == 0 and not request.unit.coordinates_public:
            raise InputError(
                f"delta must be above 0 for the unit {request.unit}, where matrices are noised too, got 0; "
                "give e.g. delta=1e-6, or use input or gradient perturbation for pure privacy"
            )
        ranks = request.family.ranks_for(request.shape)
        if request.family.name == "tucker" and np.prod(ranks) > MAX_CORE_CELLS:
            raise SizeError(
                f"the core must have at most {MAX_CORE_CELLS} cells here, ranks {ranks} give {np.prod(ranks)}; "
                "lower them or use gradient perturbation"
            )
        modes = offset_modes(request, self._withheld(request))
        order = self._blocks(request)
        parts = 1 if request.unit.coordinates_public else 2
        level = default_level_share(request) if self.level_share is None else self.level_share
        shares = [level] + [(1 - level) * self.offsets_share / len(modes)] * len(modes)
        rest = (1 - level) * (1 - self.offsets_share)
        shares += [rest / (self.sweeps * len(order) * parts)] * (self.sweeps * len(order) * parts)
        coordinates = (
            level_coordinates(request)
            + offset_coordinates(request, modes)
            + self.sweeps
            * sum(
                _row_count(request, block) * (width + (parts - 1) * width * (width + 1) // 2)
                for block, width in ((block, _width(request, block)) for block in order)
            )
        )
        events = split_budget(request, shares, coordinates)
        stages = [level_stage(request, events[0]), *offset_stages(request, modes, events[1 : len(modes) + 1])]
        sensitivity = statistic_sensitivity(request.unit)
        theorem = {"entry": "statistic-entries", "slice": "statistic-slices"}.get(request.unit.kind, "statistic-values")
        remaining = iter(events[len(modes) + 1 :])
        for sweep in range(self.sweeps):
            for block in order:
                what = "core" if block == len(request.shape) else request.mode_names[block]
                for part in ("right-hand sides", "matrices")[:parts]:
                    event = next(remaining)
                    check_noise(event, sensitivity)
                    stages.append(
                        Stage(
                            f"sweep {sweep + 1}, {what}, {part}",
                            theorem,
                            event,
                            f"{sensitivity:g} ({'sum of row norms' if isinstance(event, PureEvent) else 'L2'}, "
                            "normalised features)",
                            _noise_text(event, sensitivity),
                        )
                    )
        settings = {
            "sweeps": self.sweeps,
            "order": order,
            "offset_modes": modes,
            "joint": self._withheld(request) is not None,
        }
        return Design(tuple(stages), settings, coordinates)

    def run(
        self, data: BoundedObservations, plan: Plan, noise: NoiseSource, progress: Progress = no_progress
    ) -> Completion:
        request = plan.request
        modes: Sequence[int] = plan.settings["offset_modes"]
        withheld = self._withheld(request)
        events = list(plan.events)
        level = release_level(data, events[0], noise)
        values = level.normalised(data)
        offsets = release_offsets(data, values, modes, events[1 : len(modes) + 1], noise)
        model = public_start(request.family, request.shape, std=0.5)
        entries = None
        if request.unit.kind == "value" and worth_compiling(len(data), model.family.name):  # coordinates are public
            residuals = values - offsets.at(data.coordinates)
            threads = sensible_threads(None, len(data), model.order)
            entries = SortedEntries.of(data.coordinates, residuals, data.shape, threads, np.float64)
        remaining = iter(events[len(modes) + 1 :])
        parts = 1 if request.unit.coordinates_public else 2
        done, total = 0, self.sweeps * len(plan.settings["order"])
        for sweep in range(self.sweeps):
            smallest = 0.0 if sweep == self.sweeps - 1 else SMALLEST_PRIOR
            for block in plan.settings["order"]:
                here, own = model, offsets
                if withheld is not None:  # [L2] each owner's offset and row, from its own data and released blocks
                    own = offsets.with_mode(withheld, personal_offsets(data, values, offsets, withheld))
                    here = with_block(model, withheld, personal_rows(data, values, own, model, withheld))
                stage = [next(remaining) for _ in range(parts)]
                if entries is None:
                    residuals = values - own.at(data.coordinates)
                    solved = self._half_sweep(data, residuals, here, model, block, stage, noise, smallest)
                else:
                    solved = self._fast_half_sweep(data, entries, model, block, stage[0], noise, smallest)
                model = with_block(model, block, solved)
                done += 1
                progress("half-sweeps", done, total)
        if withheld is not None:
            model = with_block(model, withheld, np.zeros_like(model.factors[withheld]))
        return rescaled(level, offsets, model, request.bounds, withheld)

    def _half_sweep(
        self,
        data: BoundedObservations,
        residuals: Floats,
        model: FactorModel,
        released: FactorModel,
        block: int,
        events: Sequence[Event],
        noise: NoiseSource,
        smallest: float,
    ) -> Floats:
        """New rows of one block: its statistics, noised, then solved as public numbers.

        `model` may hold private personal rows, `released` holds released blocks only.
        """
        width = int(model.block_widths[block])
        core = block == model.order
        rows = np.zeros(len(data), dtype=np.int64) if core else data.index(block)
        size = 1 if core else model.shape[block]
        limits = np.full(size, GENEROUS_LIMIT * typical_feature(released, block))
        if data.unit.coordinates_public:  # [L3] which rows have data, and how long features get, reads no values
            limits = np.zeros(size)
            feature_norms(model.parameters, model.block_starts, model.block_widths, data.coordinates, block, limits)
            limits = np.maximum(limits, 1e-12)
        pure = isinstance(events[0], PureEvent)
        g = np.zeros((size, width), dtype=np.int64)
        H = np.zeros((size, width * (width + 1) // 2), dtype=np.int64)
        row_statistics(
            model.parameters,
            model.block_starts,
            model.block_widths,
            data.coordinates,
            block,
            residuals,
            slice_weights(data, rows, pure),
            limits,
            g,
            H,
        )  # [L4]
        sensitivity = statistic_sensitivity(data.unit)
        grid = 1.0 / STATISTIC_STEPS
        known = np.bincount(rows, minlength=size) > 0 if data.unit.coordinates_public else np.ones(size, dtype=bool)
        right = np.zeros((size, width))
        right[known], variance = noisy_rows(noise, events[0], g[known], grid, sensitivity)  # [L5]
        matrix_noise = 0.0
        triangles = np.asarray(H * grid)
        if len(events) == 2:
            triangles, matrix_variance = noisy_rows(noise, events[1], H, grid, sensitivity)  # [L6]
            matrix_noise = float(np.sqrt(matrix_variance))
        scaled = posterior_rows(
            right, square_matrices(triangles, width), variance, matrix_noise, RESIDUAL_VARIANCE, smallest, LARGEST_PRIOR
        )
        return np.asarray(scaled / limits[:, None])

    def _fast_half_sweep(
        self,
        data: BoundedObservations,
        entries: SortedEntries,
        model: FactorModel,
        block: int,
        event: Event,
        noise: NoiseSource,
        smallest: float,
    ) -> Floats:
        """`_half_sweep` for the unit value and many observations, which are sorted and whose weights are all 1."""
        limits, g, matrices = entries.value_statistics(model, block)  # [L3] [L4]
        known = np.diff(entries.lists[block].begins) > 0
        right = np.zeros(g.shape)
        sensitivity = statistic_sensitivity(data.unit)
        right[known], variance = noisy_rows(noise, event, g[known], 1.0 / STATISTIC_STEPS, sensitivity)  # [L5]
        scaled = matrices.posterior_rows(right, variance, RESIDUAL_VARIANCE, smallest, LARGEST_PRIOR)
        return np.asarray(scaled / limits[:, None])

    def _withheld(self, request: Request) -> int | None:
        return request.unit.mode_number if request.unit.kind == "slice" else None

    def _blocks(self, request: Request) -> tuple[int, ...]:
        """Blocks in the order they are updated: large modes first, the core last."""
        withheld = self._withheld(request)
        modes = sorted(
            (mode for mode in range(len(request.shape)) if mode != withheld),
            key=lambda mode: (-request.shape[mode], mode),
        )
        return (*modes, len(request.shape)) if request.family.name == "tucker" else tuple(modes)


def rescaled(
    level: Level, offsets: Offsets, model: FactorModel, bounds: Bounds, withheld: int | None = None
) -> Completion:
    """The completion on the centred scale, from a model of values normalised by the level."""
    parts = [None if part is None else part * level.scale for part in offsets.modes]
    block = next(mode for mode in range(model.order) if mode != withheld) if model.core is None else model.order
    whole = model.factors[block] if model.core is None else model.core
    return Completion(
        Offsets(level.mean + level.scale * offsets.mean, parts),
        with_block(model, block, whole * level.scale),
        bounds.low,
        bounds.high,
        withheld,
    )


def with_block(model: FactorModel, block: int, values: Floats) -> FactorModel:
    """The model with one block replaced."""
    blocks = [*model.factors, *([] if model.core is None else [model.core])]
    blocks[block] = values.reshape(blocks[block].shape)
    return model.family.model(blocks)


def _width(request: Request, block: int) -> int:
    ranks = request.family.ranks_for(request.shape)
    return int(np.prod(ranks)) if block == len(ranks) else ranks[block]


def _row_count(request: Request, block: int) -> int:
    return 1 if block == len(request.shape) else request.shape[block]


def _noise_text(event: Event, sensitivity: float) -> str:
    if isinstance(event, PureEvent):
        return f"norm-exponential noise of scale {sensitivity / event.epsilon:.4g} on every row"
    if isinstance(event, GaussianEvent):
        return f"discrete Gaussian noise of std {sensitivity * event.noise_multiplier:.4g} on every number"
    return str(event)
