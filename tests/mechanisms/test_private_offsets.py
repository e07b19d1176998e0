"""Private offsets: sums whose sensitivity is reached and not passed; offsets that are right where noise is small."""

import numpy as np
import pytest
from tensorveil.mechanisms.private_offsets import (
    RowSums,
    add_offsets,
    offset_coordinates,
    offset_modes,
    release_offsets,
    release_row_sums,
    sums_sensitivity,
)

from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.mechanisms.noisy_sums import CONTRIBUTION_STEPS
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request
from tensorveil.privacy.units import Unit

BOUNDS = Bounds(-1, 1)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]
TINY = Observations(
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 2], [3, 1]],
    [0.3, -0.2, 1.0, 0.5, -1.0, 0.1, 0.7],
    (5, 4),
    duplicates="keep",
)


class Recorder(NoiseSource):
    """Keeps what comes before the noise, in units of one contribution."""

    def laplace(self, statistic, **parameters):
        self.seen = np.array(statistic) / CONTRIBUTION_STEPS
        return super().laplace(statistic, **parameters)

    def gaussian(self, statistic, **parameters):
        self.seen = np.array(statistic) * parameters["grid"]
        return super().gaussian(statistic, **parameters)


def bounded(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))


def sums(observations, unit, mode, event):
    source, data = Recorder(0), bounded(observations, unit)
    release_row_sums(data, 3.0 * data.centred, mode, event, source)  # residuals beyond one: clipping must hold
    return source.seen


@pytest.mark.parametrize("event", [PureEvent(1.0), GaussianEvent(1.0)])
@pytest.mark.parametrize(
    "unit, mode",  # a slice's own offset is never released
    [(unit, mode) for unit in UNITS for mode in (0, 1) if (unit, mode) != ("slice:0", 0)],
)
def test_the_declared_sensitivity_is_reached_and_never_passed(unit, mode, event):
    norm = 1 if isinstance(event, PureEvent) else 2
    declared = sums_sensitivity(Unit.of(unit))
    moved = [
        np.linalg.norm(sums(one, unit, mode, event) - sums(other, unit, mode, event), norm)
        for one, other in neighbours(TINY, unit, BOUNDS)
    ]
    assert max(moved) <= declared
    assert max(moved) > 0.99 * declared


@pytest.mark.parametrize("unit", UNITS)
def test_with_little_noise_offsets_explain_an_additive_tensor(unit):
    rng = np.random.default_rng(0)
    users, films = rng.normal(0, 0.2, 400), rng.normal(0, 0.2, 30)
    where = np.argwhere(np.ones((400, 30)))
    truth = 0.1 + users[where[:, 0]] + films[where[:, 1]]
    observations = Observations(where, np.clip(truth, -1, 1), (400, 30))
    data = bounded(observations, unit)
    slices = unit in ("slice_values:0", "slice:0")  # whose own offsets noise must hide
    modes = [1] if slices else [1, 0]
    offsets = release_offsets(data, data.centred, modes, [GaussianEvent(0.5)] * len(modes), NoiseSource(seed=1))
    left = data.centred - offsets.at(data.coordinates)
    best = data.centred - 0.1 - films[where[:, 1]] - (0 if slices else users[where[:, 0]])
    assert left.std() < best.std() + 0.1
    assert abs(left.mean()) < 0.05


@pytest.mark.parametrize("unit", UNITS)
def test_with_overwhelming_noise_offsets_vanish(unit):
    data = bounded(TINY, unit)
    offsets = release_offsets(data, data.centred, [1], [GaussianEvent(1e4)], NoiseSource(seed=2))
    assert abs(offsets.mean) <= 1
    assert np.abs(offsets.modes[1]).max() < 0.5


def test_offsets_without_noise_are_shrunken_means_of_their_rows():
    counts, means = np.array([100.0, 100.0, 0.0]), np.array([0.5, -0.5, 0.0])
    offsets = add_offsets(Offsets.none(2), 0, RowSums(counts * means, counts, 1e-9, 0.0), with_mean=True)
    assert offsets.mean == pytest.approx(0.0)
    np.testing.assert_allclose(offsets.modes[0], means, atol=0.02)


def test_negative_noisy_counts_are_harmless():
    offsets = add_offsets(
        Offsets.none(2), 1, RowSums(np.array([3.0, -4.0]), np.array([-5.0, -1.0]), 2.0, 2.0), with_mean=True
    )
    assert np.isfinite(offsets.mean)
    np.testing.assert_array_equal(offsets.modes[1], 0.0)


@pytest.mark.parametrize("unit", UNITS)
def test_the_plan_counts_the_numbers_that_are_released(unit):
    request = Request.checked(CP(rank=1), BOUNDS, unit, 1.0, 1e-6, (5, 4), None, None, None)
    modes = offset_modes(request, 0 if unit == "slice:0" else None)
    assert modes == ((1,) if unit == "slice:0" else (1, 0))  # the smallest mode first
    seen = sum(len(sums(TINY, unit, mode, GaussianEvent(1.0))) for mode in modes)
    assert seen == offset_coordinates(request, modes)
