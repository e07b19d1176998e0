"""The level and spread of the values, from noisy totals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.priors import MEAN_VARIANCE
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets

Floats = NDArray[np.float64]

WIDE = 3.0  # values beyond three standard deviations are clipped
SURE = 2.0  # standard deviations of the noise that are added to an uncertain spread, so as not to clip too much


@final
@dataclass(frozen=True)
class Level:
    """A centre and a scale on the centred scale: values are read as clip((y - mean) / scale, -1, 1).

    `std` is their standard deviation, or an upper estimate if the noise makes it uncertain.
    """

    mean: float
    scale: float
    std: float = 1 / WIDE

    def rescaled(self, offsets: Offsets) -> Offsets:
        """Offsets of values brought to this level, on the centred scale."""
        parts = [None if part is None else self.scale * part for part in offsets.modes]
        return Offsets(self.mean + self.scale * offsets.mean, parts)

    def completion(
        self, offsets: Offsets, model: FactorModel, bounds: tuple[float, float], withheld: int | None = None
    ) -> Completion:
        """The completion on the centred scale, from offsets and a model of values brought to this level."""
        block = next(mode for mode in range(model.order) if mode != withheld) if model.core is None else model.order
        whole = model.factors[block] if model.core is None else model.core
        return Completion(self.rescaled(offsets), model.with_block(block, whole * self.scale), *bounds, withheld)


def level_of(released: Floats, variance: float, weight: float | None) -> Level:
    """The level, estimated from noisy totals.

    Parameters
    ----------
    released : totals of y and y^2 or, without public weights, of (1+y)/2, (1-y)/2 and y^2
    variance : of the noise on each
    weight : the public sum of the weights, or None
    """
    if weight is not None:
        count, total, square = weight, float(released[0]), float(released[1])
    else:
        count, total, square = float(released[0] + released[1]), float(released[0] - released[1]), float(released[2])
    count = max(count, SURE * math.sqrt(2 * variance), 1.0)
    trust = 1 / (1 + variance / (MEAN_VARIANCE * count**2))  # a mean that is all noise goes to the middle
    mean = min(max(trust * total / count, -1.0), 1.0)
    uncertain = SURE * math.sqrt(variance) / count
    spread = min(max(square / count - mean**2, 0.0) + (1 + 2 * abs(mean)) * uncertain, 1.0)
    scale = min(1.0 + abs(mean), max(WIDE * math.sqrt(spread), 1e-6))
    return Level(mean, scale, math.sqrt(spread))
