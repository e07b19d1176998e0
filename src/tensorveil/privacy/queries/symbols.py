"""Symbols: every observed value goes through a finite channel by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.channels import Channel, quantize
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.base import Floats, Integers
from tensorveil.privacy.queries.contributions import Where
from tensorveil.privacy.queries.values import changed_values
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class Symbols:
    """What goes into the channel for each value; the channel's table does the rest.

    Attributes
    ----------
    within : tuple of int or None
        Ends of a released range, in steps of 2^-20 from the middle of the bounds. Values are clipped to it and
        brought to the scale where its ends are -1 and 1, that of the channel's levels. None: values go in as they are.
    nearest : bool
        Whether a value goes in as the nearest level; otherwise as one of the two levels beside it, by a fresh draw.
    """

    within: tuple[int, int] | None = None
    nearest: bool = False

    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds what symbols tell."""
        return "input-values" if self.within is None else "input-centred"

    def values(self, shard: BoundedObservations) -> Floats:
        """Values on the scale of the channel's levels, each from itself alone."""
        if self.within is None:
            return shard.bounds.uncentred(shard.centred)
        low, high = self.within
        return np.asarray((np.clip(shard.steps, low, high) - (low + high) / 2) / ((high - low) / 2))  # [P1]

    def draw(self, shard: BoundedObservations, channel: Channel, noise: NoiseSource) -> Integers:
        """One symbol per observation, by randomness of its own."""
        values = self.values(shard)
        if self.nearest:
            return noise.channel(quantize(values, channel.levels), channel)
        return noise.dithered_channel(values, channel)  # [L8]

    @proves("input-values", "input-centred")
    def changes(self, where: Where) -> int:
        """How many symbols one unit changes at most."""
        return changed_values(where)
