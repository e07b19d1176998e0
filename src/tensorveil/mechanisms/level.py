"""The level and spread of the values, bought first: later stages clip to them and need less noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.mechanisms.noisy_sums import check_noise, describe, noisy_totals, slice_weights, whole_sums
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request, Stage
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

Floats = NDArray[np.float64]

WIDE = 3.0  # values beyond three standard deviations are clipped
MEAN_ERROR = 0.02  # of centred values, whose range is 2
SMALLEST_SHARE, LARGEST_SHARE = 0.03, 0.7
PRIOR_VARIANCE = 0.25  # of the mean of centred values
SURE = 2.0  # standard deviations of the noise that are added to an uncertain spread, so as not to clip too much


@final
@dataclass(frozen=True)
class Level:
    """A released centre and scale on the centred scale: values are read as clip((y - mean) / scale, -1, 1).

    `std` is their standard deviation, or more where noise leaves it uncertain.
    """

    mean: float
    scale: float
    std: float = 1 / WIDE

    def normalised(self, data: BoundedObservations) -> Floats:
        """Values from -1 to 1 around the level."""
        return np.clip((data.centred - self.mean) / self.scale, -1.0, 1.0)


@proves("level")
def level_sensitivity(unit: Unit, pure: bool) -> float:
    """How far one unit moves the released totals, in L1 (pure) or L2 (Gaussian).

    Public coordinates: (sum y, sum y^2); a replaced unit moves them by 2 and 1. Otherwise (sum (1+y)/2, sum (1-y)/2,
    sum y^2); an added unit moves the first two by 1 together and the third by 1.
    """
    if unit.coordinates_public:
        return 3.0 if pure else math.sqrt(5.0)  # [L1]
    return 2.0 if pure else math.sqrt(2.0)  # [L2]


def default_level_share(request: Request, smallest: float = SMALLEST_SHARE) -> float:
    """The share of the budget that brings the noise of the mean near MEAN_ERROR; reads public numbers only."""
    count = request.expected_count or min(math.prod(request.shape) / 2, 100.0 * sum(request.shape))
    units = request.shape[request.unit.mode_number] if request.unit.whole_slices else count
    if request.delta == 0:
        share = level_sensitivity(request.unit, True) * math.sqrt(2) / (request.epsilon * units * MEAN_ERROR)
    else:  # the noise of a Gaussian stage falls with the square root of its share; 4 / epsilon is near its multiplier
        share = (level_sensitivity(request.unit, False) * 4 / (request.epsilon * units * MEAN_ERROR)) ** 2
    return min(max(share, smallest), LARGEST_SHARE)


def level_stage(request: Request, event: Event) -> Stage:
    """The paid stage."""
    pure = isinstance(event, PureEvent)
    sensitivity = level_sensitivity(request.unit, pure)
    check_noise(event, sensitivity)
    return Stage(
        "level and spread",
        "level",
        event,
        f"{sensitivity:.4g} ({'L1' if pure else 'L2'}, centred values)",
        f"totals of values and squares with {describe(event, sensitivity)}",
    )


def level_coordinates(request: Request) -> int:
    """How many numbers the stage releases."""
    return 2 if request.unit.coordinates_public else 3


def release_level(data: BoundedObservations, event: Event, noise: NoiseSource) -> Level:
    """Noisy totals, and the level that follows from them."""
    pure = isinstance(event, PureEvent)
    everywhere = np.zeros(len(data), dtype=np.int64)
    weights = slice_weights(data, everywhere, pure)
    y = data.centred
    if data.unit.coordinates_public:
        parts = [weights * y, weights * y**2]
    else:
        parts = [weights * (1 + y) / 2, weights * (1 - y) / 2, weights * y**2]
    totals = np.concatenate([whole_sums(everywhere, part, 1) for part in parts])  # [L3] towards zero: never longer
    released, variance = noisy_totals(noise, event, totals, level_sensitivity(data.unit, pure))
    if data.unit.coordinates_public:
        count, total, square = float(weights.sum()), float(released[0]), float(released[1])
    else:
        count, total, square = float(released[0] + released[1]), float(released[0] - released[1]), float(released[2])
    count = max(count, SURE * math.sqrt(2 * variance), 1.0)
    believed = 1 / (1 + variance / (PRIOR_VARIANCE * count**2))  # a mean that is all noise goes to the middle
    mean = min(max(believed * total / count, -1.0), 1.0)
    uncertain = SURE * math.sqrt(variance) / count
    spread = min(max(square / count - mean**2, 0.0) + (1 + 2 * abs(mean)) * uncertain, 1.0)
    scale = min(1.0 + abs(mean), max(WIDE * math.sqrt(spread), 1e-6))
    return Level(mean, scale, math.sqrt(spread))
