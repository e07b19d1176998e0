"""How well a release ranks: recall and NDCG of its best items per person. For internal use: they are not private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data import tables
from tensorveil.errors import InputError
from tensorveil.metrics import ndcg, recall
from tensorveil.models.completion import Completion
from tensorveil.release.cells.labels import indices_of, values_in
from tensorveil.release.cells.open_modes import OpenModes
from tensorveil.release.predictions import with_unknown_indices

if TYPE_CHECKING:
    from tensorveil.release.release import Release

MOST_CELLS = 2 * 10**7  # that are predicted; with more, people are sampled
SEED = 0  # of that sample, so that an evaluation can be repeated
RELEASE, OFFSETS, POPULARITY = "the release", "its offsets alone", "popularity"


@final
@dataclass(frozen=True)
class Ranking:
    """Recall and NDCG of the first k items, averaged over people.

    Attributes
    ----------
    person, item : names of the modes
    people : how many people were ranked for: those with a relevant item, or a sample of them
    relevant : items are relevant for a person from this value on
    scores : by what items were ranked -> (recall, NDCG); popularity is how often an item occurs among the known cells
    """

    k: int
    person: str
    item: str
    people: int
    sampled: bool
    relevant: float
    scores: dict[str, tuple[float, float]]


def ranked_modes(release: Release, person: str | None, item: str | None) -> tuple[int, int]:
    """The modes of people and of items: by default the second mode is ranked for the first other one."""
    what = 1 if item is None else release.mode_number(item)
    who = (1 if what == 0 else 0) if person is None else release.mode_number(person)
    if who == what:
        raise InputError(f"person and mode must be two modes, got {release.mode_names[who]!r} twice; name another")
    return who, what


def rank_items(
    release: Release,
    model: Completion,
    table: Any,
    k: int,
    *,
    value: str | None = None,
    person: str | None = None,
    item: str | None = None,
    known: Any = None,
    relevant: float | None = None,
) -> Ranking:
    """Rank all items for each person of a table of true values, by predictions averaged over the other modes.

    Parameters
    ----------
    model : what predicts: the release's model, or one with personal rows
    known : table of cells that are known already: their items are not ranked for their person, and give popularity
    relevant : items with at least this value are relevant; default: above the mean of the table
    """
    most = checks.positive_integer("top", k)
    who, what = ranked_modes(release, person, item)
    columns = tables.arrow_table(table)
    numbers = values_in(release, columns, value)
    people, items = _pairs(release, columns, who, what)
    limit = float(np.nextafter(numbers.mean(), np.inf)) if relevant is None else relevant
    wanted = (people >= 0) & (items >= 0) & (numbers >= limit)
    if not wanted.any():
        raise InputError(f"relevant must be a value that a known item has, got {limit:g} and none; lower it")
    hidden = np.empty((2, 0), np.int64) if known is None else _pairs(release, tables.arrow_table(known), who, what)
    rankers = {RELEASE: _scores_of(release, model, who, what)}
    if model.clipped:
        rankers[OFFSETS] = _scores_of(release, offsets_alone(model), who, what)
    if known is not None:
        popularity = np.bincount(hidden[1][hidden[1] >= 0], minlength=release.shape[what]).astype(np.float64)
        rankers[POPULARITY] = lambda one: popularity
    chosen = np.unique(people[wanted])
    count = max(MOST_CELLS * release.shape[who] // int(np.prod(release.shape, dtype=np.int64)), 1)
    sampled = len(chosen) > count
    if sampled:
        chosen = np.sort(np.random.default_rng(SEED).choice(chosen, count, replace=False))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rankers}
    for one in chosen.tolist():
        out = set(hidden[1][hidden[0] == one].tolist())
        good = sorted(set(items[wanted & (people == one)].tolist()) - out)
        for name, scores in rankers.items() if good else ():
            order = np.argsort(-scores(one), kind="stable").tolist()
            best = [place for place in order if place not in out][:most]
            found[name].append((recall(best, good), ndcg(best, good)))
    if not found[RELEASE]:
        raise InputError("the table must have relevant items beside the known ones, got none; check both files")
    means = {name: np.mean(pairs, axis=0).tolist() for name, pairs in found.items()}
    names = release.mode_names
    scores_by = {name: (first, second) for name, (first, second) in means.items()}
    return Ranking(most, names[who], names[what], len(found[RELEASE]), sampled, limit, scores_by)


def offsets_alone(model: Completion) -> Completion:
    """The model without its factors, with one more index per mode, which has no offset (`with_unknown_indices`)."""
    wider = with_unknown_indices(model)
    draws = wider.draws
    if draws is not None:
        draws = replace(draws, parameters=np.zeros_like(draws.parameters))
    zeros = wider.factors.replace_parameters(np.zeros(wider.factors.parameters.size))
    return replace(wider, factors=zeros, draws=draws)


def _scores_of(release: Release, model: Completion, who: int, what: int) -> Callable[[int], Floats]:
    """A function of a person that gives the predictions of all items."""
    left_open = [mode for mode in range(len(release.shape)) if mode not in (who, what)]
    cells = OpenModes.of(release, left_open) if left_open else None

    def scores(one: int) -> Floats:
        where = np.zeros((release.shape[what], len(release.shape)), dtype=np.int64)
        where[:, who], where[:, what] = one, np.arange(release.shape[what])
        return model.predict(where) if cells is None else cells.predict(model, where)

    return scores


def _pairs(release: Release, columns: Any, who: int, what: int) -> Integers:
    """Indices of person and item of each row, -1 where unknown: two rows of numbers."""
    for mode in (who, what):
        if release.mode_names[mode] not in columns.column_names:
            raise InputError(f"the table must have a column {release.mode_names[mode]!r}, got {columns.column_names}")
    return np.array([indices_of(release, mode, columns.column(release.mode_names[mode])) for mode in (who, what)])
