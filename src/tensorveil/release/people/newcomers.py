"""Rows of people whom a release does not know, or must not hold, from the release and their own observations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.people.new_rows import with_new_rows
from tensorveil.models.completion import Completion
from tensorveil.privacy.bounds import BoundedObservations, Bounds, clip
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:
    from tensorveil.release.release import Release


def personal_model(release: Release, own: Observations, mode: int | str | None) -> Completion:
    """The model of one person, known to the release or not; see `Release.personalize`."""
    model, number = release.model, person_mode(release, mode)
    _check_other_modes(release, own, number)
    owners = np.unique(own.coordinates[:, number])
    if len(owners) != 1:
        raise InputError(
            f"own observations must be of one index of mode {number}, got {len(owners)}; keep only your own"
        )
    owner = int(owners[0])
    if model.withheld_mode is not None and own.shape == model.shape:
        return replace(release.with_own_rows(own), owned_index=owner)
    return replace(newcomers(release, own, number), owned_index=owner)


def newcomers(release: Release, own: Observations, mode: int | str | None = None) -> Completion:
    """The model for all indices of a mode of the own observations, in the place of the release's own indices.

    Each row is computed from the release, the shape and that index's own observations alone. The rows together are for
    nobody but somebody who may see all of these observations, e.g. a service that predicts for its customers.

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> data = tv.Observations(np.argwhere(np.ones((9, 8))), np.tile(np.linspace(1, 5, 8), 9), (9, 8))
    >>> plan = tv.InputPerturbation().plan(tv.CP(1), tv.Bounds(1, 5), "value", 9.0, shape=(9, 8))
    >>> own = tv.Observations([[0, 1], [0, 5], [1, 2]], [1.0, 4.0, 2.0], (2, 8))
    >>> newcomers(tv.fit(data, plan), own, mode=0).predict([[0, 2], [1, 7]]).shape
    (2,)
    """
    model, number = release.model, person_mode(release, mode)
    _check_other_modes(release, own, number)
    data = _clipped(model, own, number)
    found = with_new_rows(model, data.coordinates, data.centred, number, own.shape[number])
    return replace(found, withheld_mode=number, personal=True)


def person_mode(release: Release, mode: int | str | None) -> int:
    """The number of the mode of people: the withheld one, or the one that is named."""
    model = release.model
    if not model.clipped:
        raise InputError("personalize needs bounds and offsets, got a published model, which has none; use another")
    if mode is None:
        if model.withheld_mode is None:
            raise InputError(
                f"mode must name the mode of the new index, one of {list(release.mode_names)}, got none; a joint "
                "release alone says which one it is"
            )
        return model.withheld_mode
    number = release.mode_number(mode)
    if model.withheld_mode not in (None, number):
        raise InputError(
            f"mode must be {release.mode_names[model.withheld_mode]!r}, whose rows are withheld, got {mode!r}"
        )
    return number


def _check_other_modes(release: Release, own: Observations, mode: int) -> None:
    theirs, mine = release.model.shape, own.shape
    same = len(theirs) == len(mine) and all(
        one == two for place, (one, two) in enumerate(zip(theirs, mine, strict=True)) if place != mode
    )
    if not same:
        raise InputError(
            f"own observations must have the shape {theirs} of the release, but for the number of people in mode "
            f"{mode}, got {mine}; use the release's indices"
        )


def _clipped(model: Completion, own: Observations, mode: int) -> BoundedObservations:
    return clip(own, Bounds(model.low, model.high), Unit.slice(mode), bytes(32))
