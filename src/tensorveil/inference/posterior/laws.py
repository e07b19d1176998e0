"""Noise laws: how each released value depends on the latent value behind it.

All numbers are on the centred scale, where the bounds of the values are -1 and 1. A latent value is
N(m, sigma^2), where m is the prediction of the model. For each released value, `draw` gives a number y and a precision
o, so that a solver can treat y as N(m, 1 / o). It also draws sigma and the cuts between ordered levels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.kernels.reference import latent

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Share = Callable[..., list[Any]]  # runs a kernel over all entries, in parts: share(kernel, *arguments)

USUAL_SIGMA = 0.45  # of ratings from 1 to 5: 0.9 stars
USUAL_LEVEL = (0.0, 1 / 16)  # prior mean and variance of the mean of all values: in the middle half of the bounds
LEAST_SIGMA = 1e-4
SPREAD_DOUBT = 0.1  # of the log of a known variance of all values
LEAST_SHARE = 0.3  # of a known spread, for sigma
SCORED_REACH, SCORED_PLACES = 2.0, 801  # of means for which scores are tabulated
LEVELS_EM = 1000  # slow where few symbols tell two levels apart
MOST_FOR_INFORMATION = 20_000


def unexplained(spread: float, explained: float) -> float:
    """Standard deviation about means of this variance, of values with a known spread."""
    return math.sqrt(max(spread**2 - explained, (LEAST_SHARE * spread) ** 2))


class NoiseLaw(ABC):
    """Released values with the law that ties them to latent ones.

    Attributes
    ----------
    sigma : float
        Spread of a latent value about its mean, as last drawn.
    cuts : array
        Cuts between levels, as last drawn; empty where values are numbers.
    levels : array
        What is predicted for a latent value between two cuts; empty where it is the value itself.
    level : tuple of float
        Prior mean and variance of the mean of all values.
    fixed : bool
        Whether numbers and precisions remain valid far from the current means, so that draws may be over-relaxed.
    """

    sigma: float
    cuts: Floats
    levels: Floats
    level: tuple[float, float] = USUAL_LEVEL
    fixed: bool = True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def begin(self) -> tuple[Floats, float, float]:
        """Unbiased estimates of the latent values, the variance of their noise, and their mean.

        Initializes sigma and the cuts.
        """

    @abstractmethod
    def draw(
        self,
        means: Floats,
        key: np.uint64,
        generator: np.random.Generator,
        share: Share,
        tune: bool,
        values: Floats,
        precisions: Floats,
    ) -> None:
        """Draw sigma and cuts given the means, then fill values y and precisions o.

        tune : whether these draws are discarded and only used to choose the step sizes
        """


@final
class Symbols(NoiseLaw):
    """Symbols of a finite channel.

    Parameters
    ----------
    symbols : one per value
    chances : Q(symbol | level), one row per level
    levels : centred values of the levels, increasing
    ordered : True if the values can only be these levels; the distances between levels are then estimated (ordered
        probit; the first and last cut stay half-way between levels, which fixes the scale). False if the levels are
        bins of a continuous value, with cuts half-way between them
    around : mean and spread of all values, if they are known more precisely than the symbols show. Two symbols, for
        example, determine a mean only in units of sigma
    scored : approximate the likelihood of each mean by a normal law around the current mean, in all sweeps. This is
        nearly exact if rows have many symbols with little information each. Gibbs draws of the latent values behind
        such symbols would mix very slowly
    """

    def __init__(
        self,
        symbols: ArrayLike,
        chances: ArrayLike,
        levels: ArrayLike,
        *,
        ordered: bool,
        around: tuple[float, float] | None = None,
        scored: bool = False,
    ) -> None:
        self.symbols: Integers = np.ascontiguousarray(symbols, dtype=np.int64)
        self.chances: Floats = np.ascontiguousarray(chances, dtype=np.float64)
        grid = np.asarray(levels, dtype=np.float64)
        if self.chances.ndim != 2 or len(grid) != len(self.chances) or len(grid) < 2:
            raise InputError(
                f"chances must have one row per level and at least two levels, got {self.chances.shape} for {len(grid)}"
            )
        if len(self.symbols) and not 0 <= self.symbols.min() <= self.symbols.max() < self.chances.shape[1]:
            raise InputError(f"symbols must be from 0 to {self.chances.shape[1] - 1}, one per column of chances")
        self.grid = grid
        self.levels = grid if ordered else np.empty(0)
        middles = (grid[1:] + grid[:-1]) / 2
        self._middles = middles
        self.cuts = np.concatenate([[-np.inf], middles, [np.inf]])
        self.sigma = USUAL_SIGMA
        self._free = np.arange(2, len(grid) - 1) if ordered else np.empty(0, dtype=np.int64)
        self._gap = (grid[-1] - grid[0]) / (len(grid) - 1)
        self._steps: Floats = np.eye(1 + len(self._free))
        self._tuned = 0
        self.around, self.scored = around, scored
        self.fixed = not scored

    def __len__(self) -> int:
        return len(self.symbols)

    def begin(self) -> tuple[Floats, float, float]:
        from scipy.special import ndtr, ndtri

        found = np.bincount(self.symbols, minlength=self.chances.shape[1]).astype(np.float64)
        shares = np.full(len(self.grid), 1 / len(self.grid))
        if self.around is not None:
            shares = np.maximum(np.diff(ndtr((self.cuts - self.around[0]) / self.around[1])), 1e-6)
            shares /= shares.sum()
        for _ in range(LEVELS_EM):  # likeliest shares of the levels, from the symbols
            each = shares[:, None] * self.chances
            shares = (each / np.maximum(each.sum(axis=0), 1e-300)) @ (found + 1e-3)
            shares /= shares.sum()
        mean = float(shares @ self.grid)
        variance = float(shares @ (self.grid - mean) ** 2) + self._gap**2 / 12
        spread = math.sqrt(variance)
        if len(self._free):
            places = ndtri(np.clip(np.cumsum(shares)[:-1], 1e-3, 1 - 1e-3))
            scale = float(self.cuts[-2] - self.cuts[1]) / max(float(places[-1] - places[0]), 1e-9)
            stretched = self.cuts[1] + scale * (places - places[0])
            if (np.diff(stretched) > 0.1 * self._gap).all():
                self.cuts[1:-1], spread = stretched, scale
        self.sigma = min(max(0.85 * spread, LEAST_SIGMA), 1.0)
        each = shares[:, None] * self.chances
        stands = self.grid @ (each / np.maximum(each.sum(axis=0), 1e-300)) - mean  # E[level | symbol]
        explained = float(shares @ (self.chances @ stands**2))
        stands *= float(shares @ (self.grid - mean) ** 2) / max(explained, 1e-12)  # slope one on the level
        noise = float(shares @ (self.chances @ stands**2)) - float(shares @ (self.grid - mean) ** 2)
        if self.around is not None:
            mean = self.around[0]
        return (mean + stands)[self.symbols], max(noise, 0.0), mean

    def draw(
        self,
        means: Floats,
        key: np.uint64,
        generator: np.random.Generator,
        share: Share,
        tune: bool,
        values: Floats,
        precisions: Floats,
    ) -> None:
        explained = float(means.var())

        def likelihood(cuts: Floats, sigma: float) -> float:
            parts = share(latent.symbols_likelihood, self.symbols, self.chances, cuts, sigma, means)
            shift = cuts[self._free] - self._middles[self._free - 1]
            belief = 2 * math.log(sigma / USUAL_SIGMA) ** 2
            if self.around is not None:
                belief = (math.log((sigma**2 + explained) / self.around[1] ** 2) / SPREAD_DOUBT) ** 2 / 2
            return math.fsum(parts) - belief - float((shift / self._gap) @ shift) / 2

        if self.around is not None and self.chances.shape[1] == 2:  # which tell of means in units of sigma only
            self.sigma = unexplained(self.around[1], explained)
        else:
            self._walk(likelihood, means, generator, tune)
        if self.scored or (tune and self.around is not None):
            self._scored(means, values, precisions)
            return
        share(latent.draw_behind_symbols, self.symbols, self.chances, self.cuts, self.sigma, means, key, values)
        precisions[:] = self.sigma**-2

    def _walk(
        self, likelihood: Callable[[Floats, float], float], means: Floats, generator: np.random.Generator, tune: bool
    ) -> None:
        """One step of the random walk of cuts and log sigma."""
        if tune:
            if self._tuned % 10 == 0:
                self._measure_steps(means)
            self._tuned += 1
        step = self._steps @ generator.standard_normal(len(self._steps))
        chance = math.log(generator.random())
        cuts = self.cuts.copy()
        cuts[self._free] += step[1:]
        sigma = self.sigma * math.exp(step[0])
        if (
            sigma > LEAST_SIGMA
            and (np.diff(cuts) > 0).all()
            and chance < likelihood(cuts, sigma) - likelihood(self.cuts, self.sigma)
        ):
            self.cuts, self.sigma = cuts, sigma

    def _scored(self, means: Floats, values: Floats, precisions: Floats) -> None:
        """Fisher scoring instead of draws: y = m + score / information, with the information as precision.

        If a symbol carries little information, Gibbs draws of its latent value move away from the start very slowly.
        Scoring sweeps are discarded, so the law that is sampled afterwards is exact.
        """
        from scipy.special import ndtr

        places = np.linspace(-SCORED_REACH, SCORED_REACH, SCORED_PLACES)
        distances = (self.cuts - places[:, None]) / self.sigma
        chances = np.maximum(np.diff(ndtr(distances), axis=1) @ self.chances, 1e-300)
        density = np.exp(-(distances**2) / 2) / (math.sqrt(2 * math.pi) * self.sigma)
        slopes = -np.diff(density, axis=1) @ self.chances
        information = (slopes**2 / chances).sum(axis=1)
        information = np.maximum(information, 0.01 * float(information.max()))
        nearest = np.rint((np.clip(means, -SCORED_REACH, SCORED_REACH) / SCORED_REACH + 1) / 2 * (SCORED_PLACES - 1))
        place = nearest.astype(np.int64)
        precisions[:] = information[place]
        values[:] = means + (slopes / chances)[place, self.symbols] / precisions

    def _measure_steps(self, means: Floats) -> None:
        """Steps of the random walk of log sigma and cuts: 2.4 / sqrt(number) of their spread given the means."""
        every = 1 + len(self.symbols) // MOST_FOR_INFORMATION
        information = np.empty((len(self.grid), len(self.grid)))
        latent.symbols_information(
            self.symbols[::every].copy(), self.chances, self.cuts, self.sigma, means[::every].copy(), information
        )
        places = np.concatenate([[0], self._free])
        inner = every * information[np.ix_(places, places)]
        inner += np.diag(np.concatenate([[4.0], np.full(len(self._free), self._gap**-2)]))  # the priors'
        self._steps = 2.4 / math.sqrt(len(places)) * np.linalg.cholesky(np.linalg.inv(inner))


@final
class NoisyNumbers(NoiseLaw):
    """Numbers with Gaussian noise of a known standard deviation, Laplace noise of a known scale, or neither.

    spread : standard deviation of all latent values, if it is known more precisely than the noisy numbers show
    """

    def __init__(
        self, values: ArrayLike, *, noise_std: float = 0.0, laplace_scale: float = 0.0, spread: float | None = None
    ) -> None:
        self.numbers: Floats = np.ascontiguousarray(values, dtype=np.float64)
        self.noise_std = checks.nonnegative_number("noise_std", noise_std)
        self.laplace_scale = checks.nonnegative_number("laplace_scale", laplace_scale)
        if self.noise_std > 0 and self.laplace_scale > 0:
            raise InputError("noise_std and laplace_scale must not both be above 0, got both; noise has one law")
        self.cuts = self.levels = np.empty(0)
        self.sigma = USUAL_SIGMA
        self.spread = spread

    def __len__(self) -> int:
        return len(self.numbers)

    def begin(self) -> tuple[Floats, float, float]:
        noise = self.noise_std**2 + 2 * self.laplace_scale**2
        mean = float(self.numbers.mean()) if len(self.numbers) else 0.0
        left = float(((self.numbers - mean) ** 2).mean()) - noise if len(self.numbers) else 0.0
        if noise > USUAL_SIGMA**2:  # which drowns the moments
            left = USUAL_SIGMA**2
        if self.spread is not None:
            left = self.spread**2
        self.sigma = min(max(0.85 * math.sqrt(max(left, 0.0)), 10 * LEAST_SIGMA), 1.0)
        return self.numbers, noise, mean

    def draw(
        self,
        means: Floats,
        key: np.uint64,
        generator: np.random.Generator,
        share: Share,
        tune: bool,
        values: Floats,
        precisions: Floats,
    ) -> None:
        residuals = self.numbers - means
        if self.laplace_scale > 0:
            self._walk(lambda sigma: self._laplace(sigma, means, share), generator, 1)
            self._draw_laplace(means, residuals, key, share, values, precisions)
            return
        squares = float(residuals @ residuals)
        known = self.noise_std**2

        def gaussian(sigma: float) -> float:
            variance = sigma**2 + known
            return -len(residuals) / 2 * math.log(variance) - squares / (2 * variance)

        if self.spread is None:
            self._walk(gaussian, generator, 8)
        else:
            self.sigma = unexplained(self.spread, float(means.var()))
        values[:] = self.numbers
        precisions[:] = 1 / (self.sigma**2 + known)

    def _walk(self, likelihood: Callable[[float], float], generator: np.random.Generator, steps: int) -> None:
        """Random walk of log sigma, the step from how well so many residuals tell it; prior N(log 0.45, 1)."""
        noise = self.noise_std**2 + 2 * self.laplace_scale**2
        for _ in range(steps):
            step = 2.4 * min(1.0, (1 + noise / self.sigma**2) / math.sqrt(2 * max(len(self.numbers), 1)))
            sigma = self.sigma * math.exp(step * generator.standard_normal())
            back = 2.4 * min(1.0, (1 + noise / sigma**2) / math.sqrt(2 * max(len(self.numbers), 1)))
            chance = math.log(generator.random())
            if not LEAST_SIGMA < sigma < 10:
                continue
            move = math.log(sigma / self.sigma)
            ratio = likelihood(sigma) - likelihood(self.sigma)
            ratio += (math.log(self.sigma / USUAL_SIGMA) ** 2 - math.log(sigma / USUAL_SIGMA) ** 2) / 2
            ratio += math.log(step / back) + (move / step) ** 2 / 2 - (move / back) ** 2 / 2  # steps there and back
            if chance < ratio:
                self.sigma = sigma

    def _laplace(self, sigma: float, means: Floats, share: Share) -> float:
        return math.fsum(share(latent.laplace_likelihood, self.numbers, self.laplace_scale, sigma, means))

    def _draw_laplace(
        self, means: Floats, residuals: Floats, key: np.uint64, share: Share, values: Floats, precisions: Floats
    ) -> None:
        """A normal mixture where the noise is the larger part, as then its draws depend less on the means."""
        if 4 * self.laplace_scale**2 >= self.sigma**2:
            drawn = share(latent.draw_laplace_variances, residuals, self.laplace_scale, self.sigma**2, key, precisions)
            if all(drawn):
                values[:] = self.numbers
                np.reciprocal(precisions, out=precisions)
                return
        share(latent.draw_behind_laplace, self.numbers, self.laplace_scale, self.sigma, means, key, values)
        precisions[:] = self.sigma**-2
