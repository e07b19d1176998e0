"""Mean, offsets and effects of groups given noisy sums and counts of the indices of one mode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.priors import FEATURE_VARIANCE, MEAN_VARIANCE, OFFSET_VARIANCE
from tensorveil.inference.sums.counts import believed_counts
from tensorveil.inference.sums.groups import group_effects
from tensorveil.inference.sums.mixed_model import Effect, SumsPosterior

Floats = NDArray[np.float64]

MEAN_ERROR_VARIANCE = 0.01  # of the mean, after a noisy level was subtracted
TASTE_VARIANCE = OFFSET_VARIANCE / 3  # of what an index does to one group and not to all
PAIR_ROUNDS = 20  # of fitting variances, for one mode at a time


@final
@dataclass(frozen=True)
class ModeOffsets:
    """Estimates from the sums and counts of a mode: offsets on the centred scale, with weighted mean zero, and counts.

    `sizes` are the counts, but at least half of their noise, so that their logarithms exist.
    """

    offsets: Floats
    counts: Floats
    sizes: Floats


def mean_of_pairs(pairs: NoisySums) -> float:
    """The mean on the centred scale given a noisy sum and count, shrunk to the middle if the noise dominates."""
    count = max(float(pairs.counts[0]), math.sqrt(pairs.count_variance), 1.0)
    trust = 1 / (1 + pairs.sum_variance / (MEAN_VARIANCE * count**2))
    return min(max(trust * float(pairs.sums[0]) / count, -1.0), 1.0)


def offsets_of_pairs(
    pairs: NoisySums, features: Floats | None, slope: float, weight: float, residual: float
) -> ModeOffsets:
    """Offsets given the noisy sums and counts of one mode.

    Parameters
    ----------
    slope : how far a shift of values by one, on the centred scale, moves what is summed
    weight : what one observation typically adds to a count; below 1 it is a guess, and the residual variance is fitted
    residual : the variance of what is summed around the offsets
    """
    from scipy import sparse

    counts, uncertain = believed_counts(pairs.counts, pairs.count_variance)
    unit = slope**2  # generic variances are of centred values
    noise = pairs.sum_variance + OFFSET_VARIANCE * unit * uncertain
    sizes = np.maximum(counts, max(math.sqrt(pairs.count_variance) / 2, 1e-9))
    logs = np.log(sizes)[:, None]
    spread = float(logs.std())
    groups = {"log counts": logs / spread} if spread > 1e-9 else {}
    if features is not None:
        groups["given"] = features
    shares = counts / max(float(counts.sum()), 1e-300)
    groups = {name: group - shares @ group for name, group in groups.items()}  # so that the mean is that of values
    effects = {
        "mean": Effect(counts[:, None], MEAN_ERROR_VARIANCE * unit, fitted=False),
        "offsets": Effect(sparse.diags(counts).tocsr(), OFFSET_VARIANCE * unit, group=0),
    }
    for name, group in groups.items():
        effects[name] = Effect(counts[:, None] * group, FEATURE_VARIANCE * unit, group=0)
    overlap = sparse.diags(counts * weight).tocsr()
    posterior = SumsPosterior(pairs.sums, noise, overlap, residual, effects, PAIR_ROUNDS, fit_residual=weight < 1)
    whole = posterior.coefficients["offsets"]
    for name, group in groups.items():
        whole = whole + group @ posterior.coefficients[name]
    offsets = np.clip(whole / slope, -1.0, 1.0)
    return ModeOffsets(offsets - shares @ offsets, counts, sizes)


def both_passes(first: NoisySums, second: NoisySums, between: Floats, slope: float) -> NoisySums:
    """Sums of two passes as one with half the noise; the second is of residuals after the offsets `between` them."""
    counts = (first.counts + second.counts) / 2
    likely, _ = believed_counts(counts, first.count_variance / 2)
    sums = (first.sums + second.sums + likely * slope * between) / 2
    return NoisySums(sums, counts, first.sum_variance / 2, first.count_variance / 2)


def effects_of_groups(pairs: NoisySums, number: int, slope: float, residual: float) -> Floats:
    """The effect of each index of a mode on each group of indices of another mode, on the centred scale.

    `pairs` has `number` rows per index, one per group. If the effects are not significant, all are zero.
    """
    sums = pairs.sums.reshape(-1, number)
    if not offsets_of_pairs(pairs, None, slope, 1.0, residual).offsets.any():
        return np.zeros(sums.shape)
    counts, uncertain = (part.reshape(sums.shape) for part in believed_counts(pairs.counts, pairs.count_variance))
    unit = slope**2
    noise = pairs.sum_variance + OFFSET_VARIANCE * unit * uncertain
    deviations = sums - counts * (sums.sum() / max(float(counts.sum()), 1e-300))
    effects = group_effects(deviations, counts, noise, residual, OFFSET_VARIANCE * unit, TASTE_VARIANCE * unit)
    return np.asarray(np.clip(effects / slope, -1.0, 1.0))
