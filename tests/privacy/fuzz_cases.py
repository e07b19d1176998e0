"""Random plans, and random pairs of neighbouring data sets that are chosen to hurt, for replay_fuzz.py."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

import tensorveil as tv
from tensorveil.mechanisms.auto import MECHANISMS
from tensorveil.mechanisms.base import Mechanism
from tensorveil.privacy.plan import CoupledTable, Plan
from tensorveil.privacy.units import Unit

Generator = np.random.Generator
World = tuple[tv.Observations, ...]  # one table, or two coupled ones
Pair = tuple[World, World]

COUPLED = "coupled"  # input perturbation of two tables
NAMES = (*MECHANISMS, tv.WithOffsets.name, COUPLED)
BOUNDS = ((1, 5), (0, 1), (-1, 1), (0, 4.01), (0.5, 5), (-1e6, 3.7), (0, 12), (1e9, 1e9 + 1), (1e-8, 2e-8))
MOST_CELLS = 2000
MANY_SLICES = 1000
# by the name of a mechanism's option; one that no mechanism has is never used
OPTIONS = {
    "noise": ("laplace", "gaussian", "channel"),
    "levels": ((0, 1, 2), (1, 2, 3, 4, 5)),
    "solver": ("als",),
    "form": ("rows", "gaussian"),
    "steps": (1, 2, 4),
    "sampling_probability": (0.5, 0.05),
    "sweeps": (1, 2, 3),
    "marginal_share": (0.02, 0.5),
    "offsets_share": (0.1, 0.6),
    "blocks": ((0,), ("offsets:1",), ("offsets:0", 1, 0), ("core",), (1, "core", 1)),
    "first_share": (0.1, 0.8),
    "share": (0.1, 0.8),
    "ridge": (1e-6, 1.0, 100.0),
    "perturbed": ("solution", "objective"),
    "default": (1.0, 5.0),
    "cells": (True,),
}
CHANCES = {
    "cells": 0.7,
    "steps": 0.95,
    "sampling_probability": 0.15,
}  # of giving an option; accounting for samples takes long
INNER = ("mechanism", "first")  # options that are mechanisms themselves


def pick(rng: Generator, choices):
    """One of the choices."""
    return choices[int(rng.integers(len(choices)))]


def mechanism_called(rng: Generator, name: str) -> Mechanism:
    """A mechanism with some of its options at random."""
    if name == COUPLED:
        quick = tv.Posterior(sweeps=8, chains=2)  # where levels are given for one table, runs go to the end
        return tv.InputPerturbation(levels=(1, 2, 3, 4, 5) if rng.random() < 0.3 else None, solver=quick)
    kind = MECHANISMS.get(name, tv.WithOffsets)
    given = {}
    for option in (field.name for field in fields(kind)):
        if option in OPTIONS and rng.random() < CHANCES.get(option, 0.4):
            given[option] = pick(rng, OPTIONS[option])
        elif option in INNER:
            given[option] = mechanism_called(rng, pick(rng, tuple(MECHANISMS)))
    return kind(**given)


def random_plan(rng: Generator, name: str, kind: str) -> Plan:
    """A plan of a mechanism for a kind of unit; an InputError where the library refuses the combination."""
    order = int(rng.integers(2, 7))
    shape = tuple(int(size) for size in rng.integers(1 + (rng.random() < 0.8), 7, order))
    while np.prod(shape) > MOST_CELLS:
        shape = tuple(max(1, size - 1) for size in shape)
    shape = (*shape[:-1], max(shape[-1], 2))  # a slice unit needs two slices somewhere
    rank = int(rng.integers(1, 4))
    ranks = tuple(min(size, rank if order < 5 else 2) for size in shape)
    bounds = tv.Bounds(*pick(rng, BOUNDS))
    model = tv.Tucker(ranks) if rng.random() < 0.5 else tv.CP(rank, nonnegative=bounds.low >= 0 and rng.random() < 0.5)
    mode = int(rng.integers(order)) if kind.startswith("slice") else None
    if mode is not None and shape[mode] == 1:
        mode = int(np.argmax(shape))
    many = mode is not None and name == "sums" and rng.random() < 0.7  # over few slices Gaussian noise is never smaller
    if many:
        shape = (*shape[:mode], MANY_SLICES, *shape[mode + 1 :])
    at_most = int(pick(rng, (1, 3, 20, 1000))) if mode is not None and rng.random() < 0.6 else None
    return mechanism_called(rng, name).plan(
        model,
        bounds,
        Unit(kind, mode, at_most),
        float(np.exp(rng.uniform(np.log(0.05), np.log(30)))),
        pick(rng, (1e-6, 1e-9) if many else (0.0, 1e-6, 1e-9)),
        shape=shape,
        expected_count=10**5 if many else pick(rng, (None, 10, 300, 10**5)),
        coupled=_second(rng, shape) if name == COUPLED else None,
    )


def _second(rng: Generator, shape: tuple[int, ...]) -> CoupledTable:
    """Facts of a second table of at most as many modes, which shares one with a table of this shape."""
    shared, order = int(rng.integers(len(shape))), int(rng.integers(2, len(shape) + 1))
    sizes = tuple(int(size) for size in rng.integers(1, 6, order))
    own = int(rng.integers(order))
    names = tuple(f"mode_{shared}" if place == own else f"fact_{place}" for place in range(order))
    levels, bounds = pick(rng, ((None, pick(rng, BOUNDS)), (None, pick(rng, BOUNDS)), ((0, 1), (0, 1))))
    joint = max(shape[shared], sizes[own])
    return CoupledTable(names, sizes, names[own], joint, tv.Bounds(*bounds), "fact", 100, levels)


def random_pair(rng: Generator, plan: Plan) -> Pair:
    """Neighbouring data sets under the plan's unit; of two coupled tables, one differs."""
    request = plan.request
    one, other = _neighbours(rng, request.unit, request.shape, request.bounds)
    if request.coupled is None:
        return (one,), (other,)
    mine, theirs = _neighbours(rng, request.unit, request.coupled.joint_shape, request.coupled.bounds)
    return ((one, mine), (other, mine)) if rng.random() < 0.5 else ((one, mine), (one, theirs))


