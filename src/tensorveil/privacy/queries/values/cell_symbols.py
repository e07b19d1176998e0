"""Symbols of cells: every cell of the box, observed or not, goes through a finite channel by itself."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError, VaultError
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class CellSymbols:
    """A number for every cell goes into the channel: 0 for a missing cell, otherwise 1 plus the level of its values.

    Attributes
    ----------
    shape : of the box, public
    edges : where levels meet, as for `Symbols`; the level of a cell with several observations is that of their mean
    """

    shape: tuple[int, ...]
    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        Symbols(self.edges)  # checks them

    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds what symbols tell."""
        return "input-cells"

    def check(self, channel: Channel) -> None:
        """Refuse a table that is not checked, or that has not one row per level and one for missing cells."""
        if type(channel) is not Channel:
            raise VaultError(f"a channel must be a Channel, whose table is checked, got {type(channel).__name__}")
        if len(channel.counts) != len(self.edges) + 2:
            raise VaultError(f"a channel of cells needs {len(self.edges) + 2} rows, got {len(channel.counts)}")

    def of(self, shard: BoundedObservations) -> tuple[Integers, ...]:
        """For every cell of the box the number of its observations, and their sum in steps."""
        if self.shape != shard.shape:  # numpy would refuse cells outside, if any are observed there
            raise InputError(f"the box must have the shape {shard.shape}, got {self.shape}; correct it")
        where = np.ravel_multi_index(tuple(shard.coordinates.T), self.shape)
        counts = np.bincount(where, minlength=math.prod(self.shape)).astype(np.int64)
        sums = np.zeros(counts.size, dtype=np.int64)
        np.add.at(sums, where, shard.steps)
        return counts, sums

    def finish(self, totals: tuple[Integers, ...]) -> Integers:
        """What goes into the channel for every cell: it depends on the observations of that cell alone. [L1]"""
        counts, sums = totals
        seen = counts > 0
        numbers = np.zeros(counts.size, dtype=np.int64)
        numbers[seen] = 1 + Symbols(self.edges).levels(sums[seen] // counts[seen])
        return numbers

    @proves("input-cells")
    def changes(self, unit: Unit) -> int:
        """How many cells one unit changes at most: an observation lies in one. [L2]"""
        return 1
