"""Fold-in: rows of new indices of a mode, from a release and the own observations of whoever they belong to.

If the release has posterior draws with rows of that mode, each draw gets a draw of every new row: an ordered probit
regression on the draw's features, with the prior that the draw's other rows of the mode show. Otherwise (joint
releases, and models without draws) offset and row are a ridge regression (owners.py). Both read released numbers and
the own observations, and nothing of one new index enters the row of another. For very many new indices, whose number is
public, fewer draws are used for all (VISITS); observations are read in parts, so that their number need not matter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.inference.people.owners import with_owners
from tensorveil.kernels.cores import available_cores
from tensorveil.kernels.reference.rows.new_rows import fold_rows
from tensorveil.models.block_features import block_features
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.layouts.strata import run_apart

Coordinates = NDArray[np.uint32]

VISITS = 10**6  # of new indices by draws: with more, fewer draws are used, 12 for 10^5 people
FEWEST_DRAWS = 12
ENTRIES_AT_ONCE = 2**18
FEWEST_SHARED = 2**14  # entries; with fewer, threads would wait for each other


def with_new_rows(
    released: Completion, coordinates: Coordinates, centred: Floats, mode: int, people: int
) -> Completion:
    """The release with so many new indices of a mode in the place of its own, from their own observations.

    Parameters
    ----------
    coordinates : of the own observations; those of the mode are from 0 to people - 1
    centred : their values on the centred scale
    """
    size = max(people, released.factors.ranks[mode])  # Tucker: a mode is no smaller than its rank
    draws = released.draws
    if draws is None or not draws.tells_of(mode):
        return with_owners(_emptied(released, mode, size), coordinates, centred, mode)
    order = np.argsort(coordinates[:, mode], kind="stable")
    where, values = np.ascontiguousarray(coordinates[order]), centred[order]
    starts = np.searchsorted(where[:, mode], np.arange(size + 1))
    count = max(FEWEST_DRAWS, VISITS // size)  # by public sizes: observations of one must not touch others
    kept = np.unique(np.linspace(0, len(draws) - 1, min(count, len(draws))).astype(np.int64))
    fewer = replace(
        draws, **{name: getattr(draws, name)[kept] for name in ("parameters", "offsets", "sigmas", "knots")}
    )
    levels = np.searchsorted((draws.high[:-1] + draws.low[1:]) / 2, values, side="right").astype(np.int64)
    known = replace(released, draws=fewer)
    rows = np.empty((len(fewer), size, released.factors.ranks[mode] + 1))
    threads = min(available_cores(), len(fewer)) if len(where) >= FEWEST_SHARED else 1

    def work(thread: int) -> None:
        for number in range(thread, len(fewer), threads):
            rows[number] = _drawn_rows(known, number, where, levels, starts, mode)

    run_apart(work, threads)
    if draws.family.nonnegative:
        np.maximum(rows[:, :, :-1], 0.0, out=rows[:, :, :-1])
    empty = _emptied(known, mode, size)
    means = rows.mean(axis=0)
    start = int(empty.factors.block_starts[mode])
    emptied = _draws_of(empty)
    parameters, deviations = np.array(emptied.parameters), np.array(emptied.offsets)
    parameters[:, start : start + means[:, :-1].size] = rows[:, :, :-1].reshape(len(rows), -1)
    first = 1 + sum(empty.shape[:mode])
    deviations[:, first : first + size] = rows[:, :, -1] - means[:, -1]
    return replace(
        empty,
        offsets=empty.offsets.with_mode(mode, means[:, -1]),
        factors=empty.factors.with_block(mode, means[:, :-1]),
        draws=replace(emptied, parameters=parameters, offsets=deviations),
    )


def _draws_of(model: Completion) -> PosteriorDraws:
    if model.draws is None:
        raise ValueError("a model with draws is needed")
    return model.draws


def _drawn_rows(
    released: Completion, number: int, where: Coordinates, levels: Integers, starts: Integers, mode: int
) -> Floats:
    """Rows and offsets of all new indices, in one draw of the model."""
    draws = _draws_of(released)
    sigma = float(draws.sigmas[number])
    model = draws.family.zeros(draws.shape).replace_parameters(draws.parameters[number].astype(np.float64))
    offsets = _offsets_of(released, number)
    own = offsets.modes[mode]
    own = np.zeros(draws.shape[mode]) if own is None else own
    mean, precision = _prior(np.column_stack([model.factors[mode], own]) / sigma)
    ends = np.concatenate([[-np.inf], draws.knots[number, 1:-1] / sigma, [np.inf]])
    others = Offsets(offsets.mean, [None if place == mode else part for place, part in enumerate(offsets.modes)])
    # the same for all, and of opposite signs in neighbouring draws, as in owners.py
    noise = (1 - 2 * (number % 2)) * np.random.default_rng([number // 2, 0]).standard_normal(len(mean))
    rows = np.empty((len(starts) - 1, len(mean)))
    cuts = np.searchsorted(starts, np.arange(0, len(where) + ENTRIES_AT_ONCE, ENTRIES_AT_ONCE)[1:], side="left")
    begin = 0
    for end in np.unique(np.append(np.minimum(cuts, len(starts) - 1), len(starts) - 1)).tolist():
        if end > begin:
            part = slice(int(starts[begin]), int(starts[end]))
            cells = where[part].copy()
            bases = others.at(cells) / sigma
            cells[:, mode] = 0  # features do not depend on the index of their own mode
            features = block_features(model, np.ascontiguousarray(cells), mode)
            own_starts = starts[begin : end + 1] - starts[begin]
            each = np.tile(noise, (end - begin, 1))
            fold_rows(features, bases, levels[part], ends, own_starts, mean, precision, each, rows[begin:end])
            begin = end
    return rows * sigma


def _prior(rows: Floats) -> tuple[Floats, Floats]:
    """Mean and precision of a row, by those that the release has; with few of them, columns are nearly independent."""
    mean = rows.mean(axis=0)
    covariance = np.atleast_2d(np.cov(rows, rowvar=False)) if len(rows) > 1 else np.eye(len(mean))
    share = len(mean) / (len(mean) + len(rows))
    diagonal = np.maximum(np.diag(covariance), 1e-8)
    shrunk = (1 - share) * covariance + share * np.diag(diagonal)
    return np.asarray(mean), np.asarray(np.linalg.inv(shrunk + 1e-9 * np.eye(len(mean))), dtype=np.float64)


def _offsets_of(released: Completion, number: int) -> Offsets:
    """Mean and offsets of one draw."""
    draws = _draws_of(released)
    deviations = draws.offsets[number].astype(np.float64)
    parts = np.split(deviations[1:], np.cumsum(draws.shape)[:-1])
    modes = [part if mine is None else mine + part for mine, part in zip(released.offsets.modes, parts, strict=True)]
    return Offsets(released.offsets.mean + float(deviations[0]), modes)


def _emptied(released: Completion, mode: int, people: int) -> Completion:
    """The release with so many unknown indices of a mode: rows of zeros, and no offsets."""
    model = _resized(released.factors, mode, people)
    parts = [None if place == mode else part for place, part in enumerate(released.offsets.modes)]
    draws = released.draws
    if draws is not None:
        zeros = draws.family.zeros(draws.shape)
        start, size = int(zeros.block_starts[mode]), zeros.factors[mode].size
        width = size // draws.shape[mode]
        numbers, before = draws.parameters, 1 + sum(draws.shape[:mode])
        blank = np.zeros((len(draws), people * width), np.float32)
        after = draws.offsets[:, before + draws.shape[mode] :]
        draws = replace(
            draws,
            shape=model.shape,
            parameters=np.concatenate([numbers[:, :start], blank, numbers[:, start + size :]], axis=1),
            offsets=np.concatenate([draws.offsets[:, :before], blank[:, :people], after], axis=1),
        )
    return replace(released, offsets=Offsets(released.offsets.mean, parts), factors=model, draws=draws)


def _resized(model: FactorModel, mode: int, people: int) -> FactorModel:
    blocks = [
        np.zeros((people, factor.shape[1])) if place == mode else np.array(factor)
        for place, factor in enumerate(model.factors)
    ]
    if model.core is not None:
        blocks.append(np.array(model.core))
    return model.family.model(blocks)
