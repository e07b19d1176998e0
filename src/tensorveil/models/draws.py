"""Draws of a model from its posterior: predictions are averages over draws, their spread is the uncertainty."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Coordinates, Floats
from tensorveil.errors import InputError
from tensorveil.kernels.reference import descent
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets

Small = NDArray[np.float32]

TARGETS = ("value", "mean")
CELLS_AT_ONCE = 2**21  # entries times draws
BISECTIONS = 30  # of the bounds: to a billionth
SMALLEST_GAP = 4e-9  # a place this close to the end of a level is that end
PLACES_PER_SIGMA, MOST_PLACES = 32, 8192  # of a table of expected values
FAR = 9.0  # sigmas beyond the outer knots, from where on values are those at the outer knots
SMALL = ("parameters", "offsets")  # arrays in float32


@final
@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Draws of offsets and factors from a posterior, and the map from latent numbers to values.

    In draw s the latent number behind an entry is N(m_s, sigmas_s^2), m_s = offsets (those of the `Completion`, the
    posterior means) + the draw's deviations from them + the draw's factors. Its value is linear from low_l to high_l
    between the knots l and l + 1 of the draw, low_0 before the first and high_L beyond the last knot. Where low_l is
    high_l, the values of the level are all alike: an atom, for example a star. Values are centred: the bounds are -1
    and 1. With bends, the sum of offsets and factors is read off a table to give m_s.

    Attributes
    ----------
    parameters : array (draws, parameters of a model) of float32
    offsets : array (draws, 1 + indices of all modes) of float32
        Deviations from the posterior means: of the mean, then of the offsets of each mode.
    sigmas : array (draws)
    knots : array (draws, levels + 1), increasing
    low, high : array (levels)
    mixing : array (4)
        Sweeps of each chain, chains, the 95th percentile of R-hat and the median of effective draws, both over some
        entries. Draws that are independent have 0 sweeps.
    bends : array (draws, 2, places) or None
        Sums of offsets and factors, increasing, and m_s there; it is linear between places and constant beyond.
    """

    family: ModelFamily
    shape: tuple[int, ...]
    parameters: Small
    offsets: Small
    sigmas: Floats
    knots: Floats
    low: Floats
    high: Floats
    mixing: Floats
    bends: Floats | None = None

    def __post_init__(self) -> None:
        count, levels = len(self.sigmas), len(self.low)
        numbers = sum(math.prod(block) for block in self.family.block_shapes(self.shape))
        wanted = {
            "parameters": (count, numbers),
            "offsets": (count, 1 + sum(self.shape)),
            "sigmas": (count,),
            "knots": (count, levels + 1),
            "low": (levels,),
            "high": (levels,),
            "mixing": (4,),
            **({} if self.bends is None else {"bends": (count, 2, np.shape(self.bends)[-1])}),
        }
        if self.family.nonnegative and (np.asarray(self.parameters) < 0).any():
            raise InputError("parameters of the draws of a non-negative model must not be below 0, got some that are")
        if count == 0:
            raise InputError("there must be at least one draw, got none; sample longer")
        for name, shape in wanted.items():
            array = np.array(getattr(self, name), dtype=np.float32 if name in SMALL else np.float64, order="C")
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(f"{name} of the draws must be finite and of shape {shape}, got {array.shape}")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        ends = np.column_stack([self.low, self.high]).ravel()
        if (np.diff(ends) < 0).any() or (np.diff(self.knots) < 0).any() or not (self.sigmas > 0).all():
            raise InputError("low, high and knots of the draws must increase, and sigmas be above 0, got others")
        if self.bends is not None and not (np.diff(self.bends[:, 0]) > 0).all():
            raise InputError("bends of the draws must have increasing places, got others")

    def __len__(self) -> int:
        return len(self.sigmas)

    def tells_of(self, mode: int) -> bool:
        """Whether any number of this mode's rows or offsets is not zero in any draw."""
        model = self.family.zeros(self.shape)
        first, own = int(model.block_starts[mode]), 1 + sum(self.shape[:mode])
        rows = self.parameters[:, first : first + model.factors[mode].size]
        return bool(rows.any() or self.offsets[:, own : own + self.shape[mode]].any())

    def latent_means(self, coordinates: Coordinates, offsets: Offsets) -> Floats:
        """m_s of checked coordinates, one row per draw."""
        model = self.family.zeros(self.shape).numbers
        places = 1 + np.concatenate([[0], np.cumsum(self.shape)[:-1]]) + coordinates.astype(np.int64)
        base = offsets.at(coordinates)
        found = np.empty((len(self), len(coordinates)))
        for row, numbers, deviations in zip(found, self.parameters, self.offsets, strict=True):
            descent.predict(model._replace(parameters=numbers.astype(np.float64)), coordinates, row)
            row += base + deviations[0] + deviations[places].sum(axis=1, dtype=np.float64)
        for row, bend in zip(found, () if self.bends is None else self.bends, strict=self.bends is not None):
            row[:] = np.interp(row, *bend)
        return found

    def scores(self, centred: Floats) -> Floats:
        """Latent numbers behind centred values, if all latent numbers are N(0, 1); for an atom their mean."""
        knots, atoms = self.knots.mean(axis=0), self.low == self.high
        ends = np.concatenate([[-np.inf], knots[1:-1], [np.inf]])
        density, below = np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi), _below(ends)
        means = -np.diff(density) / np.maximum(np.diff(below), 1e-12)
        places = np.column_stack([self.low, self.high]).ravel()
        latent = np.column_stack([np.where(atoms, means, knots[:-1]), np.where(atoms, means, knots[1:])]).ravel()
        return np.asarray(np.interp(centred, places, latent))

    def predict(self, coordinates: Coordinates, offsets: Offsets) -> Floats:
        """Posterior mean of the values at checked coordinates, centred."""
        return self._by_parts(coordinates, lambda part: self._expected(part, offsets).mean(axis=0))

    def interval(
        self,
        coordinates: Coordinates,
        offsets: Offsets,
        share: float,
        of: str = "value",
        weights: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """Lower and upper ends, centred, between which a value (or its mean) lies with this posterior probability.

        If all levels are atoms, the ends are those of the shortest run of levels with at least this probability, and
        the most likely one of these; the coverage may then exceed the requested probability. With weights, each run of
        so many coordinates is one entry, a mixture of its cells.
        """
        tails = ((1 - share) / 2, (1 + share) / 2)
        mix = np.ones(1) if weights is None else weights
        if of == "mean":

            def ends(part: Coordinates) -> Floats:
                means = self._expected(part, offsets).reshape(len(self), -1, len(mix)) @ mix
                return np.asarray(np.quantile(means, tails, axis=0))

        elif (self.low == self.high).all():

            def ends(part: Coordinates) -> Floats:
                return self._shortest_run(part, offsets, share, mix)

        else:

            def ends(part: Coordinates) -> Floats:
                return self._quantiles(part, offsets, tails, mix)

        pairs = self._by_parts(coordinates, ends, len(mix)).reshape(2, -1)
        return pairs[0], pairs[1]

    def _by_parts(self, coordinates: Coordinates, of: Callable[[Coordinates], Floats], run: int = 1) -> Floats:
        """Numbers of all entries, from parts of whole runs that fit in memory; entries are the last axis."""
        size = max(1, CELLS_AT_ONCE // (len(self) * run)) * run
        parts = [of(coordinates[first : first + size]) for first in range(0, len(coordinates), size)]
        return np.concatenate(parts, axis=-1) if parts else np.empty(0)

    def _expected(self, coordinates: Coordinates, offsets: Offsets) -> Floats:
        """Expected values, one row per draw; each draw's are read off a table.

        The places of the table are multiples of a step that the draw alone decides. So an entry's number does not
        depend on the other entries that are asked for, which may be those of other people.
        """
        means = self.latent_means(coordinates, offsets)
        for row, sigma, knots in zip(means, self.sigmas, self.knots, strict=True):
            low, high = knots[0] - FAR * sigma, knots[-1] + FAR * sigma
            step = max(sigma / PLACES_PER_SIGMA, (high - low) / MOST_PLACES)
            np.clip(row, low, high, out=row)
            places = np.arange(math.floor(row.min() / step), math.floor(row.max() / step) + 2) * step
            row[:] = np.interp(row, places, expected_values(places, float(sigma), knots, self.low, self.high))
        return means

    def _shortest_run(self, coordinates: Coordinates, offsets: Offsets, share: float, mix: Floats) -> Floats:
        """The first and the last level of the shortest run of levels with at least this chance."""
        means = self.latent_means(coordinates, offsets)
        cuts, sigmas = self.knots[:, 1:-1].T, self.sigmas[:, None]
        below = [_below((cut[:, None] - means) / sigmas).mean(axis=0).reshape(-1, len(mix)) @ mix for cut in cuts]
        entries = len(coordinates) // len(mix)
        ends = np.vstack([np.zeros(entries), *below, np.ones(entries)])
        count = len(self.low)
        runs = np.array([(first, last) for first in range(count) for last in range(first, count)])
        chances = ends[runs[:, 1] + 1] - ends[runs[:, 0]]
        worth = chances - 2.0 * (runs[:, 1] - runs[:, 0])[:, None]  # a shorter run is worth more than any chance
        best = runs[np.where(chances >= min(share, 1 - 1e-9), worth, -np.inf).argmax(axis=0)]
        return np.asarray(self.low[best.T])

    def _quantiles(self, coordinates: Coordinates, offsets: Offsets, tails: tuple[float, float], mix: Floats) -> Floats:
        """Quantiles of the mixture of all draws and all cells of each run, by bisection between the outer values."""
        means = self.latent_means(coordinates, offsets)
        ends = np.column_stack([self.low, self.high]).ravel()
        found, entries = [], len(coordinates) // len(mix)
        for tail in tails:
            low = np.full(entries, self.low[0])
            high = np.full(entries, self.high[-1])
            for _ in range(BISECTIONS):
                middle = (low + high) / 2
                below = np.zeros(entries)
                for row, sigma, knots in zip(means, self.sigmas, self.knots, strict=True):
                    latent = np.interp(middle, ends, np.repeat(knots, 2)[1:-1], left=-np.inf, right=np.inf)
                    below += _below((latent[:, None] - row.reshape(entries, -1)) / sigma) @ mix
                above = below < tail * len(self)
                low, high = np.where(above, middle, low), np.where(above, high, middle)
            places = (low + high) / 2
            nearest = ends[np.clip(np.searchsorted(ends, places - SMALLEST_GAP), 0, len(ends) - 1)]
            found.append(np.where(np.abs(nearest - places) <= SMALLEST_GAP, nearest, places))  # atoms are exact
        return np.array(found)

    def arrays(self) -> dict[str, NDArray[np.float32] | Floats]:
        """All numbers, by name, for a file."""
        named = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {name: array for name, array in named.items() if array is not None}

    @classmethod
    def from_arrays(
        cls, family: ModelFamily, shape: tuple[int, ...], arrays: Mapping[str, NDArray[np.float32] | Floats]
    ) -> Self:
        """The draws whose `arrays()` these are."""
        names = [field.name for field in fields(cls)[2:]]
        missing = [name for name in names if name not in arrays and name != "bends"]
        if missing:
            raise InputError(f"arrays of draws must hold {', '.join(names)}, got none named {missing[0]!r}")
        return cls(family, shape, *(arrays.get(name) for name in names))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PosteriorDraws)
            and (self.family, self.shape) == (other.family, other.shape)
            and self.arrays().keys() == other.arrays().keys()
            and all(np.array_equal(mine, other.arrays()[name]) for name, mine in self.arrays().items())
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, and large


def expected_values(means: Floats, sigma: float, knots: Floats, low: Floats, high: Floats) -> Floats:
    """Expected value of a latent number N(mean, sigma^2), for each mean: sums of integrals of lines between knots."""
    z = (knots[:, None] - means) / sigma
    below, density = _below(z), np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    chances = np.diff(below, axis=0)
    beyond = (means - knots[:-1, None]) * chances - sigma * np.diff(density, axis=0)  # beyond the knot before
    slopes = (high - low) / np.maximum(np.diff(knots), 1e-12)
    return np.asarray(low[0] * below[0] + high[-1] * (1 - below[-1]) + low @ chances + slopes @ beyond)


def _below(places: Floats) -> Floats:
    """Chances that a standard normal number is below these places."""
    from scipy.special import ndtr

    return np.asarray(ndtr(places))
