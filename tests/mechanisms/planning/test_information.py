"""What sums and channels are expected to tell: the split of a budget, and the switch between the two."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.mechanisms.planning.channel_design import design_channel, kept_information
from tensorveil.mechanisms.planning.information import (
    CHANNEL_INFORMATION,
    channel_information,
    expected_error_of_channel,
    expected_error_of_sums,
    noise_variance,
    sums_are_better,
)
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request


def request(epsilon, shape=(943, 1682), count=90_000, rank=8):
    return Request.checked(tv.CP(rank), tv.Bounds(1, 5), "value", epsilon, 0.0, shape, None, count, None)


def test_the_switch_of_ratings_lies_between_one_and_two():
    assert sums_are_better(request(0.5))
    assert sums_are_better(request(1.0))
    assert not sums_are_better(request(2.0))
    assert not sums_are_better(request(5.0))


def test_a_large_dense_tensor_prefers_the_channel_earlier():
    assert not sums_are_better(request(1.0, (100, 100, 100), 500_000, 3))


@pytest.mark.parametrize("shape, count", [((12, 10), 60), ((10, 8), 40)])
def test_a_channel_needs_a_marginal_that_shows_where_its_levels_lie(shape, count):
    """The largest epsilon with sums: a histogram of values in one cell, with a third of its share, is just not seen."""
    epsilons = np.geomspace(0.1, 20, 100)
    largest = max(epsilon for epsilon in epsilons if sums_are_better(request(epsilon, shape, count, 2)))
    noise = NoiseSource(seed=1).laplace(
        np.zeros(100_000, dtype=np.int64), grid=2.0**-30, sensitivity=2**31, epsilon=largest * 0.15 / 3
    )
    assert np.std(noise) * 5 == pytest.approx(count, rel=0.1)


@pytest.mark.parametrize("epsilon", [0.002, 0.1, 0.7, 1.7, 3.0, 4.2, 6.0, 12.0, 40.0, *dict(CHANNEL_INFORMATION)])
def test_the_table_of_channels_is_that_of_designed_ones(epsilon):
    scale = public_scale(np.linspace(-1, 1, 8).tolist(), VALUE_STEPS)
    kept = kept_information(scale, design_channel(scale, epsilon, 10.0))
    tolerance = 2e-3 if epsilon in dict(CHANNEL_INFORMATION) else 0.1  # between entries it is interpolated
    assert channel_information(epsilon) == pytest.approx(kept, rel=tolerance)


@pytest.mark.parametrize("count", [1_000, 100_000])
def test_more_budget_and_more_values_leave_less_error(count):
    sums = [expected_error_of_sums(request(epsilon, count=count)) for epsilon in (0.1, 0.5, 1.0, 5.0)]
    assert sums == sorted(sums, reverse=True)
    through = [expected_error_of_channel(request(1.0, count=count), share) for share in (0.01, 0.1, 0.5, 1.0)]
    assert through == sorted(through, reverse=True)
    assert expected_error_of_sums(request(1.0, count=10 * count)) < expected_error_of_sums(request(1.0, count=count))


@pytest.mark.parametrize("event", [PureEvent(0.7), GaussianEvent(1.5)])
def test_the_noise_variance_is_that_of_the_noise(event):
    source = NoiseSource(seed=1)
    zeros, grid = np.zeros(100_000, dtype=np.int64), 2.0**-30
    if isinstance(event, PureEvent):
        drawn = source.laplace(zeros, grid=grid, sensitivity=2**31, epsilon=event.epsilon)
    else:
        drawn = source.gaussian(zeros, grid=grid, sensitivity=2.0, noise_std=3.0)
    assert drawn.var() == pytest.approx(noise_variance(event, 2.0), rel=0.03)
