"""The level and spread of the values, released first: later stages clip to them and need less noise."""

from __future__ import annotations

import math

import numpy as np

from tensorveil.inference.level import Level, level_of
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.contributions import check_noise, slice_weights
from tensorveil.privacy.queries.sums.totals import Totals
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.vault import Vault

STAGE = "level and spread"
MEAN_ERROR = 0.02  # of centred values, whose range is 2
SMALLEST_SHARE, LARGEST_SHARE = 0.03, 0.7


def default_level_share(request: Request, smallest: float = SMALLEST_SHARE) -> float:
    """The share of the budget that brings the noise of the mean near MEAN_ERROR; reads public numbers only."""
    units = request.shape[request.unit.mode_number] if request.unit.whole_slices else request.count_or_guess
    if request.delta == 0:
        share = _bound(request, True) * math.sqrt(2) / (request.epsilon * units * MEAN_ERROR)
    else:  # the noise of a Gaussian stage falls with the square root of its share; 4 / epsilon is near its multiplier
        share = (_bound(request, False) * 4 / (request.epsilon * units * MEAN_ERROR)) ** 2
    return min(max(share, smallest), LARGEST_SHARE)


def level_stage(request: Request, event: Event) -> Stage:
    """The paid stage."""
    (change,) = Totals(isinstance(event, PureEvent)).sensitivity(request.unit)
    check_noise(event, change.bound)
    return Stage(
        STAGE,
        "level",
        event,
        Sensitivity(change.bound, change.norm, "centred values"),
        LAW_OF_NORM[change.norm],
        "totals of values and squares",
    )


def level_coordinates(request: Request) -> int:
    """How many numbers the stage releases."""
    return 2 if request.unit.coordinates_public else 3


def ask_level(vault: Vault, event: Event) -> Level:
    """Noisy totals, and the level that follows from them."""
    pure = isinstance(event, PureEvent)
    answer = vault.answer(STAGE, Totals(pure))
    weight = None
    if vault.unit.coordinates_public:
        pattern = vault.pattern
        weight = float(slice_weights(pattern, np.zeros(len(pattern), dtype=np.int64), pure).sum())
    return level_of(answer.values, answer.variance, weight)


def _bound(request: Request, pure: bool) -> float:
    return Totals(pure).sensitivity(request.unit)[0].bound
