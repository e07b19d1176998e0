"""From one noisy number or symbol per value, or per cell, to a completion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.data.observations import Observations
from tensorveil.inference.posterior.coupled import Second
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.public_scales import UNKNOWN, even_scale
from tensorveil.inference.values.starts import Start, least_squares
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.als import ALS

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]
Progress = Callable[[str, int, int], None]  # what is being done, how far, of how many

PRIOR_STD = 0.25  # of means on the centred scale, about the middle
CELLS_PER_STD = 4.0  # of the noise, of the bounds and of noisy numbers, which are taken for symbols
FEWEST_LEVELS, MOST_LEVELS, MOST_SYMBOLS = 16, 64, 256
FAR = 5.0  # standard deviations of the noise beyond the bounds: the outer cells go on


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
    """The released data as numbers: centred, and the variance of their noise."""

    values: Floats
    variance: float


def released_numbers(noisy: Noisy, pure: bool, steps: int) -> Released:
    """Noisy numbers as symbols: which of many cells they lie in, by a channel that is the law of their noise.

    pure : whether the noise is Laplace; otherwise it is Gaussian
    """
    from scipy.special import ndtr

    std = math.sqrt(noisy.variance)
    scale = even_scale(min(max(math.ceil(2 * CELLS_PER_STD / std), FEWEST_LEVELS), MOST_LEVELS), steps)
    cells = min(math.ceil(2 * CELLS_PER_STD * (1 / std + FAR)), MOST_SYMBOLS)
    ends = np.linspace(-1 - FAR * std, 1 + FAR * std, cells + 1)[1:-1]
    away = (ends - ((scale.low + scale.high) / 2)[:, None]) / std
    if pure:
        tails = np.exp(-math.sqrt(2) * np.abs(away)) / 2
        below = np.where(away < 0, tails, 1 - tails)
    else:
        below = ndtr(away)
    chances = np.diff(below, axis=1, prepend=0.0, append=1.0)
    return Released(np.searchsorted(ends, noisy.values, side="right"), chances, scale, UNKNOWN)


def symbol_numbers(released: Released) -> Noisy:
    """A number for each symbol, for solvers that take numbers: its slope on the value is one, on average.

    It is the expected value given the symbol, stretched about the mean.
    """
    values = (released.scale.low + released.scale.high) / 2
    mean = float(released.shares @ values)
    each = released.shares[:, None] * released.chances
    stands = (values - mean) @ (each / np.maximum(each.sum(axis=0), 1e-300))
    variance = float(released.shares @ (values - mean) ** 2)
    explained = float(released.shares @ (released.chances @ stands**2))
    stands *= variance / max(explained, 1e-12)
    noise = float(released.shares @ (released.chances @ stands**2)) - variance
    return Noisy(mean + stands[released.symbols], max(noise, 0.0))


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
    solver: Posterior,
    released: Released,
    where: Coordinates,
    target: Target,
    progress: Progress,
    coupled: Second | None = None,
) -> Completion:
    """The posterior of the model, given the released symbols and, as side information, their positions.

    With a coupled table, given its symbols as well. If the solver names further families, theirs too, and the one that
    is expected to predict symbols best is kept.
    """
    where = np.ascontiguousarray(where)
    runs = []
    for family in (target.family, *solver.families):
        label = f"sweeps, {family.name}" if solver.families else "sweeps"
        start = _start(released, where, replace(target, family=family), progress)
        runs.append(
            solver.solve(
                where,
                released,
                family,
                target.shape,
                coupled=coupled,
                start=start,
                progress=lambda sweep, planned, label=label: progress(label, sweep, planned),  # type: ignore[misc]
            )
        )
    run = max(runs, key=lambda run: run.expected_fit(where, released)) if solver.families else runs[0]
    return Completion(run.offsets, run.model, target.low, target.high, draws=run.draws)


def _start(released: Released, where: Coordinates, target: Target, progress: Progress) -> Start | None:
    """Where chains begin, by least squares of numbers that stand for the symbols."""
    numbers = symbol_numbers(released)
    values = (released.scale.low + released.scale.high) / 2
    spread = math.sqrt(float(released.shares @ (values - released.shares @ values) ** 2))
    progress("least squares", 0, 1)
    return least_squares(numbers.values, numbers.variance, spread, where, target.family, target.shape)
