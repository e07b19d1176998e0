"""How much noisy sums tell, from public numbers and generic priors: how to split a budget, and what error to expect."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorveil.privacy.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.plan import Request
from tensorveil.privacy.units import Unit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Generic, on the scale where the bounds are -1 and 1: values spread half a unit around their mean, and offsets of a mode
# about a third of that, half of it told by features. Fitted to released sums where these tell; promises nothing.
MEAN_VARIANCE = 1 / 4
OFFSET_VARIANCE = 1 / 72
FEATURE_VARIANCE = 1 / 144  # of what a group of features tells, all its columns together
RESIDUAL_VARIANCE = 2 / 9
WEIGHT_STEPS = 100  # shares are whole multiples of one over this


def declared_count(request: Request) -> float:
    """The number of observations that the caller declared, or a guess from the shape."""
    return float(request.expected_count or min(math.prod(request.shape) / 2, 100.0 * sum(request.shape)))


def noise_variance(event: Event, sensitivity: float) -> float:
    """Of the noise that `noisy_totals` adds to each sum."""
    if isinstance(event, PureEvent):
        return 2 * (sensitivity / event.epsilon) ** 2
    if isinstance(event, GaussianEvent):
        return (sensitivity * event.noise_multiplier) ** 2
    return math.inf


def pure_is_better(pure: Event, gaussian: Event, unit: Unit, parts: int) -> bool:
    """Whether pure noise on `parts` kinds of sums is smaller than Gaussian noise; single observations only.

    A whole slice's weights are one over its count for pure noise, one over the root of it for Gaussian noise, which
    then wins but for tiny slices.
    """
    if unit.whole_slices:
        return False
    # equal weights 1/parts (pure), 1/sqrt(parts) (Gaussian)
    return noise_variance(pure, 1.0) * parts**2 <= noise_variance(gaussian, 1.0) * parts


def best_weights(
    rows: Sequence[Integers], weights: Sequence[Floats], sizes: Sequence[int], event: Event, sensitivity: float
) -> tuple[float, ...]:
    """Weights of the total's and of each mode's sums that make the expected error of mean + offsets small.

    Given weight a, an index with sum of weights n and sum of squares q is known with variance s = (noise / a^2 +
    sigma^2 q) / n^2, which leaves v s / (v + s) of its prior variance v. Indices count by the root of n: half way
    between cells as observed and all cells alike. Pure weights add up to 1, squares of Gaussian ones do.
    """
    pure = isinstance(event, PureEvent)
    noise = noise_variance(event, sensitivity)
    shares = np.arange(1, WEIGHT_STEPS + 1) / WEIGHT_STEPS
    scales = shares if pure else np.sqrt(shares)
    errors = []
    for place, (row, weight, size) in enumerate(zip(rows, weights, sizes, strict=True)):
        n = np.bincount(row, weights=weight, minlength=size)
        q = np.bincount(row, weights=weight**2, minlength=size)
        n, q = n[n > 0], q[n > 0]
        interest = np.sqrt(n) / max(float(np.sqrt(n).sum()), 1e-300)
        prior = MEAN_VARIANCE if place == 0 else OFFSET_VARIANCE
        errors.append(
            np.array(
                [
                    float((interest * prior * s / (prior + s)).sum())
                    for s in ((noise / scale**2 + RESIDUAL_VARIANCE * q) / n**2 for scale in scales)
                ]
            )
        )
    return tuple(float(scales[steps - 1]) for steps in _fewest(errors))


def _fewest(errors: Sequence[Floats]) -> list[int]:
    """Whole shares, WEIGHT_STEPS in all, with a small sum of errors: steps move from one to another while that helps.

    Errors may be concave where noise drowns all, so it starts from several splits.
    """
    parts = len(errors)
    starts = [[WEIGHT_STEPS // parts] * parts]
    for favourite in range(parts):
        low = max(1, WEIGHT_STEPS // (8 * parts))
        starts.append([low if part != favourite else WEIGHT_STEPS - low * (parts - 1) for part in range(parts)])
    best, least = starts[0], math.inf
    for start in starts:
        steps = list(start)
        steps[0] += WEIGHT_STEPS - sum(steps)
        improved = True
        while improved:
            improved = False
            for giver in range(parts):
                for taker in range(parts):
                    if giver == taker or steps[giver] <= 1:
                        continue
                    before = errors[giver][steps[giver] - 1] + errors[taker][steps[taker] - 1]
                    after = errors[giver][steps[giver] - 2] + errors[taker][steps[taker]]
                    if after < before:
                        steps[giver] -= 1
                        steps[taker] += 1
                        improved = True
        total = math.fsum(float(error[step - 1]) for error, step in zip(errors, steps, strict=True))
        if total < least:
            best, least = steps, total
    return best
