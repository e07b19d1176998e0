"""How values follow the sum of their offsets, learned from sums of scores by that sum.

Offsets are learned one mode after the other, on a scale made for latent numbers with a normal law. Whether they add up
on this scale, no sums of a single mode tell: with three modes whose large indices meet, predictions were several times
too high (counts). So scores are summed once more, by the index of an observation: the sum of the posterior means of its
offsets. There are few rows, each with many observations.

Two things follow. Latent means are a smooth function of the index: a random walk around the line of slope one, so sums
that drown in noise change nothing. And the scale is moved so that values have their released marginal, given how many
observations there are of every row: where many have a large index, their values cannot all be rare ones.

Offsets were fitted to the same data. What is expected to be left of these residuals is taken off the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.law import SMALLEST_LEFT, ScoreLaw, relinked
from tensorveil.inference.values.scale import Scale

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROWS = 16  # 32 were worse where noise is large (counts at epsilon 1 and 5), and no better elsewhere
REACH = 3.0  # of scores: only one normal number in 400 is beyond
BEND = 0.5  # standard deviation of the walk of latent means per unit of the index; offsets of all modes span about 4
PINNED = 1e-2  # standard deviation of the mean of latent means: a shift of all is one of the scale, and tells nothing
DEPENDENT = 1.0  # how far the count of a row may be from that of independent modes, by it and the mean count of rows
ROUNDS, CLOSE = 30, 1e-3  # of Gauss and Newton, at most; until no latent mean moves further
STEP = 1e-4  # of finite differences
LONGEST = 0.5  # step of a round


@final
@dataclass(frozen=True, eq=False)
class Index:
    """Rows of observations by the sum of their offsets.

    Attributes
    ----------
    numbers : for each mode with offsets, one whole number per index; the row of an observation is their sum
    places : array (rows), the sum of offsets in the middle of each row
    near : array (rows, rows)
        Where draws of the sum of offsets lie for observations of each row: weights of places.
    excess : array (rows), by which scores are expected to exceed their means, as offsets were fitted to them
    shares : array (rows), of the observations, if the indices of the modes were independent
    """

    numbers: Mapping[int, Integers]
    places: Floats
    near: Floats
    excess: Floats
    shares: Floats


def index_of(
    means: Mapping[int, Floats], excess: Mapping[int, Floats], mixed: Mapping[int, Integers], drawn: Floats
) -> Index:
    """Rows of equal width.

    Parameters
    ----------
    means : of offsets, one array per mode
    excess : by which scores of each index exceed their means
    mixed : combinations of indices, as likely as they are if modes are independent; one array per mode
    drawn : for each combination, a draw of the sum of offsets
    """
    width = max(sum(float(np.ptp(part)) for part in means.values()) / (ROWS - len(means)), 1e-6)
    numbers = {mode: np.rint((part - part.min()) / width).astype(np.int64) for mode, part in means.items()}
    lowest = sum(float(part.min()) for part in means.values())
    places = np.asarray(lowest + width * np.arange(ROWS), dtype=np.float64)
    rows = np.sum([numbers[mode][chosen] for mode, chosen in mixed.items()], axis=0)
    counts = np.bincount(rows, minlength=ROWS)
    more = np.bincount(rows, np.sum([excess[mode][chosen] for mode, chosen in mixed.items()], axis=0), ROWS)
    at = np.clip((drawn - places[0]) / width, 0.0, ROWS - 1.0)
    left = np.minimum(at.astype(np.int64), ROWS - 2)
    near = np.zeros((ROWS, ROWS))
    np.add.at(near, (rows, left), 1 - (at - left))
    np.add.at(near, (rows, left + 1), at - left)
    near = np.where(counts[:, None] > 0, near / np.maximum(counts, 1)[:, None], np.eye(ROWS))
    return Index(numbers, places, near, more / np.maximum(counts, 1), counts / counts.sum())


def drawn_bends(
    index: Index, scale: Scale, sums: NoisySums, sigma: float, draws: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Shares of the observations near the places of the index, and draws (draws, places) of latent means there.

    The draws are normal around the most likely means, which Gauss-Newton rounds find (Laplace's approximation).

    Parameters
    ----------
    scale : by which scores are read
    sums : of scores within the reach, by row
    sigma : spread around latent means
    """
    counts = _counts(index, sums)
    shares = counts @ index.near / max(float(counts.sum()), 1e-300)
    walk = (np.eye(ROWS, k=1) - np.eye(ROWS))[:-1] / (BEND * np.sqrt(np.diff(index.places)))[:, None]
    prior = np.vstack([walk, shares[None] / PINNED])
    line = index.places
    now = line.copy()
    for _ in range(ROUNDS):
        law = ScoreLaw(relinked(scale, now, shares, sigma), scale)
        (here, spread), (there, _) = (law.moments(now + step, sigma, REACH) for step in (0.0, STEP))
        read, squares = index.near @ here, index.near @ (spread + here**2)
        error = np.sqrt(sums.sum_variance + sums.weight * counts * (squares - read**2) + read**2 * sums.count_variance)
        slopes = index.near * ((there - here) / STEP) * (counts / error)[:, None]
        missed = (sums.sums - counts * (read + index.excess)) / error
        precision = slopes.T @ slopes + prior.T @ prior
        step = np.linalg.solve(precision, slopes.T @ missed + prior.T @ (prior @ (line - now)))
        now = now + step * min(1.0, LONGEST / max(float(np.abs(step).max()), 1e-300))
        # what is never explained keeps its share: misfits of nearly constant values, which most counts are, would be
        # explained best by means that run away (MIMIC at epsilon 20 under `entry`: eight times the mean's error)
        middle = shares @ now
        variance = max(float(shares @ (now - middle) ** 2), 1e-300)
        now = middle + (now - middle) * min(1.0, sigma * math.sqrt((1 / SMALLEST_LEFT - 1) / variance))
        if np.abs(step).max() < CLOSE:
            break
    root = np.linalg.cholesky(precision)
    return shares, now + np.linalg.solve(root.T, rng.standard_normal((ROWS, draws))).T


def _counts(index: Index, sums: NoisySums) -> Floats:
    """Counts of rows: posterior means, given noisy counts and what they would be if modes were independent."""
    total = max(float(sums.counts.sum()), 1.0)
    expected = total * index.shares
    doubts = (DEPENDENT * (expected + total / ROWS)) ** 2
    return np.maximum(expected + doubts / (doubts + sums.count_variance) * (sums.counts - expected), 0.0)
