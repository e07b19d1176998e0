"""Offsets of one mode from noisy sums per index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.inference.priors import LEVELLED_VARIANCE
from tensorveil.models.offsets import Offsets

LARGEST_OFFSET_VARIANCE = 1 / 9


@final
@dataclass(frozen=True)
class NoisySums:
    """Released sums of one mode: of residuals, of weights, and the variances of their noise.

    `weight` is the typical weight of an observation.
    """

    sums: Floats
    counts: Floats
    sum_variance: float
    count_variance: float
    weight: float = 1.0

    @classmethod
    def of_pairs(cls, released: Floats, variance: float) -> NoisySums:
        """Sums and counts from sums of (1 + r)/2 for all indices, then of (1 - r)/2."""
        upper, lower = np.split(released, 2)
        return cls(upper - lower, upper + lower, 2 * variance, 2 * variance)

    @classmethod
    def of_counts(cls, released: Floats, variance: float, count_part: float) -> NoisySums:
        """Sums and counts from sums for all indices, then counts, of which each observation adds `count_part`."""
        sums, counts = np.split(released, 2)
        return cls(sums, counts / count_part, variance, variance / count_part**2)

    def scaled(self, factor: float) -> NoisySums:
        """The same with all residuals times a factor."""
        return replace(self, sums=factor * self.sums, sum_variance=factor**2 * self.sum_variance)

    def averaged(self, other: NoisySums, between: Floats) -> NoisySums:
        """Sums of two passes as one with half the noise; only these are of residuals after `between`."""
        counts = (self.counts + other.counts) / 2
        sums = (self.sums + np.maximum(counts, 0.0) * between + other.sums) / 2
        return NoisySums(
            sums, counts, (self.sum_variance + other.sum_variance) / 4, self.count_variance / 2, self.weight
        )

    def joined(self, number: int) -> NoisySums:
        """The sums of every `number` rows together."""
        sums, counts = (part.reshape(-1, number).sum(axis=1) for part in (self.sums, self.counts))
        return NoisySums(sums, counts, number * self.sum_variance, number * self.count_variance, self.weight)


def add_offsets(offsets: Offsets, mode: int, released: NoisySums, with_mean: bool) -> Offsets:
    """Offsets with one more mode: the posterior mean of each, given its noisy sum.

    A sum is N b + e with b ~ N(0, s^2) and e of variance N sigma^2 + noise; s^2 is found by moments.
    """
    counts = np.maximum(released.counts, 0.0)
    mean = 0.0
    if with_mean:
        total = released.counts.sum()
        uncertain = np.sqrt(len(counts) * released.count_variance)
        mean = float(np.clip(released.sums.sum() / max(total, 2 * uncertain, 1.0), -1.0, 1.0))
    deviations = released.sums - counts * mean
    spread = counts * LEVELLED_VARIANCE + released.sum_variance + mean**2 * released.count_variance
    signal = float(
        np.clip((deviations**2 - spread).sum() / max((counts**2).sum(), 1e-12), 0.0, LARGEST_OFFSET_VARIANCE)
    )
    values = np.clip(signal * counts * deviations / (signal * counts**2 + spread), -1.0, 1.0)
    return Offsets(offsets.mean + mean, offsets.with_mode(mode, values).modes)
