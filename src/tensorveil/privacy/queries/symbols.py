"""Symbols: every observed value goes through a finite channel by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.channels import Channel, quantize
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.base import Floats, Integers
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit


@final
@dataclass(frozen=True)
class Symbols:
    """Which level each value takes before the channel; the channel's table does the rest."""

    def theorem(self, unit: Unit) -> str:
        """The theorem that bounds what symbols tell."""
        return "input-values"

    def values(self, shard: BoundedObservations) -> Floats:
        """Values on the scale of the channel's levels."""
        return shard.bounds.uncentred(shard.centred)

    def draw(self, shard: BoundedObservations, channel: Channel, noise: NoiseSource) -> Integers:
        """One symbol per observation."""
        return noise.channel(quantize(self.values(shard), channel.levels), channel)

    @proves("input-values")
    def changes(self, unit: Unit, coordinates: NDArray[np.uint32]) -> int:
        """How many symbols one unit changes at most; coordinates are public."""
        if not unit.whole_slices:
            return 1
        return max(1, int(np.bincount(coordinates[:, unit.mode_number]).max(initial=0)))
