"""Released symbols and the law that ties them to latent means.

The latent number behind an entry is N(m, 1); its level is given by the cuts between which it lies, and the symbol by
the channel's chances for that level. The residual spread is the unit of the latent scale, so the cuts carry all that
is known of the scale. They are drawn as all else is. If all levels are atoms, each cut is drawn, and the shares of the
levels are held by those of the released marginal. Otherwise the link's cuts are moved and stretched together, and the
mean and spread of the latent numbers are held by the marginal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.errors import InputError
from tensorveil.inference.values.scale import Scale
from tensorveil.kernels.reference.symbol_law import LEAST, symbol_law, weighted_fit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Symbols = NDArray[np.uint8]

PLACES_PER_UNIT, FEWEST_PLACES, MOST_PLACES = 6, 48, 2048  # of tables of means
MOST_RANGE = 250.0  # of the cuts, in units of the residual spread
LEAST_INFORMATION = 1e-3  # of the largest, far from all cuts
SHARES_ROUNDS = 500  # of expectation and maximisation; slow where few symbols tell two levels apart
SMALLEST_SHARE = 1e-12  # of a level
MOST_WORTH = 200.0  # observations: the link makes the marginal normal to some 10 % of its variance
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
        self.exact = bool(levels == self.chances.shape[1] and (self.chances == np.eye(levels)).all())
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.chances.shape[1]:
            raise InputError(f"symbols must be from 0 to {self.chances.shape[1] - 1}, one per column of chances")
        self.symbols: Symbols = np.ascontiguousarray(numbers, dtype=np.uint8)
        self.scale = scale
        error = max(error, SURE)
        self.known: Floats = (scale.masses + SURE) / (scale.masses + SURE).sum()
        worth = min(1 / (4 * error**2), float(len(numbers)))  # of the marginal, in observations
        self.counted = worth * self.known + 0.5
        self.worth = min(1 / max(scale.doubt, SURE) ** 2, float(len(numbers)), MOST_WORTH)  # of mean and spread
        self.shares = self._likeliest_shares(error)
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
        known = self.known
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

    def start(self) -> Floats:
        """Coordinates of the cuts under which the levels have their shares, if nothing is explained.

        If all levels are atoms, the coordinates are the cuts. Otherwise the cuts are those of the link, moved and
        stretched, and the coordinates are how far, and the logarithm of how much.
        """
        from scipy.special import ndtri

        if self.scale.free:
            return np.asarray(ndtri(np.clip(np.cumsum(self.shares)[:-1], SURE, 1 - SURE)))
        return np.array([-self._centre / self._spread, -math.log(self._spread)])

    def cuts(self, coordinates: Floats) -> Floats:
        """The cuts with these coordinates."""
        if self.scale.free:
            return coordinates
        return np.asarray(coordinates[0] + math.exp(coordinates[1]) * self.scale.cuts)

    def possible(self, coordinates: Floats) -> bool:
        """Whether the cuts increase, and span at most MOST_RANGE: finer predictions than that are not looked for."""
        if not self.scale.free:
            return bool(coordinates[1] + math.log(self.scale.cuts[-1] - self.scale.cuts[0]) <= math.log(MOST_RANGE))
        return bool((np.diff(coordinates) > 0).all() and coordinates[-1] - coordinates[0] <= MOST_RANGE)

    def moved(self, coordinates: Floats, centre: float, factor: float, shift: float) -> tuple[Floats, float]:
        """Coordinates of the cuts stretched by a factor about a centre, then shifted; log of the change of volume."""
        if self.scale.free:
            return centre + factor * (coordinates - centre) + shift, len(coordinates) * math.log(factor)
        place = centre + factor * (coordinates[0] - centre) + shift
        return np.array([place, coordinates[1] + math.log(factor)]), math.log(factor)

    def knots(self, cuts: Floats) -> Floats:
        """The cuts with the latent places of the lowest and the highest value."""
        stretch = (cuts[-1] - cuts[0]) / (self.scale.cuts[-1] - self.scale.cuts[0]) if len(cuts) > 1 else 1.0
        before = max(float(self.scale.cuts[0] - self.scale.ends[0]), 0.0)
        beyond = max(float(self.scale.ends[1] - self.scale.cuts[-1]), 0.0)
        return np.concatenate([[cuts[0] - stretch * before], cuts, [cuts[-1] + stretch * beyond]])

    def log_likelihood(self, coordinates: Floats, places: Floats, weights: Floats) -> tuple[float, Floats]:
        """Log likelihood and prior of cuts, and what all means together give: shares of the levels, or moments.

        Both are functions of the weights of symbols at places of the means (`scored_rows.spread_means`); places without
        weight may be left out.
        """
        value, _, _, shares = self._law(coordinates, places, weights)
        if self.scale.free:
            return value, shares
        return value, np.array(self._moments(coordinates, places, weights[:, :, 0].sum(axis=0)))

    def equations(
        self, coordinates: Floats, places: Floats, weights: Floats, chosen: Integers
    ) -> tuple[float, Floats, Floats]:
        """Log likelihood and prior of cuts, its gradient and the expected information of chosen coordinates."""
        value, chances, density, shares = self._law(coordinates, places, weights)
        counts = weights[:, :, 0].sum(axis=0)
        changes = np.empty((len(chosen), *chances.shape))
        for part, number in zip(changes, chosen, strict=True):
            if self.scale.free:  # a cut moves up: the level below it gains what the level above loses
                part[:] = density[:, number, None] * (self.chances[number] - self.chances[number + 1])
            else:
                gained = density * (math.exp(coordinates[1]) * self.scale.cuts if number else 1.0)
                gained = np.diff(gained, axis=1, prepend=0.0, append=0.0)
                part[:] = gained if self.exact else gained @ self.chances
        flat = changes.reshape(len(chosen), -1)
        g = flat @ (weights[:, :, 0].T / chances).ravel()
        H = (flat * (np.maximum(counts, 0.0)[:, None] / chances).ravel()) @ flat.T
        if not self.scale.free:
            mean, square, unit = self._moments(coordinates, places, counts)
            g += self.worth * np.array([mean / (square * unit), 1 - 1 / square])[chosen]
            H += self.worth * np.diag([1 / (square * unit**2), 2 / square])[np.ix_(chosen, chosen)]
        else:
            moved = (counts @ density / counts.sum())[chosen]
            change = np.zeros((len(chosen), len(shares)))
            change[np.arange(len(chosen)), chosen] = moved
            change[np.arange(len(chosen)), chosen + 1] = -moved
            g += change @ (self.counted / shares)
            H += (change * (self.counted.sum() / shares)) @ change.T
        return value, g, H

    def _law(self, coordinates: Floats, places: Floats, weights: Floats) -> tuple[float, Floats, Floats, Floats]:
        """Log likelihood and prior, chances of symbols and density of each cut at places, and shares of the levels."""
        levels, chances, scores, density = self._chances(self.cuts(coordinates), places)
        value = weighted_fit(weights, chances, scores)
        counts = weights[:, :, 0].sum(axis=0)
        shares = np.maximum(counts @ levels / counts.sum(), SMALLEST_SHARE)
        if self.scale.free:  # the marginal, as so many observations, and half a one of each level
            value += float(self.counted @ np.log(shares))
        else:  # so many observations with mean 0 and variance 1 in the link's units
            mean, square, _ = self._moments(coordinates, places, counts)
            value -= self.worth / 2 * (math.log(square) + (1 + mean**2) / square)
        value -= self._log_unit(coordinates)
        return value, chances, density, shares

    def _moments(self, coordinates: Floats, places: Floats, counts: Floats) -> tuple[float, float, float]:
        """Mean and variance of all latent numbers in units of the link, and that unit."""
        unit = math.exp(coordinates[1])
        mean = float(counts @ places / counts.sum())
        variance = float(counts @ (places - mean) ** 2 / counts.sum())
        return (mean - float(coordinates[0])) / unit, (variance + 1) / unit**2, unit

    def _log_unit(self, coordinates: Floats) -> float:
        """Minus the log prior density of the cuts, which is even up to their unit: their range, or the link's."""
        if not self.scale.free:
            return float(coordinates[1])
        return len(coordinates) * math.log(coordinates[-1] - coordinates[0]) if len(coordinates) > 1 else 0.0

    def _chances(self, cuts: Floats, places: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Chances of levels and of symbols at places of the mean, the symbols' scores, and the density of each cut."""
        count, channel = len(places), self.chances
        levels, density = np.empty((count, len(cuts) + 1)), np.empty((count, len(cuts)))
        chances, scores = np.empty((count, channel.shape[1])), np.empty((count, channel.shape[1]))
        symbol_law(np.ascontiguousarray(cuts), channel, places, levels, chances, scores, density)
        return levels, chances, scores, density

    def log_chances(self, means: Floats, cuts: Floats, symbols: Symbols) -> Floats:
        """Log probability of a symbol for each mean, with given cuts."""
        _, chances, _, _ = self._chances(cuts, means)
        return np.asarray(np.log(np.maximum(chances[np.arange(len(means)), symbols], LEAST)))

    @staticmethod
    def places(reach: float) -> Floats:
        """Evenly spaced places from -reach to reach."""
        count = min(max(int(2 * reach * PLACES_PER_UNIT), FEWEST_PLACES), MOST_PLACES)
        return np.linspace(-reach, reach, count)

    def table(self, coordinates: Floats, reach: float, now: Floats | None = None) -> Table:
        """What symbols tell of means from -reach to reach, with given cuts.

        What the marginal tells of all means together is spread over them: how it changes with one of them, if shares
        or moments are those of `now` (`log_likelihood`).
        """
        cuts, places = self.cuts(coordinates), self.places(reach)
        levels, chances, scores, density = self._chances(cuts, places)
        information = (scores**2 * chances).sum(axis=1)
        information = np.maximum(information, LEAST_INFORMATION * float(information.max()))
        values = np.stack([np.log(chances).T, scores.T], axis=2)
        if now is not None and self.scale.free:
            # a level that is too rare attracts no entry by more than others do: what is linear holds for small moves
            told = self.counted / np.maximum(now, self.counted / self.counted.sum()) / len(self)
            values += np.column_stack([levels @ told, density @ np.diff(told)])
        elif now is not None:
            mean, square, unit = min(max(float(now[0]), -1.0), 1.0), max(float(now[1]), 0.5), float(now[2])
            away = places - coordinates[0] - unit * float(now[0])
            steep, bent = mean / (square * unit), (1 / square - (1 + mean**2) / square**2) / (2 * unit**2)
            part = self.worth / len(self)
            values -= part * np.column_stack([steep * away + bent * away**2, steep + 2 * bent * away])
        return Table(cuts, reach, np.ascontiguousarray(values), information)
