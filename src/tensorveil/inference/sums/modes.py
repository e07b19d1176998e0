"""Mean and offsets of all modes given noisy weighted sums of every index of every mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.priors import FEATURE_VARIANCE, MEAN_VARIANCE, OFFSET_VARIANCE
from tensorveil.inference.sums.degree_features import degree_features
from tensorveil.inference.sums.mixed_model import Effect, SumsPosterior
from tensorveil.models.offsets import Offsets

Floats = NDArray[np.float64]


def offsets_of_sums(
    released: Floats,
    variance: float,
    weights: Sequence[Floats],
    coordinates: NDArray[np.uint32],
    shape: tuple[int, ...],
    features: Mapping[int, Floats],
    residual: float,
    slope: float = 1.0,
    mean: float | None = None,
) -> Offsets:
    """Mean and offsets given the released sums.

    Parameters
    ----------
    released : the sums of every mode, one mode after the other; before them the total, where it is released
    variance : of the noise on each
    weights : of every observation in the total, where it is released, and in the sums of each mode
    coordinates, shape : where values were observed
    features : by mode, one row per index
    residual : the variance of what is summed around the offsets
    slope : how far a shift of values by one, on the centred scale, moves what is summed
    mean : the mean of the values, if it is known more precisely than from the sums
    """
    from scipy import sparse

    count = len(coordinates)
    entries = np.arange(count)
    rows = [coordinates[:, mode].astype(np.int64) for mode in range(len(shape))]
    with_total = len(weights) > len(shape)
    reading = sparse.vstack(
        [
            sparse.csr_matrix((weight, (row, entries)), shape=(size, count))
            for weight, row, size in zip(
                weights,
                [np.zeros(count, dtype=np.int64), *rows] if with_total else rows,
                (1, *shape) if with_total else shape,
                strict=True,
            )
        ]
    ).tocsr()  # A: the sums are A y
    effects = {"mean": Effect(np.asarray(reading.sum(axis=1)), MEAN_VARIANCE * slope**2, fitted=False)}
    links: list[dict[str, Floats]] = degree_features(coordinates, shape)
    for mode, size in enumerate(shape):
        index = sparse.csr_matrix((np.ones(count), (entries, rows[mode])), shape=(count, size))
        design = (reading @ index).tocsr()
        effects[f"offsets {mode}"] = Effect(design, OFFSET_VARIANCE * slope**2, group=mode)
        if mode in features:
            links[mode]["given"] = features[mode]
        for name, columns in links[mode].items():
            effects[f"{name} {mode}"] = Effect(np.asarray(design @ columns), FEATURE_VARIANCE * slope**2, group=mode)
    noise = np.full(len(released), variance)
    posterior = SumsPosterior(released, noise, (reading @ reading.T).tocsr(), residual, effects).coefficients
    parts = []
    for mode in range(len(shape)):
        whole = posterior[f"offsets {mode}"]
        for name, columns in links[mode].items():
            whole = whole + columns @ posterior[f"{name} {mode}"]
        parts.append(whole / slope)
    if mean is None:
        return Offsets(float(posterior["mean"][0]), parts)
    # the mean of what a window reads of values is not that of the values
    middles = [float(part[row].mean()) if count else 0.0 for part, row in zip(parts, rows, strict=True)]
    return Offsets(mean - math.fsum(middles), parts)
