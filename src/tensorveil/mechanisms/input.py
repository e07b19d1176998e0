"""Input perturbation: noise is added to every value first; everything else is post-processing.

Under `value` and `slice_values`, noise is added to the observed values. Under `entry` and `slice`, the release must not
show which cells are observed, so noise is added to every cell of the tensor; a missing cell holds a public default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.data.features import PublicInput, public_inputs, standardised
from tensorveil.errors import InputError, SizeError, UnprovenError
from tensorveil.inference.posterior import laws
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import MOST_FOR_SYMBOLS, Noisy, Target, fit_cells, fit_values, sample_values
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, split_budget
from tensorveil.mechanisms.planning.channel_design import recalibrated
from tensorveil.mechanisms.planning.levels import (
    CONTINUOUS,
    are_continuous,
    channel_levels,
    channel_on,
    level_edges,
    told_levels,
)
from tensorveil.models.completion import Completion
from tensorveil.privacy.accounting.events import Event, PureEvent, float_above
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.local import Randomized, noisy_values, symbols
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.values.dense import DenseCells
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.queries.values.values import Values, changed_values, values_change
from tensorveil.privacy.stages import LAW_OF_NORM, Norm, Sensitivity, Stage
from tensorveil.privacy.vault import Pattern, Vault
from tensorveil.solvers.als import ALS

if TYPE_CHECKING:
    from tensorveil.privacy.noise.source import NoiseSource

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NOISES = ("laplace", "gaussian", "channel")
SOLVERS = ("posterior", "als")
VALUES = "values"  # the stage of observed values
CELLS = "cells"  # the stage of the dense form
LEVELS_CHOSEN = "the levels of the channel were chosen without looking at the values"  # trusted to the caller
MAX_CELLS = 2 * 10**7  # of the dense form: about 1 GB while the solver runs
LEAST_FOR_LEVELS = 0.25  # of information kept: from here on symbols tell how often each level occurs, and its cuts
LARGEST_COUNT = 10**9  # observations of one slice that a plan allows for where it cannot know


@final
@dataclass(frozen=True)
class Settings:
    """The chosen noise, and how many numbers one unit can change."""

    noise: str
    most_changes: int


@final
@dataclass(frozen=True)
class InputPerturbation(Mechanism):
    """Noise on the values, then any solver.

    Parameters
    ----------
    noise : "laplace", "gaussian" (needs delta), "channel" (`value` and `slice_values` only: a random symbol per value,
        drawn from the table that keeps the most information), or None: gaussian if delta is above 0, otherwise channel
        under `value`, otherwise laplace
    levels : the 2 to 14 public values that the channel distinguishes; each value is rounded to the nearest level.
        "continuous": twelve evenly spaced levels. None: all whole numbers, if the bounds are whole and 4 to 13 apart,
        otherwise "continuous".
    default : under `entry` and `slice`, the public value of a missing cell; None: the middle of the bounds
    solver : how the noisy tensor is completed: "posterior" (Bayesian; uses the noise law, and the positions of the
        observed values as side information; `value` and `slice_values` only), "als", or a `Posterior` or `ALS`
        object. None: the posterior where it is available, otherwise ALS
    features : public features of the indices of some modes, e.g. genres of films: mode name -> matrix, one row per
        index; for the posterior only. They are assumed to be public

    Guarantee
    ---------
    `value`, `slice_values`: input-values. `entry`, `slice` (with `at_most`): input-dense. Under the dense units the
    noisy tensor is that of deviations from the default, zero where nothing was observed.

    Notes
    -----
    Where `expected_count` is declared, density = expected_count / cells, and the mean of the dense fit is divided by
    it, which gives the mean of the observed values. Offsets and factors cannot distinguish a row with many observations
    from a row with high values, so they are multiplied by min(1 / density, 2). This is correct if the observations are
    spread evenly over at least half of the tensor, and cautious otherwise. Without a declared count nothing is
    rescaled, and predictions stay near the default.

    ALS shrinks mean, offsets and factors according to the noise, with priors of standard deviation 1/4 at most on
    the scale where the bounds are -1 and 1. The posterior has weak priors on all of them, and gives intervals.

    Examples
    --------
    >>> from tensorveil.models.cp import CP
    >>> print(InputPerturbation().plan(CP(2), Bounds(1, 5), "value", 1.0, shape=(9, 8, 7)))
    input perturbation, CP(rank=2), shape 9 x 8 x 7
    unit value: one observed value is replaced by any other; which cells are observed is public
    values clipped to [1, 5]
    price: epsilon 1 (asked for 1)
    - values: channel on 5 levels, epsilon 1; sensitivity 1 value [input-values]
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
            raise InputError(
                "features must be given once, got features here and on the mechanism; leave one of them out"
            )
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
                f"noise='channel' must be used with the unit value or slice_values, got {request.unit.kind!r}; "
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
            stage, most = self._dense_stage(request, noise)
        elif self.default is not None:
            raise InputError(
                f"default must be left out under {request.unit.kind!r}, got {self.default!r}; it is unused"
            )
        else:
            stage, most = self._values_stage(request, noise)
        return Design(
            (stage,),
            Settings(noise, most),
            gaussian_coordinates=most,
            assumptions_trusted=(LEVELS_CHOSEN,) if noise == "channel" and self._levels_given else (),
        )

    def _dense_stage(self, request: Request, noise: str) -> tuple[Stage, int]:
        """The stage that adds noise to every cell, and the number of cells that one unit can change."""
        query = self._cells(request, noise)
        most = query.changes(request.unit)
        (change,) = query.sensitivity(request.unit)
        words = f"{'1 cell' if most == 1 else f'{most:,} cells'} of the box, centred values"
        sensitivity = Sensitivity(change.bound, change.norm, words)
        event = _event(request, noise, most)
        return Stage(CELLS, "input-dense", event, sensitivity, LAW_OF_NORM[change.norm], "every cell"), most

    def _values_stage(self, request: Request, noise: str) -> tuple[Stage, int]:
        """The stage that adds noise to every observed value, and the number of values that one unit can change."""
        most = _most_changes(request)
        event = _event(request, noise, most)
        if noise != "channel":
            norm = Norm.L2 if noise == "gaussian" else Norm.L1
            bound = values_change(1, norm is Norm.L1).bound if request.unit.kind == "value" else None
            words = "1 value, centred" if bound else f"{_changes(request)}, each by 2 when centred"
            sensitivity = Sensitivity(bound, norm, words)
            return Stage(VALUES, "input-values", event, sensitivity, LAW_OF_NORM[norm], "every value"), most
        sensitivity = Sensitivity(None, None, _changes(request))
        levels = len(channel_levels(self.levels, request.bounds))
        if most == 1:
            channel_on(self.levels, request.bounds, request.epsilon)  # an error now rather than after reading
        what = f"channel on {levels} levels"
        return Stage(VALUES, "input-values", event, sensitivity, Law.CHANNEL, what), most

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

    def check_pattern(self, pattern: Pattern, plan: Plan) -> None:
        most, changes = plan.settings.most_changes, changed_values(pattern)
        if changes > most:
            raise InputError(
                f"a slice must hold at most {most:,} observations, as planned, got {changes:,} in one; "
                "plan with at_most, or a larger expected_count"
            )

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        request, settings = plan.request, plan.settings
        target = Target(request.family, request.shape, request.bounds.low, request.bounds.high)
        solver = self._solver(not vault.unit.coordinates_public)
        if self.features and isinstance(solver, Posterior):
            given = standardised(self.features, request.mode_names, request.shape)
            solver = replace(solver, features=[given.get(mode) for mode in range(len(request.shape))])
        if isinstance(solver, ALS) and not vault.unit.coordinates_public:
            query = self._cells(request, settings.noise)
            answer = vault.answer(CELLS, query)
            progress("noise", 1, 1)
            cells, start = Noisy(answer.values, answer.variance), query.default / VALUE_STEPS
            return fit_cells(solver, cells, start, request.expected_count, target, progress)
        noisy = self._noisy_symbols(vault, request) if settings.noise == "channel" else _noisy_values(vault, settings)
        progress("noise", 1, 1)
        where = vault.pattern.coordinates
        if isinstance(solver, Posterior):
            return sample_values(solver, noisy.law, where, target, progress)
        return fit_values(solver, noisy, where, target, progress)

    def randomize(
        self, values: ArrayLike, bounds: Bounds, epsilon: float, *, noise: NoiseSource | None = None
    ) -> Randomized:
        """Randomize values at their source, before anybody else sees them, so that no server has to be trusted.

        Guarantee
        ---------
        Each value is epsilon-locally private: for any two possible values, the probability of any answer differs by a
        factor of at most e^epsilon. A person who gives m values spends m epsilon in total. The number of values is
        not hidden. The noise is Laplace with noise="laplace", and otherwise the channel.

        Parameters
        ----------
        noise : a source for experiments and audits; None: a fresh one, keyed by the operating system
        """
        if self.noise == "gaussian":
            raise InputError("noise must be 'laplace' or 'channel' at the source, got 'gaussian'; both are pure")
        budget = checks.positive_number("epsilon", epsilon)
        if self.noise == "laplace":
            return noisy_values(values, bounds, budget, noise)
        channel = channel_on(self.levels, bounds, budget)
        drawn = symbols(values, bounds, Symbols(level_edges(channel.levels, bounds)), channel.table, noise)
        return Randomized(channel.pseudo_values[drawn], drawn, float(channel.weights @ channel.variances))

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

    @property
    def _levels_given(self) -> bool:
        return not (self.levels is None or isinstance(self.levels, str))

    def _cells(self, request: Request, noise: str) -> DenseCells:
        return DenseCells(request.shape, default_steps(request.bounds, self.default), noise == "laplace")

    def _noisy_symbols(self, vault: Vault, request: Request) -> Noisy:
        """One symbol per value, the centred numbers that represent the symbols, and the noise law for a solver."""
        bounds = request.bounds
        budget = -float_above(-Fraction(request.epsilon) / changed_values(vault.pattern))  # rounded down
        whole = not are_continuous(self.levels, bounds)
        channel = channel_on(self.levels, bounds, budget)
        told = whole and isinstance(self._solver(False), Posterior) and channel.information >= LEAST_FOR_LEVELS
        if told:
            channel = told_levels(channel.levels, budget)
        drawn = vault.symbols(VALUES, Symbols(level_edges(channel.levels, bounds)), channel.table)
        levels = bounds.centred(np.asarray(channel.levels))
        if told:
            law = laws.Symbols(drawn, channel.chances, levels, ordered=True)
            stands, variance, _ = law.begin()
            return Noisy(stands, variance, law)
        fitted = recalibrated(channel, drawn)
        variance = float(fitted.weights @ fitted.variances) / (bounds.width / 2) ** 2
        stands = bounds.centred(fitted.pseudo_values)[drawn]
        if variance > MOST_FOR_SYMBOLS * laws.USUAL_SIGMA**2:
            return Noisy(stands, variance, laws.NoisyNumbers(stands, noise_std=math.sqrt(variance)))
        return Noisy(stands, variance, laws.Symbols(drawn, channel.chances, levels, ordered=whole))


