"""What leaves the house: a model and its guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.mechanisms.personal import personal_row
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.plan import Plan


@final
@dataclass(frozen=True)
class Release:
    """A completed tensor with its guarantee. Everything computed from it is post-processing.

    Attributes
    ----------
    model : Completion
        For a published (claimed) algorithm, a FactorModel.
    guarantee : Guarantee
    plan : Plan or None
    """

    model: Completion | FactorModel
    guarantee: Guarantee
    plan: Plan | None = None

    def __repr__(self) -> str:
        told = self.guarantee
        shape = " x ".join(map(str, self.model.shape))
        return f"Release({shape}, {told.status}, epsilon {told.epsilon:g}, delta {told.delta:g}, unit {told.unit!r})"

    def predict(self, coordinates: ArrayLike) -> NDArray[np.float64]:
        """Predicted values at integer coordinates, one row an entry."""
        return self.model.predict(coordinates)

    def personalize(self, own_observations: Observations) -> Completion:
        """Under joint privacy: the model of one owner, computed from the release and the owner's own observations.

        The result is for that owner alone; it is not part of the public release.
        """
        model = self.model
        if not isinstance(model, Completion) or model.withheld_mode is None or self.plan is None:
            raise InputError(
                "personalize must be called on a joint release (unit slice, statistic perturbation), got another; "
                "this one predicts for everybody"
            )
        mode = model.withheld_mode
        if own_observations.shape != model.shape:
            raise InputError(
                f"own observations must have the shape {model.shape} of the release, got {own_observations.shape}"
            )
        owners = np.unique(own_observations.coordinates[:, mode])
        if len(owners) != 1:
            raise InputError(
                f"own observations must be of one index of mode {mode}, got {len(owners)}; take only yours"
            )
        owner = int(owners[0])
        unit = replace(self.plan.request.unit, at_most=None)
        data = clip(own_observations, Bounds(model.low, model.high), unit, bytes(32))
        offset, row = personal_row(data, model, self.plan)
        offsets = np.zeros(model.shape[mode])
        offsets[owner] = offset
        blocks = [np.array(factor) for factor in model.factors.factors]
        blocks[mode][owner] = row
        if model.factors.core is not None:
            blocks.append(np.array(model.factors.core))
        return replace(
            model,
            offsets=model.offsets.with_mode(mode, offsets),
            factors=model.factors.family.model(blocks),
            owned_index=owner,
        )
