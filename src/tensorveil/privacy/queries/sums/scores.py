"""How sums read values: as scores, less what is released, clipped to a reach."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.queries.base import LARGEST_RESIDUAL, ReleasedOffsets, offsets_at, own_offsets


@final
@dataclass(frozen=True, eq=False)
class ScoreReading:
    """Scores of values, less released offsets, as shares of a reach, from -1 to 1.

    The score of a value is a released function of it, given as a table that is linear between its places and constant
    beyond them. Under `slice` the slice's own offset is subtracted as well. What is read of an observation is a
    function of its own unit's observations and of released numbers.

    Attributes
    ----------
    places : centred values, increasing (the bounds are -1 and 1)
    scores : the score at each place
    offsets : released earlier, on the scale of the scores
    reach : residuals at or beyond +-reach are read as +-1
    own : whether slices subtract their own offsets
    """

    places: Floats
    scores: Floats
    offsets: ReleasedOffsets
    reach: float
    own: bool = True

    def __post_init__(self) -> None:
        places, scores = np.array(self.places, dtype=np.float64), np.array(self.scores, dtype=np.float64)
        finite = np.isfinite(places).all() and (np.abs(scores) <= LARGEST_RESIDUAL).all()  # False for NaN
        if places.ndim != 1 or not len(places) or places.shape != scores.shape or not finite:
            raise InputError(
                f"places and scores must be finite, as many of one as of the other, and scores within "
                f"+-{LARGEST_RESIDUAL:g}, got {places.shape} and {scores.shape}; correct them"
            )
        if (np.diff(places) < 0).any():
            raise InputError("places must be in increasing order, got others; sort them")
        checks.positive_number("reach", self.reach)
        for name, array in (("places", places), ("scores", scores)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def linear(cls, mean: float, scale: float, offsets: ReleasedOffsets, own: bool = True) -> Self:
        """Values within +-scale of a mean, as shares of the scale."""
        return cls(mean + scale * np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), offsets, 1.0, own)

    def of(self, shard: BoundedObservations) -> Floats:
        """One number from -1 to 1 per observation."""
        scores = np.interp(shard.centred, self.places, self.scores)
        scores = np.clip(scores, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)  # [V3] a slope may be infinite
        own = None
        if shard.unit.kind == "slice" and self.own:  # [V2] from the slice's own values and released numbers
            mode = shard.unit.mode_number
            own = (mode, own_offsets(shard, scores, self.offsets, mode))
        with np.errstate(over="ignore"):  # a warning would tell of the data
            return np.clip((scores - offsets_at(shard, self.offsets, own)) / self.reach, -1.0, 1.0)  # [V1]
