"""Choices among public candidates by the exponential mechanism."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil import checks
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.queries.base import Floats, Integers
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

CELLS = 2**14  # of the public grid over the bounds: quantiles are edges of its cells
EDGE_STEPS = 2 * VALUE_STEPS // CELLS


class Choice(ABC):
    """A question whose answer is one of several public candidates."""

    @abstractmethod
    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds the sensitivity for this unit."""

    @abstractmethod
    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        """What one shard contributes: one array of whole numbers, from whose sum the scores follow."""

    @abstractmethod
    def scores(self, totals: Integers) -> Floats:
        """One score per candidate, from the sum over shards."""

    @abstractmethod
    def sensitivity(self, unit: Unit) -> float:
        """How far one unit can move any score."""


@final
@dataclass(frozen=True)
class Quantile(Choice):
    """The edge of a public grid over the bounds that has a share of all values below it; their number is public."""

    share: float

    def __post_init__(self) -> None:
        checks.fraction("share", self.share)

    def theorem(self, unit: Unit) -> str:
        return "input-centred"

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        return (np.bincount((shard.steps + VALUE_STEPS) // EDGE_STEPS, minlength=CELLS + 1).astype(np.int64),)

    def scores(self, totals: Integers) -> Floats:
        """Minus the distance of the number of values below each edge from the wanted rank."""
        below = np.concatenate([[0], np.cumsum(totals[:CELLS])])
        wanted = math.floor(self.share * int(totals.sum()))  # [P7] a whole number, and so are scores
        return np.asarray(-np.abs(below - wanted), dtype=np.float64)

    @proves("input-centred")
    def sensitivity(self, unit: Unit) -> float:
        """A replaced value moves the number of values below any edge by one."""
        return 1.0  # [P3]
