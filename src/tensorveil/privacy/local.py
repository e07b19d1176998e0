"""Values randomized at the source, before anybody else sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.errors import InputError
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.noise.channels import Channel, quantize
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.values import values_change

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Randomized:
    """Values randomized at the source.

    Attributes
    ----------
    values : array
        Noisy values, or the unbiased stand-ins of the symbols, on the scale of the bounds.
    symbols : array or None
        What the channel gave.
    noise_variance : float
        Mean variance of the noise on a value, for a solver that asks for it.
    """

    values: Floats
    symbols: Integers | None
    noise_variance: float


def randomized(
    values: ArrayLike, bounds: Bounds, epsilon: float, channel: Channel | None, noise: NoiseSource | None
) -> Randomized:
    """Every value with Laplace noise, or through a channel, by itself: pure epsilon per value."""
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; leave them out")
    source = NoiseSource() if noise is None else noise
    steps = bounds.steps(numbers)
    if channel is None:
        change = values_change(1, pure=True)
        sensitivity = round(change.bound / change.grid)
        noisy = source.laplace(steps, grid=change.grid, sensitivity=sensitivity, epsilon=epsilon)
        return Randomized(bounds.uncentred(noisy), None, 2 * (bounds.width / epsilon) ** 2)
    symbols = source.channel(quantize(bounds.uncentred(np.asarray(steps / VALUE_STEPS)), channel.levels), channel)
    return Randomized(channel.pseudo_values[symbols], symbols, float(channel.weights @ channel.variances))
