"""What every query must keep, as mechanisms ask it: shards and rows do not show, neighbours stay within the bound."""

import inspect
import math
import pkgutil
from fractions import Fraction
from functools import cache
from importlib import import_module

import numpy as np
import pytest

import tensorveil as tv
from marginal_alone import MarginalAlone
from tensorveil.audit.neighbours import neighbours
from tensorveil.mechanisms import sums
from tensorveil.privacy import queries
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.base import Query
from tensorveil.privacy.queries.values.values import Values
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.vault import Pattern, Vault

SHAPE = (5, 4, 3)
BOUNDS = tv.Bounds(1, 5)
UNITS = ("value", "slice_values:0", "entry", "slice:0")
MECHANISMS = (
    tv.InputPerturbation(noise="laplace", solver="als"),
    tv.InputPerturbation(noise="gaussian", solver="als"),
    tv.GradientPerturbation(steps=2),
    tv.GradientPerturbation(steps=2, sampling_probability=0.5),
    tv.OutputPerturbation(),
    tv.OutputPerturbation(perturbed="objective"),
    tv.StatisticPerturbation(),
    tv.SumPerturbation(),
    tv.WithOffsets(tv.GradientPerturbation(steps=1)),
    MarginalAlone(),
)


def tensor(seed=0, repeated=6):
    """Values at the bounds, between and beyond; cells seen several times, one index of the first mode empty."""
    rng = np.random.default_rng(seed)
    where = np.tile(np.argwhere(np.ones(SHAPE)), (repeated, 1))
    where = where[where[:, 0] != 3]
    signs = np.einsum("i,j,k->ijk", *(rng.choice([-1.0, 1.0], size) for size in SHAPE))[tuple(where.T)]
    values = 3 + 2 * signs + rng.choice([0.0, 0.0, -1.0, 0.5], len(where))
    return tv.Observations(where, values, SHAPE, duplicates="keep")


@cache
def asked(unit):
    """Every query that a mechanism asks under this unit, the first of each kind from each run."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("answers", "values"):
            sound = getattr(Vault, name)

            def listening(self, stages, query, *rest, sound=sound, **parts):
                latest.setdefault(type(query), query)
                return sound(self, stages, query, *rest, **parts)

            patch.setattr(Vault, name, listening)
        events = sums._whole_events
        # Gaussian noise where delta allows it: sums over so few slices would take pure noise, and ask for no lengths
        patch.setattr(sums, "_whole_events", lambda request, share: events(request, share)[-1:])
        for mechanism in MECHANISMS:
            for model in (tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2))):
                for delta, count in ((0.0, None), (1e-6, None), (0.0, 10**5), (1e-6, 10**5)):
                    try:
                        limit = 30 if "slice" in unit else None
                        plan = mechanism.plan(
                            model, BOUNDS, unit, 8.0, delta, shape=SHAPE, at_most=limit, expected_count=count
                        )
                    except tv.InputError:
                        continue
                    latest = {}
                    tv.fit(tensor(), plan, seed=1)
                    found += latest.values()
    return found


def shard_of(observations, unit):
    return clip(observations, BOUNDS, tv.Unit.of(unit).resolved(observations.mode_names), bytes(32))


def summed(query, shards):
    parts = [query.of(shard) for shard in shards]
    if isinstance(query, Values):
        return (np.concatenate(parts),)
    totals = tuple(np.sum(part, axis=0) for part in zip(*parts, strict=True))
    return query.finish(totals)


@pytest.mark.parametrize("unit", UNITS)
def test_neither_the_order_of_rows_nor_the_split_into_shards_shows(unit):
    observations = tensor()
    whole = shard_of(observations, unit)
    order = np.random.default_rng(1).permutation(len(observations))
    mixed = shard_of(observations.take(order), unit)
    owners = whole.coordinates[:, 0]
    splits = [[owners < 2, owners >= 2], [owners == index for index in (0, 1, 2, 4)]]  # no slice is split
    for query in asked(unit):
        exact = summed(query, [whole])
        for shards in ([mixed], *([whole.kept(part) for part in split] for split in splits)):
            for mine, theirs in zip(exact, summed(query, shards), strict=True):
                assert mine.dtype == np.int64
                np.testing.assert_array_equal(mine, theirs, err_msg=type(query).__name__)


def share(change, difference):
    """How much of a declared change a difference in whole steps is; exact where it is near all of it."""
    steps = [int(step) for step in difference.ravel() if step]
    bound, grid = Fraction(change.bound), Fraction(change.grid)
    if change.norm is Norm.L1:
        return sum(map(abs, steps)) * grid / bound
    if change.norm is Norm.L2:
        squared = sum(step * step for step in steps) * grid**2 / bound**2
        return Fraction(math.sqrt(squared)) if squared < Fraction(99, 100) else squared
    rows = difference.reshape(-1, difference.shape[-1])
    return Fraction(math.fsum(math.sqrt(sum(int(step) ** 2 for step in row)) for row in rows)) * grid / bound


@pytest.mark.parametrize("unit", UNITS)
def test_neighbours_stay_within_the_declared_bound(unit):
    """That bounds are reached is tested query by query, with state that hurts."""
    pairs = [(shard_of(one, unit), shard_of(other, unit)) for one, other in neighbours(tensor(), unit, BOUNDS, 40)]
    reached = {}
    for query in asked(unit):
        for one, other in pairs:
            where = Pattern(one.coordinates, one.shape, one.unit)
            changes = (query.sensitivity(where),) if isinstance(query, Values) else query.sensitivity(one.unit)
            before, after = summed(query, [one]), summed(query, [other])
            for change, mine, theirs in zip(changes, before, after, strict=True):
                used = share(change, theirs - mine)
                assert used <= 1 + Fraction(1, 10**9) * (change.norm is Norm.ROWS), type(query).__name__
                name = type(query).__name__
                reached[name] = max(reached.get(name, 0.0), float(used))
    assert min(reached.values()) > 0.01  # the neighbours do move every query


def test_every_query_is_asked_by_some_mechanism():
    kinds = set()
    for module in pkgutil.walk_packages(queries.__path__, queries.__name__ + "."):
        for _, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
            if issubclass(kind, Query | Values) and not inspect.isabstract(kind):
                kinds.add(kind)
    assert {type(query) for unit in UNITS for query in asked(unit)} == kinds
