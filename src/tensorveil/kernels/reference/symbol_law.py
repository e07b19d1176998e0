"""Chances of released symbols whose latent number is N(mean, 1), cut into levels that go through a channel."""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled

Floats = NDArray[np.float64]

LEAST = 1e-300  # chance of a symbol
ROOT_TWO = math.sqrt(2.0)
DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
FAR = 38.0  # beyond it a density is zero


@compiled
def symbol_law(
    cuts: Floats, chances: Floats, places: Floats, levels: Floats, symbols: Floats, scores: Floats, density: Floats
) -> None:
    """For means at places, one row each: chances of levels and of symbols, the symbols' scores, densities at cuts.

    The score of a symbol is the derivative of the log of its chance. A level without mass near a place costs nothing,
    nor do symbols before the first and after the last one that a level can give: without noise each gives one.
    """
    first, last = np.empty(chances.shape[0], np.int64), np.empty(chances.shape[0], np.int64)
    for level in range(chances.shape[0]):
        first[level], last[level] = chances.shape[1], 0
        for s in range(chances.shape[1]):
            if chances[level, s] != 0.0:
                first[level], last[level] = min(first[level], s), s + 1
    for p in range(places.size):
        found, slopes = symbols[p], scores[p]
        for s in range(found.size):
            found[s], slopes[s] = 0.0, 0.0
        below, above, before = 0.0, 1.0, 0.0  # chances on both sides of the last cut, and the density there
        for level in range(cuts.size + 1):
            upto, beyond, here = 1.0, 0.0, 0.0
            if level < cuts.size:
                away = cuts[level] - places[p]
                if away < -FAR:
                    upto, beyond = 0.0, 1.0
                elif away < FAR:
                    upto, beyond = 0.5 * math.erfc(-away / ROOT_TWO), 0.5 * math.erfc(away / ROOT_TWO)
                    here = DENSITY * math.exp(-0.5 * away * away)
                density[p, level] = here
            share = upto - below if upto < 0.5 else above - beyond  # the smaller side has all its digits
            slope = before - here
            below, above, before = upto, beyond, here
            levels[p, level] = share
            if share != 0.0 or slope != 0.0:
                row = chances[level]
                for s in range(first[level], last[level]):
                    found[s] += share * row[s]
                    slopes[s] += slope * row[s]
        for s in range(found.size):
            found[s] = max(found[s], LEAST)
            slopes[s] /= found[s]


@compiled
def weighted_fit(weights: Floats, symbols: Floats, scores: Floats) -> float:
    """Sum of weights (symbols, places, 2) times logs of chances and scores; most weights of many places are zero."""
    total = 0.0
    for s in range(weights.shape[0]):
        for p in range(weights.shape[1]):
            if weights[s, p, 0] != 0.0 or weights[s, p, 1] != 0.0:
                total += weights[s, p, 0] * math.log(symbols[p, s]) + weights[s, p, 1] * scores[p, s]
    return total
