"""Mean and offsets given noisy sums of all modes."""

import numpy as np
import pytest
from tensorveil.inference.sums.modes import offsets_of_sums

SHAPE = (30, 25)


def additive(seed=0):
    rng = np.random.default_rng(seed)
    effects = [rng.normal(0, 0.2, size) for size in SHAPE]
    where = np.argwhere(np.ones(SHAPE)).astype(np.uint32)
    return where, 0.3 + sum(effect[where[:, mode]] for mode, effect in enumerate(effects))


def sums_of(where, values, weights, with_total):
    """The sums, index by index."""
    parts = [[(weights[0] * values).sum()]] if with_total else []
    for mode, size in enumerate(SHAPE):
        weight = weights[mode + with_total]
        parts.append([(weight * values)[where[:, mode] == index].sum() for index in range(size)])
    return np.concatenate(parts)


@pytest.mark.parametrize("with_total", [True, False])
@pytest.mark.parametrize("slope, mean", [(1.0, None), (2.0, 0.3)])
def test_with_little_noise_sums_tell_an_additive_tensor(slope, mean, with_total):
    where, values = additive()
    rng = np.random.default_rng(1)
    weights = [rng.uniform(0.2, 0.5, len(where)) for _ in range(len(SHAPE) + with_total)]
    middle = 0.0 if mean is None else values.mean()
    released = sums_of(where, slope * (values - middle), weights, with_total)
    known = None if mean is None else float(values.mean())
    offsets = offsets_of_sums(released, 1e-8, weights, where, SHAPE, {}, 1e-8, slope, known)
    np.testing.assert_allclose(offsets.at(where), values, atol=0.02)
