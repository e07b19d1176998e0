"""The levels of the values and the latent Gaussian scale that they are cut from, both read off a released marginal.

A value is taken for a latent number with a normal law, seen through an increasing map. Where the marginal has an atom
(a star, an inflated zero) the map is constant; elsewhere it is the inverse of a link: a power of the distance from one
end of the marginal. Link and units are those under which the level masses are most likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import scipy
from numpy.typing import NDArray

from tensorveil.inference.values.lattice import ROUND, merged_points
from tensorveil.inference.values.marginal import Marginal

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

EMPTIER = 8.0  # an atom's cell holds this many times what either neighbour holds
RARE = 0.03  # share of the mass, and of the variance, that may be lost by taking the nearest atom for other values
FEWEST_LEVELS = 5  # odd: with four, the five stars of small tables lay on edges, and predictions were half a star low
POWERS = tuple(np.linspace(1.0, 0.5, 6).tolist())  # from no link to the root, which makes the spread of counts even
LINK_LEVELS = 32  # of equal mass, to choose the power by
MISSED = 10.0  # errors of a mass: 5 may lie unseen (marginal.py, "price"), two spreads away
FIRST_TAIL, MOST_TAILS = 8, 5  # levels beyond the last value seen: an eighth of the range wide, then twice that, ...
SURE = 1e-9  # a cumulative mass is this far from 0 and 1


@final
@dataclass(frozen=True, eq=False)
class Scale:
    """Levels of values on a latent scale with mean 0 and spread 1.

    Attributes
    ----------
    steps : int
        Steps from the middle of the bounds to either end.
    edges : array (levels - 1) of int64
        The level of a step is the number of edges at or below it.
    cuts : array (levels - 1)
        The edges on the latent scale, increasing.
    low, high : array (levels)
        Centred values (the bounds are -1 and 1) at both ends of each level; equal where the level is an atom.
    ends : array (2)
        Latent scores of the values low[0] and high[-1].
    masses : array (levels)
        Share of the values in each level, by the marginal.
    free : bool
        Whether all levels are atoms. The cuts between them then carry no meaning but order, and are to be learned.
    doubt : float
        Standard error of the latent mean, as far as noise of the marginal goes.
    """

    steps: int
    edges: Integers
    cuts: Floats
    low: Floats
    high: Floats
    ends: Floats
    masses: Floats
    free: bool
    doubt: float

    @property
    def knots(self) -> Floats:
        """The cuts and both ends."""
        return np.concatenate([self.ends[:1], self.cuts, self.ends[1:]])

    def value(self, latent: Floats) -> Floats:
        """Centred values of latent numbers: linear inside of a level, constant for an atom."""
        places = np.asarray(latent, dtype=np.float64)
        level = np.searchsorted(self.cuts, places, side="right")
        left, right = np.append(self.ends[0], self.cuts)[level], np.append(self.cuts, self.ends[1])[level]
        share = np.clip((places - left) / np.maximum(right - left, 1e-12), 0.0, 1.0)
        return np.asarray(self.low[level] + share * (self.high - self.low)[level])

    def table(self) -> tuple[Floats, Floats]:
        """Centred values, increasing, and their latent scores, which are linear in between.

        The score of an atom is the mean of its level.
        """
        atoms = self.low == self.high
        places = np.concatenate(([self.low[0]], self.edges / self.steps, [self.high[-1]], self.low[atoms]))
        latent = np.append(self.knots, _level_means(self.cuts)[atoms])
        order = np.argsort(places, kind="stable")
        return places[order], latent[order]

    def scores(self, steps: Integers) -> Floats:
        """Latent scores of steps."""
        return np.asarray(np.interp(np.asarray(steps) / self.steps, *self.table()))


def scale_of(marginal: Marginal, most_levels: int, bounds: tuple[float, float] | None = None) -> Scale:
    """The scale of a marginal with at most this many levels.

    If atoms hold all the mass but a rare rest near them, they are the levels, and a level's value is its atom, or its
    mean if that is far from the atom.
    Otherwise levels are as dense as the cube root of the density on the link's scale, which is best for the squared
    error (Panter and Dite 1951), and every atom with more than the mass of an average level has a level of its own.
    The less certain the marginal, the fewer levels.

    bounds : the public bounds on the values' own scale; an atom is then the roundest number in its cell
    """
    doubt = min(MISSED * marginal.error, 1.0)
    if marginal.places is not None:
        return _lattice_scale(marginal, marginal.places, most_levels, doubt)
    cells = _Cells.of(marginal, bounds)
    places = cells.low[cells.atoms]
    edges = np.ceil((places[1:] + places[:-1]) / 2).astype(np.int64)
    level, middles = np.searchsorted(edges, cells.low, side="right"), (cells.low + cells.high) / 2
    means = np.bincount(level, cells.masses * middles) / np.bincount(level, cells.masses)
    lost = cells.masses @ ((middles - means[level]) ** 2 + (cells.high - cells.low) ** 2 / 12)
    rare = cells.masses[~cells.atoms].sum() <= RARE and lost <= RARE * (marginal.std() * marginal.steps) ** 2
    free = bool(2 <= cells.atoms.sum() <= most_levels and rare)
    if free:
        gaps = np.concatenate(([np.inf], np.diff(places), [np.inf]))
        low = high = np.where(np.abs(means - places) * EMPTIER < np.minimum(gaps[1:], gaps[:-1]), places, means)
        masses = cells.within(edges)
        cuts = scipy.special.ndtri(np.cumsum(masses)[:-1])
        ends = _level_means(cuts)[[0, -1]]
    else:
        below, above = _tails(cells, marginal.steps, min(max(most_levels // 8 - 1, 0), MOST_TAILS))
        most = most_levels - max(len(below) - 1, 0) - max(len(above) - 1, 0)
        count = int(np.clip(1 / max(marginal.error, 1e-9), FEWEST_LEVELS, max(most, FEWEST_LEVELS)))
        link = _likeliest_link(cells, _edges(cells, cells.masses, LINK_LEVELS), marginal.error)
        widths = link(cells.right) - link(cells.left)
        edges = _edges(cells, np.cbrt(cells.masses * widths**2), count)
        masses = cells.within(edges)
        low, high = cells.spans(edges)
        cuts, mean, spread = _latent_cuts(link, cells, edges)
        if len(below) > 1:
            edges, cuts = np.append(below[1:], edges), np.append((link(below[1:]) - mean) / spread, cuts)
            low, high = np.append(below[:-1], low), np.append(below[1:], high)
            masses = np.append(np.zeros(len(below) - 1), masses)
        if len(above) > 1:
            edges, cuts = np.append(edges, above[:-1]), np.append(cuts, (link(above[:-1]) - mean) / spread)
            low, high = np.append(low, above[:-1]), np.append(high, above[1:])
            masses = np.append(masses, np.zeros(len(above) - 1))
        cuts = np.maximum.accumulate(cuts + 1e-6 * np.arange(len(cuts)))
        ends = (link(np.array([low[0], high[-1]])) - mean) / spread
        ends = np.array([min(ends[0], cuts[0] - 1e-6), max(ends[1], cuts[-1] + 1e-6)])
        ends = np.where([low[0] == high[0], low[-1] == high[-1]], _level_means(cuts)[[0, -1]], ends)
    return Scale(marginal.steps, edges, cuts, low / marginal.steps, high / marginal.steps, ends, masses, free, doubt)


def _lattice_scale(marginal: Marginal, places: Floats, most_levels: int, doubt: float) -> Scale:
    """Points of a lattice as levels, from the first to the last with mass; rare ones that were merged are one atom."""
    held = np.flatnonzero(marginal.masses > 0)
    begin, end = min(held[0], len(places) - 2), max(held[-1], 1)
    points, each = places[begin : end + 1], marginal.masses[begin : end + 1]
    starts = merged_points(points, each, marginal.error, most_levels)
    masses = np.maximum(np.add.reduceat(each, starts), SURE)
    means = np.add.reduceat(np.maximum(each, SURE) * points, starts) / np.add.reduceat(np.maximum(each, SURE), starts)
    rare = masses <= marginal.error
    low = np.where(rare, means, points[starts])
    high = np.where(rare, means, points[np.append(starts[1:], len(points)) - 1])
    cuts = scipy.special.ndtri(np.cumsum(masses / masses.sum())[:-1])
    outer = scipy.special.ndtri(np.clip(each[[0, -1]] / 2, SURE / 4, 0.5)) * [1, -1]
    ends = np.where(low[[0, -1]] == high[[0, -1]], _level_means(cuts)[[0, -1]], outer)
    edges, steps = marginal.first[begin + starts[1:]], marginal.steps
    return Scale(steps, edges, cuts, low / steps, high / steps, ends, masses / masses.sum(), True, doubt)


@final
@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells that hold mass, in steps.

    An atom has low == high, and left and right half-way to the neighbours' mass; other cells have low == left and
    high == right at their ends.
    """

    low: Floats
    high: Floats
    left: Floats
    right: Floats
    masses: Floats
    atoms: Flags

    @classmethod
    def of(cls, marginal: Marginal, bounds: tuple[float, float] | None) -> _Cells:
        """Atoms are cells of the finest width that hold far more than either neighbour.

        A cell that holds nearly all the mass may be a constant or a narrow law in bounds far too wide: no atom.
        """
        widths = marginal.last - marginal.first
        density = marginal.masses / widths
        around = np.maximum(np.append(0.0, density[:-1]), np.append(density[1:], 0.0))
        fine = widths <= widths.min() + 1  # the last cell holds the upper bound too
        atoms = fine & (density > 0) & (density >= EMPTIER * around) & (marginal.masses < 1 - RARE)
        held = marginal.masses > 0
        first, last = marginal.first[held].astype(np.float64), marginal.last[held].astype(np.float64)
        atoms = atoms[held]
        places = _round_places(first, last, atoms, marginal.steps, bounds)
        low, high = np.where(atoms, places, first), np.where(atoms, places, last)
        left, right = first.copy(), last.copy()
        middles = (first[1:] + last[:-1]) / 2
        left[1:] = np.where(atoms[1:], middles, left[1:])
        right[:-1] = np.where(atoms[:-1], middles, right[:-1])
        return cls(low, high, left, right, marginal.masses[held], atoms)

    def within(self, edges: Integers) -> Floats:
        """Masses between edges; no edge lies inside of an atom's cell."""
        knots, shares = np.column_stack([self.left, self.right]).ravel(), np.cumsum(self.masses)
        below = np.column_stack([shares - self.masses, shares]).ravel()
        return np.diff(np.interp(edges, knots, below), prepend=0.0, append=shares[-1])

    def spans(self, edges: Integers) -> tuple[Floats, Floats]:
        """The lowest and the highest value of each level."""
        above = np.searchsorted(self.right, np.append(-np.inf, edges), side="right")
        under = np.searchsorted(self.left, np.append(edges, np.inf), side="left") - 1
        low, high = self.low[above], self.high[under]
        low[1:] = np.where(self.atoms[above[1:]], low[1:], np.maximum(low[1:], edges))
        high[:-1] = np.where(self.atoms[under[:-1]], high[:-1], np.minimum(high[:-1], edges))
        return low, high


