"""Floors and plain baselines: the mean, the private mean, offsets with and without privacy, and peers.

Noise of the baselines comes from NumPy's generator with a seed: they are errors to compare with, not releases.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorveil as tv
from accuracies.halves import Floats, Halves

Indices = NDArray[np.uint32]

PUBLISHED = ("input", "gradient", "output")
OFFSET_SPREAD, VALUE_SPREAD = 1 / 8, 1 / 4  # of the bounds' width: the prior of offsets, and a guess of values' spread
OFFSET_PASSES = 10
DP_SGD_DELTA = 1e-6


def exact_mean(data: Halves) -> Floats:
    """The mean of the train half."""
    return np.full(len(data.where), data.train.values.mean())


def private_mean(data: Halves, unit: str, epsilon: float, seed: int) -> Floats:
    """The mean with Laplace noise.

    Under `value` the count is public and the sum moves by the width. Under `entry` sum and count get half the budget
    each. Under `slice` every slice gives its own mean, and the sum of these and the number of slices get half each.
    """
    noise = np.random.default_rng(seed)
    low, high = data.bounds.low, data.bounds.high
    middle, half = (low + high) / 2, (high - low) / 2
    centred = (np.clip(data.train.values, low, high) - middle) / half
    kind, _, mode = unit.partition(":")
    if kind == "value":
        mean = (centred.sum() + noise.laplace(0, 2 / epsilon)) / len(centred)
    else:
        if kind == "slice":
            slices = data.train.coordinates[:, _mode_number(data, mode)]
            counts = np.bincount(slices)
            centred = np.bincount(slices, centred)[counts > 0] / counts[counts > 0]
        total, count = centred.sum() + noise.laplace(0, 2 / epsilon), len(centred) + noise.laplace(0, 2 / epsilon)
        mean = total / max(count, 1.0)
    return np.full(len(data.where), middle + half * float(np.clip(mean, -1, 1)))


def _mode_number(data: Halves, mode: str) -> int:
    return int(mode) if mode.isdecimal() else data.train.mode_names.index(mode)


def exact_offsets(data: Halves) -> Floats:
    """A mean and an offset of every index, by ridge regression, without privacy."""
    spread = float(data.train.values.var())
    return _offsets(data, float(data.train.values.mean()), _sums, spread / 4, spread, 0.0, OFFSET_PASSES)


def private_offsets(data: Halves, unit: str, epsilon: float, seed: int) -> Floats:
    """The same in one pass, from the private mean and sums with Laplace noise, for `value` and `entry`.

    Every mode and the mean get the same share of epsilon. Under `value` a sum of residuals within half the width moves
    by the width; under `entry` by half the width, and half the share pays for the counts: the scales are the same.
    """
    noise = np.random.default_rng(seed)
    share = epsilon / (1 + len(data.train.shape))
    width = data.bounds.high - data.bounds.low
    scale = width / share

    def noisy(residuals: Floats, indices: Indices, size: int) -> tuple[Floats, Floats]:
        sums, counts = _sums(np.clip(residuals, -width / 2, width / 2), indices, size)
        if unit == "entry":
            counts = np.maximum(counts + noise.laplace(0, 2 / share, size), 0.0)
        return sums + noise.laplace(0, scale, size), counts

    mean = float(private_mean(data, unit, share, seed)[0])
    prior, spread = (OFFSET_SPREAD * width) ** 2, (VALUE_SPREAD * width) ** 2
    return _offsets(data, mean, noisy, prior, spread, 2 * scale**2, 1)


def _sums(residuals: Floats, indices: Indices, size: int) -> tuple[Floats, Floats]:
    sums = np.bincount(indices, residuals, size).astype(np.float64)
    return sums, np.bincount(indices, minlength=size).astype(np.float64)


def _offsets(
    data: Halves,
    mean: float,
    sums: Callable[[Floats, Indices, int], tuple[Floats, Floats]],
    prior: float,
    spread: float,
    noise: float,
    passes: int,
) -> Floats:
    """Offsets of mode after mode from sums and counts of residuals: posterior means, given these variances."""
    train = data.train
    modes = [np.zeros(size) for size in train.shape]
    for _ in range(passes):
        for mode, size in enumerate(train.shape):
            others = sum(modes[other][train.coordinates[:, other]] for other in range(len(modes)) if other != mode)
            totals, counts = sums(train.values - mean - others, train.coordinates[:, mode], size)
            modes[mode] = totals * counts * prior / (counts**2 * prior + np.maximum(counts, 1.0) * spread + noise)
    return np.asarray(mean + sum(modes[mode][data.where[:, mode]] for mode in range(len(modes))))


def dp_sgd(data: Halves, epsilon: float, seed: int) -> Floats:
    """Clipped gradients with Gaussian noise: no offsets, no posterior."""
    mechanism = tv.GradientPerturbation()
    release = tv.complete(
        data.train, tv.CP(3), data.bounds, "value", epsilon, DP_SGD_DELTA, mechanism=mechanism, seed=seed
    )
    return release.predict(data.where)


def paper(data: Halves, preset: str, seed: int) -> Floats:
    """The paper's CP completion by SGD, without privacy."""
    sgd = tv.SGD.preset(preset)
    return _scaled(data, lambda train: sgd.solve(train, tv.CP(3), seed=seed).model)


def published(data: Halves, name: str, preset: str, epsilon: float, seed: int) -> Floats:
    """One of the paper's algorithms as printed; its guarantee is claimed, not proven."""
    sgd = tv.SGD.preset(preset)
    mechanism = getattr(tv.published, f"Published{name.capitalize()}")()
    try:
        return _scaled(data, lambda train: mechanism.run(train, tv.CP(3), epsilon, sgd, seed=seed).model)
    except tv.DivergenceError:
        return np.full(len(data.where), data.bounds.high)  # as bad as a constant can be


def _scaled(data: Halves, solve: Callable[[tv.Observations], Any]) -> Floats:
    """Solved on values scaled to [0, 1], as the paper does, and predicted on their own scale."""
    low, width = data.bounds.low, data.bounds.high - data.bounds.low
    model = solve(data.train.with_values((data.train.values - low) / width))
    return np.asarray(low + width * model.predict(data.where))


def svdpp(data: Halves, seed: int) -> Floats:
    """Surprise's SVD++ of a matrix, without privacy."""
    import pandas as pd
    import surprise

    users, items = data.train.coordinates.T
    frame = pd.DataFrame({"user": users, "item": items, "rating": data.train.values})
    scale = surprise.Reader(rating_scale=(data.bounds.low, data.bounds.high))
    train = surprise.Dataset.load_from_df(frame, scale).build_full_trainset()
    solver = surprise.SVDpp(random_state=seed).fit(train)
    return np.array([solver.predict(int(user), int(item)).est for user, item in data.where])


def left_out() -> list[str]:
    """Sentences that name the peers that are not installed."""
    return [] if find_spec("surprise") else ["left out: Surprise (SVD++) is not installed: pip install scikit-surprise"]
