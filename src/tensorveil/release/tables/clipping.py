"""Clipped shards of one table or of two, and how many observations each index has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.data.observations import Observations
from tensorveil.data.shards import Data, Part, Sharded
from tensorveil.engines.dask import Dask
from tensorveil.engines.local import Engine, LocalEngine
from tensorveil.errors import InputError
from tensorveil.privacy.bounds import MOST_OBSERVATIONS, BoundedObservations, Bounds, check_public, clip
from tensorveil.privacy.coupled import Coupled
from tensorveil.privacy.noise.secret_words import RowWords
from tensorveil.privacy.plan import CoupledTable, Plan
from tensorveil.privacy.units import Unit


def engine_for(observations: Data, engine: Engine | None) -> Engine:
    if engine is not None and not isinstance(observations, Sharded):
        raise InputError("an engine must be for a folder of shards, got Observations; write it with tensorveil shard")
    return LocalEngine() if engine is None else engine


def trusted_engine(engine: Engine) -> tuple[str, ...]:
    """What no run can check about an engine that is not this library's, as guarantees state it."""
    if type(engine) in (LocalEngine, Dask):
        return ()
    name = type(engine).__qualname__
    return (f"the engine {name}, which is not part of this library, counts every shard once and shows none to others",)


def clipped(observations: Data, plan: Plan, key: bytes, engine: Engine) -> Sequence[Any]:
    """Clipped observations in one shard or, of a folder, in one shard per part, all of which are read and checked."""
    bounds, unit = plan.request.bounds, plan.request.unit
    if isinstance(observations, Observations):
        return [clip(observations, bounds, unit, key)]
    protected = unit.resolved(observations.mode_names)
    check_public(observations, protected)
    if protected.whole_slices and protected.mode_number != observations.by:
        raise InputError(
            f"shards must hold whole slices of {observations.mode_names[protected.mode_number]!r}, which the unit "
            f"protects, got a folder split by {observations.mode_names[observations.by]!r}; shard the data by that mode"
        )
    if len(observations) > MOST_OBSERVATIONS:
        raise InputError("observations must be at most 2^30, got more; complete parts of the tensor")
    load = partial(_read_part, bounds=bounds, unit=protected)
    shards = engine.keep(load, observations.files, RowWords(key))
    engine.map(len, shards)  # reads every part: an error in one of them must come before anything is spent
    return shards


def _read_part(part: Part, key: RowWords, bounds: Bounds, unit: Unit) -> BoundedObservations:
    return clip(part.read(), bounds, unit, key.key)


def slice_counts(engine: Engine, shards: Sequence[Any], mode: int) -> Integers:
    """How many observations each index of a mode has."""
    return engine.sum(partial(_counts, mode=mode), shards)[0]


def _counts(shard: BoundedObservations, mode: int) -> tuple[Integers, ...]:
    return (np.bincount(shard.index(mode), minlength=shard.shape[mode]),)


def coupled_facts(coupled: Coupled, observations: Data) -> CoupledTable:
    """The public facts of a coupled table beside the first one."""
    if not isinstance(coupled, Coupled):
        raise InputError(f"coupled must be Coupled(table, bounds), got {type(coupled).__name__}; make one")
    return coupled.facts(observations)


def clipped_second(observations: Data, coupled: Coupled, plan: Plan, key: bytes) -> BoundedObservations:
    """The clipped shard of a coupled table, whose shared mode is numbered as that of the first one."""
    planned = coupled_facts(coupled, observations)
    if planned != plan.request.coupled:
        raise InputError("coupled must be the table that was planned for, got one with other facts; plan again")
    return clip(coupled.joined(observations), planned.bounds, plan.request.unit, key)


def joint_counts(
    engine: Engine, first: Sequence[Any], second: Sequence[BoundedObservations], plan: Plan, mode: int
) -> Integers:
    """How many observations each index of a mode has; of the shared mode, in both tables together."""
    own, planned = slice_counts(engine, first, mode), plan.request.coupled
    if planned is None or plan.request.mode_names[mode] != planned.shared:
        return own
    both = np.zeros(planned.joint_size, dtype=np.int64)
    both[: len(own)] = own
    return both + slice_counts(LocalEngine(), second, planned.mode)
