"""Values randomized at the source, before anybody else sees them."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.queries.values.values import values_change


@final
@dataclass(frozen=True)
class Randomized:
    """Values randomized at the source.

    Attributes
    ----------
    values : noisy values, or the numbers that represent the symbols, on the scale of the bounds
    symbols : what the channel gave
    noise_variance : mean variance of the noise on a value, for a solver that asks for it
    """

    values: Floats
    symbols: Integers | None
    noise_variance: float


def noisy_values(values: ArrayLike, bounds: Bounds, epsilon: float, noise: NoiseSource | None) -> Randomized:
    """Every value with Laplace noise by itself: pure epsilon per value."""
    change = values_change(1, pure=True)
    sensitivity = round(change.bound / change.grid)
    source = NoiseSource() if noise is None else noise
    noisy = source.laplace(_steps(values, bounds), grid=change.grid, sensitivity=sensitivity, epsilon=epsilon)
    return Randomized(bounds.uncentred(noisy), None, 2 * (bounds.width / epsilon) ** 2)


def symbols(values: ArrayLike, bounds: Bounds, query: Symbols, channel: Channel, noise: NoiseSource | None) -> Integers:
    """Every value through a channel by itself, on public levels: pure, of the channel's epsilon, per value."""
    source = NoiseSource() if noise is None else noise
    return source.channel(query.levels(_steps(values, bounds)), channel)


def _steps(values: ArrayLike, bounds: Bounds) -> Integers:
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; leave them out")
    return bounds.steps(numbers)
