"""Offsets as first stages: right where noise is small, harmless where it is large."""

import numpy as np
import pytest

from tensorveil.data.observations import Observations
from tensorveil.inference.level import Level
from tensorveil.inference.offsets import NoisySums, add_offsets
from tensorveil.mechanisms.parts.offsets import ask_offsets, offset_stages
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import GaussianEvent
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request
from tensorveil.privacy.vault import Vault

BOUNDS = Bounds(-1, 1)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]
PLAIN = Level(0.0, 1.0)


def asked(observations, unit, event, modes, seed):
    """The offsets of the modes, with this event each."""
    request = Request.checked(CP(rank=1), BOUNDS, unit, 1.0, 1e-6, observations.shape, None, None, None)
    stages = offset_stages(request, modes, [event] * len(modes))
    vault = Vault([clip(observations, BOUNDS, request.unit, bytes(32))], stages, 10**6, NoiseSource(seed))
    return ask_offsets(vault, PLAIN, modes, stages)


def tiny():
    where = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 2], [3, 1]])
    return Observations(where, np.random.default_rng(0).uniform(-1, 1, len(where)), (4, 3))


@pytest.mark.parametrize("unit", UNITS)
def test_with_little_noise_offsets_explain_an_additive_tensor(unit):
    rng = np.random.default_rng(0)
    users, films = rng.normal(0, 0.2, 400), rng.normal(0, 0.2, 30)
    where = np.argwhere(np.ones((400, 30)))
    values = np.clip(0.1 + users[where[:, 0]] + films[where[:, 1]], -1, 1)
    slices = unit in ("slice_values:0", "slice:0")  # whose own offsets noise must hide
    modes = [1] if slices else [1, 0]
    offsets = asked(Observations(where, values, (400, 30)), unit, GaussianEvent(0.5), modes, seed=1)
    left = values - offsets.at(where.astype(np.uint32))
    best = values - 0.1 - films[where[:, 1]] - (0 if slices else users[where[:, 0]])
    assert left.std() < best.std() + 0.1
    assert abs(left.mean()) < 0.05


@pytest.mark.parametrize("unit", UNITS)
def test_with_overwhelming_noise_offsets_vanish(unit):
    offsets = asked(tiny(), unit, GaussianEvent(1e4), [1], seed=2)
    assert abs(offsets.mean) <= 1
    assert np.abs(offsets.modes[1]).max() < 0.5


def test_offsets_without_noise_are_shrunken_means_of_their_rows():
    counts, means = np.array([100.0, 100.0, 0.0]), np.array([0.5, -0.5, 0.0])
    offsets = add_offsets(Offsets.none(2), 0, NoisySums(counts * means, counts, 1e-9, 0.0), with_mean=True)
    assert offsets.mean == pytest.approx(0.0)
    np.testing.assert_allclose(offsets.modes[0], means, atol=0.02)


def test_negative_noisy_counts_are_harmless():
    noisy = NoisySums(np.array([3.0, -4.0]), np.array([-5.0, -1.0]), 2.0, 2.0)
    offsets = add_offsets(Offsets.none(2), 1, noisy, with_mean=True)
    assert np.isfinite(offsets.mean)
    np.testing.assert_array_equal(offsets.modes[1], 0.0)
