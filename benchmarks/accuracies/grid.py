"""Which runs make up the accuracy benchmark: data x unit x epsilon x method, and variants of the defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from accuracies import generated, halves, others
from accuracies.measuring import (
    ABOVE_FOUR,
    CUBE,
    DP_SGD,
    FOUR,
    MEAN,
    NO_UNIT,
    OFFSETS,
    OURS,
    OURS_WITH_FEATURES,
    PAPER,
    PERMUTED,
    PRIVATE_MEAN,
    PRIVATE_OFFSETS,
    PUBLISHED,
    RANK_30,
    SVDPP,
    WIDE,
    Run,
)

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
SLICE_DELTA = 1e-5
CUBE_DELTA = 1e-6
BASELINE_EPSILONS = (1.0, 5.0, 20.0)  # of baselines that are slow and far behind
QUICK_EPSILONS = (1.0, 2.0, 5.0, 10.0)  # of MovieLens 100K; everything else at 5
VARIANT_EPSILON = 5.0
MOVIELENS = ("ml-100k ua", "ml-100k ub")
LOG_TABLE = "birmingham log"
VARIED_KINDS = ("made even", "made counts with zeros")
PERMUTED_DATA = ("filmtrust", "mimic", "made counts with zeros")


def data_names() -> list[str]:
    """The data sets that are here, real ones first."""
    real = [name for name, (_, folder, _) in halves.REAL.items() if halves.folder_of(folder) is not None]
    return [*real, CUBE, *generated.KINDS]


def runs(seeds: int, development: bool = False, peers: bool = False) -> Iterator[Run]:
    """All runs, seed after seed, so that an interrupted program has whole tables of the first seeds.

    Methods of others are added if `peers` says so.
    """
    names = data_names()
    for seed in range(seeds):
        for name in names:
            for run in (*_of_data(name), *(others.runs(name) if peers else ())):
                if seed == 0 or is_random(run):
                    yield replace(run, seed=seed, development=development)


def is_random(run: Run) -> bool:
    """Whether another seed gives another result: data or noise are drawn, or the solver starts at random."""
    unseeded = run.method in (MEAN, OFFSETS, *others.UNSEEDED) or (run.method == OURS and run.epsilon is None)
    return not unseeded or run.data not in halves.REAL


def is_quick(run: Run) -> bool:
    """Whether a run belongs to the short table: MovieLens 100K under value, and one row of every other data set."""
    if run.variant != "default" or run.delta or run.unit not in ("value", NO_UNIT) or run.data == LOG_TABLE:
        return False
    if run.method not in (OURS, MEAN, PRIVATE_MEAN):
        return False
    if run.data in MOVIELENS:
        return run.epsilon is None or run.epsilon in QUICK_EPSILONS
    return run.epsilon == VARIANT_EPSILON or run.method == MEAN


def selected(wanted: Iterator[Run], only: str | None, quick: bool) -> list[Run]:
    """The runs of the quick table, or all, whose name matches the regular expression."""
    pattern = re.compile(only or "")
    return [run for run in wanted if pattern.search(str(run)) and (is_quick(run) or not quick)]


def _of_data(name: str) -> Iterator[Run]:
    yield Run(name, NO_UNIT, None, MEAN)
    if name == LOG_TABLE:
        yield Run(name, "value", VARIANT_EPSILON, PRIVATE_MEAN)
        yield from (Run(name, "value", VARIANT_EPSILON, OURS, variant=variant) for variant in (FOUR, ABOVE_FOUR))
        return
    yield Run(name, NO_UNIT, None, OFFSETS)
    yield Run(name, NO_UNIT, None, OURS)
    if name in (*MOVIELENS, CUBE):
        yield Run(name, NO_UNIT, None, PAPER)
    if name in MOVIELENS and find_spec("surprise"):
        yield Run(name, NO_UNIT, None, SVDPP)
    slice_mode = halves.REAL[name][2] if name in halves.REAL else "0"
    for unit in ("value", "entry", f"slice:{slice_mode}"):
        yield from _of_unit(name, unit, SLICE_DELTA if unit.startswith("slice") else 0.0)
    if name == CUBE:
        yield from (Run(name, "value", epsilon, OURS, delta=CUBE_DELTA) for epsilon in EPSILONS)
    yield from _variants(name)


def _of_unit(name: str, unit: str, delta: float) -> Iterator[Run]:
    for epsilon in reversed(EPSILONS):
        yield Run(name, unit, epsilon, PRIVATE_MEAN)
        yield Run(name, unit, epsilon, OURS, delta=delta)
        if not unit.startswith("slice"):
            yield Run(name, unit, epsilon, PRIVATE_OFFSETS)
        if name in MOVIELENS and unit != "value":
            yield Run(name, unit, epsilon, OURS_WITH_FEATURES, delta=delta)
    if unit != "value":
        return
    for epsilon in BASELINE_EPSILONS:
        if name in halves.REAL or name == CUBE:
            yield Run(name, unit, epsilon, DP_SGD)
        if name in (*MOVIELENS, CUBE):
            yield from (Run(name, unit, epsilon, method) for method in PUBLISHED)


def _variants(name: str) -> Iterator[Run]:
    """Variants of the defaults that should make no difference, at one epsilon."""
    found = []
    if name in halves.REAL or name in VARIED_KINDS:
        found += [WIDE, RANK_30]
    if name == "filmtrust":
        found += [FOUR, ABOVE_FOUR]
    if name in PERMUTED_DATA:
        found.append(PERMUTED)
    yield from (Run(name, "value", VARIANT_EPSILON, OURS, variant=variant) for variant in found)
