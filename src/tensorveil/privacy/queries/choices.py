"""Choices among public candidates by the exponential mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import Floats, Integers
from tensorveil.privacy.units import Unit


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
