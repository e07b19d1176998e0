"""The values behind noisy ones, given what a model expects of them: drawn, and how likely what was released is.

Given its mean m, a latent value is N(m, sigma^2). A released symbol s tells of it through cuts and a channel,

    P(s | m) = sum_l Q(s | l) [Phi((cut_(l+1) - m) / sigma) - Phi((cut_l - m) / sigma)],    cut_0 = -inf, cut_L = inf,

a released number through Laplace or Gaussian noise.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.normal_tails import mass_between, upper_tails

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BATCH = 64  # entries whose tails are computed at a time; a multiple of four


@compiled
def draw_behind_symbols(
    symbols: Integers,
    chances: Floats,
    cuts: Floats,
    sigma: float,
    means: Floats,
    key: np.uint64,
    latent: Floats,
    begin: int,
    end: int,
) -> None:
    """latent[w] = a value given its symbol and mean: first its level, then a normal number between the level's cuts.

    chances[level, s] = Q(s | l); cuts has one number more than there are levels, infinite at both ends.
    """
    L = chances.shape[0]
    masses = np.empty(L)
    z, tails = level_room(L)
    for first in range(begin, end, BATCH):
        count = min(BATCH, end - first)
        level_tails(cuts, sigma, means, first, count, z, tails)
        for k in range(count):
            w = first + k
            total = 0.0
            for level in range(L):
                mass = mass_between(z[level, k], tails[level, k], z[level + 1, k], tails[level + 1, k])
                masses[level] = chances[level, symbols[w]] * mass
                total += masses[level]
            state = normals.stream(key, w)
            left = normals.uniform(state) * total
            chosen = 0
            for level in range(L):
                if masses[level] > 0.0:
                    chosen = level
                    if left < masses[level]:
                        break
                    left -= masses[level]
            low, high = z[chosen, k], z[chosen + 1, k]
            u = normals.uniform(state + normals.STEP)
            if low > 0.0:  # by inversion, in the tail where chances have all their digits
                x = -normals.inverse_between(tails[chosen + 1, k], tails[chosen, k], -high, -low, u)
            else:
                after = tails[chosen + 1, k] if high < 0.0 else 1.0 - tails[chosen + 1, k]
                x = normals.inverse_between(tails[chosen, k], after, low, high, u)
            latent[w] = means[w] + sigma * x


@compiled
def level_room(L: int) -> tuple[Floats, Floats]:
    """Room for the cuts of a batch of entries as standard normal numbers, infinite at the ends, and for their tails."""
    z, tails = np.zeros((L + 1, BATCH)), np.zeros((L + 1, BATCH))
    z[0] = -np.inf
    z[L] = np.inf
    return z, tails


@compiled
def level_tails(cuts: Floats, sigma: float, means: Floats, first: int, count: int, z: Floats, tails: Floats) -> None:
    """z[l, k] = (cut_l - mean of entry first + k) / sigma, and the chances beyond |z|, which are 0 at the ends."""
    scale = 1.0 / sigma
    L = cuts.size - 1
    for level in range(1, L):
        for k in range(count):
            z[level, k] = (cuts[level] - means[first + k]) * scale
        upper_tails(z[level], tails[level], count)


@compiled
def symbols_likelihood(
    symbols: Integers, chances: Floats, cuts: Floats, sigma: float, means: Floats, begin: int, end: int
) -> float:
    """Sum of log P(symbol | mean); logarithms are taken of products, as long as those stay large enough."""
    L = chances.shape[0]
    total = 0.0
    product = 1.0
    z, tails = level_room(L)
    for first in range(begin, end, BATCH):
        count = min(BATCH, end - first)
        level_tails(cuts, sigma, means, first, count, z, tails)
        for k in range(count):
            symbol = symbols[first + k]
            p = 0.0
            for level in range(L):
                mass = mass_between(z[level, k], tails[level, k], z[level + 1, k], tails[level + 1, k])
                p += chances[level, symbol] * mass
            product *= max(p, 1e-100)
            if product < 1e-150:
                total += math.log(product)
                product = 1.0
    return total + math.log(product)


@compiled
def symbols_information(
    symbols: Integers, chances: Floats, cuts: Floats, sigma: float, means: Floats, information: Floats
) -> None:
    """information = sum of v v^T, v the derivatives of log P(symbol | mean) by log sigma and the L - 1 cuts."""
    L = chances.shape[0]
    v = np.empty(L)
    information[:] = 0.0
    for w in range(symbols.size):
        s = symbols[w]
        before = 0.0
        p = 0.0
        v[0] = 0.0
        for level in range(1, L):
            z = (cuts[level] - means[w]) / sigma
            density = 0.3989422804014327 * math.exp(-0.5 * z * z)
            after = normals.below(z)
            p += chances[level - 1, s] * (after - before)
            before = after
            change = (chances[level - 1, s] - chances[level, s]) * density
            v[level] = change / sigma
            v[0] -= change * z
        p = max(p + chances[L - 1, s] * (1.0 - before), 1e-100)
        for a in range(L):
            for b in range(L):
                information[a, b] += v[a] / p * (v[b] / p)


@compiled
def draw_behind_laplace(
    values: Floats,
    scale: float,
    sigma: float,
    means: Floats,
    key: np.uint64,
    latent: Floats,
    begin: int,
    end: int,
) -> None:
    """latent[w] = a value given its mean and itself plus Laplace noise: on either side of that, a cut normal law.

    The density of the noise is e^(-(x - z) / scale) for z < x: a normal law times it is one whose mean is sigma^2 /
    scale higher, and lower for z > x.
    """
    shift = sigma / scale
    sides, tails = np.zeros((2, BATCH)), np.empty((2, BATCH))
    for first in range(begin, end, BATCH):
        count = min(BATCH, end - first)
        side_tails(values, means, sigma, shift, first, count, sides, tails)
        for k in range(count):
            w = first + k
            x = sides[0, k] + shift
            # masses up to a common factor: e^(-shift x) Phi(x - shift) below x, e^(shift x) Phi(-x - shift) above
            lower = log_below(sides[0, k], tails[0, k]) - shift * x
            upper = log_below(sides[1, k], tails[1, k]) + shift * x
            state = normals.stream(key, w)
            u = normals.uniform(state + normals.STEP)
            side = 0 if normals.uniform(state) * (1.0 + math.exp(min(upper - lower, 700.0))) < 1.0 else 1
            most = sides[side, k]  # above x as below it, turned round
            chance = tails[side, k] if most < 0.0 else 1.0 - tails[side, k]
            z = shift + normals.inverse_between(0.0, chance, -np.inf, most, u)
            latent[w] = means[w] + sigma * (z if side == 0 else -z)


@compiled
def side_tails(
    values: Floats, means: Floats, sigma: float, shift: float, first: int, count: int, sides: Floats, tails: Floats
) -> None:
    """sides = x - shift and -x - shift of a batch of entries, x = (value - mean) / sigma; tails beyond them."""
    for k in range(count):
        x = (values[first + k] - means[first + k]) / sigma
        sides[0, k] = x - shift
        sides[1, k] = -x - shift
    upper_tails(sides[0], tails[0], count)
    upper_tails(sides[1], tails[1], count)


@compiled
def laplace_likelihood(values: Floats, scale: float, sigma: float, means: Floats, begin: int, end: int) -> float:
    """Sum of the log densities of N(mean, sigma^2) plus Laplace noise at the noisy values, up to a constant."""
    shift = sigma / scale
    total = 0.0
    sides, tails = np.zeros((2, BATCH)), np.empty((2, BATCH))
    for first in range(begin, end, BATCH):
        count = min(BATCH, end - first)
        side_tails(values, means, sigma, shift, first, count, sides, tails)
        for k in range(count):
            x = sides[0, k] + shift
            lower = log_below(sides[0, k], tails[0, k]) - shift * x
            upper = log_below(sides[1, k], tails[1, k]) + shift * x
            total += max(lower, upper) + math.log1p(math.exp(-abs(upper - lower))) + 0.5 * shift * shift
    return total


@compiled
def log_below(x: float, tail: float) -> float:
    """log Phi(x) from the chance beyond |x|; far out by the leading term of the tail."""
    if x > 0.0:
        return math.log1p(-tail)
    if x > -30.0:
        return math.log(tail)
    return -0.5 * x * x - math.log(-2.5066282746310002 * x)


@compiled
def draw_laplace_variances(
    residuals: Floats, scale: float, variance: float, key: np.uint64, variances: Floats, begin: int, end: int
) -> bool:
    """variances[w] = variance of a Laplace number plus N(0, variance), given their sum: Laplace as a normal mixture.

    Laplace noise is N(0, v) with v exponential of mean 2 scale^2 (Andrews, Mallows 1974). Given the sum r, u = v +
    variance has the density u^(-1/2) e^(-r^2 / 2u - u / 2 scale^2) above `variance`: 1 / u is an inverse Gaussian
    number of mean 1 / (scale |r|) and shape 1 / scale^2, drawn (Michael, Schucany, Haas 1976) until it is below
    1 / variance. Meant for scale^2 at or above variance / 4: otherwise few are. Returns False where a thousand failed.
    """
    shape = 1.0 / (scale * scale)
    for w in range(begin, end):
        mean = 1.0 / (scale * max(abs(residuals[w]), 1e-9 * scale))
        state = normals.stream(key, w)
        found = False
        for _ in range(1000):
            z = normals.quantile(normals.uniform(state))
            y = mean * z * z / (2.0 * shape)
            root = 1.0 + y + math.sqrt(y * (2.0 + y))  # the larger root over the mean; the smaller is 1 / it
            x = mean / root
            if normals.uniform(state + normals.STEP) * (1.0 + 1.0 / root) > 1.0:
                x = mean * root
            state += np.uint64(2) * normals.STEP
            if x * variance <= 1.0 and x > 0.0:
                variances[w] = 1.0 / x
                found = True
                break
        if not found:
            return False
    return True
