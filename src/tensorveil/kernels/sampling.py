"""Exact whole-number noise from blocks of random words, and words for rows; nothing here draws randomness.

Both laws are built alike. A magnitude m = U + D V, D = 2^shift, has a weight that splits:

    Laplace    exp(-m / b)             = exp(-D V / b)           * exp(-x),  x = U / b
    Gaussian   exp(-m^2 / (2 S^2))     = exp(-(D V)^2 / (2 S^2)) * exp(-x),  x = U (2 D V + U) / (2 S^2)

so V comes from a table of integer thresholds, U is `shift` random bits, and the pair is kept with probability exp(-x).
A sign is one more bit; minus zero is drawn again, for zero must not count twice.

Noise on whole rows, of weight exp(-|k|), is a mixture of Gaussians, corrected by a coin: exp(-|k|) is the integral over
s of exp(-s^2/2 - |k|^2/(2 s^2)), so a sum over few s is near it, and `row_excess` says by how much.
"""

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.kernels.compiling import compiled

Words = NDArray[np.uint64]
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)  # of ChaCha20
LANES = 16  # states of ChaCha20 side by side: as many as a vector register may hold

LARGEST = 2**62  # magnitudes saturate here; noise/source.py says why this is post-processing
TAYLOR_TERMS = 18  # x <= 0.62 always: the first term left out is below 2^-60
COIN_BITS = 52  # a coin's first bits are compared as a float, exact up to here
STEPS = 16  # D is the largest power of two of at most scale / STEPS, so x <= 1/16 for Laplace
TABLE_END = Decimal(2) ** -6  # the geometric table ends before the chance of going on is less: 2^-58 relative precision
DIGITS = 50  # decimal digits of the tables before they are rounded to 64 bits
ONE = np.uint64(1)
GUIDE_SHIFT = np.uint64(56)
PACKED_SHIFT = 27  # sign 1 + U 27 + coin 12 + top 24 = 64 bits
TOP_BITS = np.uint64(24)
LOW_MASK = np.uint64(2**40 - 1)
TOP_MASK = np.uint64(2**64 - 2**40)

ROW_GAP = 0.25  # between the standard deviations of a mixture: with this one four proposals of five are kept
NEGLIGIBLE = 45.0  # e^-45 is below 2^-64: terms so far below the largest are left out of a sum
ROW_BEYOND = 6.0  # how far these deviations go past the last one that matters
TOTAL_BITS = 62  # the chances of a mixture's parts are whole numbers that add up to 2^62


class Law(NamedTuple):
    """What `magnitudes` needs to know of a law, beginning with thresholds[v] = 2^64 P(V >= v), rounded."""

    thresholds: Words
    guide: Integers
    shift: int
    coarse: int
    rate: float
    curvature: float
    memoryless: bool


@lru_cache(maxsize=64)
def laplace_law(scale: float) -> Law:
    """exp(-m / scale) for m = 0, 1, 2, ..."""
    exponent = math.frexp(scale / STEPS)[1] - 1  # 2^exponent <= scale / STEPS < 2^(exponent + 1), exactly
    shift, coarse = max(exponent, 0), max(-exponent, 0)
    with localcontext() as context:
        context.prec = DIGITS
        # [L5] below a scale of STEPS the law of scale * 2^coarse is drawn and halved: floor(m / 2^coarse) is geometric
        ratio = (-(Decimal(2) ** exponent) / Decimal(scale)).exp()
        tails = [Decimal(1)]
        while tails[-1] * ratio >= TABLE_END:
            tails.append(tails[-1] * ratio)
        thresholds = _rounded(tails)
    return Law(thresholds, _guide(thresholds), shift, coarse, 1.0 / scale, 0.0, True)


@lru_cache(maxsize=64)
def gaussian_law(scale: float) -> Law:
    """exp(-m^2 / (2 scale^2)) for m = 0, 1, 2, ..., scale at least STEPS; past 9.3 standard deviations nothing."""
    shift = math.frexp(scale / STEPS)[1] - 1
    with localcontext() as context:
        context.prec = DIGITS
        step = Decimal(2) ** shift / Decimal(scale)
        weights = [Decimal(1)]
        while weights[-1] > Decimal(2) ** -62:  # [L6] x <= (2 * 9.3 + 1/16) / 32 = 0.59 at the last of them
            weights.append((-((step * len(weights)) ** 2) / 2).exp())
        total = sum(weights)
        tails = [sum(weights[v:], Decimal(0)) / total for v in range(len(weights))]
        thresholds = _rounded(tails)
    return Law(thresholds, _guide(thresholds), shift, 0, 0.0, 1.0 / (2.0 * scale * scale), False)


class RowLaw(NamedTuple):
    """A mixture of Gaussians near exp(-|k|) on rows of one width, up to a radius.

    ends : the parts' chances, summed up, in 2^-62
    stds : the parts' standard deviations
    weights : logarithms of the parts' chances over stds^width, up to a constant that makes every excess positive
    coin, coin_scale : a magnitude of this law reaches x * coin_scale with probability exp(-x)
    """

    ends: Words
    stds: Floats
    weights: Floats
    radius: int
    coin: Law
    coin_scale: float


