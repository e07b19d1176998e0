"""The marginal law of the values, from released histograms: post-processing of noisy counts.

A histogram is released top-down: a few wide cells first, then parts of the cells whose counts are clearly above the
noise. One price decides what is clear. Counts are described by pieces of equal density; cells outside of every piece
are empty and cost nothing, and each piece costs ln(10 cells)^2 / 2 in units of the squared error over its variance. A
single count pays for a piece if it exceeds b ln(10 cells), with b the scale of Laplace noise: noise alone does so
anywhere in a histogram with chance one in twenty at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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

    @property
    def price(self) -> float:
        """The squared error, in variances, that a piece of equal density must explain."""
        return math.log(10 * max(len(self.counts), 1)) ** 2 / 2


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
    """

    first: Integers
    last: Integers
    masses: Floats
    total: float
    error: float

    @property
    def steps(self) -> int:
        """Steps from the middle of the bounds to either end."""
        return -int(self.first[0])

    def centred(self, steps: Floats | Integers) -> Floats:
        """Places on the scale where the bounds are -1 and 1."""
        return np.clip(np.asarray(steps, dtype=np.float64) / self.steps, -1.0, 1.0)

    def mean(self) -> float:
        """Mean on the centred scale."""
        return float(self.masses @ self.centred((self.first + self.last - 1) / 2))

    def std(self) -> float:
        """Standard deviation on the centred scale."""
        middles = self.centred((self.first + self.last - 1) / 2)
        within = ((self.last - self.first) / self.steps) ** 2 / 12
        return math.sqrt(float(self.masses @ ((middles - self.mean()) ** 2 + within)))

    def quantile(self, share: float | Floats) -> Floats:
        """The value below which this share of the mass lies, on the centred scale."""
        held = self.masses > 0
        below = np.concatenate(([0.0], np.cumsum(self.masses[held])))
        place = np.clip(np.asarray(share, dtype=np.float64), 0.0, 1.0) * below[-1]
        cell = np.clip(np.searchsorted(below, place, side="left") - 1, 0, int(held.sum()) - 1)
        inside = (place - below[cell]) / self.masses[held][cell]
        first, last = self.first[held][cell], self.last[held][cell]
        return self.centred(first + inside * (last - first))


def refined(released: Sequence[Counted], parts: int) -> tuple[Integers, Integers]:
    """The cells to count next: equal parts of those cells of the last histogram whose counts are clearly above noise.

    Cells of fewer steps than `parts` become single steps; single steps are not split.
    """
    latest = released[-1]
    clear = latest.counts**2 > latest.price * latest.variance
    clear &= (latest.counts > 0) & (latest.last - latest.first > 1)
    edges = [
        first + (last - first) * np.arange(n + 1) // n
        for first, last in zip(latest.first[clear].tolist(), latest.last[clear].tolist(), strict=True)
        for n in [min(parts, last - first)]
    ]
    if not edges:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate([edge[:-1] for edge in edges]), np.concatenate([edge[1:] for edge in edges])


def marginal_of(released: Sequence[Counted]) -> Marginal:
    """A consistent, non-negative estimate from the histograms of all stages.

    Counts of all stages are first combined by generalised least squares: from the last stage upwards, the count of a
    split cell and the sum of its parts are averaged with weights of one over their variances; downwards, what a cell
    then differs from the sum of its parts is divided among them. Pieces of equal density follow, cell by cell
    downwards, with the share of each part. The mass of a cell that was not split is spread evenly over it.
    """
    stages = [stage for stage in released if len(stage.counts)]
    parents = [np.searchsorted(above.first, below.first, side="right") - 1 for above, below in pairwise(stages)]
    counts = [stage.counts.astype(np.float64) for stage in stages]
    variances = [np.full(len(stage.counts), float(stage.variance)) for stage in stages]
    for level in range(len(stages) - 1, 0, -1):
        size = len(counts[level - 1])
        split = np.bincount(parents[level - 1], minlength=size) > 0
        sums = np.bincount(parents[level - 1], counts[level], size)[split]
        doubts = np.bincount(parents[level - 1], variances[level], size)[split]
        own = variances[level - 1][split]
        counts[level - 1][split] = (counts[level - 1][split] * doubts + sums * own) / (own + doubts)
        variances[level - 1][split] = own * doubts / (own + doubts)
    fitted = _pieces(counts[0], stages[0].last - stages[0].first, variances[0], stages[0].price)
    total = max(float(counts[0].sum()), float(fitted.sum()), 1.0)
    if fitted.sum() == 0:
        fitted = (stages[0].last - stages[0].first).astype(np.float64)
    first, last, masses = stages[0].first, stages[0].last, fitted
    for level in range(1, len(stages)):
        adjusted, below = counts[level].copy(), np.empty(len(counts[level]))
        for parent in np.unique(parents[level - 1]):
            own = parents[level - 1] == parent
            share = variances[level][own] / variances[level][own].sum()
            adjusted[own] += share * (counts[level - 1][parent] - adjusted[own].sum())
            widths = stages[level].last[own] - stages[level].first[own]
            piece = _pieces(adjusted[own], widths, variances[level][own], stages[level].price)
            piece = widths.astype(np.float64) if piece.sum() == 0 else piece
            below[own] = fitted[parent] * piece / piece.sum()
        counts[level], fitted = adjusted, below
        kept = ~np.isin(first, stages[level - 1].first[np.unique(parents[level - 1])])
        first, last = np.append(first[kept], stages[level].first), np.append(last[kept], stages[level].last)
        masses = np.append(masses[kept], fitted)
    order = np.argsort(first)
    error = min(math.sqrt(stages[0].variance) / total, 1.0)
    return Marginal(first[order], last[order], masses[order] / masses.sum(), total, error)


def _pieces(counts: Floats, widths: Integers, variances: Floats, price: float) -> Floats:
    """Counts fitted by pieces of equal density: the least squared error (in variances) plus a price per piece.

    Cells outside of pieces are empty. Inside of a piece, counts are shrunk to equal density by the factor of James and
    Stein. An exact dynamic program over the last piece.
    """
    size = len(counts)
    length = np.concatenate(([0.0], np.cumsum(widths**2 / variances)))
    height = np.concatenate(([0.0], np.cumsum(widths * counts / variances)))
    best, start = np.zeros(size + 1), np.zeros(size + 1, dtype=np.int64)
    for end in range(1, size + 1):
        gains = np.maximum(height[end] - height[:end], 0.0) ** 2 / (length[end] - length[:end]) - price
        before = best[:end] + gains
        before[end - 1] = max(before[end - 1], best[end - 1])
        start[end] = int(before.argmax())
        best[end] = before[start[end]]
    fitted, end = np.zeros(size), size
    while end > 0:
        begin = int(start[end])
        if best[end] > best[begin]:
            piece = slice(begin, end)
            even = widths[piece] * (height[end] - height[begin]) / (length[end] - length[begin])
            residual = counts[piece] - even
            misfit = float((residual**2 / variances[piece]).sum())
            shrunk = np.maximum(even + max(0.0, 1 - max(end - begin - 3, 0) / max(misfit, 1e-300)) * residual, 0.0)
            fitted[piece] = shrunk * even.sum() / shrunk.sum()
        end = begin
    return fitted
