"""Private ALS in the manner of DPALS, with all of its noise accounted for.

Chien, Jain, Krichene, Rendle, Song, Thakurta and Zhang, "Private alternating least squares: practical private matrix
completion with tighter rates", ICML 2021. The promise is joint: it protects everything that one owner (a slice of one
mode, such as a user) has, against all others. Every owner computes the own row from the own values, and the rows of
other modes are released from noisy normal equations

    A_j = sum over cells of z z' + noise,      b_j = sum over cells of value * z + noise,

where z is the product of the rows of the cell's other modes, clipped to length one, and values are centred, scaled to
[-1, 1] and clipped. At most `most` cells of an owner take part, drawn at random.

What one owner moves. Of an owner's cells, at most c = min(most, cells of a slice at one index) share an index j, and
each moves its A_j, upper triangle weighted so that lengths are Frobenius norms, and b_j by at most one. At
most `most` cells in groups of at most c move all A together by at most sqrt(most * c), and all b by as much. For a
matrix c is 1. The sum and the number of owners' means, which centre the values, move by at most sqrt(2) together. Each
release adds Gaussian noise of `multiplier` times that, and they compose: two per sweep and mode, and the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from peers.cells import Floats, Indices, checked, normal_equations, product
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.events import GaussianEvent

RANK, SWEEPS, MOST = 3, 5, 50  # of a few that were tried on train halves of MovieLens 100K and FilmTrust
OWN_RIDGE = 1.0  # of an owner's row
NOISE_RIDGE = 2.0  # of released rows, in units of the largest eigenvalue that the noise of A may have: std * sqrt(rank)


def complete(
    coordinates: Any,
    values: Any,
    shape: Sequence[int],
    asked: Any,
    seed: int = 0,
    *,
    bounds: tuple[float, float],
    epsilon: float,
    delta: float,
    owner: int = 0,
    rank: int = RANK,
    sweeps: int = SWEEPS,
    most: int = MOST,
) -> Floats:
    """Predictions of asked cells by their owners; see `peers`. `owner` is the mode whose slices are protected."""
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    random = np.random.default_rng(seed)
    multiplier = calibrate(lambda noise: events(noise, len(shape), sweeps), epsilon, delta)
    low, high = bounds
    middle, half = (low + high) / 2, (high - low) / 2
    scaled = (np.clip(numbers, low, high) - middle) / half
    centre = _centre(scaled, where[:, owner], multiplier, random)
    scaled = np.clip(scaled - centre, -1, 1)

    factors = [random.standard_normal((size, rank)) / math.sqrt(rank) for size in shape]
    taking = _drawn(where[:, owner], most, random)
    others = [mode for mode in range(len(shape)) if mode != owner]
    by_owner = np.argsort(where[:, owner], kind="stable")
    factors[owner] = _own_rows(factors, where[by_owner], scaled[by_owner], shape, owner)
    for _ in range(sweeps):
        for mode in others:
            cells = taking[np.argsort(where[taking, mode], kind="stable")]
            factors[mode] = _released_rows(
                factors, where[cells], scaled[cells], shape, mode, multiplier * moved(shape, owner, mode, most), random
            )
        factors[owner] = _own_rows(factors, where[by_owner], scaled[by_owner], shape, owner)
    predicted = np.clip(product(factors, wanted).sum(axis=1) + centre, -1, 1)
    return np.asarray(middle + half * predicted)


def events(multiplier: float, modes: int, sweeps: int) -> list[GaussianEvent]:
    """The mean, and A and b of every released mode in every sweep."""
    return [GaussianEvent(multiplier, 1 + 2 * sweeps * (modes - 1))]


def moved(shape: Sequence[int], owner: int, mode: int, most: int) -> float:
    """How far one owner can move all A of a mode together, or all b."""
    at_one_index = math.prod(size for other, size in enumerate(shape) if other not in (owner, mode))
    return math.sqrt(most * min(most, at_one_index))


def contributions(
    factors: Sequence[Floats], cells: Indices, numbers: Floats, shape: Sequence[int], mode: int
) -> tuple[Floats, Floats]:
    """A and b of every index of a mode without noise, from cells that are sorted by it."""
    features = product(factors, cells, mode)
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1.0)
    return normal_equations(features, numbers, cells[:, mode], shape[mode])


def _centre(scaled: Floats, owners: Indices, multiplier: float, random: np.random.Generator) -> float:
    """The mean of the owners' means, from a noisy sum and a noisy number of owners."""
    counts = np.bincount(owners)
    means = np.bincount(owners, scaled)[counts > 0] / counts[counts > 0]
    total, number = np.array([means.sum(), len(means)]) + multiplier * math.sqrt(2) * random.standard_normal(2)
    return float(np.clip(total / max(number, 1.0), -1, 1))


def _drawn(owners: Indices, most: int, random: np.random.Generator) -> Indices:
    """Cells that take part: at most so many of an owner, at random."""
    order = random.permutation(len(owners))
    order = order[np.argsort(owners[order], kind="stable")]
    mine = owners[order]
    place = np.arange(len(mine)) - np.searchsorted(mine, mine)
    return np.sort(order[place < most])


def _own_rows(factors: Sequence[Floats], cells: Indices, numbers: Floats, shape: Sequence[int], owner: int) -> Floats:
    """Every owner's row from all own values: nothing of it is released."""
    matrices, sides = normal_equations(product(factors, cells, owner), numbers, cells[:, owner], shape[owner])
    return np.linalg.solve(matrices + OWN_RIDGE * np.eye(matrices.shape[1]), sides[:, :, None])[:, :, 0]


def _released_rows(
    factors: Sequence[Floats],
    cells: Indices,
    numbers: Floats,
    shape: Sequence[int],
    mode: int,
    deviation: float,
    random: np.random.Generator,
) -> Floats:
    matrices, sides = noisy(*contributions(factors, cells, numbers, shape, mode), deviation, random)
    eigenvalues, vectors = np.linalg.eigh(matrices)
    ridge = NOISE_RIDGE * deviation * math.sqrt(matrices.shape[1]) + 1e-9
    inverted = 1 / (np.maximum(eigenvalues, 0) + ridge)
    return np.einsum("jrs,js,jts,jt->jr", vectors, inverted, vectors, sides)


def noisy(matrices: Floats, sides: Floats, deviation: float, random: np.random.Generator) -> tuple[Floats, Floats]:
    """A and b with noise. Off the diagonal an entry of A counts twice in Frobenius norms, so its noise is smaller."""
    rank = matrices.shape[1]
    upper = np.triu(np.ones((rank, rank)), 1) / math.sqrt(2) + np.eye(rank)
    noise = upper * random.standard_normal(matrices.shape)
    symmetric = noise + np.swapaxes(np.triu(noise, 1), 1, 2)
    return matrices + deviation * symmetric, sides + deviation * random.standard_normal(sides.shape)
