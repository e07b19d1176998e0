"""Released symbols and the law that ties them to latent means.

The latent number behind an entry is N(m, 1); its level is given by the cuts between which it lies, and the symbol by
the channel's chances for that level. The residual spread is the unit of the latent scale, so the cuts carry all that
is known of the scale: given the means of all entries, they are placed such that the levels have the shares that the
released data show. So the model's values always have the marginal law of the data, whatever it explains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.errors import InputError
from tensorveil.inference.scale import Scale

Floats = NDArray[np.float64]
Symbols = NDArray[np.uint8]

PLACES_A_UNIT, FEWEST_PLACES, MOST_PLACES = 24, 512, 4096  # of tables of means
ROOM = 1.3  # of means in tables, over the largest one of today
LEAST = 1e-30  # chance of a symbol
LEAST_INFORMATION = 1e-3  # of the largest, far from all cuts
SHARES_ROUNDS = 500  # of expectation and maximisation; slow where few symbols tell two levels apart
MEANS_BINS, LAW_PLACES = 256, 1024  # of the law of all latent numbers
SURE = 1e-7  # a cumulative share is this far from 0 and 1


@final
@dataclass(frozen=True)
class Table:
    """What symbols tell of means from -reach to reach, at evenly spaced places.

    Attributes
    ----------
    cuts : array (levels - 1)
    reach : float
    values : array (symbols, places, 2)
        Log likelihood of a mean, and its derivative.
    information : array (places)
        Mean square of the derivative.
    """

    cuts: Floats
    reach: float
    values: Floats
    information: Floats


@final
class Released:
    """One symbol per entry, and the channel and scale that they came through.

    Parameters
    ----------
    symbols : one per entry, below 256
    chances : Q(symbol | level), one row per level
    scale : levels, their cuts by the link, and shares by the marginal
    error : standard error of the shares of the scale
    """

    def __init__(self, symbols: ArrayLike, chances: ArrayLike, scale: Scale, error: float) -> None:
        numbers = np.asarray(symbols)
        self.chances: Floats = np.ascontiguousarray(chances, dtype=np.float64)
        levels = len(scale.low)
        if self.chances.ndim != 2 or len(self.chances) != levels or self.chances.shape[1] > 256:
            raise InputError(
                f"chances must have one row per level ({levels}) and at most 256 columns, got {self.chances.shape}"
            )
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.chances.shape[1]:
            raise InputError(f"symbols must be from 0 to {self.chances.shape[1] - 1}, one per column of chances")
        self.symbols: Symbols = np.ascontiguousarray(numbers, dtype=np.uint8)
        self.scale = scale
        self.shares = self._likeliest_shares(max(error, SURE))
        knots = np.concatenate([scale.ends[:1], scale.cuts, scale.ends[1:]])
        middles = (knots[1:] + knots[:-1]) / 2
        self._centre = float(self.shares @ middles)
        self._spread = max(math.sqrt(float(self.shares @ (middles - self._centre) ** 2)), 1e-9)

    def __len__(self) -> int:
        return len(self.symbols)

    def _likeliest_shares(self, error: float) -> Floats:
        """Shares of the levels, from the marginal and the symbols.

        The marginal is worth 1 / (4 error^2) observations where it sees mass, with which a share of one half would be
        known that well, but only 1 / error where it sees none: rare levels may exist unseen, up to a share of `error`.
        """
        found = np.bincount(self.symbols, minlength=self.chances.shape[1]).astype(np.float64)
        known = (self.scale.masses + SURE) / (self.scale.masses + SURE).sum()
        rare = known <= error
        shares = known
        for _ in range(SHARES_ROUNDS):
            each = shares[:, None] * self.chances
            counts = (each / np.maximum(each.sum(axis=0), LEAST)) @ found
            unseen = (counts + known / error)[rare].sum() / (counts.sum() + 1 / error)
            shares = np.where(rare, counts + known / error, counts + known / (4 * error**2))
            shares[rare] *= unseen / max(float(shares[rare].sum()), LEAST)
            shares[~rare] *= (1 - unseen) / max(float(shares[~rare].sum()), LEAST)
        return shares

    def cuts(self, means: Floats) -> Floats:
        """The cuts under which the levels have their shares.

        If all levels are atoms, the cuts are quantiles of the law of all latent numbers. Otherwise they are the link's
        cuts, moved and stretched to the mean and the spread of that law.
        """
        from scipy.special import ndtr, ndtri

        centre, spread = float(means.mean()), float(means.std())
        if not self.scale.free:
            return np.asarray(centre + math.sqrt(1 + spread**2) * (self.scale.cuts - self._centre) / self._spread)
        below = np.clip(np.cumsum(self.shares)[:-1], SURE, 1 - SURE)
        if spread < 1e-9:
            return np.asarray(centre + ndtri(below))
        counts, edges = np.histogram(means, MEANS_BINS)
        places = np.linspace(edges[0] - 6, edges[-1] + 6, LAW_PLACES)
        law = ndtr(places[:, None] - (edges[1:] + edges[:-1]) / 2) @ (counts / len(means))
        return np.interp(below, law, places)

    def knots(self, cuts: Floats) -> Floats:
        """The cuts with the latent places of the lowest and the highest value."""
        stretch = (cuts[-1] - cuts[0]) / (self.scale.cuts[-1] - self.scale.cuts[0]) if len(cuts) > 1 else 1.0
        before = max(float(self.scale.cuts[0] - self.scale.ends[0]), 0.0)
        beyond = max(float(self.scale.ends[1] - self.scale.cuts[-1]), 0.0)
        return np.concatenate([[cuts[0] - stretch * before], cuts, [cuts[-1] + stretch * beyond]])

    def table(self, means: Floats) -> Table:
        """What symbols tell of means near these, with the cuts that follow from them."""
        from scipy.special import ndtr

        cuts = self.cuts(means)
        reach = ROOM * float(np.abs(means).max(initial=0.0)) + 3.0
        places = np.linspace(-reach, reach, min(max(int(2 * reach * PLACES_A_UNIT), FEWEST_PLACES), MOST_PLACES))
        distances = np.concatenate([[-np.inf], cuts, [np.inf]]) - places[:, None]
        chances = np.maximum(np.diff(ndtr(distances), axis=1) @ self.chances, LEAST)
        density = np.exp(-(distances**2) / 2) / math.sqrt(2 * math.pi)
        scores = -np.diff(density, axis=1) @ self.chances / chances
        information = (scores**2 * chances).sum(axis=1)
        information = np.maximum(information, LEAST_INFORMATION * float(information.max()))
        values = np.ascontiguousarray(np.stack([np.log(chances).T, scores.T], axis=2))
        return Table(cuts, reach, values, information)
