"""Normal numbers, also above a bound, and streams of random numbers for samplers whose randomness is no secret.

A stream belongs to a key and a place (a row, an entry): what is drawn for it depends on nothing else, so the order in
which threads reach it does not matter. Privacy noise never comes from here.
"""

import math

import numpy as np

from tensorveil.kernels.compiling import compiled

STEP = np.uint64(0x9E3779B97F4A7C15)  # the odd number next to 2^64 / golden ratio
LEAST = 1e-300
FAR = 30.0  # standard deviations above its mean, from which on the tail of a normal law has a series
ROOT_HALF, ROOT_TURN = math.sqrt(0.5), math.sqrt(2.0 * math.pi)


@compiled
def mixed(state: np.uint64) -> np.uint64:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@compiled
def stream(key: np.uint64, place: int) -> np.uint64:
    """The first state of the stream of a place; the next states are each STEP further."""
    return mixed(key + np.uint64(place + 1) * STEP)


@compiled
def uniform(state: np.uint64) -> float:
    """A number strictly between 0 and 1 from a state."""
    return (np.float64(mixed(state) >> np.uint64(11)) + 0.5) * 2.0**-53


@compiled
def quantile(p: float) -> float:
    """x below which a standard normal number is with chance p, to 16 digits (Wichura 1988, AS 241, PPND16).

    p is within [1e-300, 1 - 1e-16].
    """
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = 2509.0809287301226727 * r + 33430.575583588128105
        top = (top * r + 67265.770927008700853) * r + 45921.953931549871457
        top = (top * r + 13731.693765509461125) * r + 1971.5909503065514427
        top = (top * r + 133.14166789178437745) * r + 3.387132872796366608
        bottom = 5226.495278852854561 * r + 28729.085735721942674
        bottom = (bottom * r + 39307.89580009271061) * r + 21213.794301586595867
        bottom = (bottom * r + 5394.1960214247511077) * r + 687.1870074920579083
        bottom = (bottom * r + 42.313330701600911252) * r + 1.0
        return q * top / bottom
    r = math.sqrt(-math.log(max(p if q < 0.0 else 1.0 - p, LEAST)))
    if r <= 5.0:
        r -= 1.6
        top = 7.7454501427834140764e-4 * r + 0.0227238449892691845833
        top = (top * r + 0.24178072517745061177) * r + 1.27045825245236838258
        top = (top * r + 3.64784832476320460504) * r + 5.7694972214606914055
        top = (top * r + 4.6303378461565452959) * r + 1.42343711074968357734
        bottom = 1.05075007164441684324e-9 * r + 5.475938084995344946e-4
        bottom = (bottom * r + 0.0151986665636164571966) * r + 0.14810397642748007459
        bottom = (bottom * r + 0.68976733498510000455) * r + 1.6763848301838038494
        bottom = (bottom * r + 2.05319162663775882187) * r + 1.0
    else:
        r -= 5.0
        top = 2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
        top = (top * r + 0.0012426609473880784386) * r + 0.026532189526576123093
        top = (top * r + 0.29656057182850489123) * r + 1.7848265399172913358
        top = (top * r + 5.4637849111641143699) * r + 6.6579046435011037772
        bottom = 2.04426310338993978564e-15 * r + 1.4215117583164458887e-7
        bottom = (bottom * r + 1.8463183175100546818e-5) * r + 7.868691311456132591e-4
        bottom = (bottom * r + 0.0148753612908506148525) * r + 0.13692988092273580531
        bottom = (bottom * r + 0.59983220655588793769) * r + 1.0
    return -top / bottom if q < 0.0 else top / bottom


@compiled
def log_tail(least: float) -> float:
    """Log of the chance that a standard normal number is above `least`."""
    if least > FAR:
        return -0.5 * least * least - math.log(least * ROOT_TURN) - 1.0 / (least * least)
    return math.log(0.5 * math.erfc(least * ROOT_HALF))


@compiled
def above(u: float, least: float) -> float:
    """The excess over `least` of a standard normal number that is above it, where 1 - u is its quantile."""
    if least > FAR:  # x^2 / 2 + log x = least^2 / 2 + log least - log u, to a millionth
        square = least * least - 2.0 * math.log(u)
        x = math.sqrt(square)
        x = math.sqrt(square - 2.0 * math.log(x / least))
        return math.sqrt(square - 2.0 * math.log(x / least)) - least
    return max(-quantile(u * 0.5 * math.erfc(least * ROOT_HALF)) - least, 0.0)
