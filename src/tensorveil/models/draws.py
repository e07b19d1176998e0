"""Draws of a model from its posterior: predictions are averages over draws, their spread is the uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.errors import InputError
from tensorveil.kernels.reference import blocks
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets

Floats = NDArray[np.float64]
Small = NDArray[np.float32]
Coordinates = NDArray[np.uint32]

TARGETS = ("value", "mean")
CELLS_AT_ONCE = 2**21  # entries times draws
BISECTIONS = 40


@final
@dataclass(frozen=True, eq=False)
class PosteriorDraws:
    """Draws of offsets and factors from a posterior, on the centred scale, where the bounds are -1 and 1.

    In draw s the latent value of an entry is N(m_s, sigmas_s^2), m_s = offsets (those of the `Completion`, the
    posterior means) + the draw's deviations from them + the draw's factors. With levels, the value is the level
    between whose cuts the latent value lies; without, it is the latent value.

    Attributes
    ----------
    family : ModelFamily
    shape : tuple of int
    parameters : array (draws, parameters of a model) of float32
    offsets : array (draws, 1 + indices of all modes) of float32
        Deviations from the posterior means: of the mean, then of the offsets of each mode.
    sigmas : array (draws)
    extra : array (draws)
        Variance of m_s given the draw: rows of one mode are in each draw their mean given the other modes.
    cuts : array (draws, levels - 1), empty without levels
    levels : array, empty where values are continuous
    """

    family: ModelFamily
    shape: tuple[int, ...]
    parameters: Small
    offsets: Small
    sigmas: Floats
    extra: Floats
    cuts: Floats
    levels: Floats

    def __post_init__(self) -> None:
        count = len(self.sigmas)
        numbers = sum(math.prod(block) for block in self.family.block_shapes(self.shape))
        wanted = {
            "parameters": (count, numbers),
            "offsets": (count, 1 + sum(self.shape)),
            "sigmas": (count,),
            "extra": (count,),
            "cuts": (count, max(len(self.levels) - 1, 0)),
            "levels": (len(self.levels),),
        }
        if count == 0:
            raise InputError("there must be at least one draw, got none; sample longer")
        for name, shape in wanted.items():
            small = name in ("parameters", "offsets")
            array = np.array(getattr(self, name), dtype=np.float32 if small else np.float64, order="C")
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(f"{name} of the draws must be finite and of shape {shape}, got {array.shape}")
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.sigmas)

    def latent_means(self, coordinates: Coordinates, offsets: Offsets) -> Floats:
        """m_s of checked coordinates, one row per draw."""
        model = self.family.zeros(self.shape)
        starts, widths = model.block_starts, model.block_widths
        places = 1 + np.concatenate([[0], np.cumsum(self.shape)[:-1]]) + coordinates.astype(np.int64)
        base = offsets.at(coordinates)
        found = np.empty((len(self), len(coordinates)))
        for row, numbers, deviations in zip(found, self.parameters, self.offsets, strict=True):
            blocks.predict(numbers.astype(np.float64), starts, widths, coordinates, row)
            row += base + deviations[0] + deviations[places].sum(axis=1, dtype=np.float64)
        return found

    def predict(self, coordinates: Coordinates, offsets: Offsets) -> Floats:
        """Posterior mean of the values at checked coordinates, centred."""
        parts = [self._expected(part, offsets) for part in self._parts(coordinates)]
        return np.concatenate(parts) if parts else np.empty(0)

    def interval(
        self, coordinates: Coordinates, offsets: Offsets, share: float, of: str = "value"
    ) -> tuple[Floats, Floats]:
        """Lower and upper ends, centred, between which a value (or its mean) lies with this posterior probability.

        With levels, a value's ends are levels: the shortest run of levels with at least this probability, and the
        most likely one of these. Levels are discrete, so the coverage may exceed the requested probability.
        """
        if len(self.levels) and of == "value":
            found = [self._likeliest(part, offsets, share) for part in self._parts(coordinates)]
            pairs = np.concatenate(found) if found else np.empty((0, 2), dtype=np.int64)
            return self.levels[pairs[:, 0]], self.levels[pairs[:, 1]]
        tails = ((1 - share) / 2, (1 + share) / 2)
        ends = [[self._quantile(part, offsets, tail, of) for part in self._parts(coordinates)] for tail in tails]
        low, high = (np.concatenate(each) if each else np.empty(0) for each in ends)
        return low, high

    def _parts(self, coordinates: Coordinates) -> list[Coordinates]:
        size = max(1, CELLS_AT_ONCE // len(self))
        return [coordinates[first : first + size] for first in range(0, len(coordinates), size)]

    def _below(self, means: Floats) -> Floats:
        """P(value at or below each level but the last), averaged over draws: one row per level."""
        from scipy.special import ndtr

        spreads = np.sqrt(self.sigmas**2 + self.extra)[:, None]
        return np.array([ndtr((cut[:, None] - means) / spreads).mean(axis=0) for cut in self.cuts.T])

    def _likeliest(self, coordinates: Coordinates, offsets: Offsets, share: float) -> NDArray[np.int64]:
        """First and last place of the shortest run of levels with this chance at least."""
        below = self._below(self.latent_means(coordinates, offsets))
        ends = np.vstack([np.zeros(len(coordinates)), below, np.ones(len(coordinates))])
        count = len(self.levels)
        runs = np.array([(first, last) for first in range(count) for last in range(first, count)])
        chances = ends[runs[:, 1] + 1] - ends[runs[:, 0]]
        worth = chances - 2.0 * (runs[:, 1] - runs[:, 0])[:, None]  # a shorter run is worth more than any chance
        return np.asarray(runs[np.where(chances >= min(share, 1 - 1e-9), worth, -np.inf).argmax(axis=0)])

    def _expected(self, coordinates: Coordinates, offsets: Offsets) -> Floats:
        means = self.latent_means(coordinates, offsets)
        if not len(self.levels):
            return np.asarray(means.mean(axis=0))
        return np.asarray(self.levels[-1] - np.diff(self.levels) @ self._below(means))

    def _quantile(self, coordinates: Coordinates, offsets: Offsets, tail: float, of: str) -> Floats:
        """The tail's quantile of the mixture of all draws, by bisection."""
        from scipy.special import ndtr

        means = self.latent_means(coordinates, offsets)
        spreads = np.sqrt(self.extra + (self.sigmas**2 if of == "value" else 1e-12))[:, None]
        reach = 12 * float(spreads.max())
        low, high = means.min(axis=0) - reach, means.max(axis=0) + reach
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = ndtr((middle - means) / spreads).mean(axis=0) < tail
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        if len(self.levels):  # the mean of a value given its latent mean: rises with it
            latent = (low + high) / 2
            cuts, sigma = self.cuts.mean(axis=0), math.sqrt(float((self.sigmas**2).mean()))
            below = ndtr((cuts[:, None] - latent) / sigma)
            return np.asarray(self.levels[-1] - np.diff(self.levels) @ below)
        return np.asarray((low + high) / 2)

    def arrays(self) -> dict[str, NDArray[np.float32] | Floats]:
        """All numbers, by name, for a file."""
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    @classmethod
    def from_arrays(
        cls, family: ModelFamily, shape: tuple[int, ...], arrays: Mapping[str, NDArray[np.float32] | Floats]
    ) -> PosteriorDraws:
        """The draws whose `arrays()` these are."""
        names = [field.name for field in fields(cls)[2:]]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise InputError(f"arrays of draws must hold {', '.join(names)}, got none named {missing[0]!r}")
        return cls(family, shape, *(arrays[name] for name in names))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PosteriorDraws)
            and (self.family, self.shape) == (other.family, other.shape)
            and all(np.array_equal(mine, other.arrays()[name]) for name, mine in self.arrays().items())
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, and large
