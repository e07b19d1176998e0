"""A second table that shares a mode with the first one, and the vaults of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from tensorveil import checks
from tensorveil.data.observations import Observations
from tensorveil.data.readers.columns import Modes
from tensorveil.data.shards import Data, opened
from tensorveil.engines.local import Engine
from tensorveil.errors import InputError, UnprovenError
from tensorveil.privacy.accounting.parts import label_text
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import CoupledTable, bounds_of
from tensorveil.privacy.queries.base import PaidStage
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.vault import Vault


@final
class Coupled:
    """A second table, as private as the first one, that shares a mode with it.

    Parameters
    ----------
    observations : Observations, a data frame, a table, or a path
    bounds : the public range of its values
    shared : the mode that both tables have; None: the one whose name is in both
    levels : the 2 to 32 values that can occur, if they are public: then no budget is spent on finding them
    modes, value, **reading : where a table or a path is given, as in `complete`

    Notes
    -----
    Indices of the shared mode are matched by their labels or, if neither table has labels, by their numbers. An index
    that is in one of the tables only is kept: coordinates of both tables are public under the unit `value`.

    Examples
    --------
    >>> people = {"user": ["ann", "bob", "ann", "bob"], "about": ["age", "age", "income", "income"],
    ...           "share": [0.3, 0.7, 0.2, 0.6]}
    >>> Coupled(people, (0, 1), modes=["user", "about"], value="share")
    Coupled(4 values in 2 x 2 (user x about), bounds 0 to 1)
    """

    def __init__(
        self,
        observations: Any,
        bounds: Bounds | tuple[float, float] | None = None,
        shared: str | None = None,
        *,
        levels: Sequence[float] | None = None,
        modes: Modes | None = None,
        value: str | None = None,
        **reading: Any,
    ) -> None:
        data = opened(observations, modes, value, **reading)
        if not isinstance(data, Observations):
            raise InputError("a coupled table must be Observations, a table or a file, got a folder of shards")
        self.observations, self.bounds = data, bounds_of(bounds)
        self.shared = shared
        self.levels = None if levels is None else tuple(float(level) for level in levels)
        checks.levels_within("the levels of the coupled table", self.levels, self.bounds.low, self.bounds.high)

    def __repr__(self) -> str:
        data = self.observations
        sizes, names = (" x ".join(map(str, part)) for part in (data.shape, data.mode_names))
        return f"Coupled({len(data)} values in {sizes} ({names}), bounds {self.bounds.low:g} to {self.bounds.high:g})"

    def facts(self, first: Data) -> CoupledTable:
        """What is public about this table beside the first one."""
        data, shared = self.observations, self._shared(first)
        indices = self._indices(first, shared)
        size = max(first.shape[first.mode_names.index(shared)], int(indices.max()) + 1)
        names, count = data.mode_names, len(data)
        return CoupledTable(names, data.shape, shared, size, self.bounds, data.value_name, count, self.levels)

    def joined(self, first: Data) -> Observations:
        """The observations with the first table's indices of the shared mode, then those that it lacks."""
        data, facts = self.observations, self.facts(first)
        where = np.array(data.coordinates)
        where[:, facts.mode] = self._indices(first, facts.shared)[where[:, facts.mode]]
        return Observations(where, data.values, facts.joint_shape, mode_names=data.mode_names, duplicates="keep")

    def _shared(self, first: Data) -> str:
        """The name of the shared mode."""
        common = [name for name in self.observations.mode_names if name in first.mode_names]
        if len(common) != 1 or self.shared not in (None, *common):
            wanted = "one mode of the same name" if self.shared is None else f"only {self.shared!r} in common"
            raise InputError(
                f"two coupled tables must have {wanted}, got the modes {list(first.mode_names)} and "
                f"{list(self.observations.mode_names)}; rename them"
            )
        return common[0]

    def _indices(self, first: Data, shared: str) -> Any:
        """For each index of the shared mode of this table, that of the first one, or the next free one."""
        data = self.observations
        mine, theirs = data.mode_names.index(shared), first.mode_names.index(shared)
        labels, known = data.labels[mine], first.labels[theirs]
        if (labels is None) != (known is None) or data.bins[mine] != first.bins[theirs]:
            raise InputError(
                f"both tables must have labels of {shared!r} in the same bins, or both none, got one with others; read "
                "both tables in the same way"
            )
        if labels is None or known is None:
            return np.arange(data.shape[mine])
        places = {label_text(label): place for place, label in enumerate(known)}
        size = len(places)
        found = np.array([places.setdefault(label_text(label), len(places)) for label in labels])
        if len(set(found.tolist())) != len(found) or size != len(known):
            raise InputError(f"labels of {shared!r} must be different as texts in each table, got some alike; rename")
        if found.min() >= size:
            raise InputError(
                f"the tables must have some labels of {shared!r} in common, got {label_text(labels[0])!r}, ... and "
                f"{label_text(known[0])!r}, ...; write them alike"
            )
        return found


@proves("coupled-tables")
def coupled_vaults(
    first: Sequence[Any],
    second: Sequence[Any],
    stages: Sequence[PaidStage],
    gaussian_coordinates: int,
    noise: NoiseSource,
    engine: Engine | None = None,
) -> tuple[Vault, Vault]:
    """A vault per table, with all stages each: a unit is one value of one of the tables, so it pays them once."""
    vaults = tuple(
        Vault(shards, stages, gaussian_coordinates, noise, where)  # [L2] one source: no two answers share noise
        for shards, where in ((first, engine), (second, None))
    )
    for vault in vaults:
        if vault.unit.kind != "value":  # [L1] a slice may have values in both tables
            raise UnprovenError(f"two tables must be released under the unit value, got {vault.unit}; take one table")
    return vaults[0], vaults[1]
