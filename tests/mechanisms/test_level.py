"""Level and spread: the declared sensitivity by brute force, and a level that is right where noise is small."""

import numpy as np
import pytest
from tensorveil.mechanisms.level import Level, level_coordinates, level_sensitivity, release_level

from tensorveil.audit.neighbours import neighbours
from tensorveil.data.observations import Observations
from tensorveil.mechanisms.noisy_sums import CONTRIBUTION_STEPS
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request
from tensorveil.privacy.units import Unit

BOUNDS = Bounds(-1, 1)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]


class Recorder(NoiseSource):
    """Keeps what comes before the noise."""

    def laplace(self, statistic, **parameters):
        self.seen = np.array(statistic)
        return super().laplace(statistic, **parameters)

    def gaussian(self, statistic, **parameters):
        self.seen = np.array(statistic) * (parameters["grid"] * CONTRIBUTION_STEPS)
        return super().gaussian(statistic, **parameters)


def released(observations, unit, event, seed=0):
    source = Recorder(seed)
    resolved = Unit.of(unit).resolved(observations.mode_names)
    level = release_level(clip(observations, BOUNDS, resolved, bytes(32)), event, source)
    return level, source.seen / CONTRIBUTION_STEPS


@pytest.mark.parametrize("event", [PureEvent(1.0), GaussianEvent(1.0)])
@pytest.mark.parametrize("unit", UNITS)
def test_no_neighbour_moves_the_totals_by_more_than_declared(unit, event):
    observations = _tiny(np.random.default_rng(0))
    norm = 1 if isinstance(event, PureEvent) else 2
    declared = level_sensitivity(Unit.of(unit), norm == 1)
    moved = []
    for one, other in neighbours(observations, unit, BOUNDS):
        for value in (-1.0, -0.5, 0.0, 0.3, 1.0):  # the largest move is not always between the bounds
            changed = other.with_values(np.where(_different(one, other), value, other.values))
            moved.append(np.linalg.norm(released(one, unit, event)[1] - released(changed, unit, event)[1], norm))
    assert max(moved) <= declared
    assert max(moved) > 0.7 * declared  # declared is not far from what is reached


def _tiny(rng):
    where = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 2], [3, 1]])
    return Observations(where, rng.uniform(-1, 1, len(where)), (4, 3))


def _different(one, other):
    """Where the second has a value that the first does not have at the same place."""
    values = np.full(len(other), np.nan)
    values[: min(len(one), len(other))] = one.values[: len(other)]
    return values != other.values


@pytest.mark.parametrize("unit", UNITS)
def test_with_little_noise_the_level_is_mean_and_three_spreads(unit):
    rng = np.random.default_rng(1)
    where = np.argwhere(np.ones((2000, 3)))
    observations = Observations(where, np.clip(rng.normal(0.25, 0.1, len(where)), -1, 1), (2000, 3))
    level, _ = released(observations, unit, GaussianEvent(1.0))
    assert level.mean == pytest.approx(0.25, abs=0.02)
    assert 0.28 < level.scale < 0.42  # never too narrow, and not much too wide


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("event", [PureEvent(1e-3), PureEvent(10.0), GaussianEvent(1000.0), GaussianEvent(0.5)])
def test_any_noise_gives_a_usable_level(unit, event):
    for seed in range(20):
        level, _ = released(_tiny(np.random.default_rng(seed)), unit, event, seed)
        assert -1 <= level.mean <= 1
        assert 1e-6 <= level.scale <= 1 + abs(level.mean)


def test_normalised_values_fill_minus_one_to_one():
    observations = Observations([[0, 0], [0, 1], [1, 0]], [-1.0, 0.5, 1.0], (2, 2))
    data = clip(observations, BOUNDS, Unit.value(), bytes(32))
    np.testing.assert_allclose(Level(0.5, 0.25).normalised(data), [-1.0, 0.0, 1.0])


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("unit", UNITS)
def test_the_plan_counts_the_numbers_that_are_released(unit, pure):
    from tensorveil.models.cp import CP

    request = Request.checked(CP(rank=1), BOUNDS, unit, 1.0, 1e-6, (4, 3), None, None, None)
    _, seen = released(_tiny(np.random.default_rng(0)), unit, PureEvent(1.0) if pure else GaussianEvent(1.0))
    assert len(seen) == level_coordinates(request)