@lru_cache(maxsize=64)
def row_law(width: int) -> RowLaw:
    """The mixture for rows of this width; proofs are in docs/proofs/noise.md, "rows"."""
    radius = 44 * width + 82  # [R1] beyond it a row is as unlikely as the uniform noise that covers it
    parts = math.ceil((math.sqrt(radius) + ROW_BEYOND) / ROW_GAP)
    stds = np.array([(part + 0.5) * ROW_GAP for part in range(parts)])
    logs = width * np.log(stds) - stds**2 / 2
    shares = np.exp(logs - logs.max())
    constant = logs.max() + math.log(shares.sum() * ROW_GAP) - TOTAL_BITS * math.log(2)
    shares *= (1 - 2.0**-20) / shares.sum()
    counts = [int(share * 2.0**TOTAL_BITS) + 1 for share in shares]  # [R2] none is 0: far rows come from rare parts
    counts[int(shares.argmax())] += 2**TOTAL_BITS - sum(counts)
    weights = np.array([math.log(count) for count in counts]) - width * np.log(stds) + constant
    coin_scale = 2.0 ** (TOTAL_BITS - (8 * radius).bit_length())  # [R3] 4 * radius is below 2^61 of its steps
    ends = np.cumsum(np.array(counts, dtype=np.uint64))
    return RowLaw(ends, stds, weights, radius, laplace_law(coin_scale), coin_scale)


def _rounded(tails: list[Decimal]) -> Words:
    """Thresholds of 64 bits, to nearest: each is within 2^-65 of its tail; the first stands for 2^64."""
    return np.array([2**64 - 1] + [int((tail * 2**64).to_integral_value()) for tail in tails[1:]], dtype=np.uint64)


def _guide(thresholds: Words) -> Integers:
    """For each value of a word's first 8 bits the v of the largest such word: where the search begins."""
    numbers = [int(threshold) for threshold in thresholds[1:]]
    largest = [((first + 1) << 56) - 1 for first in range(256)]
    return np.array([sum(word < number for number in numbers) for word in largest], dtype=np.int64)


@compiled
def exp_minus(x: float) -> float:
    """exp(-x) for 0 <= x <= 0.62, to 2^-50.8 of its value, to 2^-53 for x <= 1/16; plain arithmetic, no library."""
    result = 1.0
    for k in range(TAYLOR_TERMS, 0, -1):
        result = 1.0 - result * x / k  # [L1] Horner's rule on the alternating series
    return result


@compiled
def table_search(word: int, thresholds: Words, guide: Integers) -> int:
    """Largest v with word < thresholds[v], v = 0 always counted; thresholds[0] stands for 2^64 and is not read."""
    v: int = guide[np.int64(np.uint64(word) >> GUIDE_SHIFT)]
    while v + 1 < thresholds.size and word < thresholds[v + 1]:
        v += 1
    return v


@compiled
def magnitudes(words: Words, law: Law, signed: bool, noise: Integers, filled: int) -> tuple[int, int]:
    """Fill noise[filled:] from the words; returns how many numbers are filled and how many words they took.

    When the words run out inside a number, that number is left for the next call, which must be handed the words that
    were not taken, followed by fresh ones: the result is one function of one stream, however it is cut. (Fresh words
    instead would favour numbers that need few words, and thin the tails.)

    `memoryless`: V past the end of the table goes on from there with a new word (the geometric law).
    `coarse`: m is halved that many times, rounding down (scales below the table's).
    """
    thresholds, guide, shift, coarse, rate, curvature, memoryless = law
    D = np.int64(1) << shift
    last = thresholds.size - 1
    most = (LARGEST >> shift) - 1
    packed = shift <= PACKED_SHIFT  # one word holds sign, U, coin and the top bits of the table's word
    coin_bits = min((40 if packed else 64) - shift - 1, COIN_BITS)
    coin_range = np.float64(ONE << np.uint64(coin_bits))
    coin_mask = (ONE << np.uint64(coin_bits)) - ONE
    low_mask = (ONE << np.uint64(shift)) - ONE
    used = 0
    position = 0
    while filled < noise.size:
        if position + 2 > words.size:
            return filled, used
        word = words[position]
        position += 1
        if packed:
            top = word & TOP_MASK
            v = table_search(top, thresholds, guide)
            if v > 0 and thresholds[v] - top <= LOW_MASK:  # [L2] the low 40 bits decide: rare, and only then drawn
                v = table_search(top | (words[position] >> TOP_BITS), thresholds, guide)
                position += 1
        else:
            v = table_search(words[position], thresholds, guide)
            position += 1
        V = v
        while memoryless and v == last:
            if position + 1 > words.size:
                return filled, used
            v = table_search(words[position], thresholds, guide)
            position += 1
            V = min(V + v, most)
        U = np.int64((word >> ONE) & low_mask)
        if shift > 0:
            x = U * (rate + curvature * (2.0 * D * V + U))
            coin = np.float64((word >> np.uint64(shift + 1)) & coin_mask)
            if coin + 1.0 > coin_range * (1.0 - x):  # exp(-x) >= 1 - x: most are kept without computing it
                rest = coin_range * exp_minus(x) - coin  # [L3] exact: a multiple of the last bit of exp_minus
                if rest <= 0.0:
                    continue
                if rest < 1.0:
                    if position + 1 > words.size:
                        return filled, used
                    more = words[position]
                    position += 1
                    if more >= np.uint64(rest * 2.0**64):  # [L4] exact: rest has at most 53 bits
                        continue
        m = (U + D * V) >> coarse
        if signed and (word & ONE) == ONE:
            if m == 0:
                continue
            m = -m
        noise[filled] = m
        filled += 1
        used = position
    return filled, used


