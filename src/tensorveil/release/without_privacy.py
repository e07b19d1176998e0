"""Completion without privacy, by the models of input perturbation without noise, to show the cost of privacy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tensorveil.data.features import standardised
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.posterior.laws import NoiseLaw, NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms.base import Progress, no_progress
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.guarantee import Guarantee

MOST_LEVELS = 14  # distinct values up to here are taken for ordered levels, as ratings are

NO_PRIVACY = Guarantee(float("inf"), 0.0, "none", "none", "no noise was added: epsilon is infinite")


def completed_without_privacy(
    observations: Observations,
    family: ModelFamily,
    bounds: Bounds,
    progress: Progress = no_progress,
    features: Mapping[str, ArrayLike] | None = None,
) -> Completion:
    """The posterior of a model of the family given the values themselves, clipped to the bounds."""
    if not isinstance(bounds, Bounds):
        raise InputError(f"bounds must be Bounds(low, high), got {bounds!r}; state the range of values")
    if not isinstance(family, ModelFamily):
        raise InputError(f"model must be CP(rank) or Tucker(ranks), got {family!r}; give one")
    centred = bounds.centred(np.clip(observations.values, bounds.low, bounds.high))
    given = standardised(features, observations.mode_names, observations.shape)
    run = Posterior(features=[given.get(mode) for mode in range(len(observations.shape))]).solve(
        observations.coordinates,
        _law(centred),
        family,
        observations.shape,
        progress=lambda sweep, planned: progress("sweeps", sweep, planned),
    )
    return Completion(run.offsets, run.model, bounds.low, bounds.high, draws=run.draws)


def _law(centred: np.ndarray) -> NoiseLaw:
    levels, symbols = np.unique(centred, return_inverse=True)
    if 3 <= len(levels) <= MOST_LEVELS:
        return Symbols(symbols, np.eye(len(levels)), levels, ordered=True)
    return NoisyNumbers(centred)
