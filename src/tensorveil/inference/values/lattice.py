"""Values on a round lattice (stars, half stars, counts): found in released histograms, and the masses of its points.

Where clear cells of a histogram all hold a multiple of one round number and the cells between them are empty, the
values are such multiples. Their number is then much smaller than that of the cells, and noise in all other cells says
nothing. Beyond the last points that are clear, masses fall off geometrically; how many there are and how fast they
fall off has a posterior law, whose mean is taken: rare values may exist that no single count shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import scipy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensorveil.inference.values.marginal import Counted

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUND = (5.0, 2.5, 2.0, 1.0)  # a lattice has a spacing of one of these times a power of ten
CELLS_APART = 3  # a lattice shows if its points are this many cells apart
POINT = 0.003  # chance that noise alone tells of a lattice, or gives mass to a point that has none
FINER_PRICE = 2 * math.log(10)  # of a finer lattice: there are about ten
TAIL_AMOUNTS, TAIL_LENGTHS = 40, 12  # places of the grid on which tails have their posterior
MERGED = 1e-4  # of the variance, that may be lost when two points are taken for one level
SURE_TOTAL = 1e-3  # standard error of a total that is public, in values


@final
@dataclass(frozen=True, eq=False)
class Lattice:
    """Points between the bounds, and their masses.

    Attributes
    ----------
    places : array
        Multiples of the spacing, in steps: not whole, as bounds need not be on the lattice.
    masses : array
        At least zero, with sum one.
    cost : float
        Squared error of all counts, in variances, and the prices of the masses.
    """

    places: Floats
    masses: Floats
    cost: float


def likeliest_lattice(
    stages: Sequence[Counted], bounds: tuple[float, float], total: float | None = None, limit: float = math.inf
) -> Lattice | None:
    """The widest round lattice that explains released counts best, at a cost below the limit.

    There is none if no clear cell tells of one. Zero and the bounds are on too many lattices: they tell of none.
    """
    best: Lattice | None = None
    for places, telling in _candidates(stages, bounds):
        if not any(_tells(stage, places, telling) for stage in stages):
            continue
        if sum(_missed(stage, places) for stage in stages) >= limit:
            continue
        found = _fitted(stages, places, total)
        if found.cost < limit - (0.0 if best is None else FINER_PRICE):
            best, limit = found, found.cost
    return best


def merged_points(places: Floats, masses: Floats, error: float, most: int) -> Integers:
    """The first points of levels: neighbours are merged whose difference matters least to the squared error.

    Points with more mass than its standard error are merged only if there are too many.
    """
    starts, means = np.arange(len(places)), places.copy()
    variance = float(masses @ (places - masses @ places) ** 2)
    while len(starts) > 2:
        pairs = np.maximum(masses[1:] + masses[:-1], 1e-300)
        lost = np.diff(means) ** 2 * masses[1:] * masses[:-1] / pairs
        lost += variance * (np.maximum(masses[1:], masses[:-1]) > error)
        least = int(lost.argmin())
        if lost[least] > MERGED * variance and len(starts) <= most:
            break
        both = slice(least, least + 2)
        means[least] = means[both] @ masses[both] / pairs[least] if masses[both].any() else means[least]
        masses = np.concatenate((masses[:least], pairs[least : least + 1], masses[least + 2 :]))
        starts, means = np.delete(starts, least + 1), np.delete(means, least + 1)
    return starts


def _candidates(stages: Sequence[Counted], bounds: tuple[float, float]) -> Iterator[tuple[Floats, Floats]]:
    """Points of lattices, from the widest to the finest that cells could show, and those that tell of a lattice."""
    low, high = bounds
    width, steps = high - low, -int(stages[0].first[0])
    finest = min(int((stage.last - stage.first).min()) for stage in stages) * width / (2 * steps)
    for power in range(math.ceil(math.log10(width)), math.floor(math.log10(CELLS_APART * finest)) - 1, -1):
        for spacing in (factor * 10.0**power for factor in ROUND):
            if CELLS_APART * finest <= spacing <= width:
                slack = 1e-9 * width / spacing
                numbers = np.arange(math.ceil(low / spacing - slack), math.floor(high / spacing + slack) + 1)
                values = numbers * spacing
                places = np.clip((values - low) / width * (2 * steps) - steps, -steps, steps)
                inside = (numbers != 0) & (np.abs(places) < steps - 0.5)
                yield places, places[inside]


def _cells_of(stage: Counted, places: Floats) -> Integers:
    """The cell of each place, or -1 if it was not counted."""
    whole = np.rint(places).astype(np.int64)
    cell = np.searchsorted(stage.first, whole, side="right") - 1
    return np.where((cell >= 0) & (whole < stage.last[np.maximum(cell, 0)]), cell, -1)


def _tells(stage: Counted, places: Floats, telling: Floats) -> bool:
    """Whether clear cells, much narrower than the spacing, hold a telling point."""
    if len(telling) == 0 or len(places) < 2:
        return False
    narrow = CELLS_APART * (stage.last - stage.first) <= places[1] - places[0] + 1e-6
    clear = narrow & (stage.counts > math.sqrt(stage.price(POINT)[0] * stage.variance))
    return bool(clear[np.setdiff1d(_cells_of(stage, telling), [-1])].any())


def _missed(stage: Counted, places: Floats) -> float:
    """Squared error of the counts of cells that hold no point, in variances; no masses of points explain them."""
    empty = np.ones(len(stage.counts), dtype=np.bool_)
    cells = _cells_of(stage, places)
    empty[cells[cells >= 0]] = False
    return float((stage.counts[empty] ** 2).sum() / stage.variance)


def _fitted(stages: Sequence[Counted], places: Floats, total: float | None) -> Lattice:
    """Non-negative masses of the points by least squares; points that share all their cells share their mass evenly."""
    cells = np.array([_cells_of(stage, places) for stage in stages])
    starts = np.append(0, np.cumsum([len(stage.counts) for stage in stages]))[:-1]
    _, group = np.unique(cells, axis=1, return_inverse=True)
    group = np.cumsum(np.append(0, np.diff(group.ravel()) != 0))  # numbered along the scale
    size = np.bincount(group)
    errors = np.concatenate([np.full(len(stage.counts), math.sqrt(stage.variance)) for stage in stages])
    held = np.zeros((len(errors), len(size)))
    for own, start in zip(cells, starts, strict=True):
        held[start + own[own >= 0], group[own >= 0]] = 1.0
    counts = np.concatenate([stage.counts for stage in stages])
    design, target = held / errors[:, None], counts / errors
    if total is not None:
        design, target = np.vstack([design, np.full(len(size), 1 / SURE_TOTAL)]), np.append(target, total / SURE_TOTAL)
    amounts = scipy.optimize.nnls(design, target)[0]
    alone = held[held.sum(axis=1) == 1] / errors[held.sum(axis=1) == 1, None]
    precision = np.maximum((alone**2).sum(axis=0), 1e-300)
    squares = amounts**2 * precision
    price = (-math.log(2 * POINT / len(size))) ** 2 / 2  # in variances of Laplace noise
    priced = squares > price
    cost = math.inf
    if priced.any():
        cost = float(
            scipy.optimize.nnls(held[:, priced] / errors[:, None], counts / errors)[1] ** 2 + price * priced.sum()
        )
    clear = np.flatnonzero(priced)
    if len(clear) == 0:
        return Lattice(places, _normalised(amounts[group] / size[group]), cost)
    first, last = clear[0], clear[-1]
    inner = (group >= first) & (group <= last)
    masses = np.where(inner, np.maximum((amounts / size)[group], 0.5 / inner.sum()), 0.0)
    left = counts - held @ np.bincount(group, masses)
    numbers = np.flatnonzero(inner)
    spread = math.sqrt(float(np.cov(numbers, aweights=masses[inner], ddof=0))) if len(numbers) > 1 else 0.0
    for tail, nearest in (
        (np.flatnonzero(group > last), masses[group == last][-1]),
        (np.flatnonzero(group < first)[::-1], masses[group == first][0]),
    ):
        if len(tail):
            fall = _tail(held[:, group[tail]], left, errors, float(nearest), max(spread, 1.0))
            masses[tail] = np.where(np.cumsum(fall[::-1])[::-1] < 0.5, 0.0, fall)  # below half a value is none
    return Lattice(places, _normalised(masses), cost)


def _normalised(masses: Floats) -> Floats:
    return masses / masses.sum() if masses.any() else np.full(len(masses), 1 / len(masses))


def _tail(held: Floats, counts: Floats, errors: Floats, nearest: float, usual: float) -> Floats:
    """Posterior means of masses that fall off geometrically beyond the last clear point, whose mass is `nearest`.

    The log of their sum has an even prior, from half a value. Their mean distance has a half-Cauchy prior, whose scale
    is the spread of the points that are seen, not that of the bounds: these may be far too wide.
    """
    number = held.shape[1]
    lengths = np.geomspace(0.2, max(number / 2, 1.0), TAIL_LENGTHS)
    shapes = np.exp(-np.arange(number) / lengths[:, None])
    shapes /= shapes.sum(axis=1, keepdims=True)
    amounts = np.geomspace(0.5, max(nearest, 0.5) * number + 1, TAIL_AMOUNTS)
    seen = (shapes @ held.T) / errors
    against, square = seen @ (counts / errors), (seen**2).sum(axis=1)
    fits = amounts * against[:, None] - amounts**2 * square[:, None] / 2
    fits += (np.log(lengths) - np.log1p((lengths / usual) ** 2))[:, None]
    fits = np.where(amounts * shapes[:, :1] <= max(nearest, 0.5), fits, -np.inf)
    chances = np.exp(fits - fits.max())
    chances /= chances.sum()
    return np.asarray((chances @ amounts) @ shapes)