@compiled
def row_excess(rows: Integers, scale: float, law: RowLaw) -> Floats:
    """For each row k the logarithm of mixture(|k|) / exp(-|k| / scale), at least 0; infinite from the radius on."""
    stds, weights = law.stds, law.weights
    result, logs = np.empty(rows.shape[0]), np.empty(stds.size)
    for i in range(rows.shape[0]):
        total = 0.0
        lost = 0.0
        for j in range(rows.shape[1]):  # [R4] a sum that knows its rounding errors: right to 3 u, however wide
            number = np.float64(rows[i, j])
            square = number * number
            larger = total + square
            if total >= square:
                lost += (total - larger) + square
            else:
                lost += (square - larger) + total
            total = larger
        squared = (total + lost) / (scale * scale)
        r = math.sqrt(squared)
        if not r < law.radius:
            result[i] = np.inf
            continue
        largest = -np.inf
        for part in range(stds.size):
            logs[part] = weights[part] - squared / (2.0 * stds[part] * stds[part])
            largest = max(largest, logs[part])
        mixture = 0.0
        for part in range(stds.size):
            if logs[part] > largest - NEGLIGIBLE:
                mixture += math.exp(logs[part] - largest)
        result[i] = r + largest + math.log(mixture)
    return result


@compiled
def add_on_grid(statistic: Integers, noise: Integers, grid: float, limit: int, released: Floats) -> None:
    """released = clamp(clamp(statistic) + noise) * grid, both to [-limit, limit]; with limit 2^61 nothing overflows."""
    for i in range(statistic.size):
        total = min(max(statistic[i], -limit), limit) + noise[i]  # [L7]
        released[i] = min(max(total, -limit), limit) * grid


@compiled
def quarter_rounds(x: NDArray[np.uint32], i: int, j: int, k: int, m: int) -> None:
    """ChaCha's quarter round on the words i, j, k and m of every state."""
    for lane in range(LANES):
        a, b, c, d = x[i * LANES + lane], x[j * LANES + lane], x[k * LANES + lane], x[m * LANES + lane]
        for left, right in ((16, 12), (8, 7)):
            a = np.uint32(a + b)
            d = np.uint32(d ^ a)
            d = np.uint32(np.uint32(d << np.uint32(left)) | np.uint32(d >> np.uint32(32 - left)))
            c = np.uint32(c + d)
            b = np.uint32(b ^ c)
            b = np.uint32(np.uint32(b << np.uint32(right)) | np.uint32(b >> np.uint32(32 - right)))
        x[i * LANES + lane], x[j * LANES + lane], x[k * LANES + lane], x[m * LANES + lane] = a, b, c, d


@compiled
def random_words(rows: NDArray[np.uint32], key: NDArray[np.uint32], words: NDArray[np.uint64]) -> None:
    """words[w] = the first 64 bits of the block of ChaCha20 (RFC 8439), row w in the place of counter and nonce."""
    count, width = rows.shape
    x = np.empty(16 * LANES, dtype=np.uint32)
    for first in range(0, count, LANES):
        for block in range((width + 3) // 4):  # HChaCha20 of four numbers is the key for the next, as in XChaCha20
            for lane in range(LANES):
                row = min(first + lane, count - 1)
                for i in range(4):
                    x[(4 + i) * LANES + lane] = x[i * LANES + lane] if block else key[i]
                    x[(8 + i) * LANES + lane] = x[(12 + i) * LANES + lane] if block else key[4 + i]
                    x[(12 + i) * LANES + lane] = rows[row, 4 * block + i] if 4 * block + i < width else 0
                    x[i * LANES + lane] = CONSTANTS[i]
            for _ in range(10):
                quarter_rounds(x, 0, 4, 8, 12)
                quarter_rounds(x, 1, 5, 9, 13)
                quarter_rounds(x, 2, 6, 10, 14)
                quarter_rounds(x, 3, 7, 11, 15)
                quarter_rounds(x, 0, 5, 10, 15)
                quarter_rounds(x, 1, 6, 11, 12)
                quarter_rounds(x, 2, 7, 8, 13)
                quarter_rounds(x, 3, 4, 9, 14)
        for lane in range(min(LANES, count - first)):
            low, high = np.uint32(x[lane] + CONSTANTS[0]), np.uint32(x[LANES + lane] + CONSTANTS[1])
            words[first + lane] = np.uint64(low) | np.uint64(high) << np.uint64(32)
