"""Symbols: every observed value goes through a finite channel by itself."""

from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError, VaultError
from tensorveil.privacy.bounds import BoundedObservations, Where, identities
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.noise.secret_words import RowWords
from tensorveil.privacy.queries.values.values import changed_values
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class Symbols:
    """The level of each value goes into the channel; the channel's table does the rest.

    Attributes
    ----------
    edges : where levels meet, in steps of 2^-20 from the middle of the bounds: public, or made of numbers released
        earlier. They do not decrease. The level of a value is the number of edges at or below it.
    """

    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = all(isinstance(edge, Integral) for edge in self.edges)
        if not (whole and self.edges and all(low <= high for low, high in pairwise(self.edges))):
            raise InputError(
                f"edges must be one or more whole numbers that do not decrease, got {self.edges!r}; sort them"
            )

    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds what symbols tell."""
        return "input-values"

    def levels(self, steps: Integers) -> Integers:
        """The level of each value, from its own steps alone."""
        return np.searchsorted(np.array(self.edges, dtype=np.int64), steps, side="right").astype(np.int64)  # [L8]

    def check(self, channel: Channel) -> None:
        """Refuse a table that is not checked, or that has not one row per level."""
        if type(channel) is not Channel:
            raise VaultError(f"a channel must be a Channel, whose table is checked, got {type(channel).__name__}")
        if len(channel.counts) != len(self.edges) + 1:
            raise VaultError(f"a channel of {len(channel.counts)} levels needs one edge less, got {len(self.edges)}")

    def of(self, shard: BoundedObservations) -> Integers:
        """The levels of one shard, in the order of its rows."""
        return self.levels(shard.steps)

    def draw(self, shard: BoundedObservations, words: RowWords, channel: Channel) -> Integers:
        """One symbol per observation, by a word of its own. [L11]"""
        return channel.drawn(self.of(shard), lambda _: words.of(identities(shard.coordinates)))

    @proves("input-values")
    def changes(self, where: Where) -> int:
        """How many symbols one unit changes at most."""
        return changed_values(where)