def _round_places(first: Floats, last: Floats, atoms: Flags, steps: int, bounds: tuple[float, float] | None) -> Floats:
    """The middles of cells; with bounds, multiples of the widest round spacing that has one in each atom's cell."""
    middles = (first + last - 1) / 2
    if bounds is None or not atoms.any():
        return middles
    width = bounds[1] - bounds[0]
    lows = bounds[0] + (first[atoms] - 0.5 + steps) / (2 * steps) * width  # values are rounded to whole steps
    highs = bounds[0] + (last[atoms] - 0.5 + steps) / (2 * steps) * width
    for spacing in (
        factor * 10.0**power for power in range(math.ceil(math.log10(width)), -300, -1) for factor in ROUND
    ):
        numbers = np.ceil(lows / spacing) * spacing
        if (numbers < highs).all():
            places = np.clip((numbers - bounds[0]) / width * (2 * steps) - steps, -steps, steps)
            middles[atoms] = np.clip(places, first[atoms], last[atoms] - 1)
            return middles
    return middles


def _edges(cells: _Cells, weights: Floats, count: int) -> Integers:
    """Edges of at most this many levels of about equal weight; heavy atoms are levels of their own.

    An edge between two cells is half-way between their masses, and none lies inside of an atom's cell.
    """
    between = (np.minimum(cells.right, np.append(cells.left[1:], np.inf))[:-1] + cells.left[1:]) / 2
    alone = np.zeros(len(weights), dtype=np.bool_)
    for _ in range(len(weights)):
        rest = max(count - int(alone.sum()), 1)
        heavy = cells.atoms & ((weights * rest > weights[~alone].sum()) | (cells.masses * count > 1))
        if (heavy <= alone).all() or (heavy | alone).sum() >= count:
            break
        alone |= heavy
    share = weights[~alone].sum() / max(count - int(alone.sum()), 1)
    edges: list[float] = []
    begin = 0
    for end in [*np.flatnonzero(alone).tolist(), len(weights)]:  # runs of other cells, each up to a lone atom
        if end > begin:
            upto = np.concatenate(([0.0], np.cumsum(weights[begin:end])))
            levels = max(round(upto[-1] / share), 1)
            for target in upto[-1] * np.arange(1, levels) / levels:
                cell = begin + int(np.searchsorted(upto[1:], target))
                inside = (target - upto[cell - begin]) / weights[cell]
                if cells.atoms[cell]:
                    edges.append(cells.left[cell] if inside < 0.5 else cells.right[cell])
                else:
                    edges.append(cells.left[cell] + inside * (cells.right - cells.left)[cell])
            if end < len(weights):
                edges.append(between[end - 1])
        if end + 1 < len(weights):
            edges.append(between[end])
        begin = end + 1
    return _kept_edges(cells, np.unique(np.ceil(edges).astype(np.int64)), count)


