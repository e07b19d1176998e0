"""Alternating least squares: offsets and ridge regressions, row by row, for CP and Tucker models of any order.

The objective, at given penalties, is

    sum_w (x_w - mean - offsets_w - xhat_w)^2 + sum_b lambda_b |block_b|^2 + sum_n mu_n |offsets of mode n|^2

and every update is its exact minimum over one block (the core: conjugate gradients from the old core), so it never
rises. On CP models of more than a few thousand observations a row and its offset are one block, solved together by
vectorised kernels in threads (sorted_entries.py). Without a given `regularization` the penalties come from the data by
empirical Bayes: lambda = residual variance / prior variance of a factor entry, where that prior makes the model's
variance the signal's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Coordinates, Floats
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.reference import descent
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.block_updates import Entries, prior_variance, spectral_start, update_blocks
from tensorveil.solvers.layouts.sorted_entries import SortedEntries, mode_variances
from tensorveil.solvers.layouts.strata import sensible_threads
from tensorveil.solvers.layouts.variances import believable, between_variance, excess_variance, mean_square
from tensorveil.solvers.parallel_sgd import PRECISIONS, ModelWithOffsets, ParallelSGD

MULTIPLIERS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the rule's penalty, tried on held-out observations
HOLDOUT_SHARE = 0.1
FEWEST_TO_HOLD_OUT = 50
FEWEST_SWEEPS = 4
TRIAL_SWEEPS, TRIAL_TOLERANCE = 20, 3e-4
RANDOM_STARTS, MOST_FOR_RANDOM = 2, 2**19  # besides the spectral one, and the observations up to which they are tried
START_PASSES = 6
LARGEST_TRIED = 2**22  # no penalty is tried on held-out observations beyond: copies of parts, and many sweeps
MOST_OF_SIGNAL = 1.5  # factors that vary more than this times the signal, or its limit, have taken noise for it
FLOOR = 1e-12  # of the variance of the values: the least residual variance, so that every matrix can be factorized


@final
@dataclass(frozen=True, eq=False)
class ALSRun(ModelWithOffsets):
    """The result of ALS.

    Attributes
    ----------
    loss : mean squared residual after each sweep
    multiplier : the multiple of the rule's penalty that held-out observations chose; infinity: no factors, offsets
        alone
    residual_variance : estimated variance of an observation about its prediction
    held_out : mean squared error of the held-out observations at that multiple; infinity: none were held out
    offsets_alone : offsets without factors of the other observations; of all, if none were held out
    """

    multiplier: float
    residual_variance: float
    held_out: float
    offsets_alone: Offsets


@final
@dataclass(frozen=True)
class ALS:
    """Ridge alternating least squares with offsets.

    Parameters
    ----------
    sweeps : passes over all blocks, at most; a fit ends before when the loss no longer falls
    regularization : lambda of every block and of the offsets; None: by the rule above, its multiple chosen by the error
        on a tenth of the observations, which the last fit then includes. If factors do not predict those significantly
        better than the offsets alone, the factors are zero: for pure noise the model is (nearly) the mean. Beyond four
        million observations the rule is taken as it is.
    offsets : whether to fit a mean and one shrunk offset per index; False: factors only
    tolerance : a fit ends when a sweep lowers the loss by less than this share
    threads : number of threads; None: one per core. The result does not depend on it.
    precision : "double" or "single", of CP models of large data: half the memory and time, the same error to 3 digits
    largest_spectral : number of observations up to which fits of CP models begin with eigenvectors; beyond, with a few
        passes of descent, which take less time but may end in poor fits if factors vary around zero

    Examples
    --------
    >>> from tensorveil.data.datasets.synthetic import cp_tensor, observe
    >>> from tensorveil.models.cp import CP
    >>> data = observe(cp_tensor(seed=0), snr=1e6, seed=1)
    >>> run = ALS().solve(data.train, CP(rank=3))
    >>> bool(np.abs(run.predict(data.test.coordinates) - data.test.values).max() < 0.01)
    True
    """

    sweeps: int = 50
    regularization: float | None = None
    offsets: bool = True
    tolerance: float = 1e-5
    threads: int | None = None
    precision: str = "double"
    largest_spectral: int = 2**19

    def __post_init__(self) -> None:
        checks.positive_integer("sweeps", self.sweeps)
        if self.regularization is not None:
            checks.positive_number("regularization", self.regularization, "give a number above 0, or None for the rule")
        checks.nonnegative_number("tolerance", self.tolerance)
        if self.threads is not None:
            checks.positive_integer("threads", self.threads)
        checks.choice("precision", self.precision, tuple(PRECISIONS))
        checks.positive_integer("largest_spectral", self.largest_spectral)

    def solve(
        self,
        observations: Observations,
        family: ModelFamily,
        *,
        noise_variance: float = 0.0,
        largest_signal: float = math.inf,
        seed: int | None = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> ALSRun:
        """Fit offsets and a model of the family to the observations.

        Parameters
        ----------
        noise_variance : variance of the noise that is known to be on every value, e.g. a mechanism's
        largest_signal : a limit on the prior variance of offsets and factors, where their scale is known beforehand
        seed : decides start values and which observations are held out; None is 0, so that a run can be repeated
        progress : called after each sweep with its number, over all fits, and its loss
        """
        noise = checks.nonnegative_number("noise_variance", noise_variance)
        if not largest_signal > 0:
            raise InputError(f"largest_signal must be above 0, got {largest_signal!r}; leave it out for no limit")
        generator = np.random.default_rng(checks.seed(seed) or 0)
        fit = _Fit(self, family, observations.shape, noise, largest_signal, generator, progress)
        whole = Entries.of(observations.coordinates, observations.values, observations.shape)
        if self.regularization is not None or not FEWEST_TO_HOLD_OUT <= len(observations) < LARGEST_TRIED:
            start = fit.begin(whole)
            return fit.finish(whole, start, 1.0, math.inf, start.offsets())
        held = generator.random(len(observations)) < HOLDOUT_SHARE
        held[0], held[-1] = True, False  # neither part is empty
        part = Entries.of(observations.coordinates[~held], observations.values[~held], observations.shape)
        coordinates, values = observations.coordinates[held], observations.values[held]
        more = RANDOM_STARTS if len(part.values) <= MOST_FOR_RANDOM else 0
        starts = [fit.begin(part, spectral) for spectral in (True, *(False,) * more)]
        errors = values - starts[0].offsets().at(coordinates)
        trials = [fit.run(part, start.copy(), MULTIPLIERS[0], *self._trial) for start in starts]
        state = min(trials, key=lambda trial: trial.losses[-1])
        chosen, best, kept = math.inf, math.inf, starts[0]
        for multiplier in MULTIPLIERS:  # upwards: zero factors are where large penalties end, and there is no way back
            if multiplier > MULTIPLIERS[0]:
                state = fit.run(part, state.copy(), multiplier, *self._trial)
            error = mean_square(values - state.predict(coordinates))
            added = state.predict(coordinates) - values + errors
            if error < min(best, mean_square(errors)) and believable(errors, added, state.limit):
                chosen, best, kept = multiplier, error, state
            elif chosen < math.inf:
                break
        fit.lists.clear()  # those of the part
        return fit.finish(whole, kept.copy(), chosen, min(best, mean_square(errors)), starts[0].offsets())

    @property
    def _trial(self) -> tuple[int, float]:
        """Sweeps and tolerance where only the start and the penalty are to be chosen."""
        return min(TRIAL_SWEEPS, self.sweeps), max(TRIAL_TOLERANCE, self.tolerance)


@dataclass
class _State:
    """A model and offsets on the way, with the variances that the penalties are made of."""

    model: FactorModel  # its shape; the numbers are in `parameters`
    parameters: Floats
    mean: float
    modes: list[Floats]
    offset_variances: list[float]
    signal: float
    residual: float
    limit: float = math.inf
    losses: list[float] = field(default_factory=list)

    def copy(self) -> Self:
        """A copy that can be modified independently."""
        return replace(
            self, parameters=self.parameters.copy(), modes=[part.copy() for part in self.modes], losses=[*self.losses]
        )

    def offsets(self) -> Offsets:
        """The current mean and offsets."""
        return Offsets(self.mean, self.modes or [None] * self.model.order)

    def predict(self, coordinates: Coordinates) -> Floats:
        """Offsets and model at these coordinates."""
        return self.offsets().at(coordinates) + self.factors_at(coordinates)

    def factors_at(self, coordinates: Coordinates) -> Floats:
        """The model at these coordinates."""
        predictions = np.empty(len(coordinates))
        descent.predict(self.model.numbers._replace(parameters=self.parameters), coordinates, predictions)
        return predictions


@dataclass
class _Fit:
    """The state that all fits of one call of `solve` share."""

    solver: ALS
    family: ModelFamily
    shape: tuple[int, ...]
    noise_variance: float
    largest_signal: float
    generator: np.random.Generator
    progress: Callable[[int, float], None] | None
    sweeps_done: int = 0
    lists: dict[int, SortedEntries] = field(default_factory=dict)

    def is_large(self, data: Entries) -> bool:
        """Whether the start is found by descent."""
        return (
            self.family.name == "cp" and not self.family.nonnegative and len(data.values) > self.solver.largest_spectral
        )

    def begin(self, data: Entries, spectral: bool = True) -> _State:
        """Offsets alone, and a model to start from."""
        if self.is_large(data):
            return self._begin_large(data)
        zero = self.family.zeros(self.shape)
        mean, spread = float(data.values.mean()), float(data.values.var())
        state = _State(zero, zero.parameters.copy(), mean if self.solver.offsets else 0.0, [], [], spread, spread)
        if self.solver.offsets:
            state.modes = [np.zeros(size) for size in self.shape]
            for mode in range(len(self.shape)):
                variance = between_variance(data.values - state.offsets().at(data.coordinates), data, mode)
                state.offset_variances.append(min(variance, self.largest_signal))
                self._update_offset(data, state, data.values, mode)
            for mode in range(len(self.shape)):
                self._update_offset(data, state, data.values, mode)
        targets = data.values - state.offsets().at(data.coordinates)
        square = mean_square(targets)
        state.residual = max(square, FLOOR * spread, np.finfo(np.float64).tiny)
        unsure = math.sqrt(2 / len(targets)) * self.noise_variance  # how well the moments know the signal's variance
        signal = max(square - self.noise_variance, unsure / 4, FLOOR * state.residual)
        state.signal = min(signal, self.largest_signal)
        state.limit = MOST_OF_SIGNAL * max(signal, self.largest_signal)
        if spectral:
            state.parameters = spectral_start(data, targets, state.model, state.signal, state.residual, self.generator)
        else:
            spread = math.sqrt(prior_variance(state.model, state.signal))
            state.parameters = spread * self.generator.standard_normal(zero.parameters.size)
        if self.family.nonnegative:
            state.parameters = np.abs(state.parameters)
        return state

    def _begin_large(self, data: Entries) -> _State:
        """No offsets yet, and what a few passes of descent make of the values."""
        _, spread, parts = mode_variances(data.coordinates, data.values, self.shape)
        descent = ParallelSGD(iterations=START_PASSES, threads=self.solver.threads)
        run = descent.solve_entries(
            data.coordinates, data.values, self.shape, self.family, self.generator, constant=self.solver.offsets
        )
        state = _State(run.model, run.model.parameters.copy(), run.offsets.mean, [], [], spread, spread)
        if self.solver.offsets:
            state.modes = [np.zeros(size) for size in self.shape]
            squares = spread * len(data.values)
            variances = [excess_variance(sums, counts, 0.0, squares) for sums, counts in parts]
            state.offset_variances = [min(variance, self.largest_signal) for variance in variances]
        tiny = np.finfo(np.float64).tiny
        state.residual = max(float(run.loss[-1]), FLOOR * spread, tiny)
        signal = max(spread - sum(state.offset_variances) - self.noise_variance, FLOOR * spread, tiny)
        state.signal = min(signal, self.largest_signal)
        state.limit = MOST_OF_SIGNAL * max(signal, self.largest_signal)
        return state

    def run(self, data: Entries, state: _State, multiplier: float, sweeps: int, tolerance: float) -> _State:
        """Sweep until the loss no longer falls."""
        state.losses = []
        for sweep in range(sweeps):
            state.losses.append(self._sweep(data, state, multiplier))
            self.sweeps_done += 1
            if self.progress is not None:
                self.progress(self.sweeps_done, state.losses[-1])
            change = abs(state.losses[max(sweep - 1, 0)] - state.losses[-1])
            if sweep >= FEWEST_SWEEPS and change <= tolerance * state.losses[-1]:
                break
        return state

    def finish(self, data: Entries, state: _State, multiplier: float, held_out: float, alone: Offsets) -> ALSRun:
        """The last fit, on all entries."""
        if math.isinf(multiplier):
            state.parameters[:] = 0.0
            for _ in range(2 * len(self.shape)):
                for mode in range(len(state.modes)):
                    self._update_offset(data, state, data.values, mode)
            state.residual = mean_square(data.values - state.offsets().at(data.coordinates))
            state.losses = [state.residual]
        else:
            self.run(data, state, multiplier, self.solver.sweeps, self.solver.tolerance)
            self.lists.clear()  # before the numbers are copied
        return ALSRun(
            state.model.replace_parameters(state.parameters),
            state.offsets(),
            np.array(state.losses),
            multiplier,
            state.residual,
            held_out,
            alone,
        )

    def _sweep(self, data: Entries, state: _State, multiplier: float) -> float:
        """Update all blocks, then the offsets; returns the mean squared residual."""
        if not self.family.nonnegative and worth_compiling(len(data.values), self.family.name):
            return self._fast_sweep(data, state, multiplier)
        targets = data.values - state.offsets().at(data.coordinates)
        ridge = self.penalty(state, multiplier)
        effective = update_blocks(data, targets, state.model, state.parameters, ridge)
        targets = data.values - state.factors_at(data.coordinates)
        for mode in range(len(state.modes)):
            effective += self._update_offset(data, state, targets, mode)
        squares = float(((targets - state.offsets().at(data.coordinates)) ** 2).sum())
        return self._settle(data, state, squares, effective)

    def _fast_sweep(self, data: Entries, state: _State, multiplier: float) -> float:
        """Update all rows with their offsets, then the mean; returns the mean squared residual."""
        threads = sensible_threads(self.solver.threads, len(data.values), len(self.shape))
        dtype = PRECISIONS[self.solver.precision]
        if id(data) not in self.lists:
            self.lists[id(data)] = SortedEntries.of(data.coordinates, data.values, self.shape, threads, dtype)
        entries, R = self.lists[id(data)], state.model.ranks[0]
        packed = entries.pack(state.model, state.parameters, state.modes)
        penalties = [self._offset_penalty(state, mode) for mode in range(len(state.modes))]
        effective = entries.sweep(packed, R, state.mean, self.penalty(state, multiplier), penalties)
        total, squares = entries.residuals(packed, R, state.mean, bool(state.modes))
        if state.modes:
            state.mean += total / len(entries)
            squares = max(squares - total * total / len(entries), 0.0)
        state.parameters = np.empty(0)  # large models: not the old numbers and the new at once
        state.parameters, state.modes = entries.unpack(packed, state.model, state.modes)
        return self._settle(data, state, squares, effective)

    def _settle(self, data: Entries, state: _State, squares: float, effective: float) -> float:
        """Note the residual variance after a sweep; returns the mean squared residual."""
        count = len(data.values)
        spread = max(FLOOR * data.variance, np.finfo(np.float64).tiny)
        state.residual = max(squares / max(count - effective, 0.1 * count), self.noise_variance, spread)
        return squares / count

    def penalty(self, state: _State, multiplier: float) -> float:
        """lambda = residual variance / prior variance of an entry of a block, or the one that was given."""
        if self.solver.regularization is not None:
            return self.solver.regularization
        return multiplier * state.residual / prior_variance(state.model, state.signal)

    def _offset_penalty(self, state: _State, mode: int) -> float:
        """mu of a mode's offsets; infinite where there are none to be seen."""
        if self.solver.regularization is not None:
            return self.solver.regularization
        return state.residual / state.offset_variances[mode] if state.offset_variances[mode] > 0 else math.inf

    def _update_offset(self, data: Entries, state: _State, targets: Floats, mode: int) -> float:
        """The mean and the offsets of one mode, given the others; returns the effective number of parameters."""
        counts = data.counts(mode)
        remainder = targets - state.offsets().at(data.coordinates)
        change = float(remainder.mean())
        state.mean += change
        remainder -= change
        sums = np.bincount(data.coordinates[:, mode], remainder, minlength=len(counts)) + counts * state.modes[mode]
        ridge = self._offset_penalty(state, mode)
        if math.isinf(ridge):
            return 0.0
        state.modes[mode] = sums / (counts + ridge)
        return float((counts / (counts + ridge)).sum())
