"""Synthetic tensors of many kinds from one generator.

A latent tensor of unit variance is the sum of offsets, a low-rank part and noise. A value is the latent number itself,
or its exponential, cut into stars or whole counts, with zeros mixed in. Cells are missing at random, or more often in
some rows than in others. Bounds follow from the law of the generator, never from the numbers that it drew.

The data of the report and those of development are drawn by different seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

import tensorveil as tv
from accuracies.halves import Floats, Halves

REPORT_SEEDS = 1_000  # the first seed of the report; those of development begin at 0
LATENT_END = 4.0  # standard deviations of the latent law at which it is clipped, and to which bounds reach
OFFSET_SHARE = 0.4  # of the signal's variance; the rest is the low-rank part
MOST_TEST_CELLS = 20_000
ROW_SPREAD = 1.0  # standard deviation of the log weight of a row, where cells are missing by rows


@dataclass(frozen=True)
class Kind:
    """One kind of tensor.

    Attributes
    ----------
    shape : tuple of int
    seen : share of all cells in the train half
    signal : share of the latent variance that offsets and factors explain
    rank : of the low-rank part
    skew : standard deviation of the logarithm of a value (lognormal); 0 for the latent number itself
    zeros : share of zeros that are mixed in; where they are follows a low-rank law too
    stars : number of levels 1, 2, ... of equal probability; 0 for none
    counts : mean scale of whole counts: values are multiplied by it and rounded down; 0 for none
    by_rows : cells are missing by rows, so that some indices have many observations and others hardly any
    """

    shape: tuple[int, ...]
    seen: float
    signal: float = 0.5
    rank: int = 3
    skew: float = 0.0
    zeros: float = 0.0
    stars: int = 0
    counts: float = 0.0
    by_rows: bool = False

    @property
    def bounds(self) -> tv.Bounds:
        """The public range that the law of the generator suggests."""
        if self.stars:
            return tv.Bounds(1, self.stars)
        if not self.skew:
            return tv.Bounds(-LATENT_END, LATENT_END)
        most = math.exp(self.skew * LATENT_END)
        return tv.Bounds(0, math.ceil(self.counts * most) if self.counts else most)

    def draw(self, seed: int) -> Halves:
        """Train and test half of one tensor; the test half is a random part of the other cells."""
        generator = np.random.default_rng(seed)
        values = self._values(generator)
        weights = np.ones(self.shape)
        if self.by_rows:
            for mode, size in enumerate(self.shape):
                weights *= _along(mode, len(self.shape), generator.lognormal(0, ROW_SPREAD, size))
        # the cells with the largest keys are seen: sampling without replacement by weights (Efraimidis and Spirakis)
        order = np.argsort(np.log(generator.random(values.size)) / weights.ravel())[::-1]
        count = round(self.seen * values.size)
        seen = np.sort(order[:count])
        other = np.sort(generator.permutation(order[count:])[:MOST_TEST_CELLS])
        train, test = (np.column_stack(np.unravel_index(cells, self.shape)) for cells in (seen, other))
        observed = tv.Observations(train, values.ravel()[seen], self.shape)
        return Halves(observed, test.astype(np.uint32), values.ravel()[other], self.bounds)

    def _values(self, generator: np.random.Generator) -> Floats:
        latent = self._latent(generator)
        if self.stars:
            return 1.0 + np.floor(self.stars * _ranks(latent))
        if not self.skew:
            return latent
        values = np.exp(self.skew * latent)
        if self.zeros:
            values[_ranks(self._latent(generator)) < self.zeros] = 0.0
        return np.floor(self.counts * values) if self.counts else values

    def _latent(self, generator: np.random.Generator) -> Floats:
        """Offsets, low-rank part and noise, with a variance of one together, clipped where the bounds end."""
        order = len(self.shape)
        offsets = np.zeros(self.shape)
        for mode, size in enumerate(self.shape):
            offsets += _along(mode, order, generator.standard_normal(size))
        factors = np.zeros(self.shape)
        for _ in range(self.rank):
            component = np.ones(self.shape)
            for mode, size in enumerate(self.shape):
                component *= _along(mode, order, generator.standard_normal(size))
            factors += component
        signal = math.sqrt(OFFSET_SHARE) * _standard(offsets) + math.sqrt(1 - OFFSET_SHARE) * _standard(factors)
        noise = generator.standard_normal(self.shape)
        latent = math.sqrt(self.signal) * signal + math.sqrt(1 - self.signal) * noise
        return np.asarray(np.clip(latent, -LATENT_END, LATENT_END))


def _along(mode: int, order: int, numbers: Floats) -> Floats:
    """The numbers as an array that broadcasts along one mode."""
    sizes = [1] * order
    sizes[mode] = -1
    return numbers.reshape(sizes)


def _standard(numbers: Floats) -> Floats:
    return np.asarray((numbers - numbers.mean()) / numbers.std())


def _ranks(numbers: Floats) -> Floats:
    """Ranks from 0 to below 1."""
    return numbers.ravel().argsort().argsort().reshape(numbers.shape) / numbers.size


KINDS = {
    "made even": Kind((30, 30, 30), 0.3),
    "made strong signal": Kind((40, 40, 40), 0.1, signal=0.95),
    "made no signal": Kind((100, 100), 0.3, signal=0.0),
    "made tiny": Kind((8, 7, 6), 0.5),
    "made order 4": Kind((20, 15, 12, 10), 0.2),
    "made matrix of stars": Kind((300, 200), 0.1, stars=5, by_rows=True),
    "made ten stars": Kind((200, 150, 10), 0.05, stars=10, by_rows=True),
    "made yes or no": Kind((150, 100, 5), 0.2, stars=2),
    "made skewed": Kind((60, 40, 24), 0.15, signal=0.7, skew=1.0),
    "made heavy tails": Kind((50, 40, 30), 0.15, signal=0.7, skew=1.5, by_rows=True),
    "made counts": Kind((80, 60, 20), 0.15, signal=0.7, skew=1.0, counts=3.0),
    "made counts with zeros": Kind((80, 60, 20), 0.15, signal=0.7, skew=1.0, zeros=0.4, counts=5.0, by_rows=True),
    "made long": Kind((20, 20, 400), 0.1, signal=0.9, rank=5, skew=0.7, counts=20.0),
}


def cube(seed: int) -> Halves:
    """The paper's 100 x 100 x 100 CP tensor of rank 3, half observed, as much noise as signal in variance.

    Errors are taken against the truth, as a fraction of its standard deviation.
    """
    data = tv.synthetic.observe(
        tv.synthetic.cp_tensor((100,) * 3, 3, seed=seed), snr_kind="variances", seed=10_000 + seed
    )
    where = data.test.coordinates
    chosen = np.sort(np.random.default_rng(seed).choice(len(where), MOST_TEST_CELLS, replace=False))
    where, measured = where[chosen], data.test.values[chosen]
    bounds = tv.Bounds(-0.5, 1.5)  # of the generator's law
    return Halves(data.train, where, measured, bounds, data.truth_at(where), float(data.truth.std()))


def report_seed(seed: int, development: bool) -> int:
    """The seed of the data of a run: those of the report are never those of development."""
    return seed if development else REPORT_SEEDS + seed
