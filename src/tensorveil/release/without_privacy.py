"""Completion without privacy, by the model of input perturbation without noise, to show the cost of privacy."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tensorveil.data.features import Features
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.marginal import exact_marginal
from tensorveil.inference.values.noisy import Target, sample_values
from tensorveil.inference.values.scale import scale_of
from tensorveil.kernels.cores import one_blas_thread
from tensorveil.mechanisms.base import Progress, no_progress
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.plan import bounds_of, check_nonnegative

MOST_LEVELS = 240  # a symbol is one byte, and a scale may add a few levels beyond its last value

NO_PRIVACY = Guarantee(
    float("inf"),
    0.0,
    "none",
    "none",
    "no noise was added: epsilon is infinite",
    neighbours="nothing is protected",
    released="the model, which was made without privacy",
    not_protected="anything: no noise was added",
)


def completed_without_privacy(
    observations: Observations,
    family: ModelFamily,
    bounds: Bounds | tuple[float, float] | None,
    progress: Progress = no_progress,
    features: Mapping[str, ArrayLike] | None = None,
    others: tuple[ModelFamily, ...] = (),
    smooth: Mapping[str, Features] | None = None,
) -> Completion:
    """The posterior of a model of the family, or of the best of several, given the values clipped to the bounds."""
    bounds = bounds_of(bounds)
    if not isinstance(family, ModelFamily):
        raise InputError(f"model must be CP(rank) or Tucker(ranks), got {family!r}; give one")
    check_nonnegative(family, bounds)
    steps = bounds.steps(observations.values)
    marginal = exact_marginal(steps, VALUE_STEPS)
    scale = scale_of(marginal, MOST_LEVELS, (bounds.low, bounds.high))
    symbols = np.searchsorted(scale.edges, steps, side="right")
    released = Released(symbols, np.eye(len(scale.low)), scale, marginal.error)
    solver = Posterior(families=others).knowing(features, smooth, observations.mode_names, observations.shape)
    target = Target(family, observations.shape, bounds.low, bounds.high)
    with one_blas_thread():
        return sample_values(solver, released, observations.coordinates, target, progress)