def _neighbours(
    rng: Generator, unit: Unit, shape: tuple[int, ...], bounds: tv.Bounds
) -> tuple[tv.Observations, tv.Observations]:
    """Neighbouring tables: small, lopsided, many values at the bounds, rows in any order."""
    where = _coordinates(rng, shape, int(pick(rng, (1, 3, 20, 60, 250))))
    where = np.repeat(where, rng.integers(1, pick(rng, (2, 2, 5, 40)), len(where)), axis=0)
    values = _values(rng, where, bounds)
    own = np.arange(len(where)) == rng.integers(len(where))  # the unit that changes
    if unit.whole_slices:
        slices = where[:, unit.mode_number]
        own = slices == slices[own]
    if unit.coordinates_public:
        worlds = []
        for replaced in _opposites(rng, values[own], bounds):
            changed = values.copy()
            changed[own] = replaced
            worlds.append(_observed(rng, where, changed, shape))
        return worlds[0], worlds[1]
    more, others, kept = where[own], where[~own], values[~own]
    if not len(others):  # an empty data set cannot be read: another unit stays
        others, kept = (where[:1] + 1) % np.array(shape), values[:1]
    if rng.random() < 0.5:  # other coordinates: also in rows where nobody else is
        elsewhere = _coordinates(rng, shape, len(more))
        if unit.whole_slices:
            elsewhere[:, unit.mode_number] = more[0, unit.mode_number]
            elsewhere = np.repeat(elsewhere, pick(rng, (1, 1, 1, 50)), axis=0)
        more = elsewhere
    added, _ = _opposites(rng, _values(rng, more, bounds), bounds)
    larger = _observed(rng, np.vstack([others, more]), np.append(kept, added), shape)
    smaller = _observed(rng, others, kept, shape)
    return (smaller, larger) if rng.random() < 0.5 else (larger, smaller)


def _coordinates(rng: Generator, shape: tuple[int, ...], count: int) -> np.ndarray:
    """Cells at random, in some modes all at one index, in others spread over the first few only."""
    columns = []
    for size in shape:
        reach = int(pick(rng, (1, max(1, size - 1), size, size, size)))
        columns.append((rng.integers(reach, size=count) + rng.integers(size)) % size)
    return np.column_stack(columns)


def _values(rng: Generator, where: np.ndarray, bounds: tv.Bounds) -> np.ndarray:
    """Values of one kind: a pattern of the bounds, near one point, whole numbers, anywhere, or beyond the bounds."""
    kind, count = int(rng.integers(6)), len(where)
    if kind == 0:
        signs = np.prod([rng.choice([-1.0, 1.0], where.max() + 1)[column] for column in where.T], axis=0)
        return np.where(signs > 0, bounds.high, bounds.low)
    if kind == 1:
        point = bounds.low + bounds.width * rng.random()
        return point + rng.normal(0, 0.02 * bounds.width, count)
    if kind == 2:
        return np.rint(rng.uniform(bounds.low, bounds.high, count))
    if kind == 3:
        return rng.uniform(bounds.low, bounds.high, count)
    if kind == 4:
        return bounds.middle + bounds.width * rng.standard_cauchy(count)
    return np.full(count, pick(rng, (bounds.low, bounds.high, bounds.middle)))


def _opposites(rng: Generator, values: np.ndarray, bounds: tv.Bounds) -> tuple[np.ndarray, np.ndarray]:
    """What one unit's values are in two worlds: mostly at opposite bounds, all alike or with signs that differ."""
    low, high = np.full(len(values), bounds.low), np.full(len(values), bounds.high)
    kind = int(rng.integers(6))
    if kind <= 1:
        return low, high
    if kind <= 3:
        signs = rng.random(len(values)) < 0.5
        return np.where(signs, low, high), np.where(signs, high, low)
    if kind == 4:
        return values, np.where(values > bounds.middle, low, high)
    middle = np.full(len(values), bounds.middle)
    return pick(rng, (low, high)), pick(rng, (middle, rng.uniform(bounds.low, bounds.high, len(values))))


def _observed(rng: Generator, where: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> tv.Observations:
    order = rng.permutation(len(values))
    return tv.Observations(where[order], values[order], shape, duplicates="keep")