def _kept_edges(cells: _Cells, edges: Integers, count: int) -> Integers:
    """Edges with mass between them; while there are too many, the level of least mass joins its lighter neighbour."""
    while len(edges):
        masses = cells.within(edges)
        least = int(masses.argmin())
        if masses[least] > 0 and len(edges) < count:
            break
        sides = [masses[other] if 0 <= other < len(masses) else math.inf for other in (least - 1, least + 1)]
        edges = np.delete(edges, least - 1 if sides[0] <= sides[1] else least)
    return edges


def _tails(cells: _Cells, steps: int, most: int) -> tuple[Integers, Integers]:
    """Ends of a few empty levels below the lowest and above the highest value, each twice as wide as the one before.

    The marginal does not see rare values, but symbols may, and a model may expect some. An atom at the end of all
    values (a zero, a maximum) has nothing beyond.
    """
    away = (cells.high[-1] - cells.low[0]) / FIRST_TAIL * (2.0 ** np.arange(most + 1) - 1)
    below = np.unique(np.floor(np.maximum(cells.low[0] - away, -steps)).astype(np.int64))
    above = np.unique(np.ceil(np.minimum(cells.high[-1] + away, steps)).astype(np.int64))
    return below[: 0 if cells.atoms[0] else None], above[: 0 if cells.atoms[-1] else None]


