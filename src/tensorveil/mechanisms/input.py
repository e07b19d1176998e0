"""Input perturbation: noise on every value before anything else happens; all that follows is post-processing.

Under `value` and `slice_values` the observed values are noised where they are. Under `entry` and `slice` it must not
show which cells are observed, so every cell of the box is noised, a missing one holding a public default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.data.features import PublicInput, public_inputs, standardised
from tensorveil.errors import InputError, SizeError, UnprovenError
from tensorveil.inference.posterior.laws import USUAL_SIGMA, NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.centred_values import complete_centred
from tensorveil.mechanisms.noisy_completion import MOST_FOR_SYMBOLS, Noisy, fit_cells, fit_values, sample_values
from tensorveil.mechanisms.private_range import LEAST_EPSILON, LEVELS
from tensorveil.models.completion import Completion
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, float_above
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations, Bounds
from tensorveil.privacy.noise.channels import (
    Channel,
    design_channel,
    dithered_channel,
    quantize,
    recalibrated,
    telling_channel,
)
from tensorveil.privacy.noise.source import NoiseSource, grid_for
from tensorveil.privacy.plan import Plan, Request, Stage
from tensorveil.privacy.theorems import proves
from tensorveil.solvers.als import ALS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NOISES = ("laplace", "gaussian", "channel")
SOLVERS = ("posterior", "als")
CONTINUOUS = "continuous"  # levels
LEVELS_CHOSEN = "the levels of the channel were chosen without looking at the values"  # trusted to the caller
GRID = 1 / VALUE_STEPS  # of centred values
MAX_CELLS = 2 * 10**7  # of the dense form: about 1 GB while the solver runs
WHOLE_LEVELS = range(5, 15)  # whole bounds 4 to 13 apart: every whole number is a level
LEAST_FOR_LEVELS = 0.25  # of information kept: from here on symbols tell how often each level occurs, and its cuts
LARGEST_COUNT = 10**9  # observations of one slice that a plan allows for where it cannot know


@final
@dataclass(frozen=True)
class Randomized:
    """Values randomized at the source.

    Attributes
    ----------
    values : array
        Noisy values, or the unbiased stand-ins of the symbols, on the scale of the bounds.
    symbols : array or None
        What the channel gave.
    noise_variance : float
        Mean variance of the noise on a value, for a solver that asks for it.
    """

    values: Floats
    symbols: Integers | None
    noise_variance: float


@final
@dataclass(frozen=True)
class InputPerturbation(Mechanism):
    """Noise on the values, then any solver.

    Parameters
    ----------
    noise : "laplace", "gaussian" (needs delta), "channel" (`value` and `slice_values` only: a random symbol for each
        value, by the table that keeps most information), or None: gaussian where delta is above 0, else channel under
        `value`, else laplace
    levels : the public values that the channel tells apart, 2 to 14; the nearest one stands for a value. "continuous":
        twelve evenly spaced ones, under `value` on a range that is bought first (private_range.py), so that bounds may
        be wide. None: every whole number, if the bounds are whole and 4 to 13 apart, else "continuous".
    default : under `entry` and `slice`, the public value of a missing cell; None: the middle of the bounds
    solver : what completes the noisy tensor: "posterior" (Bayesian, knows the law of the noise, and takes where values
        were observed for side information; `value` and `slice_values` only), "als", or a `Posterior` or `ALS` with
        settings of its own; None: the posterior where it can be had, else ALS
    features : public features of the indices of some modes, e.g. genres of films: mode name -> matrix, one row an
        index; for the posterior only. They are taken for public

    Guarantee
    ---------
    `value`, `slice_values`: input-values; the channel for continuous values under `value`: input-centred. `entry`,
    `slice` (with `at_most`): input-dense. Under the dense units the noisy tensor is that of deviations from the
    default, zero where nothing was observed.

    Notes
    -----
    Where `expected_count` is declared, density = expected_count / cells, and the mean of the dense fit is divided by
    it: that is the mean of what was observed. Offsets and factors cannot tell a row with many observations from one
    with high values, so they are multiplied by min(1 / density, 2): right where observations are spread evenly over
    half of the box or more, cautious elsewhere. Without a declared count all is taken as it is, near the default.

    ALS shrinks mean, offsets and factors as far as the noise asks for, by priors of standard deviation 1/4 at most on
    the scale where the bounds are -1 and 1. The posterior has weak priors on all of them, and gives intervals.

    Examples
    --------
    >>> from tensorveil.models.cp import CP
    >>> print(InputPerturbation().plan(CP(2), Bounds(1, 5), "value", 1.0, shape=(9, 8, 7)))
    input perturbation, CP(rank=2), shape 9 x 8 x 7
    unit value: one observed value is replaced by any other; which cells are observed is public
    values clipped to [1, 5]
    price: epsilon 1 (asked for 1)
    - values: channel on 5 levels, epsilon 1 a value; sensitivity 1 value [input-values]
    """

    noise: str | None = None
    levels: Sequence[float] | str | None = None
    default: float | None = None
    solver: str | ALS | Posterior | None = None
    features: Mapping[str, ArrayLike] | None = field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        if self.noise is not None:
            checks.choice("noise", self.noise, NOISES)
        if isinstance(self.levels, str):
            checks.choice("levels", self.levels, (CONTINUOUS,))
        if not (self.solver is None or isinstance(self.solver, ALS | Posterior)):
            checks.choice("solver", self.solver, SOLVERS)

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        return public_inputs(self.features)

    def with_features(self, features: Mapping[str, ArrayLike]) -> InputPerturbation:
        if self.features:
            raise InputError("features must be given once, got them here and on the mechanism; leave one out")
        return replace(self, features=features)

    def design(self, request: Request) -> Design:
        noise = self._noise(request)
        dense = not request.unit.coordinates_public
        if noise == "gaussian" and request.delta == 0:
            raise InputError(
                "delta must be above 0 for Gaussian noise, got 0; give e.g. delta=1e-6, or noise='laplace'"
            )
        if noise == "channel" and dense:
            raise UnprovenError(
                f"a channel must be under value or slice_values, got {request.unit.kind!r}, where it has no theorem; "
                "use noise='laplace', or 'gaussian' with a delta"
            )
        if dense and isinstance(self._solver(dense), Posterior):
            raise InputError(
                f"solver must be 'als' under {request.unit.kind!r}, got the posterior, which needs public coordinates; "
                "leave it out"
            )
        self._check_features(request, dense)
        if dense:
            _check_dense(request)
            start = default_steps(request.bounds, self.default)
        elif self.default is not None:
            raise InputError(
                f"default must be left out under {request.unit.kind!r}, got {self.default!r}; it is unused"
            )
        most = _most_changes(request)
        centred = noise == "channel" and self._centred(request)
        event: Event = split_budget(request, [1.0], most)[0] if noise == "gaussian" else PureEvent(request.epsilon)
        if noise == "channel":
            levels = channel_levels(self.levels, request.bounds)
            if centred:
                if request.epsilon < LEAST_EPSILON:
                    raise InputError(f"epsilon must be at least {LEAST_EPSILON:.1g}, got {request.epsilon!r}; use more")
                law = (
                    f"two quantiles and a mean, then a channel on {len(levels)} levels of the range they span, "
                    f"epsilon {request.epsilon:g} in all"
                )
            elif most == 1:
                self._channel(request.bounds, request.epsilon)  # an error now rather than after reading
                law = f"channel on {len(levels)} levels, epsilon {request.epsilon:g} a value"
            else:
                law = f"channel on {len(levels)} levels, epsilon {request.epsilon:g} / k a value"
        elif isinstance(event, GaussianEvent):
            law = f"discrete Gaussian, std {event.noise_multiplier:.4g} times the sensitivity"
        else:
            law = f"discrete Laplace, scale sensitivity / {request.epsilon:g}"
        half_width = request.bounds.width / 2
        if dense:
            largest = dense_sensitivity(start, most, "l2" if noise == "gaussian" else "l1") / VALUE_STEPS * half_width
            words = f"{largest:.4g} ({'L2' if noise == 'gaussian' else 'L1'}, {_changes(request, most)} of the box)"
        else:
            words = f"{_changes(request, most)}"
            if noise != "channel":
                words += f", each by {request.bounds.width:g}"
        theorem = "input-dense" if dense else "input-centred" if centred else "input-values"
        return Design(
            (Stage("cells" if dense else "values", theorem, event, words, law),),
            {"noise": noise, "most_changes": most, "centred": centred},
            gaussian_coordinates=most,
            assumptions_trusted=(LEVELS_CHOSEN,) if noise == "channel" and self._levels_given else (),
        )

    def _check_features(self, request: Request, dense: bool) -> None:
        solver = self._solver(dense)
        if isinstance(solver, Posterior) and solver.features is not None:
            raise InputError(
                "features must be given to the mechanism, InputPerturbation(features={mode: matrix}), for certificates "
                "to name them, got them on the solver; move them"
            )
        if self.features and not isinstance(solver, Posterior):
            raise InputError(
                f"features must be for the posterior, under value or slice_values, got ALS under {request.unit.kind!r};"
                " leave them out, or take sum perturbation"
            )
        standardised(self.features, request.mode_names, request.shape)

    def run(
        self, data: BoundedObservations, plan: Plan, noise: NoiseSource, progress: Progress = no_progress
    ) -> Completion:
        solver = self._solver(not data.unit.coordinates_public)
        if self.features and isinstance(solver, Posterior):
            given = standardised(self.features, plan.request.mode_names, plan.request.shape)
            solver = replace(solver, features=[given.get(mode) for mode in range(len(data.shape))])
        if plan.settings["centred"]:
            return complete_centred(data, plan, noise, solver, progress)
        if isinstance(solver, ALS) and not data.unit.coordinates_public:
            start = default_steps(data.bounds, self.default)
            noisy = self._noisy_cells(data, start, plan, noise)
            progress("noise", 1, 1)
            return fit_cells(solver, noisy, start / VALUE_STEPS, plan, progress)
        noisy = self._noisy_values(data, plan, noise)
        progress("noise", 1, 1)
        if isinstance(solver, Posterior):
            return sample_values(solver, noisy.law, data.coordinates, plan, progress)
        return fit_values(solver, noisy, data.coordinates, plan, progress)

    def randomize(
        self, values: ArrayLike, bounds: Bounds, epsilon: float, *, noise: NoiseSource | None = None
    ) -> Randomized:
        """Randomize values where they are, before anybody else sees them: no server needs to be trusted.

        Guarantee
        ---------
        Each value is epsilon-locally private: whatever two values it might have been, no answer is more than e^epsilon
        times likelier under one than under the other. A person who gives m values spends m epsilon in all. How many
        values there are is not hidden. Laplace with noise="laplace", else the channel.

        Parameters
        ----------
        noise : a source for experiments and audits; None: a fresh one, keyed by the operating system
        """
        numbers = np.asarray(values, dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise InputError("values must be finite, got others; leave them out")
        if self.noise == "gaussian":
            raise InputError("noise must be 'laplace' or 'channel' at the source, got 'gaussian'; both are pure")
        budget = checks.positive_number("epsilon", epsilon)
        source = NoiseSource() if noise is None else noise
        steps = centred_steps(numbers, bounds)
        if self.noise == "laplace":
            noisy = source.laplace(steps, grid=GRID, sensitivity=values_sensitivity(1), epsilon=budget)
            return Randomized(bounds.uncentred(noisy), None, 2 * (bounds.width / budget) ** 2)
        channel = self._channel(bounds, budget)
        symbols = source.channel(quantize(bounds.uncentred(np.asarray(steps / VALUE_STEPS)), channel.levels), channel)
        return Randomized(channel.pseudo_values[symbols], symbols, float(channel.weights @ channel.variances))

    def _noise(self, request: Request) -> str:
        if self.noise is not None:
            return self.noise
        if request.unit.kind == "value":
            return "channel"  # whatever delta is: a channel wastes the least, and needs none
        return "gaussian" if request.delta > 0 else "laplace"

    def _solver(self, dense: bool) -> ALS | Posterior:
        if isinstance(self.solver, ALS | Posterior):
            return self.solver
        return ALS() if self.solver == "als" or (self.solver is None and dense) else Posterior()

    def _continuous(self, bounds: Bounds) -> bool:
        return self.levels == CONTINUOUS or (self.levels is None and not _has_whole_levels(bounds))

    def _centred(self, request: Request) -> bool:
        """Whether the range of the values is bought first: where they are continuous and one of them may change."""
        return request.unit.kind == "value" and self._continuous(request.bounds)

    @property
    def _levels_given(self) -> bool:
        return not (self.levels is None or isinstance(self.levels, str))

    def _channel(self, bounds: Bounds, epsilon: float) -> Channel:
        made = dithered_channel if self._continuous(bounds) else made_channel
        return made(channel_levels(self.levels, bounds), epsilon)

    def _noisy_values(self, data: BoundedObservations, plan: Plan, noise: NoiseSource) -> Noisy:
        """Noisy centred values, and the variance of their noise; how many there are, and where, is public."""
        changes = 1
        if data.unit.whole_slices:  # [L1] coordinates are public: so is the largest number of values of one slice
            changes = max(1, int(np.bincount(data.index(data.unit.mode_number)).max(initial=0)))
        most = int(plan.settings["most_changes"])
        if changes > most:
            raise InputError(
                f"a slice must hold at most {most:,} observations, as planned, got {changes:,} in one; "
                "plan with at_most, or a larger expected_count"
            )
        event = plan.stages[0].event
        if plan.settings["noise"] == "channel":
            budget = -float_above(-Fraction(plan.request.epsilon) / changes)  # [L2] rounded down
            whole = not self._continuous(data.bounds)
            channel = self._channel(data.bounds, budget)
            told = whole and isinstance(self._solver(False), Posterior) and channel.information >= LEAST_FOR_LEVELS
            if told:
                channel = told_levels(channel.levels, budget)
            symbols = noise.dithered_channel(data.bounds.uncentred(data.centred), channel)  # [L3] one value at a time
            levels = data.bounds.centred(np.asarray(channel.levels))
            if told:
                law = Symbols(symbols, channel.chances, levels, ordered=True)
                stands, variance, _ = law.begin()
                return Noisy(stands, variance, law)
            fitted = recalibrated(channel, symbols)
            variance = float(fitted.weights @ fitted.variances) / (data.bounds.width / 2) ** 2
            stands = data.bounds.centred(fitted.pseudo_values)[symbols]
            if variance > MOST_FOR_SYMBOLS * USUAL_SIGMA**2:
                return Noisy(stands, variance, NoisyNumbers(stands, noise_std=math.sqrt(variance)))
            return Noisy(stands, variance, Symbols(symbols, channel.chances, levels, ordered=whole))
        noisy, variance = _noisy_steps(data.steps, values_sensitivity(changes), values_norm(changes), event, noise)
        if isinstance(event, PureEvent):
            return Noisy(noisy, variance, NoisyNumbers(noisy, laplace_scale=math.sqrt(variance / 2)))
        return Noisy(noisy, variance, NoisyNumbers(noisy, noise_std=math.sqrt(variance)))

    def _noisy_cells(self, data: BoundedObservations, start: int, plan: Plan, noise: NoiseSource) -> Noisy:
        """Noisy deviations from the default of every cell of the box, and the variance of their noise."""
        cells = np.zeros(math.prod(data.shape), dtype=np.int64)
        np.add.at(cells, np.ravel_multi_index(tuple(data.coordinates.T), data.shape), data.steps - start)
        cells = np.clip(cells, -VALUE_STEPS - start, VALUE_STEPS - start)  # [L4] duplicates: the sum keeps the range
        most = int(plan.settings["most_changes"])
        exact, norm = dense_sensitivity(start, most, "l1"), dense_sensitivity(start, most, "l2")
        return Noisy(*_noisy_steps(cells, math.ceil(exact), norm, plan.stages[0].event, noise))


@proves("input-values")
def values_sensitivity(changes: int) -> int:
    """L1 sensitivity, in steps of 2^-20, of the centred values when so many of them are replaced: 2 each."""
    return changes * 2 * VALUE_STEPS  # [L5]


@proves("input-values")
def values_norm(changes: int) -> float:
    """L2 sensitivity, in steps of 2^-20, of the centred values when so many of them are replaced, rounded up."""
    return math.nextafter(math.sqrt(changes) * 2 * VALUE_STEPS, math.inf)  # [L6]


@proves("input-dense")
def dense_sensitivity(start: int, changes: int, norm: str) -> float:
    """L1 or L2 sensitivity, in steps, of the box of clipped deviations from the default when so many cells change."""
    largest = VALUE_STEPS + abs(start)  # [L7] max(high - d, d - low)
    return float(changes * largest) if norm == "l1" else math.nextafter(math.sqrt(changes) * largest, math.inf)  # [L8]


def _noisy_steps(
    steps: Integers, sensitivity: int, norm: float, event: Event, noise: NoiseSource
) -> tuple[Floats, float]:
    """Steps of 2^-20 plus Laplace noise (L1 sensitivity) or Gaussian noise (L2 norm), and the variance of the noise."""
    if isinstance(event, PureEvent):
        noisy = noise.laplace(steps, grid=GRID, sensitivity=sensitivity, epsilon=event.epsilon)  # [L9]
        return noisy, 2 * (sensitivity * GRID / event.epsilon) ** 2
    if not isinstance(event, GaussianEvent):
        raise InputError(f"event must be pure or Gaussian, got {event!r}; make the plan by InputPerturbation.plan")
    std = event.noise_multiplier * norm * GRID
    grid = min(grid_for(std), GRID)  # [L10] powers of two: a step of values is a whole number of grid steps
    noisy = noise.gaussian(steps * round(GRID / grid), grid=grid, sensitivity=norm * GRID, noise_std=std)
    return noisy, std**2


def centred_steps(values: Floats, bounds: Bounds) -> Integers:
    """Values clipped to the bounds, as whole steps of 2^-20 from the middle, -2^20 to 2^20."""
    inside = np.clip(bounds.centred(np.clip(values, bounds.low, bounds.high)), -1.0, 1.0)
    return np.rint(inside * VALUE_STEPS).astype(np.int64)


def default_steps(bounds: Bounds, default: float | None) -> int:
    """The public default of a missing cell, in steps from the middle."""
    if default is None:
        return 0
    number = checks.finite_number("default", default)
    if not bounds.low <= number <= bounds.high:
        raise InputError(f"default must be from {bounds.low:g} to {bounds.high:g}, got {default!r}; stay within bounds")
    return int(centred_steps(np.array([number]), bounds)[0])


def channel_levels(levels: Sequence[float] | str | None, bounds: Bounds) -> tuple[float, ...]:
    """The levels that were given, or those of the rule: whole numbers where there are few, else twelve even ones."""
    if levels is not None and not isinstance(levels, str):
        return tuple(float(level) for level in levels)
    if levels is None and _has_whole_levels(bounds):
        return tuple(float(level) for level in range(int(bounds.low), int(bounds.high) + 1))
    return tuple(np.linspace(bounds.low, bounds.high, LEVELS).tolist())


def _has_whole_levels(bounds: Bounds) -> bool:
    return bounds.low.is_integer() and bounds.high.is_integer() and bounds.width + 1 in WHOLE_LEVELS


@lru_cache(maxsize=16)
def made_channel(levels: tuple[float, ...], epsilon: float) -> Channel:
    """`design_channel`, made once for a plan and its run."""
    return design_channel(levels, epsilon)


def told_levels(levels: tuple[float, ...], epsilon: float) -> Channel:
    """The best channel whose symbols tell how often each level occurs: see telling_channel."""
    best = made_channel(levels, epsilon)
    if np.linalg.matrix_rank(best.chances) == len(levels):
        return best
    return telling_channel(made_channel(levels, epsilon * (1 - 2.0**-30)), epsilon)  # what rounding may take


def _check_dense(request: Request) -> None:
    cells = math.prod(request.shape)
    if cells > MAX_CELLS:
        raise SizeError(
            f"the box must have at most {MAX_CELLS:,} cells under {request.unit.kind!r}, for each is noised, "
            f"got {cells:,}; use statistic or gradient perturbation"
        )
    if request.unit.whole_slices and request.unit.at_most is None:
        raise InputError(
            "at_most must be given under 'slice', got None; state how many observations of one "
            f"{request.unit_name} are kept, e.g. at_most=20"
        )


def _most_changes(request: Request) -> int:
    """How many noisy numbers one unit can change, at most; public."""
    unit = request.unit
    if not unit.whole_slices:
        return 1
    cells = math.prod(request.shape) // request.shape[unit.mode_number]
    if unit.kind == "slice":
        return min(unit.at_most or cells, cells)  # [L11]
    return unit.at_most or request.expected_count or min(cells, LARGEST_COUNT)


def _changes(request: Request, most: int) -> str:
    """The number of changes in words."""
    if most == 1:
        return "1 cell" if not request.unit.coordinates_public else "1 value"
    if request.unit.kind == "slice_values":
        limit = "" if request.unit.at_most is None else f", at most {most:,}"
        return f"k values, k the largest number of observations of one {request.unit_name}{limit}"
    return f"{most:,} cells"
