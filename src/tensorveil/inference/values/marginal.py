"""The marginal law of the values, from released histograms: post-processing of noisy counts.

A histogram is released top-down: a few wide cells first, then parts of the cells whose counts are clearly above the
noise. Two descriptions of all counts compete. In the first, the law has pieces of equal density, and cells outside of
all pieces are empty. A piece has a price: the squared error (in variances of the noise) that it must explain, which
noise alone would with a small chance only. So noise in many empty cells adds no tails. In the second, the law has one
mode and tails of normal or Laplace shape, each with a spread of its own: three numbers, which need few values and find
tails whose single cells drown in noise. Both are averaged with their posterior weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import final

import numpy as np
import scipy
from numpy.typing import NDArray

from tensorveil.inference.values.lattice import likeliest_lattice

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SPLIT = 0.05  # chance that noise alone makes an empty cell worth splitting, anywhere in a histogram
PIECE = 0.003  # the same for a piece of mass where there is none
SPREAD_PRICE = 2 * math.log(10)  # of a spread: known beforehand to a factor of a hundred, afterwards to one of ten


@final
@dataclass(frozen=True, eq=False)
class Counted:
    """One released histogram.

    Attributes
    ----------
    first, last : array of int64
        Cell c holds the steps s with first[c] <= s < last[c].
    counts : array
        Noisy counts.
    variance : float
        Variance of the noise of each count.
    """

    first: Integers
    last: Integers
    counts: Floats
    variance: float

    def price(self, chance: float) -> Floats:
        """The squared errors, in variances, by which pieces of 1, 2, ... cells must exceed noise of this chance.

        One cell has Laplace noise; sums over many cells are normal.
        """
        each = chance / len(self.counts)
        one, many = -math.log(2 * each) / math.sqrt(2), -float(scipy.special.ndtri(each))
        return np.asarray((many + (one - many) / np.arange(1, len(self.counts) + 1)) ** 2)


@final
@dataclass(frozen=True, eq=False)
class Marginal:
    """A law on the steps between the bounds: masses of contiguous cells, each spread evenly over its cell.

    Attributes
    ----------
    first, last : array of int64
        Cells that cover the bounds; the first begins at the lower bound, and zero is half-way.
    masses : array
        At least zero, with sum one.
    total : float
        Estimated sum of the weights of all values, at least one.
    error : float
        Standard error of a mass.
    places : array or None
        If all values lie on a lattice: its points, one in each cell, in steps.
    """

    first: Integers
    last: Integers
    masses: Floats
    total: float
    error: float
    places: Floats | None = None

    @property
    def steps(self) -> int:
        """Steps from the middle of the bounds to either end."""
        return -int(self.first[0])

    def centred(self, steps: Floats | Integers) -> Floats:
        """Places on the scale where the bounds are -1 and 1."""
        return np.clip(np.asarray(steps, dtype=np.float64) / self.steps, -1.0, 1.0)

    @property
    def middles(self) -> Floats:
        """Mean values of the cells, on the centred scale."""
        return self.centred((self.first + self.last - 1) / 2 if self.places is None else self.places)

    def mean(self) -> float:
        """Mean on the centred scale."""
        return float(self.masses @ self.middles)

    def std(self) -> float:
        """Standard deviation on the centred scale."""
        within = 0.0 if self.places is not None else ((self.last - self.first) / self.steps) ** 2 / 12
        return math.sqrt(float(self.masses @ ((self.middles - self.mean()) ** 2 + within)))

    def quantile(self, share: float | Floats) -> Floats:
        """The value below which this share of the mass lies, on the centred scale."""
        held = self.masses > 0
        below = np.concatenate(([0.0], np.cumsum(self.masses[held])))
        place = np.clip(np.asarray(share, dtype=np.float64), 0.0, 1.0) * below[-1]
        cell = np.clip(np.searchsorted(below, place, side="left") - 1, 0, int(held.sum()) - 1)
        if self.places is not None:
            return self.centred(self.places[held][cell])
        inside = (place - below[cell]) / self.masses[held][cell]
        first, last = self.first[held][cell], self.last[held][cell]
        return self.centred(first + inside * (last - first))


def exact_marginal(steps: Integers, most: int, cells: int = 4096) -> Marginal:
    """The marginal of values without noise, in whole steps from -most to most."""
    width = 2 * most // cells
    first = np.arange(-most, most, width)
    last = first + width
    last[-1] += 1  # the highest step belongs to the last cell
    counts = np.bincount(np.minimum((steps + most) // width, cells - 1), minlength=cells)
    return Marginal(first, last, counts / max(len(steps), 1), float(len(steps)), 1e-6)


def refined(released: Sequence[Counted], parts: int) -> tuple[Integers, Integers]:
    """The cells to count next: equal parts of those cells of the last histogram whose counts are clearly above noise.

    Cells of fewer steps than `parts` become single steps; single steps are not split.
    """
    latest = released[-1]
    clear = latest.counts**2 > latest.price(SPLIT)[0] * latest.variance
    clear &= (latest.counts > 0) & (latest.last - latest.first > 1)
    edges = [
        first + (last - first) * np.arange(n + 1) // n
        for first, last in zip(latest.first[clear].tolist(), latest.last[clear].tolist(), strict=True)
        for n in [min(parts, last - first)]
    ]
    if not edges:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate([edge[:-1] for edge in edges]), np.concatenate([edge[1:] for edge in edges])


def marginal_of(
    released: Sequence[Counted], bounds: tuple[float, float] | None = None, total: float | None = None
) -> Marginal:
    """A consistent, non-negative estimate from the histograms of all stages.

    Counts of all stages are first combined by generalised least squares: from the last stage upwards, the count of a
    split cell and the sum of its parts are averaged with weights of one over their variances; downwards, what a cell
    then differs from the sum of its parts is divided among them. Pieces of equal density follow, cell by cell
    downwards, with the share of each part. The mass of a cell that was not split is spread evenly over it. If a round
    lattice explains the counts better, all mass is on its points.

    Parameters
    ----------
    bounds : the public bounds on the values' own scale, to tell which numbers are round; None: look for no lattice
    total : the sum of the weights of all values, if it is public
    """
    stages = [stage for stage in released if len(stage.counts)]
    parents = [np.searchsorted(above.first, below.first, side="right") - 1 for above, below in pairwise(stages)]
    counts, variances = _combined(stages, parents, total)
    pieces, prices = _described(stages, parents, counts, variances, None)
    shape, shape_prices = _likeliest_shape(stages, pieces)
    shaped, more_prices = _described(stages, parents, counts, variances, shape)
    costs = [_misfit(stages, pieces) + prices, _misfit(stages, shaped) + shape_prices + more_prices]
    whole = max(float(counts[0].sum()), 1.0)
    error = min(math.sqrt(stages[0].variance) / whole, 1.0)
    lattice = None if bounds is None else likeliest_lattice(stages, bounds, total, min(costs))
    if lattice is not None:
        edges = np.ceil((lattice.places[1:] + lattice.places[:-1]) / 2).astype(np.int64)
        ends = stages[0].first[:1], stages[0].last[-1:]
        first, last = np.append(ends[0], edges), np.append(edges, ends[1])
        return Marginal(first, last, lattice.masses, whole, error, lattice.places)
    weight = 1 / (1 + math.exp(min(max((costs[1] - costs[0]) / 2, -50.0), 50.0)))
    mixed = [(1 - weight) * one + weight * two for one, two in zip(pieces, shaped, strict=True)]
    split = [np.isin(np.arange(len(own)), owners) for own, owners in zip(mixed, [*parents, np.empty(0)], strict=True)]
    first, last, leaves = (
        np.concatenate([array[~done] for array, done in zip(arrays, split, strict=True)])
        for arrays in ([stage.first for stage in stages], [stage.last for stage in stages], mixed)
    )
    leaves = np.where((leaves * whole < 0.5) & (leaves < leaves.max() / 100), 0.0, leaves)  # below half a value is none
    order = np.argsort(first)
    return Marginal(first[order], last[order], leaves[order] / leaves.sum(), whole, error)


def _combined(
    stages: Sequence[Counted], parents: Sequence[Integers], total: float | None
) -> tuple[list[Floats], list[Floats]]:
    """Counts of all stages by generalised least squares, in which parts add up to their cell, and their variances.

    The variance of a part is that before its sum was adjusted.
    """
    counts = [stage.counts.astype(np.float64) for stage in stages]
    variances = [np.full(len(stage.counts), float(stage.variance)) for stage in stages]
    for level in range(len(stages) - 1, 0, -1):
        own, size = parents[level - 1], len(counts[level - 1])
        split = np.bincount(own, minlength=size) > 0
        sums, doubts = np.bincount(own, counts[level], size)[split], np.bincount(own, variances[level], size)[split]
        above = variances[level - 1][split]
        counts[level - 1][split] = (counts[level - 1][split] * doubts + sums * above) / (above + doubts)
        variances[level - 1][split] = above * doubts / (above + doubts)
    if total is not None:
        counts[0] = counts[0] + (total - counts[0].sum()) * variances[0] / variances[0].sum()
    for level in range(1, len(stages)):
        own, size = parents[level - 1], len(counts[level - 1])
        missing = counts[level - 1] - np.bincount(own, counts[level], size)
        share = variances[level] / np.bincount(own, variances[level], size)[own]
        counts[level] = counts[level] + share * missing[own]
    return counts, variances


def _described(
    stages: Sequence[Counted],
    parents: Sequence[Integers],
    counts: Sequence[Floats],
    variances: Sequence[Floats],
    shape: Sequence[Floats] | None,
) -> tuple[list[Floats], float]:
    """Masses of all cells by pieces alone or by a shape and pieces that differ from it, and the price of the pieces.

    A split cell keeps its mass; if nothing tells its parts apart they have that of the shape, or equal densities.
    """
    masses: list[Floats] = []
    prices = 0.0
    for level, stage in enumerate(stages):
        owners = parents[level - 1] if level else np.zeros(len(stage.counts), dtype=np.int64)
        fitted = np.empty(len(stage.counts))
        for owner in np.unique(owners):
            family = owners == owner
            widths = (stage.last - stage.first)[family].astype(np.float64)
            expected = np.zeros(len(widths))
            if shape is not None and shape[level][family].any():
                expected = max(counts[level][family].sum(), 0.0) * shape[level][family] / shape[level][family].sum()
            part, price = _pieces(counts[level][family], expected, widths, variances[level][family], stage)
            part = part if part.any() else widths
            fitted[family] = (masses[level - 1][owner] if level else 1.0) * part / part.sum()
            prices += price
        masses.append(fitted)
    return masses, prices


def _misfit(stages: Sequence[Counted], masses: Sequence[Floats]) -> float:
    """Squared errors of all released counts, in variances, about masses times their likeliest total."""
    against = sum(float(stage.counts @ mass) / stage.variance for stage, mass in zip(stages, masses, strict=True))
    square = sum(float(mass @ mass) / stage.variance for stage, mass in zip(stages, masses, strict=True))
    all_squares = sum(float(stage.counts @ stage.counts) / stage.variance for stage in stages)
    return all_squares - max(against, 0.0) ** 2 / max(square, 1e-300)


def _likeliest_shape(stages: Sequence[Counted], masses: Sequence[Floats]) -> tuple[list[Floats], float]:
    """Masses of all cells under the likeliest law with one mode and two spreads, and the price of its three numbers."""
    first, last = stages[0].first, stages[0].last
    middles = (first + last) / 2
    mean = float(masses[0] @ middles)
    spread = math.sqrt(float(masses[0] @ ((middles - mean) ** 2 + (last - first) ** 2 / 12)))
    ends = [np.where(stage.first == first[0], -np.inf, stage.first) for stage in stages]
    others = [np.where(stage.last == last[-1], np.inf, stage.last) for stage in stages]

    def laws(shape: Callable[[Floats], Floats], numbers: Floats) -> list[Floats]:
        mode, left, right = numbers[0], *np.exp(np.clip(numbers[1:], -30.0, 30.0))
        low = left / (left + right)

        def below(places: Floats) -> Floats:
            away = places - mode
            sides = 2 * low * shape(away / left), 1 - 2 * (1 - low) * shape(-away / right)
            return np.asarray(np.where(away < 0, *sides), dtype=np.float64)

        return [np.maximum(below(high) - below(low_end), 0.0) for low_end, high in zip(ends, others, strict=True)]

    start = np.array([mean, math.log(spread), math.log(spread)])
    simplex = start + np.array([[0.0, 0.0, 0.0], [spread, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]])
    options = {"initial_simplex": simplex, "fatol": 0.01, "xatol": 0.01 * spread, "maxfev": 300}
    fits = []
    for shape in (scipy.special.ndtr, _laplace_below):
        fit = scipy.optimize.minimize(
            lambda x, s=shape: _misfit(stages, laws(s, x)), start, method="Nelder-Mead", options=options
        )
        fits.append((float(fit.fun), laws(shape, fit.x)))
    return min(fits, key=itemgetter(0))[1], float(stages[0].price(PIECE)[0]) + 2 * SPREAD_PRICE


def _laplace_below(places: Floats) -> Floats:
    """Chance that a standard Laplace number is below places, which are negative where it matters."""
    return np.asarray(np.exp(np.minimum(places, 0.0)) / 2)


def _pieces(
    counts: Floats, expected: Floats, widths: Floats, variances: Floats, stage: Counted
) -> tuple[Floats, float]:
    """Counts fitted by what is expected plus pieces of equal density, and the sum of the prices of the pieces.

    The fit has the least squared error (in variances) plus prices, by an exact dynamic program over the last piece.
    Inside of a piece, counts are shrunk to equal density by the factor of James and Stein.
    """
    size = len(counts)
    prices = stage.price(PIECE)[:size]
    length = np.append(0.0, np.cumsum(widths**2 / variances))
    height = np.append(0.0, np.cumsum(widths * (counts - expected) / variances))
    least = np.append(0.0, np.cumsum(widths * expected / variances))  # no piece may take more than is expected
    best, start = np.zeros(size + 1), np.full(size + 1, -1)
    for end in range(1, size + 1):
        heights = np.maximum(height[end] - height[:end], least[:end] - least[end])
        before = best[:end] + heights**2 / (length[end] - length[:end]) - prices[end - 1 :: -1]
        begin = int(before.argmax())
        best[end] = max(before[begin], best[end - 1])
        start[end] = begin if before[begin] > best[end - 1] else -1  # -1: no piece ends here
    fitted, paid, end = expected.copy(), 0.0, size
    while end > 0:
        begin = int(start[end])
        if begin >= 0:
            piece, cells = slice(begin, end), end - begin
            even = expected[piece] + widths[piece] * (height[end] - height[begin]) / (length[end] - length[begin])
            residual = counts[piece] - even
            misfit = float((residual**2 / variances[piece]).sum())
            shrunk = np.maximum(even + max(0.0, 1 - max(cells - 3, 0) / max(misfit, 1e-300)) * residual, 0.0)
            fitted[piece] = shrunk * max(even.sum(), 0.0) / max(shrunk.sum(), 1e-300)
            paid += float(prices[cells - 1])
        end = begin if begin >= 0 else end - 1
    return fitted, paid
