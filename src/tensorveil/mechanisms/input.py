"""Input perturbation: noise is added to every value first; everything else is post-processing.

Under `value` and `slice_values`, noise is added to the observed values. Under `entry` and `slice`, the release must not
show which cells are observed, so every cell of the tensor gets a random symbol (`entry`: one of them is "missing"), or
noise, a missing cell holding a public default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.data.features import Features, PublicInput, public_inputs, standardised
from tensorveil.errors import InputError, UnprovenError
from tensorveil.inference.posterior.coupled import Second
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import (
    Noisy,
    Target,
    fit_cells,
    fit_values,
    released_numbers,
    sample_values,
    symbol_numbers,
)
from tensorveil.inference.values.public_scales import UNKNOWN, public_scale
from tensorveil.inference.values.scale import Scale, scale_of
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress
from tensorveil.mechanisms.local.protocols import MOST_LEVELS, checked_levels, design_protocol, released_answers
from tensorveil.mechanisms.parts.cells import CELLS, IN_WORDS, complete_cells, pure_epsilon
from tensorveil.mechanisms.parts.marginal import ask_marginal, marginal_stages
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.mechanisms.planning.input_stages import (
    changes_in_words,
    check_dense,
    check_values,
    default_steps,
    event_of,
    most_changes,
    share_of_marginals,
)
from tensorveil.mechanisms.planning.noise_range import check_change
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.accounting.composition import shares
from tensorveil.privacy.accounting.events import PureEvent, float_above
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.local.noisy_values import Randomized, noisy_values, symbols
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.values.dense import DenseCells
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.queries.values.values import Values, changed_values, values_change
from tensorveil.privacy.stages import LAW_OF_NORM, Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Pattern, Vault
from tensorveil.solvers.als import ALS

if TYPE_CHECKING:
    from tensorveil.privacy.noise.source import NoiseSource


NOISES = ("laplace", "gaussian", "channel")
SOLVERS = ("posterior", "als")
VALUES = "values"  # the stage of the observed values
LEVELS_CHOSEN = "the levels of the channel were chosen without looking at the values"  # trusted to the caller


@final
@dataclass(frozen=True)
class Settings:
    """The chosen noise, how many numbers one unit can change, and whether the marginal is released first."""

    noise: str
    most_changes: int
    marginal: bool


@final
@dataclass(frozen=True)
class InputPerturbation(Mechanism):
    """Noise on the values, then any solver.

    Parameters
    ----------
    noise : "laplace", "gaussian" (needs delta), "channel" (a random symbol per value or, under `entry`, per cell, drawn
        from the table that keeps the most information; not under `slice`), or None: channel under `value` and `entry`,
        otherwise gaussian if delta is above 0, otherwise laplace
    levels : the 2 to 32 public values that the channel distinguishes, under `value` and `slice_values`; each value is
        rounded to the nearest level. None: a histogram of the values is released first, and shows which levels there
        are (parts/marginal.py)
    default : under `entry` and `slice`, the public value of a missing cell, for Laplace and Gaussian noise; None: the
        middle of the bounds
    solver : how the noisy tensor is completed: "posterior" (Bayesian; uses the noise law, and the positions of the
        symbols as side information; where there is one number per value, or for the channel), "als", or a `Posterior`
        or `ALS` object. None: the posterior where it is available, otherwise ALS
    features : public features of the indices of some modes, e.g. genres of films: mode name -> matrix, one row per
        index; for the posterior only. They are assumed to be public

    Guarantee
    ---------
    `value`, `slice_values`: input-values. `entry`: input-cells for the channel. `entry`, `slice` (with `at_most`):
    input-dense for other noise; the noisy tensor is then that of deviations from the default, zero where nothing was
    observed.

    Notes
    -----
    With dense noise, and where `expected_count` is declared, density = expected_count / cells. The mean of the fit
    is divided by it, which gives the mean of the observed values. Offsets and factors cannot distinguish a row with
    many observations from a row with high values, so they are multiplied by min(1 / density, 2). This is correct if the
    observations are spread evenly over at least half of the tensor, and cautious otherwise. Without a declared count
    nothing is rescaled, and predictions stay near the default.

    ALS shrinks mean, offsets and factors according to the noise, with priors of standard deviation 1/4 at most on
    the scale where the bounds are -1 and 1. The posterior has weak priors on all of them, and gives intervals.

    Examples
    --------
    >>> from tensorveil.models.cp import CP
    >>> plan = InputPerturbation().plan(CP(2), Bounds(1, 5), "value", 1.0, shape=(9, 8, 7))
    >>> print(plan)  # doctest: +ELLIPSIS
    input perturbation, CP(rank=2), shape 9 x 8 x 7
    unit value: one observed value is replaced by any other; which cells are observed is public
    values clipped to [1, 5]
    price: epsilon 1 (asked for 1)
    - marginal, 16 cells: counts of values in 16 cells of the bounds with discrete Laplace noise of scale 40; ...
    - marginal, refined: counts of values in up to 256 cells with discrete Laplace noise of scale 40; ...
    - marginal, refined twice: counts of values in up to 4,096 cells with discrete Laplace noise of scale 40; ...
    - values: channel, a random symbol for each value by levels found from the counts, epsilon 0.85; ...
    """

    noise: str | None = None
    levels: Sequence[float] | None = None
    default: float | None = None
    solver: str | ALS | Posterior | None = None
    features: Mapping[str, ArrayLike] | None = field(default=None, compare=False, repr=False)
    smooth: Mapping[str, Features] | None = field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        if self.noise is not None:
            checks.choice("noise", self.noise, NOISES)
        if self.levels is not None:
            object.__setattr__(self, "levels", checked_levels(self.levels))
        if not (self.solver is None or isinstance(self.solver, ALS | Posterior)):
            checks.choice("solver", self.solver, SOLVERS)

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        return public_inputs(self.features, self.smooth)

    def with_features(self, features: Mapping[str, ArrayLike]) -> InputPerturbation:
        if self.features:
            raise InputError(
                "features must be given once, got features here and on the mechanism; leave one of them out"
            )
        return replace(self, features=features)

    def can_smooth(self, unit: Unit) -> bool:
        return self.learns_offsets(unit)

    def with_smooth(self, smooth: Mapping[str, Features]) -> InputPerturbation:
        return replace(self, smooth=smooth)

    def compared_with(self, families: tuple[ModelFamily, ...], unit: Unit) -> InputPerturbation:
        """The same with a posterior that also samples models of other families, and keeps the best one."""
        solver = self._solver(unit)
        return replace(self, solver=replace(solver, families=families)) if isinstance(solver, Posterior) else self

    def design(self, request: Request) -> Design:
        noise = self._noise(request)
        dense = not request.unit.coordinates_public
        if noise == "gaussian" and request.delta == 0:
            raise InputError(
                "delta must be above 0 for Gaussian noise, got 0; give e.g. delta=1e-6, or noise='laplace'"
            )
        if noise == "channel" and request.unit.kind == "slice":
            raise UnprovenError(
                "noise='channel' must be used with the unit value, slice_values or entry, got 'slice'; "
                "use noise='laplace', or 'gaussian' with a delta"
            )
        if dense and noise != "channel" and isinstance(self._solver(request.unit), Posterior):
            raise InputError(
                f"solver must be 'als' for {noise} noise under {request.unit.kind!r}, got the posterior, which needs a "
                "symbol per value or cell; leave it out"
            )
        self._check_features(request)
        if dense:
            check_dense(request)
        if dense and noise == "channel":
            if not (self.levels is None and self.default is None):
                raise InputError(
                    "levels and default must be left out for a channel under 'entry', got one of them; it is unused"
                )
            stages, most = self._channel_stages(request, CELLS, "input-cells", "1 cell", IN_WORDS), 1
        elif dense:
            stages, most = self._dense_stage(request, noise)
        elif self.default is not None:
            raise InputError(
                f"default must be left out under {request.unit.kind!r}, got {self.default!r}; it is unused"
            )
        else:
            stages, most = self._values_stages(request, noise)
            check_values(stages[-1], 1, 1)  # what follows from the coordinates, `check_pattern` refuses
        given = self.levels is not None or (request.coupled is not None and request.coupled.levels is not None)
        return Design(
            stages,
            Settings(noise, most, len(stages) > 1),
            gaussian_coordinates=most,
            assumptions_trusted=(LEVELS_CHOSEN,) if noise == "channel" and given else (),
        )

    def _dense_stage(self, request: Request, noise: str) -> tuple[tuple[Stage, ...], int]:
        """The stage that adds noise to every cell, and the number of cells that one unit can change."""
        query = self._cells(request, noise)
        most = query.changes(request.unit)
        (change,) = query.sensitivity(request.unit)
        words = f"{'1 cell' if most == 1 else f'{most:,} cells'} of the box, centred values"
        sensitivity = Sensitivity(change.bound, change.norm, words)
        event = event_of(request, noise, most)
        check_change(event, change, math.prod(request.shape))
        return (Stage(CELLS, "input-dense", event, sensitivity, LAW_OF_NORM[change.norm], "every cell"),), most

    def _values_stages(self, request: Request, noise: str) -> tuple[tuple[Stage, ...], int]:
        """The stages of the marginal and of the values, and the number of values that one unit can change."""
        most = most_changes(request)
        if noise != "channel":
            event = event_of(request, noise, most)
            norm = Norm.L2 if noise == "gaussian" else Norm.L1
            bound = values_change(1, norm is Norm.L1).bound if request.unit.kind == "value" else None
            words = "1 value, centred" if bound else f"{changes_in_words(request)}, each by 2 when centred"
            sensitivity = Sensitivity(bound, norm, words)
            return (Stage(VALUES, "input-values", event, sensitivity, LAW_OF_NORM[norm], "every value"),), most
        first, words = share_of_marginals(request, self.levels is not None), changes_in_words(request)
        if self.levels is not None and first == 0:
            what = f"channel, a random symbol for each value by its {len(self.levels)} levels"
            event = PureEvent(request.epsilon)
            sensitivity = Sensitivity(None, None, words)
            return (Stage(VALUES, "input-values", event, sensitivity, Law.CHANNEL, what),), most
        return self._channel_stages(request, VALUES, "input-values", words, "a random symbol for each value"), most

    def _channel_stages(self, request: Request, name: str, theorem: str, words: str, each: str) -> tuple[Stage, ...]:
        """The stages of the marginal, and that of the symbols by levels that follow from it."""
        first = share_of_marginals(request, self.levels is not None)
        *bought, left = (PureEvent(part) for part in shares(request.epsilon, [first / 3] * 3 + [1 - first]))
        what, sensitivity = f"channel, {each} by levels found from the counts", Sensitivity(None, None, words)
        return (*marginal_stages(request, bought), Stage(name, theorem, left, sensitivity, Law.CHANNEL, what))

    def _check_features(self, request: Request) -> None:
        solver = self._solver(request.unit)
        if isinstance(solver, Posterior) and not (solver.features is None and solver.smooth is None):
            raise InputError(
                "features must be given to the mechanism, InputPerturbation(features={mode: matrix}), for certificates "
                "to name them, got them on the solver; move them"
            )
        if (self.features or self.smooth) and not isinstance(solver, Posterior):
            raise InputError(
                f"features and smooth must be for the posterior, got ALS under {request.unit.kind!r}; "
                "leave them out, or take sum perturbation"
            )
        standardised(self.features, request.mode_names, request.shape)

    def learns_offsets(self, unit: Unit) -> bool:
        return isinstance(self._solver(unit), Posterior)

    def keeps_nonnegative(self, unit: Unit) -> bool:
        return True

    def check_pattern(self, pattern: Pattern, plan: Plan) -> None:
        most, changes = plan.settings.most_changes, changed_values(pattern)
        if changes > most:
            raise InputError(
                f"a slice must hold at most {most:,} observations, as planned, got {changes:,} in one; "
                "plan with at_most, or a larger expected_count"
            )
        check_values(plan.stages[-1], changes, len(pattern))

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        request, settings = plan.request, plan.settings
        target = Target(request.family, request.shape, request.bounds.low, request.bounds.high)
        solver = self._solver(vault.unit)
        if isinstance(solver, Posterior):
            solver = solver.knowing(self.features, self.smooth, request.mode_names, request.shape)
        if settings.noise == "channel" and not vault.unit.coordinates_public:
            marginal = ask_marginal(vault, plan.stages[:-1], request.bounds)
            return complete_cells(vault, request, marginal, plan.stages[-1], solver, progress)
        if isinstance(solver, ALS) and not vault.unit.coordinates_public:
            query = self._cells(request, settings.noise)
            answer = vault.answer(CELLS, query)
            progress("noise", 1, 1)
            cells, start = Noisy(answer.values, answer.law.variance), query.default / VALUE_STEPS
            return fit_cells(solver, cells, start, request.expected_count, target, progress)
        where = vault.pattern.coordinates
        if settings.noise == "channel":
            released = _released_symbols(vault, plan, request.bounds, self.levels)
            progress("noise", 1, 1)
            if isinstance(solver, Posterior):
                return sample_values(solver, released, where, target, progress)
            return fit_values(solver, symbol_numbers(released), where, target, progress)
        pure = settings.noise == "laplace"
        values = vault.values(VALUES, Values(pure))
        noisy = Noisy(values.values, values.law.variance)
        progress("noise", 1, 1)
        if isinstance(solver, Posterior):
            return sample_values(solver, released_numbers(noisy, pure, VALUE_STEPS), where, target, progress)
        return fit_values(solver, noisy, where, target, progress)

    def check_coupled(self, request: Request) -> None:
        if self._noise(request) != "channel" or not isinstance(self._solver(request.unit), Posterior):
            raise InputError(
                "a coupled table must be used with noise='channel' and solver='posterior', got others; leave them out"
            )
        if not isinstance(request.family, CP) or request.family.nonnegative:
            raise InputError(
                f"the model of two coupled tables must be a free CP model, got {request.family}; give CP(rank)"
            )
        if request.coupled is not None and request.coupled.levels is not None:
            checked_levels(request.coupled.levels)

    def run_coupled(self, vault: Vault, second: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        request, table = plan.request, plan.request.coupled
        solver = self._solver(vault.unit)
        if table is None or not isinstance(solver, Posterior):
            raise InputError("a second table must be planned for, got a plan without it; plan with coupled")
        solver = solver.knowing(self.features, self.smooth, request.mode_names, request.shape)
        released = _released_symbols(vault, plan, request.bounds, self.levels)
        other = _released_symbols(second, plan, table.bounds, table.levels)
        progress("noise", 1, 1)
        shared = request.mode_names.index(table.shared)
        coupled = Second(second.pattern.coordinates, other, table.joint_shape, table.mode, shared)
        target = Target(request.family, request.shape, request.bounds.low, request.bounds.high)
        return sample_values(solver, released, vault.pattern.coordinates, target, progress, coupled)

    def randomize(
        self, values: ArrayLike, bounds: Bounds, epsilon: float, *, noise: NoiseSource | None = None
    ) -> Randomized:
        """Randomize values at their source, before anybody else sees them, so that no server has to be trusted.

        Guarantee
        ---------
        Each value is epsilon-locally private: for any two possible values, the probability of any answer differs by a
        factor of at most e^epsilon. A person who gives m values spends m epsilon in total. The number of values is
        not hidden. The noise is Laplace with noise="laplace", and otherwise the channel of `design_protocol`.

        Parameters
        ----------
        noise : a source for experiments and audits; None: a fresh one, keyed by the operating system
        """
        if self.noise == "gaussian":
            raise InputError("noise must be 'laplace' or 'channel' at the source, got 'gaussian'; both are pure")
        budget = checks.positive_number("epsilon", epsilon)
        if self.noise == "laplace":
            return noisy_values(values, bounds, budget, noise)
        protocol = design_protocol(bounds, budget, levels=self.levels)
        drawn = symbols(values, protocol, noise)
        stands = symbol_numbers(released_answers(protocol, drawn))
        return Randomized(bounds.uncentred(stands.values), drawn, stands.variance * (bounds.width / 2) ** 2)

    def _noise(self, request: Request) -> str:
        if self.noise is not None:
            return self.noise
        if request.unit.kind in ("value", "entry"):
            return "channel"  # whatever delta is: a channel wastes the least, and needs none
        return "gaussian" if request.delta > 0 else "laplace"

    def _solver(self, unit: Unit) -> ALS | Posterior:
        if isinstance(self.solver, ALS | Posterior):
            return self.solver
        dense = unit.kind == "slice" or (unit.kind == "entry" and self.noise not in (None, "channel"))
        return ALS() if self.solver == "als" or (self.solver is None and dense) else Posterior()

    def _cells(self, request: Request, noise: str) -> DenseCells:
        return DenseCells(request.shape, default_steps(request.bounds, self.default), noise == "laplace")


def _released_symbols(vault: Vault, plan: Plan, bounds: Bounds, levels: Sequence[float] | None) -> Released:
    """One symbol per value, by a channel on levels that are public or follow from the released marginal."""
    stage, pattern, error = plan.stages[-1], vault.pattern, UNKNOWN
    if levels is not None:
        scale = public_scale(bounds.centred(np.asarray(levels)).tolist(), VALUE_STEPS)
    else:
        total = float(len(pattern)) if vault.unit.kind == "value" else None
        marginal = ask_marginal(vault, plan.stages[:-1], bounds, total)
        scale, error = scale_of(marginal, MOST_LEVELS, (bounds.low, bounds.high)), marginal.error
    budget = -float_above(-Fraction(pure_epsilon(stage)) / changed_values(pattern))  # rounded down
    channel = design_channel(scale, budget, max(len(pattern), 1) / sum(vault.shape))
    return Released(vault.symbols(VALUES, Symbols(_whole(scale)), channel), channel.chances, scale, error)


def _whole(scale: Scale) -> tuple[int, ...]:
    return tuple(int(edge) for edge in scale.edges)
