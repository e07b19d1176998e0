"""The marginal law of the values, bought first: three histograms, each on finer cells where the one before is clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.values.marginal import Counted, Marginal, marginal_of, refined
from tensorveil.mechanisms.planning.noise_range import check_noise
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.values.histogram import Histogram
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.vault import Vault

Integers = NDArray[np.int64]

PARTS = 16  # of the bounds, and of every cell that is split
STAGES = {  # name -> what is noised
    "marginal, 16 cells": "counts of values in 16 cells of the bounds",
    "marginal, refined": "counts of values in up to 256 cells",
    "marginal, refined twice": "counts of values in up to 4,096 cells",
}
SMALLEST_SHARE, LARGEST_SHARE = 0.005, 0.15  # of the budget
SMALLEST_DECLARED = 0.02  # where the number of observations is private, and the declared one may be far too large
WELL_COUNTED = 2000.0  # units times share times epsilon: noise on a count is then of scale 0.3 % of the units (`value`)
VISIBLE = 200.0  # units times epsilon, above which the marginal can be seen
FAINTEST = 0.1  # of the largest share, where it cannot; it is asked for all the same
SMALLEST_BUDGET = 1e-3  # of all three stages: with less, counts and noise would leave the range of the vault
TYPICAL_COUNT = 12.0  # observations per index, where none are declared; 4 to 90 on the data of docs/accuracy.md

WHOLE_BOUNDS = np.arange(-VALUE_STEPS, VALUE_STEPS + 1, 2 * VALUE_STEPS // PARTS, dtype=np.int64)
WHOLE_BOUNDS[-1] += 1  # the highest step belongs to the last cell
WHOLE_BOUNDS.setflags(write=False)


def with_typical_count(request: Request) -> Request:
    """The request with a typical number of observations, if none is declared: a wrong one costs accuracy only."""
    if request.expected_count is not None:
        return request
    return replace(request, expected_count=round(min(math.prod(request.shape) / 2, TYPICAL_COUNT * sum(request.shape))))


def marginal_share(request: Request) -> float:
    """The share of the budget for all three stages together; it falls with the public number of units and epsilon.

    It falls, too, where even the largest share would show nothing: a cell is seen in noise of scale 2 / (epsilon
    share / 3) if it holds five times that, so all values in one cell are if epsilon times their number is above 200.
    """
    whole = request.unit.whole_slices
    units = (request.shape[request.unit.mode_number] if whole else request.count_or_guess) * request.epsilon
    largest = LARGEST_SHARE
    if not whole:
        largest *= max(min(units / VISIBLE, 1.0), FAINTEST, SMALLEST_BUDGET / request.epsilon)
    smallest = SMALLEST_SHARE if whole or request.unit.coordinates_public else SMALLEST_DECLARED
    return min(max(WELL_COUNTED / units, smallest), largest, LARGEST_SHARE)


def marginal_shares(request: Request, share: float | None = None) -> list[float]:
    """The shares of the three stages; `share` is that of all of them together, if it is given."""
    return [(marginal_share(request) if share is None else share) / len(STAGES)] * len(STAGES)


def marginal_stages(request: Request, events: Sequence[Event]) -> tuple[Stage, ...]:
    """The three paid stages, one per event."""
    stages = []
    for (name, what), event in zip(STAGES.items(), events, strict=True):
        (change,) = _histogram(WHOLE_BOUNDS[:-1], WHOLE_BOUNDS[1:], event).sensitivity(request.unit)
        check_noise(event, change.bound)
        sensitivity = Sensitivity(change.bound, change.norm, f"a weight of 1 per {request.unit_name}")
        stages.append(Stage(name, "histogram", event, sensitivity, LAW_OF_NORM[change.norm], what))
    return tuple(stages)


def marginal_coordinates(request: Request) -> int:
    """How many numbers get Gaussian noise at most."""
    return PARTS + PARTS**2 + PARTS**3 if request.delta > 0 else 0


def ask_marginal(vault: Vault, stages: Sequence[Stage], bounds: Bounds, total: float | None = None) -> Marginal:
    """Noisy histograms, and the law of the values that follows from them.

    Where no cell is worth splitting, the same cells are counted once more, and both counts are averaged.

    Parameters
    ----------
    bounds : the public bounds, which tell what numbers are round
    total : the sum of the weights of all values, if it is public
    """
    released: list[Counted] = []
    first, last = WHOLE_BOUNDS[:-1], WHOLE_BOUNDS[1:]
    for stage in stages:
        if released:
            first, last = refined(released, PARTS)
        again = first.size == 0
        if again:
            first, last = released[-1].first, released[-1].last
        answer = vault.answer(stage.name, _histogram(first, last, stage.event))
        counted = Counted(first, last, answer.values, answer.law.variance)
        released.append(_averaged(released.pop(), counted) if again else counted)
    return marginal_of(released, (bounds.low, bounds.high), total)


def _histogram(first: Integers, last: Integers, event: Event) -> Histogram:
    return Histogram(first, last, isinstance(event, PureEvent))


def _averaged(one: Counted, other: Counted) -> Counted:
    """Two counts of the same cells as one, with weights of one over their variances."""
    weight = other.variance / (one.variance + other.variance)
    counts = weight * one.counts + (1 - weight) * other.counts
    return Counted(one.first, one.last, counts, weight * one.variance)
