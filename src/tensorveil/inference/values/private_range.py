"""A released range of continuous values, with their mean and spread; models are on its scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.laws import USUAL_SIGMA
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets

Floats = NDArray[np.float64]

SHAPE_DOUBT = 0.05  # standard deviations of values, of a mean by numbers that stand for symbols
LEVEL_DOUBT = 0.1  # standard deviations of values between their mean and the model's


@final
@dataclass(frozen=True)
class PrivateRange:
    """A released range with the values' mean and spread; symbols and model are on its scale, where its ends are -1, 1.

    Attributes
    ----------
    low, high : float
        Ends, on the centred scale of the public bounds.
    mean, mean_std : float
        Mean of the values clipped to the range, and the standard deviation of its noise.
    spread : float or None
        Standard deviation of the values, estimated from the quantiles; None if these were not released.
    """

    low: float
    high: float
    mean: float
    mean_std: float
    spread: float | None

    @property
    def around(self) -> tuple[float, float]:
        """Mean and spread of the values, with a default spread if none was released."""
        return self.mean, self.spread or USUAL_SIGMA

    @property
    def level(self) -> tuple[float, float]:
        """Prior mean and variance of the mean of the model; it is near that of the values."""
        return self.mean, self.mean_std**2 + (LEVEL_DOUBT * self.around[1]) ** 2

    def told_by(self, stands: Floats, passed: float) -> PrivateRange:
        """The range with a mean that combines the released mean and the numbers that represent symbols.

        passed : share of the information that the symbols keep; the rest relies on an assumed law
        """
        spread = self.around[1]
        own = float(stands.var()) / max(len(stands), 1) * (1 - passed) + (SHAPE_DOUBT * (1 - passed) * spread) ** 2
        trust = own / (own + self.mean_std**2 + 1e-30)
        mean = trust * self.mean + (1 - trust) * min(max(float(stands.mean()), -1.0), 1.0)
        return replace(self, mean=mean, mean_std=math.sqrt(trust) * self.mean_std)

    def mean_alone(self, family: ModelFamily, shape: tuple[int, ...]) -> Completion:
        """A model on the scale of the range that predicts the mean everywhere, with intervals of the default spread."""
        model = family.model([np.zeros(block) for block in family.block_shapes(shape)])
        nothing = np.zeros((1, 1 + sum(shape)), dtype=np.float32)
        spread, doubt = np.array([self.around[1]]), np.array([self.mean_std**2])
        numbers = np.zeros((1, model.parameters.size), dtype=np.float32)
        draws = PosteriorDraws(family, shape, numbers, nothing, spread, doubt, np.empty((1, 0)), np.empty(0))
        return Completion(Offsets(self.mean, [None] * len(shape)), model, -1.0, 1.0, draws=draws)

    def shrunk(self, completion: Completion, share: float, explained: float) -> Completion:
        """The model with its deviations from the mean multiplied by a share; intervals widen accordingly."""
        moved = (1 - share) * self.mean
        return _rescaled(completion, share, moved, (-1.0, 1.0), noise_ratio=1.0, added=(1 - share**2) * explained)

    def on_bounds(self, completion: Completion, low: float, high: float) -> Completion:
        """A completion on the scale of the range, brought to that of the public bounds: predictions do not change."""
        ratio, moved = (self.high - self.low) / 2, (self.high + self.low) / 2
        return _rescaled(completion, ratio, moved, (low, high), noise_ratio=ratio, added=0.0)


def _rescaled(
    completion: Completion, ratio: float, moved: float, ends: tuple[float, float], *, noise_ratio: float, added: float
) -> Completion:
    """Predictions times ratio plus moved; spreads of values times noise_ratio, their variances plus added."""
    factors = completion.factors
    first = factors.factors[0].size  # one block carries the scale
    scales = np.where(np.arange(factors.parameters.size) < first, ratio, 1.0)
    modes = [None if part is None else ratio * part for part in completion.offsets.modes]
    draws = completion.draws
    if draws is not None:
        draws = PosteriorDraws(
            draws.family,
            draws.shape,
            draws.parameters * scales.astype(np.float32),
            draws.offsets * np.float32(ratio),
            np.sqrt((noise_ratio * draws.sigmas) ** 2 + added),
            draws.extra * ratio**2,
            draws.cuts,
            draws.levels,
        )
    offsets = Offsets(moved + ratio * completion.offsets.mean, modes)
    model = factors.replace_parameters(scales * factors.parameters)
    return Completion(offsets, model, *ends, draws=draws)
