"""What a question to the vault is, what its answer costs, and how offsets are read."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.privacy.accounting.events import Event
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import checked_grid
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.privacy.units import Unit

OwnOffsets = tuple[int, Floats]  # a mode, and the offset that each of its slices has computed for itself
OFFSET_RIDGE = 2.0  # residual variance over the variance of an own offset; generic
OFFSET_STEPS = 2.0**28  # grid steps in one: sums of whole numbers do not depend on the order of the observations
LARGEST_RESIDUAL = 8.0  # so that sums of 2^30 residuals stay below 2^62 steps


class ReleasedOffsets(Protocol):
    """A mean and, for each mode, one offset per index or None; released earlier."""

    mean: float
    modes: tuple[Floats | None, ...]


class Norm(StrEnum):
    """How the change of a statistic is measured; noise is made for one norm."""

    L1 = "L1"  # discrete Laplace noise
    L2 = "L2"  # discrete Gaussian noise
    ROWS = "sum of row norms"  # norm-exponential noise on every row


LAW_OF_NORM = {Norm.L1: Law.LAPLACE, Norm.L2: Law.GAUSSIAN, Norm.ROWS: Law.ROWS}


@final
@dataclass(frozen=True)
class Sensitivity:
    """How far one privacy unit moves a statistic, as far as the plan knows.

    Without a bound it follows in the run from public facts and released numbers, by the rule that `words` state.
    """

    bound: float | None
    norm: Norm | None
    words: str

    def __str__(self) -> str:
        if self.bound is None:
            return self.words
        return f"{self.bound:.4g} ({', '.join(filter(None, (self.norm, self.words)))})"


@dataclass(frozen=True)
class PaidStage:
    """One paid reading of the data, or several equal ones, as the vault sees it.

    The event is its price, the theorem bounds its sensitivity, the scale of the noise follows from both, and `what` are
    words about what is noised. The vault knows stages by their names, which are different. The same price may buy
    symbols by the theorem `instead`, if there is one: which of the two is asked for follows from earlier answers.
    """

    name: str
    theorem: str
    event: Event
    sensitivity: Sensitivity
    law: Law
    what: str
    instead: str | None = None

    def __post_init__(self) -> None:
        if not {self.theorem, self.instead or self.theorem} <= THEOREMS.keys():
            raise InputError(f"theorem must be one of {sorted(THEOREMS)}, got {self.theorem!r}; prove it first")


@final
@dataclass(frozen=True)
class Change:
    """How far one privacy unit can move one part of a query's sum.

    Attributes
    ----------
    bound : the largest change, in units of the answer
    grid : one step of the whole numbers that are summed, a power of two, in the same units
    changed : how many numbers of the part one unit can change; None: all of them.
    """

    norm: Norm
    bound: float
    grid: float
    changed: int | None = None

    def __post_init__(self) -> None:
        checks.positive_number("bound", self.bound, "a statistic that cannot change needs no noise")
        checked_grid(self.grid)


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


def offsets_at(shard: BoundedObservations, offsets: ReleasedOffsets, own: OwnOffsets | None = None) -> Floats:
    """Mean and offsets of every observation, with own offsets in the place of those of their mode.

    Released offsets of another shape, or that are not finite, are refused, whichever cells are observed.
    """
    pairs = zip(offsets.modes, shard.shape, strict=False)
    fitting = len(offsets.modes) == len(shard.shape) and all(one is None or one.shape == (n,) for one, n in pairs)
    if not (fitting and all(one is None or np.isfinite(one).all() for one in (np.array(offsets.mean), *offsets.modes))):
        raise InputError(
            f"offsets must be one per index of the shape {shard.shape}, and finite, got others; correct them"
        )
    parts = dict(enumerate(offsets.modes)) | ({} if own is None else {own[0]: own[1]})
    total = np.full(len(shard), offsets.mean)
    with np.errstate(over="ignore"):  # an infinity is clipped later, and a warning would tell of the data
        for mode, part in parts.items():
            if part is not None:
                total += part[shard.coordinates[:, mode]]
    return total


def own_offsets(shard: BoundedObservations, values: Floats, offsets: ReleasedOffsets, mode: int) -> Floats:
    """The mean residual of each slice, shrunk; it reads that slice's observations and released offsets only. [P1]"""
    residuals = np.clip(values - offsets_at(shard, offsets), -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
    slices, size = shard.index(mode), shard.shape[mode]
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, slices, np.rint(residuals * OFFSET_STEPS).astype(np.int64))
    return np.asarray(sums / OFFSET_STEPS / (np.bincount(slices, minlength=size) + OFFSET_RIDGE))


def residual_shard(shard: BoundedObservations, offsets: ReleasedOffsets) -> BoundedObservations:
    """The shard with every value replaced by its residual, clipped to the same bounds and put on the same grid.

    A residual reads its own value and released numbers only, so neighbouring data have neighbouring residuals.
    """
    residuals = np.clip(shard.centred - offsets_at(shard, offsets), -1.0, 1.0)
    return shard.with_steps(np.rint(residuals * VALUE_STEPS).astype(np.int64))
