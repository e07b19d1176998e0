"""`tune`: the best of several models, judged by what one release has shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorveil.data.features import Smooth
from tensorveil.data.readers.columns import Modes
from tensorveil.data.shards import opened
from tensorveil.errors import InputError
from tensorveil.mechanisms.auto import family_of
from tensorveil.mechanisms.base import Mechanism
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.units import Unit
from tensorveil.release.fitting import fit, plan
from tensorveil.release.release import Release


def tune(
    observations: Any,
    models: Sequence[ModelFamily] | None = None,
    bounds: Bounds | tuple[float, float] | None = None,
    unit: str | Unit | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    *,
    mechanism: Mechanism | str = "auto",
    levels: Sequence[float] | None = None,
    features: Mapping[str, Any] | None = None,
    smooth: Smooth | None = None,
    at_most: int | None = None,
    modes: Modes | None = None,
    value: str | None = None,
    reading: Mapping[str, Any] | None = None,
    **running: Any,
) -> Release:
    """Complete with the best of several models, in one release: comparing them costs no privacy.

    Values are randomized once. The posterior of every model is sampled from the released symbols, and the model that
    is expected to predict further symbols best is kept (`PosteriorRun.expected_fit`): `release.factors.family`. The
    posterior shrinks components that the data do not show, so ranks need not be tried one by one.

    This needs released symbols of single values, that is input perturbation under `value` or `slice_values`. Other
    mechanisms would have to pay for each model, so they are refused.

    Parameters
    ----------
    models : CP(rank) and Tucker(ranks) to be compared; None: CP of the rank that "cp" takes, of a third of it, and
        the Tucker model of "tucker"
    reading : further arguments of `read` or `Observations.from_table`, e.g. {"bins": {"day": "day"}}
    running : further arguments of `fit`: seed, progress, ledger, dataset, engine. All others: as for `complete`

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> cells = np.argwhere(np.ones((9, 8)))
    >>> data = tv.Observations(cells, 1.0 + cells.sum(axis=1) % 5, (9, 8))
    >>> release = tv.tune(data, [tv.CP(1), tv.Tucker((2, 2))], (1, 5), "value", 9.0, levels=range(1, 6))
    >>> release.factors.family in (tv.CP(1), tv.Tucker((2, 2))), release.guarantee.epsilon
    (True, 9.0)
    """
    data = opened(observations, modes, value, **(reading or {}))
    protected = Unit.of(unit, at_most).resolved(data.mode_names)
    if models is None:
        largest = family_of("cp", data.shape, protected, "input")
        smaller = [CP(largest.rank // 3)] if isinstance(largest, CP) and largest.rank >= 3 else []
        models = [largest, *smaller, family_of("tucker", data.shape, protected, "input")]
    if isinstance(models, str | ModelFamily) or not models:
        raise InputError(f"models must be a list of models, got {models!r}; write e.g. [CP(4), CP(12)]")
    first, *others = models
    asked = (first, bounds, unit, epsilon, delta)
    planned = plan(data, *asked, mechanism=mechanism, levels=levels, features=features, smooth=smooth, at_most=at_most)
    chosen = planned.mechanism
    if not isinstance(chosen, InputPerturbation) or not chosen.learns_offsets(protected):
        raise InputError(
            f"models must be compared by released symbols of single values, got {chosen.title}, which releases none "
            "under this unit and budget; use complete with one model, or mechanism='input' (not under slice)"
        )
    for family in others:
        family.block_shapes(data.shape)  # an error now rather than after spending
    wider = chosen.compared_with(tuple(others), protected) if others else chosen
    again = plan(data, *asked, mechanism=wider, smooth=smooth, at_most=at_most)
    return fit(data, again.explained(planned.reason), **running)
