"""Sums of the values of every index of every mode at once, where coordinates are public."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.errors import InputError, UnprovenError
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Change, Floats, Integers, Query
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID, Where, slice_weights, whole_sums
from tensorveil.privacy.queries.sums.windows import WindowReading
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

WEIGHT_MARGIN = 1 - 2.0**-20  # more than rounding adds to normalised weights
SMALLEST_SHARE = 1e-12


@final
@dataclass(frozen=True)
class ModeSums(Query):
    """The weighted sum of all centred values, then the weighted sums of every index of every mode.

    The weight of an observation in a mode's sums is b a: b is the mode's share, a the weight that `slice_weights` gives
    it among that mode's rows. The total counts as a mode with one row.

    Attributes
    ----------
    shares : tuple of float
        Of the total and of every mode, not negative. They are divided by their sum for pure noise and by the root of
        the sum of their squares for Gaussian noise.
    pure : bool
    """

    shares: tuple[float, ...]
    pure: bool

    def __post_init__(self) -> None:
        if not all(0 <= share < math.inf for share in self.shares) or not any(self.shares):
            raise InputError(f"shares must be finite, at least 0 and not all 0, got {self.shares!r}; correct them")

    def theorem(self, unit: Unit) -> str:
        return "sums-modes"

    def weights(self, where: Where) -> list[Floats]:
        """For the total and for every mode, one weight per observation; reads coordinates alone."""
        return [
            share * WEIGHT_MARGIN * slice_weights(where, rows, self.pure)  # [L2], [L3]
            for share, rows in zip(self._normalised, _rows(where, with_total=True), strict=True)
        ]

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        return _summed(shard, self.weights(shard), shard.centred)

    @proves("sums-modes")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """A unit whose values are replaced moves all sums together by 2."""
        return (Change(Norm.L1 if self.pure else Norm.L2, 2.0, CONTRIBUTION_GRID),)  # [L1]

    @property
    def _normalised(self) -> list[float]:
        """Shares whose sum, or sum of squares, is one. The largest becomes one first, so that no square vanishes."""
        whole = [share / max(self.shares) for share in self.shares]
        length = math.fsum(whole) if self.pure else math.sqrt(math.fsum(share**2 for share in whole))
        return [share / length for share in whole]


@final
@dataclass(frozen=True)
class ObservationSums(Query):
    """The weighted sums of every index of every mode; each observation has shares of its own.

    Attributes
    ----------
    reading : WindowReading
    logits : tuple of array
        One number per index of every mode. The shares of an observation are the softmax, over the modes, of the
        numbers of its indices; for Gaussian noise their square roots.
    pure : bool
    """

    reading: WindowReading
    logits: tuple[Floats, ...]
    pure: bool

    def __post_init__(self) -> None:
        if not all(np.isfinite(part).all() for part in self.logits):
            raise InputError("logits must be finite, got NaN or infinity; correct them")

    def theorem(self, unit: Unit) -> str:
        return "sums-modes"

    def weights(self, where: Where) -> list[Floats]:
        """For every mode, one weight per observation; reads coordinates alone."""
        rows = _rows(where, with_total=False)
        shares = softmax([part[row] for part, row in zip(self.logits, rows, strict=True)])
        parts = [share if self.pure else np.sqrt(share) for share in shares]
        lengths = sum(parts) if self.pure else np.sqrt(sum(part**2 for part in parts))
        return [part / np.maximum(lengths, 1.0) * WEIGHT_MARGIN for part in parts]  # [L5]

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        return _summed(shard, self.weights(shard), self.reading.of(shard))

    @proves("sums-modes")
    def sensitivity(self, unit: Unit) -> tuple[Change, ...]:
        """An observation whose value is replaced moves all sums together by 2."""
        if unit.kind != "value":  # shares that differ within a unit are not covered by the proof
            raise UnprovenError(f"shares of single observations have a theorem for the unit value only, got {unit}")
        return (Change(Norm.L1 if self.pure else Norm.L2, 2.0, CONTRIBUTION_GRID),)  # [L1]


def softmax(logits: Sequence[Floats]) -> list[Floats]:
    """Shares above zero whose sum is one, for every observation, from one array of logits per mode."""
    largest = np.max(logits, axis=0)
    raised = [np.exp(part - largest) for part in logits]
    total = sum(raised)
    return [np.maximum(part / total, SMALLEST_SHARE) for part in raised]


def _rows(where: Where, with_total: bool) -> list[Integers]:
    """Each observation's row among those of every mode; the total has one row."""
    everywhere = [np.zeros(len(where), dtype=np.int64)] if with_total else []
    return everywhere + [where.index(mode) for mode in range(len(where.shape))]


def _summed(shard: BoundedObservations, weights: Sequence[Floats], read: Floats) -> tuple[Integers, ...]:
    """All sums in grid steps, one mode after the other. [L4] Contributions go towards zero: never longer."""
    with_total = len(weights) > len(shard.shape)
    rows = _rows(shard, with_total)
    sizes = ((1,) if with_total else ()) + shard.shape
    parts = [whole_sums(*part) for part in zip(rows, (weight * read for weight in weights), sizes, strict=True)]
    return (np.concatenate(parts),)
