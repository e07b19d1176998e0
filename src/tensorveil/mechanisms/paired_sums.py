"""Sums and counts of the indices of one mode where existence is private: their release, and offsets given them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.counts import believed_counts
from tensorveil.inference.groups import group_effects
from tensorveil.inference.sums import Effect, SumsPosterior
from tensorveil.mechanisms.noisy_sums import noisy_totals, slice_weights, sums_sensitivity, whole_sums
from tensorveil.mechanisms.planning.information import (
    FEATURE_VARIANCE,
    OFFSET_VARIANCE,
    RESIDUAL_VARIANCE,
    declared_count,
)
from tensorveil.mechanisms.private_offsets import RowSums
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WEIGHT_MARGIN = 1 - 2.0**-20  # more than rounding adds to normalised weights
MEAN_VARIANCE = 0.01  # of what clipping and the noise of the level leave of the mean, on the centred scale
TASTE_VARIANCE = OFFSET_VARIANCE / 3  # of what an index does to one group and not to all
PAIR_ROUNDS = 20  # of fitting variances, for one mode at a time
COUNT_PART = 0.4  # what an observation of a slice adds to a count, against at most 1 to a sum


@final
@dataclass(frozen=True)
class Found:
    """What sums and counts of a mode tell: offsets on the centred scale, zero on average over counts, and counts.

    `sizes` are the counts, nowhere below half the noise on them, so that they have logarithms.
    """

    offsets: Floats
    counts: Floats
    sizes: Floats


def release_pairs(
    data: BoundedObservations, read: Floats, rows: Integers, size: int, event: Event, noise: NoiseSource
) -> RowSums:
    """Sums of a (1 + r)/2 and a (1 - r)/2 for every row, with noise: sums and counts together."""
    weights = slice_weights(data, rows, isinstance(event, PureEvent))
    halves = [weights * (1 + sign * read) / 2 for sign in (1.0, -1.0)]  # [L8] at least 0, together at most a
    pairs = np.concatenate([whole_sums(rows, half, size) for half in halves])
    released, variance = noisy_totals(noise, event, pairs, sums_sensitivity(data.unit))  # [L9]
    return RowSums(released[:size] - released[size:], released[:size] + released[size:], 2 * variance, 2 * variance)


def release_lengths(data: BoundedObservations, read: Floats, mode: int, event: Event, noise: NoiseSource) -> RowSums:
    """Sums of a r and of a COUNT_PART for every index, with Gaussian noise; each slice's own vector has length one.

    The weight a of a slice is one over the length of its own part in both, which reads its own observations alone: a
    slice whose residuals are small is heard better than through pairs.
    """
    rows, size = data.index(mode), data.shape[mode]
    slices, number = data.index(data.unit.mode_number), data.shape[data.unit.mode_number]
    _, place, counts = np.unique(slices * size + rows, return_inverse=True, return_counts=True)
    cells = np.bincount(place, weights=read)[place]  # what the slice adds to this row, for a = 1
    squares = cells**2 / counts[place] + COUNT_PART**2 * counts[place]  # a row's square, shared by its observations
    lengths = np.sqrt(np.bincount(slices, weights=squares, minlength=number))  # floats: whole numbers might overflow
    weights = WEIGHT_MARGIN / np.maximum(lengths, COUNT_PART)[slices]  # [L10]
    parts = [weights * read, weights * COUNT_PART]
    totals = np.concatenate([whole_sums(rows, part, size) for part in parts])
    released, variance = noisy_totals(noise, event, totals, sums_sensitivity(data.unit))  # [L9]
    return RowSums(released[:size], released[size:] / COUNT_PART, variance, variance / COUNT_PART**2)


def typical_weight(request: Request, event: Event) -> float:
    """A guess, from declared sizes, of the weight that an observation has in a sum."""
    if not request.unit.whole_slices:
        return 1.0
    each = max(declared_count(request) / request.shape[request.unit.mode_number], 1.0)
    if isinstance(event, PureEvent):
        return 1 / each
    return 1 / math.sqrt(each * (RESIDUAL_VARIANCE + COUNT_PART**2))


def offsets_of_pairs(pairs: RowSums, features: Floats | None, slope: float, weight: float, residual: float) -> Found:
    """Offsets given the noisy sums and counts of one mode (post-processing).

    Parameters
    ----------
    slope : how far a shift of values by one, on the centred scale, moves what is summed
    weight : what one observation typically adds to a count; below 1 it is a guess, and the residual variance is fitted
    residual : the variance of what offsets leave of what is summed
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
        "mean": Effect(counts[:, None], MEAN_VARIANCE * unit, fitted=False),
        "offsets": Effect(sparse.diags(counts).tocsr(), OFFSET_VARIANCE * unit, group=0),
    }
    for name, group in groups.items():
        effects[name] = Effect(counts[:, None] * group, FEATURE_VARIANCE * unit, group=0)
    overlap = sparse.diags(counts * weight).tocsr()
    found = SumsPosterior(pairs.sums, noise, overlap, residual, effects, PAIR_ROUNDS, fit_residual=weight < 1)
    whole = found.coefficients["offsets"]
    for name, group in groups.items():
        whole = whole + group @ found.coefficients[name]
    offsets = np.clip(whole / slope, -1.0, 1.0)
    return Found(offsets - shares @ offsets, counts, sizes)


def both_passes(first: RowSums, second: RowSums, between: Floats, slope: float) -> RowSums:
    """Sums of two passes as one with half the noise; the second was of what the offsets `between` them left."""
    counts = (first.counts + second.counts) / 2
    believed, _ = believed_counts(counts, first.count_variance / 2)
    sums = (first.sums + second.sums + believed * slope * between) / 2
    return RowSums(sums, counts, first.sum_variance / 2, first.count_variance / 2)


def effects_of_groups(pairs: RowSums, number: int, slope: float, residual: float) -> Floats:
    """What each index of a mode does to each group of another mode's indices, on the centred scale.

    `pairs` has `number` rows an index, one a group. Where the sums show no sign of effects, there are none.
    """
    sums = pairs.sums.reshape(-1, number)
    if not offsets_of_pairs(pairs, None, slope, 1.0, residual).offsets.any():
        return np.zeros(sums.shape)
    counts, uncertain = (part.reshape(sums.shape) for part in believed_counts(pairs.counts, pairs.count_variance))
    unit = slope**2
    noise = pairs.sum_variance + OFFSET_VARIANCE * unit * uncertain
    left = sums - counts * (sums.sum() / max(float(counts.sum()), 1e-300))
    effects = group_effects(left, counts, noise, residual, OFFSET_VARIANCE * unit, TASTE_VARIANCE * unit)
    return np.asarray(np.clip(effects / slope, -1.0, 1.0))
