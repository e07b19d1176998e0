"""Values randomized at the source by a `NoiseSource`, for experiments and audits: Laplace noise, or a protocol."""

from dataclasses import dataclass
from typing import final

from numpy.typing import ArrayLike

from tensorveil.arrays import Floats, Integers
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.local.client import LocalProtocol
from tensorveil.privacy.local.randomizing import channel_of, finite_values, levels_of
from tensorveil.privacy.noise.source import NoiseSource
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


def symbols(values: ArrayLike, protocol: LocalProtocol, noise: NoiseSource | None) -> Integers:
    """Every value through the channel of a protocol by itself: pure, of the protocol's epsilon, per value."""
    source = NoiseSource() if noise is None else noise
    return source.channel(levels_of(protocol, finite_values(values)), channel_of(protocol))


def _steps(values: ArrayLike, bounds: Bounds) -> Integers:
    return bounds.steps(finite_values(values))
