"""From noisy numbers to a completion: what input perturbation does after its noise, all of it post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.posterior.laws import NoiseLaw
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms.base import Progress
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.plan import Plan
from tensorveil.solvers.als import ALS

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]

PRIOR_STD = 0.25  # of means on the centred scale, about the middle
MOST_FOR_SYMBOLS = 1.0  # noise variance over that of values: above, the posterior takes a channel's noise for Gaussian,
#                         which it nearly is in sums of many; draws of what is behind single symbols would hardly move


@final
@dataclass(frozen=True)
class Noisy:
    """What the noisy call gave: centred numbers, the variance of their noise, its law under public coordinates."""

    values: Floats
    variance: float
    law: NoiseLaw | None = None


def fit_cells(solver: ALS, noisy: Noisy, start: float, plan: Plan, progress: Progress) -> Completion:
    """Offsets and factors by ALS, of every cell of the box; start is the centred default."""
    shape = plan.request.shape
    where = np.indices(shape, dtype=np.uint32).reshape(len(shape), -1).T
    scales = rescaling(plan.request.expected_count, math.prod(shape))
    return fit_values(solver, noisy, where, plan, progress, scales, start)


def fit_values(
    solver: ALS,
    noisy: Noisy,
    where: Coordinates,
    plan: Plan,
    progress: Progress,
    scales: tuple[float, float] = (1.0, 1.0),
    start: float = 0.0,
) -> Completion:
    """Offsets and factors by ALS, the mean multiplied by the first of the scales, the rest by the second."""
    bounds, request = plan.request.bounds, plan.request
    run = solver.solve(
        Observations(where, noisy.values, request.shape, duplicates="keep"),
        request.family,
        noise_variance=noisy.variance,
        largest_signal=(PRIOR_STD / scales[1]) ** 2,
        progress=lambda sweep, _: progress("sweeps", sweep, max(sweep, solver.sweeps)),
    )
    first = np.arange(run.model.parameters.size) < run.model.factors[0].size  # one block carries the scale
    factors = run.model.replace_parameters(np.where(first, scales[1], 1.0) * run.model.parameters)
    mean = scales[0] * run.offsets.mean
    trust = PRIOR_STD**2 / (PRIOR_STD**2 + scales[0] ** 2 * noisy.variance / len(noisy.values))
    offsets = Offsets(start + trust * mean, [None if part is None else scales[1] * part for part in run.offsets.modes])
    return Completion(offsets, factors, bounds.low, bounds.high)


def rescaling(expected_count: int | None, cells: int) -> tuple[float, float]:
    """What the dense fit is multiplied by, the mean and the rest: see `InputPerturbation`."""
    if expected_count is None:
        return 1.0, 1.0
    density = min(1.0, expected_count / cells)
    return 1 / density, min(1 / density, 2.0)


def sample_values(
    solver: Posterior, law: NoiseLaw | None, where: Coordinates, plan: Plan, progress: Progress
) -> Completion:
    """The posterior of a model of the plan's family, given what was released and, side information, where."""
    if law is None:
        raise InputError("solver must be 'als' where coordinates are not public, got the posterior; leave it out")
    run = solver.solve(
        np.ascontiguousarray(where),
        law,
        plan.request.family,
        plan.request.shape,
        progress=lambda sweep, planned: progress("sweeps", sweep, planned),
    )
    return Completion(run.offsets, run.model, plan.request.bounds.low, plan.request.bounds.high, draws=run.draws)