@final
@dataclass(frozen=True, eq=False)
class _Link:
    """A power of the distance from one end, in shares of the way to the other, with room for atoms inside a density."""

    power: float
    low: float
    high: float
    upwards: bool
    places: Floats
    room: Floats

    def __call__(self, steps: Floats | Integers) -> Floats:
        share = (steps - self.low) / (self.high - self.low)
        passed = np.append(0.0, np.cumsum(self.room))[np.searchsorted(self.places, steps, side="left")]
        away = share if self.upwards else 1 - share
        bent = np.where(
            away > 0, np.maximum(away, 0.0) ** self.power, away
        )  # linear beyond the end that it starts from
        return np.asarray((bent if self.upwards else 1 - bent) + passed)

    def with_room(self, cells: _Cells) -> _Link:
        """The link with jumps at atoms, so that the room of each is that of its mass under a normal law."""
        middles = self((cells.low + cells.high) / 2)
        spread = math.sqrt(float(cells.masses @ (middles - cells.masses @ middles) ** 2))
        shares = np.clip(np.cumsum(cells.masses), SURE, 1 - SURE)
        wanted = spread * np.diff(scipy.special.ndtri(np.append(SURE, shares)))
        inner = cells.atoms.copy()
        inner[[0, -1]] = False
        room = np.maximum(wanted - (self(cells.right) - self(cells.left)), 0.0)
        return replace(self, places=cells.low[inner], room=room[inner])


