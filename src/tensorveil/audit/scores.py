"""Scores that tell two worlds apart: functions from a vector of released numbers to one number, trained on runs.

A good score is high in world 1 and low in world 0. A poor score weakens the bound but never invalidates it, because the
runs that are counted are not used for training.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tensorveil.arrays import Floats

Score = Callable[[Floats], Floats]  # from a table, one row per run, to one number per run

FARTHEST = 8.0  # robust standard deviations: what lies beyond is taken for as far
SHRINKAGES = (1e-6, 0.02, 0.3)  # of the covariance towards its diagonal; the first for numbers that share noise
FEWEST_TO_TRAIN = 12  # runs of each world
MOST_SYMBOLS = 64  # different outputs of a discrete release
NEWTON_STEPS = 12


def trained_scores(world_0: Floats, world_1: Floats, own: bool = False) -> list[tuple[str, Score]]:
    """Scores to try, with their names; rows of NaN are failed runs and train nothing.

    Parameters
    ----------
    world_0, world_1 : tables of numbers, one row per run, that are used for nothing but training
    own : whether the only column is the caller's own score, to be taken as it is
    """
    tables = [table[np.isfinite(table).all(axis=1)] for table in (world_0, world_1)]
    if own:
        return [("as given", _column(0))]
    width = world_0.shape[1]
    found: list[tuple[str, Score]] = [] if width > 1 else [("the number", _column(0))]
    if min(len(table) for table in tables) < FEWEST_TO_TRAIN:
        return found or [("the first number", _column(0))]
    centre, scale = _location(tables)
    useful = np.flatnonzero(scale > 0)
    if len(useful) == 0:
        return found or [("the first number", _column(0))]

    def standard(table: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.clip((table[:, useful] - centre[useful]) / scale[useful], -FARTHEST, FARTHEST)

    def squares(table: Floats) -> Floats:
        plain = standard(table)
        return np.concatenate([plain, plain**2], axis=1)

    plain = [standard(table) for table in tables]
    best = int(useful[np.argmax(_separation(plain))])
    spread = int(useful[np.argmax(_separation([np.abs(table) for table in plain]))])
    if width > 1:
        found.append((f"number {best}", _column(best)))
    found.append((f"distance of number {spread}", lambda table: np.abs(table[:, spread] - centre[spread])))
    symbols = np.unique(np.concatenate(tables)[:, best])
    if len(symbols) <= MOST_SYMBOLS:
        found.append(("likelihood ratio", _likelihood_ratio(symbols, tables, best)))
    if width > 1:
        found += [("linear", _after(standard, _discriminant(plain, shrinkage))) for shrinkage in SHRINKAGES]
        found.append(("logistic", _after(standard, _logistic(plain))))
        bent = [squares(table) for table in tables]
        found.append(("quadratic", _after(squares, _discriminant(bent, SHRINKAGES[-1]))))
    return found


def with_failures(score: Score, worlds: Sequence[Floats], trained: int) -> list[Floats]:
    """Scores of all runs of both worlds; failed runs get infinity, with the sign of the world that fails more often.

    The first `trained` runs determine the sign. Runs without a computable score are treated like failed runs.
    """
    failed = [np.asarray(np.isnan(table).any(axis=1)) for table in worlds]
    more_in_1 = failed[1][:trained].sum() >= failed[0][:trained].sum()
    scores = []
    for table, lost in zip(worlds, failed, strict=True):
        numbers = np.full(len(table), np.nan)
        numbers[~lost] = score(table[~lost])
        scores.append(np.where(np.isnan(numbers), np.inf if more_in_1 else -np.inf, numbers))
    return scores


def _column(number: int) -> Score:
    return lambda table: table[:, number]


def _after(features: Score, weights: Floats) -> Score:
    return lambda table: features(table) @ weights


def _location(tables: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Median and spread of each number over both worlds; a spread of zero marks a constant."""
    pooled = np.concatenate(tables)
    centre = np.median(pooled, axis=0)
    quartiles = np.quantile(pooled, [0.25, 0.75], axis=0)
    scale = (quartiles[1] - quartiles[0]) / 1.35
    return centre, np.where(scale > 0, scale, pooled.std(axis=0))  # a number that is mostly one constant still counts


def _separation(tables: Sequence[Floats]) -> Floats:
    """How far apart the means of each number are, in its standard deviations within a world."""
    spread = np.sqrt(np.mean([table.var(axis=0) for table in tables], axis=0)) + 1e-9
    return np.asarray(np.abs(tables[1].mean(axis=0) - tables[0].mean(axis=0)) / spread)


def _discriminant(tables: Sequence[Floats], shrinkage: float) -> Floats:
    """Fisher's linear discriminant, its covariance shrunk towards the diagonal."""
    covariance = np.mean([np.atleast_2d(np.cov(table, rowvar=False)) for table in tables], axis=0)
    diagonal = np.diag(np.diag(covariance) + 1e-6)
    shrunk = (1 - shrinkage) * covariance + shrinkage * diagonal
    return np.linalg.solve(shrunk, tables[1].mean(axis=0) - tables[0].mean(axis=0))


def _logistic(tables: Sequence[Floats]) -> Floats:
    """Ridge logistic regression by Newton's method; without its constant, which moves no threshold."""
    rows = np.concatenate(tables)
    rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    world = np.repeat([0.0, 1.0], [len(table) for table in tables])
    ridge = np.eye(rows.shape[1])
    weights = np.zeros(rows.shape[1])
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
        curvature = (rows * (chance * (1 - chance))[:, None]).T @ rows + ridge
        weights += np.linalg.solve(curvature, rows.T @ (world - chance) - weights)
    return weights[:-1]


def _likelihood_ratio(symbols: Floats, tables: Sequence[Floats], column: int) -> Score:
    """For a discrete number: the log of how much more often it was seen in world 1; 0 for one never seen."""
    seen = [np.array([(table[:, column] == symbol).sum() for symbol in symbols]) + 0.5 for table in tables]
    ratio = np.log(seen[1] / seen[0])

    def score(table: Floats) -> Floats:
        place = np.minimum(np.searchsorted(symbols, table[:, column]), len(symbols) - 1)
        return np.where(symbols[place] == table[:, column], ratio[place], 0.0)

    return score
