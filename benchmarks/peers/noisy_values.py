"""Input perturbation, plain: noise on every value, then ridge ALS that knows the variance of the noise.

Under `value` (one value may be any other within the bounds, the cells are public) every value gets Laplace noise of
scale width / epsilon if delta is 0, and Gaussian noise that the accountant calibrates otherwise. Values do not share
anybody, so one event pays for all of them. The rest is post-processing: the offsets and factors of `tensorveil.ALS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tensorveil as tv
from peers.cells import Floats, checked
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent

RANK = 3  # of the other plain baselines


def complete(
    coordinates: Any,
    values: Any,
    shape: Sequence[int],
    asked: Any,
    seed: int = 0,
    *,
    bounds: tuple[float, float],
    epsilon: float,
    delta: float = 0.0,
) -> Floats:
    """Predictions of asked cells; see `peers`. Values are clipped to the bounds."""
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    random = np.random.default_rng(seed)
    low, high = bounds
    clipped, scale = np.clip(numbers, low, high), noise_scale(high - low, epsilon, delta)
    draw = random.normal if delta else random.laplace
    variance = scale**2 * (1 if delta else 2)
    noisy = tv.Observations(where, clipped + draw(0, scale, len(clipped)), tuple(shape))
    largest = ((high - low) / 2) ** 2  # no variance of values within the bounds is above
    run = tv.ALS().solve(noisy, tv.CP(RANK), noise_variance=variance, largest_signal=largest, seed=seed)
    return np.clip(run.predict(wanted), low, high)


def events(multiplier: float, epsilon: float, delta: float) -> Sequence[Event]:
    """What the noise costs: `multiplier` is its standard deviation over the width of the bounds."""
    return [GaussianEvent(multiplier)] if delta else [PureEvent(epsilon)]


def noise_scale(width: float, epsilon: float, delta: float) -> float:
    """The scale of Laplace noise, or the standard deviation of Gaussian noise, on one value."""
    if not (epsilon > 0 and math.isfinite(epsilon) and 0 <= delta < 1):
        raise ValueError(f"epsilon must be positive and delta from 0 to below 1, got {epsilon!r} and {delta!r}")
    if not delta:
        return width / epsilon
    return width * calibrate(lambda multiplier: events(multiplier, epsilon, delta), epsilon, delta)