def _likeliest_link(cells: _Cells, edges: Integers, error: float) -> _Link:
    """The link under which a normal law, censored at the edges, fits their masses best; with large errors, none."""
    masses, none = cells.within(edges), np.empty(0)
    links = [
        _Link(power, cells.low[0], cells.high[-1], upwards, none, none).with_room(cells)
        for power in POWERS
        for upwards in ((True, False) if power < 1 else (True,))
    ]
    return max(links, key=lambda link: _normal_fit(link(edges), masses)[2] + error * link.power)


def _latent_cuts(link: _Link, cells: _Cells, edges: Integers) -> tuple[Floats, float, float]:
    """Cuts in units of the normal law that fits the levels' masses best, and its mean and spread on the link's scale.

    In a gap between masses the place of a cut is free: it is the normal score of the mass below, as far as it fits in.
    """
    masses = cells.within(edges)
    above = np.searchsorted(cells.right, edges, side="right")
    under = np.searchsorted(cells.left, edges, side="left") - 1
    lowest = link(np.minimum(cells.high[under] + 0.5, edges))
    highest = link(np.maximum(cells.low[above], edges))
    places = (lowest + highest) / 2
    scores = scipy.special.ndtri(np.clip(np.cumsum(masses)[:-1], SURE, 1 - SURE))
    for _ in range(3):
        mean, spread, _ = _normal_fit(places, masses)
        places = np.clip(mean + spread * scores, lowest, highest)
    return (places - mean) / spread, mean, spread


def _normal_fit(places: Floats, masses: Floats) -> tuple[float, float, float]:
    """Mean and spread of the normal law most likely to put these masses between places, and its log-likelihood."""
    scores = scipy.special.ndtri(np.clip(np.cumsum(masses)[:-1], SURE, 1 - SURE))
    if len(places) == 1:
        spread = 1.0
        return float(places[0] - scores[0]), spread, 0.0
    slope = max(float(np.polyfit(scores, places, 1)[0]), 1e-9)

    centre = float(np.mean(places - slope * scores))
    unit = (places - centre) / slope

    def unlikely(law: Floats) -> float:
        chances = np.diff(scipy.special.ndtr((unit - law[0]) / math.exp(law[1])), prepend=0.0, append=1.0)
        return -float(masses @ np.log(np.maximum(chances, SURE)))

    start = np.zeros(2)
    simplex = np.array([[0.0, 0.0], [0.25, 0.0], [0.0, 0.25]])
    law = scipy.optimize.minimize(
        unlikely, start, method="Nelder-Mead", options={"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-6}
    )
    return centre + slope * float(law.x[0]), slope * math.exp(law.x[1]), -float(law.fun)


def _level_means(cuts: Floats) -> Floats:
    """Means of standard normal numbers between cuts, below the first and above the last."""
    low, high = np.append(-np.inf, cuts), np.append(cuts, np.inf)
    flip = low > 0  # computed in the lower tail, where chances have all their digits
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    chances = scipy.special.ndtr(high) - scipy.special.ndtr(low)
    means = (np.exp(-(low**2) / 2) - np.exp(-(high**2) / 2)) / math.sqrt(2 * math.pi) / np.maximum(chances, 1e-300)
    return np.asarray(np.where(flip, -1.0, 1.0) * np.clip(means, low, high))
