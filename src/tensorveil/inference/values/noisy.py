"""From one noisy number per value, or per cell, to a completion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.posterior.laws import NoiseLaw
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.als import ALS

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]
Progress = Callable[[str, int, int], None]  # what is being done, how far, of how many

PRIOR_STD = 0.25  # of means on the centred scale, about the middle
MOST_FOR_SYMBOLS = 1.0  # noise variance over that of values: above, the posterior takes a channel's noise for Gaussian,
#                         which it nearly is in sums of many; draws of what is behind single symbols would hardly move


@final
@dataclass(frozen=True)
class Target:
    """The target of a completion: model family, shape, and bounds of the values."""

    family: ModelFamily
    shape: tuple[int, ...]
    low: float
    high: float


@final
@dataclass(frozen=True)
class Noisy:
    """The released data: centred numbers, the variance of their noise and, under public coordinates, its law."""

    values: Floats
    variance: float
    law: NoiseLaw | None = None


def fit_cells(
    solver: ALS, noisy: Noisy, start: float, expected_count: int | None, target: Target, progress: Progress
) -> Completion:
    """Offsets and factors by ALS, of every cell of the box; start is the centred default."""
    where = np.indices(target.shape, dtype=np.uint32).reshape(len(target.shape), -1).T
    scales = rescaling(expected_count, math.prod(target.shape))
    return fit_values(solver, noisy, where, target, progress, scales, start)


def fit_values(
    solver: ALS,
    noisy: Noisy,
    where: Coordinates,
    target: Target,
    progress: Progress,
    scales: tuple[float, float] = (1.0, 1.0),
    start: float = 0.0,
) -> Completion:
    """Offsets and factors by ALS, the mean multiplied by the first of the scales, the rest by the second."""
    run = solver.solve(
        Observations(where, noisy.values, target.shape, duplicates="keep"),
        target.family,
        noise_variance=noisy.variance,
        largest_signal=(PRIOR_STD / scales[1]) ** 2,
        progress=lambda sweep, _: progress("sweeps", sweep, max(sweep, solver.sweeps)),
    )
    first = np.arange(run.model.parameters.size) < run.model.factors[0].size  # one block carries the scale
    factors = run.model.replace_parameters(np.where(first, scales[1], 1.0) * run.model.parameters)
    mean = scales[0] * run.offsets.mean
    trust = PRIOR_STD**2 / (PRIOR_STD**2 + scales[0] ** 2 * noisy.variance / len(noisy.values))
    offsets = Offsets(start + trust * mean, [None if part is None else scales[1] * part for part in run.offsets.modes])
    return Completion(offsets, factors, target.low, target.high)


def rescaling(expected_count: int | None, cells: int) -> tuple[float, float]:
    """Factors that multiply the mean and the rest of the dense fit: see `InputPerturbation`."""
    if expected_count is None:
        return 1.0, 1.0
    density = min(1.0, expected_count / cells)
    return 1 / density, min(1 / density, 2.0)


def sample_values(
    solver: Posterior, law: NoiseLaw | None, where: Coordinates, target: Target, progress: Progress
) -> Completion:
    """The posterior of the model, given the released values and, as side information, their positions."""
    if law is None:
        raise InputError("solver must be 'als' where coordinates are not public, got the posterior; leave it out")
    run = solver.solve(
        np.ascontiguousarray(where),
        law,
        target.family,
        target.shape,
        progress=lambda sweep, planned: progress("sweeps", sweep, planned),
    )
    return Completion(run.offsets, run.model, target.low, target.high, draws=run.draws)
