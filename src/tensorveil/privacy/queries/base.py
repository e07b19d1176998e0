"""What a question to the vault is, and how values are read before they are summed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.units import Unit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@final
@dataclass(frozen=True)
class Change:
    """How far one privacy unit can move one part of a query's sum.

    Attributes
    ----------
    norm : Norm
    bound : float
        The largest change, in units of the answer.
    grid : float
        One step of the whole numbers that are summed, a power of two, in the same units.
    changed : int or None
        How many numbers of the part one unit can change; None: all of them.
    """

    norm: Norm
    bound: float
    grid: float
    changed: int | None = None

    def __post_init__(self) -> None:
        checks.positive_number("bound", self.bound, "a statistic that cannot change needs no noise")
        checks.positive_number("grid", self.grid)


class Query(ABC):
    """A question whose answer is a sum over shards.

    A query holds public state only: numbers of the plan, public facts of the unit, and answers released earlier.
    It has two jobs. `of` is what one shard contributes, in whole numbers, so that adding shards is exact.
    `sensitivity` is how far one privacy unit can move the sum; the method is marked with the theorem that proves it.
    """

    @abstractmethod
    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds the sensitivity for this unit."""

    @abstractmethod
    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        """What one shard contributes: one int64 array per part of the answer."""

    @abstractmethod
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """How far one unit can move each part, in the norm that its noise is made for."""

    def finish(self, totals: tuple[Integers, ...]) -> tuple[Integers, ...]:
        """What is done to the sums of all shards before noise is added; part of what the theorem covers."""
        return totals


@final
@dataclass(frozen=True)
class Reading:
    """How a query reads values: clipped around a released level, less released offsets.

    Every residual is a function of one observation's own value and of released numbers.

    Attributes
    ----------
    mean, scale : float
        Values on the centred scale, where the bounds are -1 and 1, become clip((y - mean) / scale, -1, 1).
    offsets : Offsets
        Subtracted afterwards.
    """

    mean: float
    scale: float
    offsets: Offsets

    def __post_init__(self) -> None:
        checks.finite_number("mean", self.mean)  # a number that is not finite would become -2^63 grid steps
        checks.positive_number("scale", self.scale)

    def values(self, shard: BoundedObservations) -> Floats:
        """Values from -1 to 1 around the level."""
        return np.clip((shard.centred - self.mean) / self.scale, -1.0, 1.0)

    def residuals(self, shard: BoundedObservations) -> Floats:
        """Values less the offsets; not clipped again."""
        return np.asarray(self.values(shard) - offsets_at(shard, self.offsets))


def offsets_at(shard: BoundedObservations, offsets: Offsets) -> Floats:
    """Offsets of every observation; offsets of another shape are refused, whichever cells are observed."""
    sizes = tuple(None if part is None else len(part) for part in offsets.modes)
    pairs = zip(sizes, shard.shape, strict=False)
    if len(sizes) != len(shard.shape) or any(one not in (None, size) for one, size in pairs):
        raise InputError(f"offsets must be one per index of the shape {shard.shape}, got {sizes}; correct them")
    with np.errstate(over="ignore"):  # an infinity is clipped later, and a warning would tell of the data
        return offsets.at(shard.coordinates)


def residual_shard(shard: BoundedObservations, offsets: Offsets) -> BoundedObservations:
    """The shard with every value replaced by its residual, clipped to the same bounds and put on the same grid.

    A residual reads its own value and released numbers only, so neighbouring data have neighbouring residuals.
    """
    residuals = np.clip(shard.centred - offsets_at(shard, offsets), -1.0, 1.0)
    return shard.with_steps(np.rint(residuals * VALUE_STEPS).astype(np.int64))