def _noisy_values(vault: Vault, settings: Settings) -> Noisy:
    """Noisy centred values, and the law of their noise."""
    pure = settings.noise == "laplace"
    answer = vault.values(VALUES, Values(pure))
    scale = {"laplace_scale": math.sqrt(answer.variance / 2)} if pure else {"noise_std": math.sqrt(answer.variance)}
    return Noisy(answer.values, answer.variance, laws.NoisyNumbers(answer.values, **scale))


def default_steps(bounds: Bounds, default: float | None) -> int:
    """The public default of a missing cell, in steps from the middle."""
    if default is None:
        return 0
    number = checks.finite_number("default", default)
    if not bounds.low <= number <= bounds.high:
        raise InputError(f"default must be from {bounds.low:g} to {bounds.high:g}, got {default!r}; stay within bounds")
    return int(bounds.steps(np.array([number]))[0])


def _event(request: Request, noise: str, most: int) -> Event:
    return split_budget(request, [1.0], most)[0] if noise == "gaussian" else PureEvent(request.epsilon)


def _check_dense(request: Request) -> None:
    cells = math.prod(request.shape)
    if cells > MAX_CELLS:
        raise SizeError(
            f"the tensor must have at most {MAX_CELLS:,} cells under {request.unit.kind!r}, as each one gets noise, "
            f"got {cells:,}; use statistic or gradient perturbation"
        )
    if request.unit.whole_slices and request.unit.at_most is None:
        raise InputError(
            "at_most must be given under 'slice', got None; state how many observations are kept per "
            f"{request.unit_name}, e.g. at_most=20"
        )


def _most_changes(request: Request) -> int:
    """How many observed values one unit may change, as far as the plan can know."""
    unit = request.unit
    if not unit.whole_slices:
        return 1
    cells = math.prod(request.shape) // request.shape[unit.mode_number]
    return unit.at_most or request.expected_count or min(cells, LARGEST_COUNT)


def _changes(request: Request) -> str:
    """The number of values that one unit changes, in words."""
    unit = request.unit
    if unit.kind == "value" or unit.at_most == 1:
        return "1 value"
    limit = "" if unit.at_most is None else f", at most {unit.at_most:,}"
    return f"k values, k the largest number of observations of one {request.unit_name}{limit}"
