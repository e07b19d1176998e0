"""Stochastic gradient descent for large data: compact entries, several threads, rows as vectors; Tucker in one thread.

This is not the solver of the paper, which is in sgd.py. The order of the steps differs, numbers have single precision
by default, and start values and step sizes adapt to the data, so that large sparse tensors fit from the first pass on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Coordinates, Floats
from tensorveil.data.observations import Observations
from tensorveil.errors import DivergenceError
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.layouts.strata import Strata, sensible_threads
from tensorveil.solvers.serial_tucker import SerialTucker
from tensorveil.solvers.sgd import refuse_nonnegative

PRECISIONS = {"single": np.float32, "double": np.float64}
LEVEL = 1.0  # mean of the values that the factors are fitted to, in their standard deviations: products start positive
SPREAD = 0.3  # standard deviation of start values, in their mean
CHUNK = 2**20
MOST_RESTARTS = 8  # each with half the learning rate


@dataclass(frozen=True, eq=False)
class ModelWithOffsets:
    """What a solver gives: prediction = offsets + model, and the loss after or during each pass."""

    model: FactorModel
    offsets: Offsets
    loss: Floats

    def predict(self, coordinates: ArrayLike) -> Floats:
        """Predicted values at integer coordinates, one row per entry."""
        where = checks.coordinates(coordinates, self.model.shape)
        return self.offsets.at(where) + self.model.predict(where)


@final
@dataclass(frozen=True, eq=False)
class ParallelSGDRun(ModelWithOffsets):
    """The result of descent; its offsets are a single constant.

    Attributes
    ----------
    loss : mean squared residual of each iteration, every entry's taken when it was visited, before its step
    threads : number of threads used. Seed and number of threads together determine the result.
    learning_rate : learning rate of the first iteration: the requested one, halved each time descent diverged
    """

    threads: int
    learning_rate: float


@final
@dataclass(frozen=True)
class ParallelSGD:
    """Stochastic gradient descent with threads that never touch the same row: same seed and threads, same result.

    Values are scaled to mean 1 and standard deviation 1. If their distribution is skewed to the left, their sign is
    flipped first. All start values are near the level at which the model predicts that mean, because products of three
    or more numbers have a vanishing gradient around zero. Step sizes fall from `learning_rate` to zero along half a
    cosine.

    Parameters
    ----------
    learning_rate : of the first iteration, on the scale of values of standard deviation 1; if descent
        diverges, it is halved and descent starts again
    iterations : passes over the observations
    regularization : lambda, on the same scale
    threads : number of threads; None: one per core, but only one for small data and for Tucker models
    precision : "single" or "double", of CP models during descent; results always have double precision

    Examples
    --------
    >>> from tensorveil.data.datasets.synthetic import cp_tensor, observe
    >>> from tensorveil.models.cp import CP
    >>> data = observe(cp_tensor((60, 50, 40), seed=0), snr=10, seed=1)
    >>> run = ParallelSGD().solve(data.train, CP(rank=3), seed=0)
    >>> bool((run.predict(data.test.coordinates) - data.truth_at(data.test.coordinates)).std() < data.noise_std)
    True
    """

    learning_rate: float = 0.05
    iterations: int = 30
    regularization: float = 0.01
    threads: int | None = None
    precision: str = "single"

    def __post_init__(self) -> None:
        checks.positive_number("learning_rate", self.learning_rate)
        checks.positive_integer("iterations", self.iterations)
        checks.nonnegative_number("regularization", self.regularization)
        if self.threads is not None:
            checks.positive_integer("threads", self.threads)
        checks.choice("precision", self.precision, tuple(PRECISIONS))

    def solve(
        self,
        observations: Observations,
        family: ModelFamily,
        *,
        seed: int | None = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> ParallelSGDRun:
        """Fit a model and a constant to the observations.

        Parameters
        ----------
        seed : decides start values and orders; None draws fresh ones
        progress : called for each iteration with its number and its loss, perhaps for several at a time

        Raises
        ------
        DivergenceError : if descent diverges even with the smallest steps
        """
        generator = np.random.default_rng(checks.seed(seed))
        return self.solve_entries(
            observations.coordinates, observations.values, observations.shape, family, generator, progress
        )

    def solve_entries(
        self,
        coordinates: Coordinates,
        values: Floats,
        shape: tuple[int, ...],
        family: ModelFamily,
        generator: np.random.Generator,
        progress: Callable[[int, float], None] | None = None,
        constant: bool = True,
    ) -> ParallelSGDRun:
        """`solve` for bare arrays; without a constant, the model alone predicts the values."""
        refuse_nonnegative(family)
        zero = family.zeros(shape)
        is_tucker = zero.core is not None
        dtype = np.float64 if is_tucker else PRECISIONS[self.precision]
        mean, std = _moments(values)
        if not constant:
            std = math.copysign(std, mean)
        threads = 1 if is_tucker else sensible_threads(self.threads, len(values), len(shape))
        aim = LEVEL if constant else max(mean / std, LEVEL)
        blocks = len(zero.block_starts)
        level = (aim / min(zero.ranks)) ** (1 / zero.order)
        first = level * (1 + SPREAD * generator.standard_normal(zero.parameters.size))
        if zero.core is not None:  # its diagonal alone: components that begin alike would stay so
            core = 0.1 * SPREAD * generator.standard_normal(zero.core.shape)
            core[(np.arange(min(zero.ranks)),) * zero.order] += 1.0
            first[-core.size :] = core.ravel()
        shift = LEVEL - mean / std if constant else 0.0
        start = zero.replace_parameters(first)
        del zero, first  # large models: one copy of their numbers is enough
        layout: Strata | SerialTucker
        if is_tucker:
            layout = SerialTucker(coordinates, values, 1 / std, shift)
        else:
            layout = Strata.of(coordinates, values, start, threads, dtype, generator, 1 / std, shift)
        rate = self.learning_rate
        for _ in range(MOST_RESTARTS + 1):
            parameters = layout.pack(start)
            losses = self._descend(layout, parameters, start, rate, std, generator, progress)
            if losses is not None:
                unpack = type(layout).unpack
                del layout  # the entries, before the numbers are copied
                found = unpack(parameters, start)
                found *= abs(std) ** (1 / blocks)
                if std < 0:
                    found[: start.factors[0].size] *= -1
                offsets = Offsets(-shift * std, [None] * start.order)
                return ParallelSGDRun(start.replace_parameters(found), offsets, losses, threads, rate)
            rate /= 2
        raise DivergenceError(
            f"SGD must stay finite, got divergence with learning_rate {self.learning_rate:g} and "
            f"{MOST_RESTARTS} halvings of it; look for extreme values, or use ALS",
            1,
        )

    def _descend(
        self,
        layout: Strata | SerialTucker,
        parameters: NDArray[Any],
        model: FactorModel,
        rate: float,
        std: float,
        generator: np.random.Generator,
        progress: Callable[[int, float], None] | None,
    ) -> Floats | None:
        """Losses of all iterations, or None where one is not finite."""
        rates = rate * 0.5 * (1 + np.cos(math.pi * np.arange(self.iterations) / self.iterations))
        losses = np.empty(self.iterations)
        for begin in range(0, self.iterations, layout.passes_at_once()):
            part = slice(begin, min(begin + layout.passes_at_once(), self.iterations))
            sums = layout.visit(parameters, model, rates[part], self.regularization, generator)
            if not (np.isfinite(sums).all() and np.isfinite(parameters).all()):
                return None
            losses[part] = sums * (std * std / layout.entries)
            if progress is not None:
                for iteration in range(part.start, part.stop):
                    progress(iteration + 1, float(losses[iteration]))
        return losses


def _moments(values: Floats) -> tuple[float, float]:
    """Mean, and standard deviation with the sign of the skewness, so that the long tail points upwards."""
    count = len(values)
    mean = float(values.mean())
    second = third = 0.0
    for begin in range(0, count, CHUNK):
        centred = values[begin : begin + CHUNK] - mean
        squares = centred * centred
        second += float(squares.sum())
        third += float(squares @ centred)
    return mean, math.copysign(math.sqrt(second / count), third) if second > 0 else 1.0
