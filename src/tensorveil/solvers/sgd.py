"""Stochastic gradient descent, one entry per step: the paper's solver of Eq. (cp) and Eq. (tucker)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.data.observations import Observations
from tensorveil.errors import DivergenceError, InputError
from tensorveil.kernels.reference import descent
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.solvers.start import Start, UniformStart

STEPS_PER_BLOCK = 1 << 14  # of noise handed to the kernel at a time


class StepNoise(Protocol):
    """Noise that is added to one block's gradient at every step."""

    @property
    def block(self) -> int:
        """The block: a mode, or the number of modes for the core."""

    def draw(self, steps: int, width: int) -> Floats:
        """One row of noise for each of the next steps."""


@final
@dataclass(frozen=True, eq=False)
class SGDRun:
    """The result of SGD.

    Attributes
    ----------
    loss : mean squared residual of each iteration, every entry's taken when it was visited, before its step
    largest_gradient, largest_feature : for watched or clipped blocks, the largest gradient norm met before clipping and
        the largest squared norm of the features phi; zero for the others
    """

    model: FactorModel
    loss: Floats
    largest_gradient: Floats
    largest_feature: Floats


@final
@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with a fresh random order in each iteration.

    For one entry the objective is (x - xhat)^2 + regularization * (|a_i|^2 + |b_j|^2 + ...) + core_regularization *
    |core|^2; all of its rows and the core are updated from the same old values. Steps are serial, so that the seed
    alone decides the result.

    Parameters
    ----------
    learning_rate : step size, the paper's eta
    iterations : passes over the observations
    regularization : lambda of CP, lambda_o of Tucker
    core_regularization : lambda_g of Tucker
    start : rule for the first model

    Examples
    --------
    >>> SGD.preset("tucker-ml-100k").learning_rate
    0.003
    """

    learning_rate: float = 0.005
    iterations: int = 100
    regularization: float = 0.01
    core_regularization: float = 0.001
    start: Start = field(default_factory=UniformStart)

    def __post_init__(self) -> None:
        checks.positive_number("learning_rate", self.learning_rate)
        checks.positive_integer("iterations", self.iterations)
        checks.nonnegative_number("regularization", self.regularization)
        checks.nonnegative_number("core_regularization", self.core_regularization)

    @classmethod
    def preset(cls, name: str) -> Self:
        """The parameters of the paper's experiments, by name: see PRESETS."""
        return PRESETS[checks.choice("name", name, tuple(PRESETS))]

    def penalties(self, model: FactorModel) -> Floats:
        """Regularisation weight of each block."""
        core = [] if model.core is None else [self.core_regularization]
        return np.array([self.regularization] * model.order + core)

    def solve(
        self,
        observations: Observations,
        family: ModelFamily,
        *,
        seed: int | None = None,
        start: FactorModel | None = None,
        clip_norms: Sequence[float] | None = None,
        watched: Sequence[int] = (),
        noise: StepNoise | None = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> SGDRun:
        """Fit a model of the family to the observations.

        Parameters
        ----------
        seed : decides start values and orders; None draws fresh ones
        start : the first model, instead of one drawn by the rule
        clip_norms : largest gradient norm of each block, infinity for no clipping
        watched : blocks whose largest gradient and features are recorded
        noise : noise on one block's gradient
        progress : called after each iteration with its number and its loss

        Raises
        ------
        DivergenceError : if a residual or a parameter is no longer finite
        """
        refuse_nonnegative(family)
        generator = np.random.default_rng(checks.seed(seed))
        first = self.start.model(family, observations.shape, generator)
        if start is not None:
            if start.family.block_shapes(start.shape) != family.block_shapes(observations.shape):
                raise InputError(f"start must be a model of {family} and shape {observations.shape}, got {start!r}")
            first = start
        parameters = first.parameters.copy()
        number_of_blocks = len(first.block_starts)
        norms = np.full(number_of_blocks, np.inf) if clip_norms is None else np.asarray(clip_norms, dtype=np.float64)
        if norms.shape != (number_of_blocks,) or not (norms > 0).all():
            raise InputError(f"clip_norms must be {number_of_blocks} positive numbers, one per block, got {clip_norms}")
        watch = np.zeros(number_of_blocks, dtype=np.bool_)
        for block in watched:
            watch[_block("watched", block, number_of_blocks)] = True
        noised = -1 if noise is None else _block("noise.block", noise.block, number_of_blocks)
        clipping = descent.Clipping(norms, watch, np.zeros(number_of_blocks), np.zeros(number_of_blocks))
        numbers, no_noise = first.numbers._replace(parameters=parameters), np.empty((0, 0))
        losses = np.empty(self.iterations)
        for iteration in range(self.iterations):
            visits = generator.permutation(len(observations))
            loss = 0.0
            for begin in range(0, len(visits), len(visits) if noise is None else STEPS_PER_BLOCK):
                part = visits if noise is None else visits[begin : begin + STEPS_PER_BLOCK]
                rows = no_noise if noise is None else _drawn(noise, len(part), int(first.block_widths[noised]))
                entries = (observations.coordinates, observations.values, part)
                rules = (self.learning_rate, self.penalties(first), clipping)
                loss += descent.sgd_pass(numbers, *entries, *rules, noised, rows)
                if not np.isfinite(loss):
                    break
            if not (np.isfinite(loss) and np.isfinite(parameters).all()):
                raise DivergenceError(
                    f"SGD must stay finite, got divergence in iteration {iteration + 1} of {self.iterations}; "
                    f"lower learning_rate ({self.learning_rate:g}), scale the values, or use less noise",
                    iteration + 1,
                )
            losses[iteration] = loss / len(observations)
            if progress is not None:
                progress(iteration + 1, float(losses[iteration]))
        return SGDRun(first.replace_parameters(parameters), losses, clipping.largest_gradient, clipping.largest_feature)


def refuse_nonnegative(family: ModelFamily) -> None:
    """Raise an error for a model that descent would move below zero."""
    if family.nonnegative:
        raise InputError(f"model must not be non-negative for SGD, got {family}; use ALS, or leave out nonnegative")


def _block(name: str, value: int, number_of_blocks: int) -> int:
    if not 0 <= value < number_of_blocks:
        raise InputError(f"{name} must be from 0 to {number_of_blocks - 1}, got {value!r}; name a block of the model")
    return value


def _drawn(noise: StepNoise, steps: int, width: int) -> Floats:
    rows = np.ascontiguousarray(noise.draw(steps, width), dtype=np.float64)
    if rows.shape != (steps, width):  # the kernel does not check
        raise InputError(
            f"noise must be {steps} rows of {width} numbers, got shape {rows.shape}; draw one row per step"
        )
    return rows


PRESETS = {
    "cp-synthetic": SGD(learning_rate=0.005, regularization=0.01),
    "tucker-synthetic": SGD(learning_rate=0.005, regularization=0.001, core_regularization=0.0001),
    "cp-ml-100k": SGD(learning_rate=0.005, regularization=0.01),
    "tucker-ml-100k": SGD(learning_rate=0.003, regularization=0.01, core_regularization=0.001),
}
