"""Information in noisy sums, from public numbers and generic priors, to split a budget and to predict the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.priors import (
    FEATURE_VARIANCE,
    INTERACTION_VARIANCE,
    MEAN_VARIANCE,
    OFFSET_VARIANCE,
    RESIDUAL_VARIANCE,
)
from tensorveil.inference.sums.mixed_model import SIGNIFICANT
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.sums.pairs import COUNT_PART
from tensorveil.privacy.units import Unit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WEIGHT_STEPS = 100  # shares are whole multiples of one over this
TOTAL_MEAN_ERROR = 0.003  # noise of the mean that a total's share must reach, if LARGEST_TOTAL is enough for it
LARGEST_TOTAL = 0.8


def noise_variance(event: Event, sensitivity: float) -> float:
    """The variance of the noise that the vault will add to each sum."""
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
    """Weights of the total's and of each mode's sums; pure weights add up to 1, squares of Gaussian ones do.

    Modes share by the root of the length of their rows: where noise drowns single sums all should go to the mode with
    the longest rows, where it does not more should go to the others, and this lies between. The total's share is the
    one with the smallest expected error: given weight a, an index with sum of weights n and sum of squares q is known
    with variance s = (noise / a^2 + sigma^2 q) / n^2, which leaves v s / (v + s) of its prior variance v. Indices count
    by the root of n: half way between cells as observed and all cells alike. The mean comes first: all is the total's
    where no mode could show a sign of its offsets, and what TOTAL_MEAN_ERROR asks for otherwise.
    """
    noise = noise_variance(event, sensitivity)
    power = 1.0 if isinstance(event, PureEvent) else 0.5
    indices = []
    for row, weight, size in zip(rows, weights, sizes, strict=True):
        n = np.bincount(row, weights=weight, minlength=size)
        q = np.bincount(row, weights=weight**2, minlength=size)
        indices.append((n[n > 0], q[n > 0]))
    roots = [math.sqrt(float(n.mean())) for n, _ in indices[1:]]
    fewest = min(math.sqrt(noise) / (TOTAL_MEAN_ERROR * float(indices[0][0][0])), LARGEST_TOTAL**power) ** (1 / power)
    candidates = []
    for steps in range(max(1, math.ceil(WEIGHT_STEPS * fewest)), WEIGHT_STEPS):
        total = steps / WEIGHT_STEPS
        shares = [total, *((1 - total) * root / math.fsum(roots) for root in roots)]
        error, signs = 0.0, []
        for place, ((n, q), share) in enumerate(zip(indices, shares, strict=True)):
            prior, known = MEAN_VARIANCE, (noise / share ** (2 * power) + RESIDUAL_VARIANCE * q) / n**2
            if place > 0:
                prior = OFFSET_VARIANCE
                signs.append(math.sqrt(float(np.square(prior / known).sum()) / 2))  # what the score test would see
            error += float(np.average(_kept(prior, known), weights=np.sqrt(n)))
        if max(signs) > SIGNIFICANT:
            candidates.append((error, tuple(share**power for share in shares)))
    return min(candidates)[1] if candidates else (1.0,) + (0.0,) * (len(rows) - 1)


def offsets_show(noise: float, count: float, size: int) -> bool:
    """Whether the score test of `SumsPosterior` is expected to detect offsets of this many indices.

    `noise` is the noise variance of the sum of an index. All indices are assumed to have the same share of `count`.
    """
    each = max(count / size, 1e-9)
    known = (noise + RESIDUAL_VARIANCE * each) / each**2
    return math.sqrt(size / 2) * OFFSET_VARIANCE / known > SIGNIFICANT


def typical_weight(request: Request, event: Event) -> float:
    """A guess, from declared sizes, of the weight that an observation has in paired sums, or in sums and counts."""
    if not request.unit.whole_slices:
        return 1.0
    each = max(request.count_or_guess / request.shape[request.unit.mode_number], 1.0)
    if isinstance(event, PureEvent):
        return 1 / each
    return 1 / math.sqrt(each * (RESIDUAL_VARIANCE + COUNT_PART**2))


def expected_error_of_sums(request: Request) -> float:
    """The variance of mean and offsets that sum perturbation leaves, by generic priors, and all of the interactions.

    Pure noise, unit `value`; every index of a mode is taken to have the same declared count. On the centred scale.
    """
    count = request.count_or_guess
    noise = noise_variance(PureEvent(request.epsilon), 2.0)
    parts = len(request.shape) + 1
    left = _kept(MEAN_VARIANCE, (noise * parts**2 + RESIDUAL_VARIANCE * count) / count**2)
    for size in request.shape:
        each = max(count / size, 1e-9)
        left += _kept(OFFSET_VARIANCE + FEATURE_VARIANCE, (noise * parts**2 + RESIDUAL_VARIANCE * each) / each**2)
    return float(left + INTERACTION_VARIANCE)


def expected_error_of_channel(request: Request, information: float) -> float:
    """The same for values through a channel that keeps this share of the Fisher information about their mean.

    A value then tells as much as one with residual variance over `information` would. Interactions are learned by rows
    of the model's ranks, from the counts of each mode.
    """
    count = request.count_or_guess
    spread = RESIDUAL_VARIANCE / max(information, 1e-12)
    left = _kept(MEAN_VARIANCE, spread / count)
    ranks = request.family.ranks_for(request.shape)
    unknown = 1.0
    for size, rank in zip(request.shape, ranks, strict=True):
        each = max(count / size, 1e-9)
        left += _kept(OFFSET_VARIANCE + FEATURE_VARIANCE, spread / each)
        # a row has `rank` numbers, which share the variance of the interactions and the row's values
        unknown = min(unknown, 1 / (1 + spread * rank / (INTERACTION_VARIANCE * each)))
    return float(left + INTERACTION_VARIANCE * (1 - unknown))


def sums_are_better(request: Request, information: float) -> bool:
    """Whether sums are expected to be more accurate than a channel with this share of information; unit `value`."""
    return expected_error_of_sums(request) < expected_error_of_channel(request, information)


def _kept(prior: float, error: Any) -> Any:
    """The posterior variance after an observation with an error of this variance."""
    return prior * error / (prior + error)
