"""The only place where privacy noise is drawn.

A statistic is brought to a power-of-two grid and summed as whole numbers, noise is added on that grid, and only then
does it become a float: the low bits of a release say nothing. The bits come from ChaCha20, keyed by the operating
system.

What each sampler promises, finite precision included, and what is not covered, is in docs/proofs/noise.md. A virtual
machine that is snapshot and started twice repeats its noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.kernels import sampling
from tensorveil.kernels.sampling import TOTAL_BITS, Law, RowLaw, laplace_law, row_law
from tensorveil.privacy.noise.secret_words import Coins, RowWords, SecretWords

if TYPE_CHECKING:
    from tensorveil.privacy.noise.channels import Channel
    from tensorveil.privacy.queries.values.symbols import Symbols

# In grid steps. Statistic and output are clamped here: the first cannot enlarge a sensitivity, the second is
# post-processing. Magnitudes of noise saturate at 2^62 (chance below 2^-1000); beyond it the output is the same.
LARGEST_SUM = 2**61
LAPLACE_SLACK, GAUSSIAN_EPSILON, GAUSSIAN_DELTA = 2.0**-50, 2.0**-49, 2.0**-55
ROUND_UP = 1 + 2.0**-50  # more than the three roundings of a scale and the 2^-61 above
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-20, 2.0**50  # in grid steps
GRID_BITS = 28  # discrete and rounded Gaussian then differ by 0.021 * 2^-56 in total variation: docs/proofs/noise.md
SMALLEST_ROW_SCALE, LARGEST_RADIUS = 2.0**4, 2.0**58  # in grid steps
LARGEST_WIDTH = 100_000
UNIFORM_WORDS = np.uint64(1)  # of 2^64: the chance that a row is uniform noise
BLOCK = 2**16  # random words at a time: what fits the processor's cache


def grid_for(scale: float, bits: int = GRID_BITS) -> float:
    """The largest power of two of at most scale / 2^bits: the grid for noise of that scale.

    The default makes rounding free: at most 2^-29 of the noise, and the discrete Gaussian as good as the rounded one.
    """
    exponent = math.frexp(checks.positive_number("scale", scale))[1] - 1
    return checked_grid(math.ldexp(1.0, exponent - bits))


def laplace_scale(count: int, *, sensitivity: int, epsilon: float) -> float:
    """The scale, in grid steps, of Laplace noise on so many numbers; an error where the grid does not fit it."""
    steps = checks.positive_integer("sensitivity", sensitivity, "give the L1 sensitivity in whole grid steps")
    left = _after_slack(epsilon, min(count, steps), LAPLACE_SLACK, "number")  # [L9]
    scale = steps / left * ROUND_UP  # [L10]
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise InputError(
            f"sensitivity / epsilon must be from 2^-20 to 2^50 grid steps, got {scale:.3g}; change the grid"
        )
    return scale


def row_scale(count: int, width: int, *, grid: float, sensitivity: float, epsilon: float) -> float:
    """The scale, in grid steps, of norm-exponential noise on so many rows; an error where the grid does not fit it."""
    change = checks.positive_number("sensitivity", sensitivity, "a statistic that cannot change needs no noise")
    steps = change / checked_grid(grid)  # a row that changes does so by one step at least
    left = _after_slack(epsilon, min(float(count), steps), row_slack(width), f"row of {width} numbers")  # [R5]
    scale = steps / left * ROUND_UP  # [R6]
    if not (scale >= SMALLEST_ROW_SCALE and scale * row_law(width).radius <= LARGEST_RADIUS):
        raise InputError(
            f"sensitivity / epsilon must be from 2^4 to 2^58 / {row_law(width).radius} grid steps for rows of "
            f"{width}, got {scale:.3g}; change the grid, or plan with more epsilon"
        )
    return scale


class NoiseSource(SecretWords):
    """Randomness for privacy: takes exact statistics, gives noisy ones.

    Parameters
    ----------
    seed : for experiments only: whoever knows the seed can subtract the noise. None draws the key from the operating
        system. Both run the same code on ChaCha20.

    A source cannot be copied or pickled, and takes a new key in a forked process: noise used twice cancels. One
    call returns one array of noisy outputs; an auditor may subclass and record or replay them.
    """

    __slots__ = ()  # nothing can stand before a method of a trusted source

    def laplace(self, statistic: Integers, *, grid: float, sensitivity: int, epsilon: float) -> Floats:
        """(statistic + k) * grid, P(k) proportional to exp(-|k| epsilon / sensitivity): pure epsilon.

        The sensitivity is the largest change of the statistic between neighbours, in L1 and in grid steps.
        """
        exact = _whole(statistic)
        scale = laplace_scale(exact.size, sensitivity=sensitivity, epsilon=epsilon)
        return self._release(exact, self._laplace_steps, scale, grid)

    def gaussian(self, statistic: Integers, *, grid: float, sensitivity: float, noise_std: float) -> Floats:
        """(statistic + k) * grid, k a Gaussian of standard deviation noise_std / grid, on whole numbers.

        The sensitivity, in L2 and of statistic * grid, is only checked and, by an auditor, recorded.
        """
        exact = _whole(statistic)
        checks.positive_number("sensitivity", sensitivity, "a statistic that cannot change needs no noise")
        scale = checks.positive_number("noise_std", noise_std) / checked_grid(grid)
        if not 2.0**GRID_BITS <= scale <= LARGEST_SCALE:  # [L11]
            raise InputError(
                f"noise_std must be from 2^{GRID_BITS} to 2^50 grid steps, got {scale:.3g}; use grid_for(noise_std)"
            )
        return self._release(exact, self._gaussian_steps, scale, grid)

    def rows(self, statistic: Integers, *, grid: float, sensitivity: float, epsilon: float) -> Floats:
        """Each row (statistic + k) * grid, P(k) proportional to exp(-|k| epsilon / sensitivity): pure epsilon.

        |k| is the length of the row k of whole numbers. Nearly Gamma(width, sensitivity / epsilon) in grid steps, its
        direction as good as uniform: where a row may change by so much in any direction, the least noise.
        The sensitivity is the largest sum over rows of the lengths of their changes, of statistic * grid.
        """
        exact = _whole(statistic)
        if exact.ndim != 2 or not 1 <= exact.shape[1] <= LARGEST_WIDTH:
            raise InputError(
                f"statistic must be a table (rows, width), of a width up to {LARGEST_WIDTH:,}, got shape "
                f"{exact.shape}; reshape it"
            )
        count, width = exact.shape
        scale = row_scale(count, width, grid=grid, sensitivity=sensitivity, epsilon=epsilon)
        totals = np.clip(exact, -LARGEST_SUM, LARGEST_SUM) + self._row_steps(scale, count, width)
        lost = self._words(count) < UNIFORM_WORDS  # [R7] rare noise that is anything at all: it covers where rows end
        anything = self._words(np.count_nonzero(lost) * width).reshape(-1, width) >> np.uint64(1)
        totals[lost] = anything.astype(np.int64) - 2**62
        return np.asarray(np.clip(totals, -LARGEST_SUM, LARGEST_SUM) * grid)

    def channel(self, symbols: Integers, channel: Channel) -> Integers:
        """One random output symbol for each input symbol (the index of its level), by the channel's integer table."""
        return channel.drawn(_whole(symbols), self._words)

    def symbols(self, read: Callable[..., Integers], query: Symbols, channel: Channel) -> Integers:
        """One random symbol per observation, by words of its own; `read` maps a function over all shards."""
        return read(partial(query.draw, channel=channel), RowWords(self.key()))

    def coins(self, probability: float) -> Coins:
        """Independent secret coins for Poisson sampling, under a fresh key."""
        share = checks.positive_number("probability", probability)
        if share > 1:
            raise InputError(f"probability must be at most 1, got {share!r}; give the share of units to sample")
        return Coins(RowWords(self.key()), int(math.ldexp(share, 64)))  # [L17] rounded down

    def key(self) -> bytes:
        """32 fresh secret bytes, for keyed hashing."""
        return self._words(4).tobytes()

    def _laplace_steps(self, scale: float, count: int) -> Integers:
        """Discrete Laplace noise in grid steps, short enough to add 2^61; ExactNoise draws its own here."""
        return self._draw(laplace_law(scale), count, signed=True)

    def _gaussian_steps(self, scale: float, count: int) -> Integers:
        """Discrete Gaussian noise in grid steps, short enough to add 2^61; ExactNoise draws its own here."""
        return self._draw(sampling.gaussian_law(scale), count, signed=True)

    def _row_steps(self, scale: float, count: int, width: int) -> Integers:
        """Rows k with chances proportional to exp(-|k| / scale): a part of the mixture, a row from it, and a coin."""
        law = row_law(width)
        noise = np.empty((count, width), dtype=np.int64)
        filled = 0
        while filled < count:
            parts = self._words(min(count - filled, max(1, BLOCK // width))) >> np.uint64(64 - TOTAL_BITS)
            places = np.searchsorted(law.ends, parts, side="right")
            rows = np.empty((places.size, width), dtype=np.int64)
            for place in np.unique(places):
                own = places == place
                drawn = self._gaussian_tails(law, float(law.stds[place]) * scale, int(np.count_nonzero(own)) * width)
                rows[own] = drawn.reshape(-1, width)
            excess = sampling.row_excess(rows, scale, law)
            kept = rows[self._exponential_coins(law, excess) & np.isfinite(excess)]
            noise[filled : filled + len(kept)] = kept
            filled += len(kept)
        return noise

    def _gaussian_tails(self, law: RowLaw, std: float, count: int) -> Integers:
        """Discrete Gaussian numbers whose chances are right in every tail; ExactNoise draws its own here.

        Discrete Laplace numbers y of a scale t near std, kept with chance exp(-(|y| - std^2 / t)^2 / (2 std^2)).
        """
        scale = 2.0 ** round(math.log2(std))  # one of few, whose tables are kept
        noise = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            drawn = self._draw(laplace_law(scale), 8 * (count - filled) // 5 + 8, signed=True)
            away = np.abs(drawn) - std * std / scale
            kept = drawn[self._exponential_coins(law, away * away / (2 * std * std))][: count - filled]
            noise[filled : filled + kept.size] = kept
            filled += kept.size
        return noise

    def _exponential_coins(self, law: RowLaw, exponents: Floats) -> NDArray[np.bool_]:
        """Heads with chance exp(-x) for each x, as right relatively where that is small; beyond 4 radii as there."""
        needed = np.ceil(np.minimum(exponents, 4.0 * law.radius) * law.coin_scale)  # [R8]
        return np.asarray(self._draw(law.coin, needed.size, signed=False) >= needed.astype(np.int64))

    def _release(self, exact: Integers, draw: Callable[[float, int], Integers], scale: float, grid: float) -> Floats:
        step = checked_grid(grid)
        noise = draw(scale, exact.size)
        released = noise.view(np.float64)  # each number takes its noise's place: half the memory
        sampling.add_on_grid(exact.ravel(), noise, step, LARGEST_SUM, released)
        return released.reshape(exact.shape)

    def _draw(self, law: Law, count: int, signed: bool) -> Integers:
        noise = np.empty(count, dtype=np.int64)
        filled, used, words = 0, 0, np.empty(0, dtype=np.uint64)
        while filled < count:
            fresh = self._words(min(2 * (count - filled) + 64, BLOCK))
            words = np.concatenate((words[used:], fresh))  # words not taken come first: the kernel says why
            filled, used = sampling.magnitudes(words, law, signed, noise, filled)
        return noise


def _after_slack(epsilon: float, changed: float, slack: float, each: str) -> float:
    """What of epsilon is left after the finite precision of everything that may change."""
    budget = checks.positive_number("epsilon", epsilon)
    if budget - changed * slack < budget / 2:
        raise InputError(
            f"epsilon must be at least {2 * slack:.1g} for each {each} that may change, got {budget!r} for "
            f"{changed:,.0f}; use a larger epsilon"
        )
    return budget - changed * slack


def row_slack(width: int) -> float:
    """What the sampler of `rows` takes off epsilon for each row that changes: docs/proofs/noise.md."""
    return row_law(width).radius * (256 + width / 8) * 2.0**-53


def checked_grid(grid: float) -> float:
    """The grid, if it is a power of two, so that multiplying and dividing by it are exact."""
    step = checks.positive_number("grid", grid)
    if math.frexp(step)[0] != 0.5 or not 2.0**-900 <= step <= 2.0**900:
        raise InputError(f"grid must be a power of two from 2^-900 to 2^900, got {grid!r}; use grid_for(scale)")
    return step


def _whole(numbers: Integers) -> Integers:
    array = np.asarray(numbers)
    if array.dtype != np.int64:
        raise InputError(f"a statistic must be whole numbers (int64), got {array.dtype}; round it to the grid first")
    return array
