"""A completed tensor: offsets and factors on a public scale, with predictions on the scale of the values."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError
from tensorveil.models.draws import TARGETS, PosteriorDraws
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets


@final
@dataclass(frozen=True, eq=True)
class Completion:
    """What a mechanism releases: prediction = clip(middle + half_width * (offsets + factors)) to [low, high].

    With draws from a posterior, the prediction is the average of what they predict, and has an interval.

    Attributes
    ----------
    low, high : the public bounds of the values
    withheld_mode : under joint privacy, the mode whose rows and offsets are not part of the release (they are zero
        here): each index of it computes its own by `Release.personalize`
    owned_index : after personalizing, the only index of the withheld mode that the model predicts for
    personal : whether the rows of the withheld mode were computed from the observations of whoever they belong to, so
        that they are for these alone, or for somebody who may see all of these observations
    clipped : False for the published algorithms, which have no bounds: then the factors alone predict, on the scale of
        the values
    draws : if given, predictions come from the draws; offsets and factors are then posterior means, for display
    """

    offsets: Offsets
    factors: FactorModel
    low: float
    high: float
    withheld_mode: int | None = None
    owned_index: int | None = None
    draws: PosteriorDraws | None = None
    clipped: bool = True
    personal: bool = False

    @classmethod
    def unclipped(cls, factors: FactorModel) -> Self:
        """A model without bounds, whose factors alone predict."""
        return cls(Offsets.none(factors.order), factors, -1.0, 1.0, clipped=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the modes."""
        return self.factors.shape

    def centred(self, coordinates: NDArray[np.uint32]) -> Floats:
        """Predictions on the scale where the bounds are -1 and 1, not clipped."""
        if self.draws is not None:
            return self.draws.predict(coordinates, self.offsets)
        return self.offsets.at(coordinates) + self.factors.predict(coordinates)

    def predict(self, coordinates: ArrayLike) -> Floats:
        """Predicted values at integer coordinates, one row per entry."""
        return self._uncentred(self.centred(self._checked(coordinates)))

    def interval(
        self, coordinates: ArrayLike, share: float = 0.9, of: str = "value", *, weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Lower and upper ends between which a value lies with this posterior probability.

        Parameters
        ----------
        of : "value" for an observed value, "mean" for its expectation under the model
        weights : if given, each run of so many coordinates is one entry: a cell drawn from the run by these weights
        """
        checks.fraction("interval", share)
        checks.choice("of", of, TARGETS)
        if self.draws is None:
            raise InputError(
                "interval must be left out for a model without posterior draws, got one; "
                "input perturbation under unit value with solver='posterior' has them"
            )
        low, high = self.draws.interval(self._checked(coordinates), self.offsets, share, of, weights)
        return self._uncentred(low), self._uncentred(high)

    def _uncentred(self, centred: Floats) -> Floats:
        if not self.clipped:
            return centred
        return np.clip(self.low + (self.high - self.low) / 2 * (1 + centred), self.low, self.high)

    def _checked(self, coordinates: ArrayLike) -> NDArray[np.uint32]:
        where = checks.coordinates(coordinates, self.shape)
        if self.withheld_mode is not None:
            wanted = where[:, self.withheld_mode]
            if self.owned_index is None and not self.personal:
                raise InputError(
                    f"mode {self.withheld_mode} must be personalized before predicting, got a joint release without "
                    "its rows; call release.personalize(own_observations)"
                )
            if self.owned_index is not None and (wanted != self.owned_index).any():
                raise InputError(
                    f"coordinates must be those of index {self.owned_index} of mode {self.withheld_mode}, whose owner "
                    "personalized this model, got others; each owner can predict only for itself"
                )
        return where
