"""How sums read values: as positions within a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.own_offsets import own_offsets

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True)
class WindowReading:
    """Residuals after a released level and released offsets, by their position in a window, from -1 to 1.

    Under `slice` the slice's own offset is subtracted as well. What is read of an observation is a function of the
    observations of its own unit and of released numbers; for units of one observation, of its own value.

    Attributes
    ----------
    mean : float
        The level, on the centred scale.
    offsets : Offsets
        Released earlier.
    low, high : float
        The ends of the window: residuals at or below `low` are read as -1, at or above `high` as 1.
    """

    mean: float
    offsets: Offsets
    low: float
    high: float

    def __post_init__(self) -> None:
        checks.finite_number("mean", self.mean)  # a number that is not finite would become -2^63 grid steps
        if not 0 < (self.high - self.low) / 2 < np.inf:
            raise InputError(f"a window must have low below high, got {self.low!r} and {self.high!r}; widen it")

    @classmethod
    def of_centred(cls, order: int) -> WindowReading:
        """Centred values as they are."""
        return cls(0.0, Offsets.none(order), -1.0, 1.0)

    def of(self, shard: BoundedObservations) -> Floats:
        """One number from -1 to 1 per observation."""
        values = shard.centred - self.mean
        offsets = self.offsets
        if shard.unit.kind == "slice":  # [V2] from the slice's own values and released numbers
            mode = shard.unit.mode_number
            offsets = offsets.with_mode(mode, own_offsets(shard, values, offsets, mode))
        return self.positions(values - offsets.at(shard.coordinates))

    def positions(self, residuals: Floats) -> Floats:
        """Where residuals lie in the window. [V1]"""
        half = (self.high - self.low) / 2
        return np.clip((np.clip(residuals, self.low, self.high) - (self.low + half)) / half, -1.0, 1.0)
