"""Noise from OpenDP's exact samplers, behind the interface of `NoiseSource`: `fit(..., noise=ExactNoise())`.

For those who want the two laws of noise drawn by somebody else's reviewed code. It needs `pip install
'tensorveil[exact]'` and takes tens of microseconds a number, hundreds of times what `NoiseSource` takes: for releases
of up to a few million noisy numbers.

Why the price of a plan covers it is in docs/proofs/noise.md, "The exact backend".

Numerics not covered
--------------------
OpenDP's code, which lists these samplers under "contrib", and its generator, OpenSSL's, seeded by the operating system,
are taken for right; OpenSSL takes new randomness after a fork. Time is not covered: rejection takes longer for some
values than for others.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError, MissingDependencyError
from tensorveil.kernels.sampling import RowLaw
from tensorveil.privacy.noise.source import BLOCK, NoiseSource

OLDEST = (0, 16)  # the release whose samplers were read; old ones draw small scales from a rounded chance
LARGEST_NOISE = 2**62  # with a statistic clamped to 2^61, more noise than this gives the same output


@final
class ExactNoise(NoiseSource):
    """OpenDP's exact discrete Laplace and Gaussian noise; all else as in `NoiseSource`.

    Parameters
    ----------
    seed : any other is refused: OpenDP's generator cannot be seeded. For experiments use `fit(..., seed=...)` alone.

    Notes
    -----
    OpenDP's feature "contrib" is switched on for the whole process.

    Raises
    ------
    MissingDependencyError : where OpenDP is not installed, or too old

    Examples
    --------
    >>> import numpy as np
    >>> noisy = ExactNoise().laplace(np.zeros(3, np.int64), grid=0.25, sensitivity=4, epsilon=1.0)
    >>> bool((noisy % 0.25 == 0).all())
    True
    """

    __slots__ = ("_opendp",)

    generator: ClassVar[str] = f"OpenSSL through OpenDP's exact samplers, and {NoiseSource.generator} for all else"

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None:
            raise InputError(
                f"seed must be left out of ExactNoise, got {seed!r}; OpenDP draws from the operating system alone, "
                "so use NoiseSource(seed) for experiments"
            )
        self._opendp = _find_opendp()
        super().__init__()

    def _laplace_steps(self, scale: float, count: int) -> Integers:
        dp = self._opendp
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
        return _drawn(dp.m.make_laplace(*space, scale=scale), count)

    def _gaussian_steps(self, scale: float, count: int) -> Integers:
        dp = self._opendp
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
        return _drawn(dp.m.make_gaussian(*space, scale=scale), count)

    def _gaussian_tails(self, law: RowLaw, std: float, count: int) -> Integers:
        return self._gaussian_steps(std, count)


def _drawn(measurement: Any, count: int) -> Integers:
    """What the measurement makes of so many zeros: the noise alone."""
    noise = np.empty(count, dtype=np.int64)
    for start in range(0, count, BLOCK):
        part = noise[start : start + BLOCK]
        part[:] = measurement([0] * len(part))  # OpenDP saturates at the ends of int64
    return np.clip(noise, -LARGEST_NOISE, LARGEST_NOISE)


def _find_opendp() -> Any:
    """OpenDP's module, its samplers switched on."""
    try:
        import opendp.prelude as dp

        found = version("opendp")
    except (ImportError, PackageNotFoundError) as error:
        raise MissingDependencyError(
            "ExactNoise must have OpenDP, which is not installed; pip install 'tensorveil[exact]'"
        ) from error
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise MissingDependencyError(
            f"ExactNoise must have OpenDP {OLDEST[0]}.{OLDEST[1]} or newer, got {found}; "
            "pip install --upgrade 'tensorveil[exact]'"
        )
    dp.enable_features("contrib")
    return dp
