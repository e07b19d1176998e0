"""The expected error of a plan in closed form, for the one line that a plan shows; `advise` measures it instead.

Offsets and interactions explain half of the explained variance each, as in made-up tensors. An index of a mode with N
observations of error variance a is known up to v a / (v N + a) of its prior variance v.
"""

from __future__ import annotations

import math

from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.parts.cells import cells_are_better
from tensorveil.mechanisms.planning.information import channel_information, weakened
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.plan import Plan, Request
from tensorveil.release.advice.made_up import RANK, SPREAD

REACH = 2.0  # standard deviations that one observation may move a sum by


def mean_error(request: Request, spread: float = SPREAD) -> float:
    """The error of the mean alone, released with the whole budget by Laplace noise, as a share of the spread.

    Under slices every slice gives its own mean, so that one slice moves the sum as one value does elsewhere.
    """
    unit = request.unit
    units = request.shape[unit.mode_number] if unit.whole_slices else request.count_or_guess
    noise = 8 / (request.epsilon * units) ** 2  # two times the square of the scale, 2 / epsilon, on the range -1 to 1
    return math.sqrt(1 + min(noise, 1.0) / (2 * spread) ** 2)


def expected_error(plan: Plan, explained: float) -> float:
    """The expected error of a plan for a signal, as a share of the spread of the values; reads public facts only."""
    request = plan.request
    count, order = request.count_or_guess, len(request.shape)
    residual = 1 - explained
    kept = _kept_of_symbols(plan)
    left = residual
    if kept is not None:  # each value tells as much as one with this variance more
        each = residual + 1 / max(kept, 1e-12) - 1
        known = 1.0
        for size, rank in zip(request.shape, request.family.ranks_for(request.shape), strict=True):
            left += _left(explained / (2 * order), each * size / count)
            known = min(known, 1 / (1 + 2 * each * min(rank, RANK) * size / (explained * count)))
        return math.sqrt(left + explained / 2 * (1 - known))
    noise = _noise_of_sums(plan)
    for size in request.shape:
        per_index = count / size
        left += _left(explained / (2 * order), (noise + residual * per_index) / per_index**2)
    return math.sqrt(left + explained / 2)


def _kept_of_symbols(plan: Plan) -> float | None:
    """The information that symbols of values, or of all cells, keep; None if neither are expected to be bought."""
    request, epsilon = plan.request, _epsilon_of_values(plan)
    one_each = isinstance(plan.mechanism, InputPerturbation) and plan.mechanism.learns_offsets(request.unit)
    if one_each and request.unit.coordinates_public:
        return channel_information(epsilon)
    count = request.count_or_guess
    if one_each or (plan.stages[-1].instead and cells_are_better(request, count, epsilon)):
        return channel_information(weakened(epsilon, count / math.prod(request.shape)))
    return None


def _epsilon_of_values(plan: Plan) -> float:
    """What the values themselves get of a pure budget; with other noise, all of it."""
    last = plan.stages[-1].event
    return last.epsilon if isinstance(last, PureEvent) else plan.request.epsilon


def _noise_of_sums(plan: Plan) -> float:
    """The variance of the noise on the sum of one index, in units of the spread."""
    request, unit, last = plan.request, plan.request.unit, plan.stages[-1].event
    moved = 1.0  # sums that one unit moves
    if unit.whole_slices:
        moved = unit.at_most or max(1.0, request.count_or_guess / request.shape[unit.mode_number])
    if isinstance(last, PureEvent):  # one stage pays for the total and for all modes
        return 2 * (REACH * moved * (len(request.shape) + 1) / last.epsilon) ** 2
    multipliers = sorted(
        stage.event.noise_multiplier for stage in plan.stages if isinstance(stage.event, GaussianEvent)
    )
    if not multipliers:
        return math.inf
    return (REACH * multipliers[len(multipliers) // 2]) ** 2 * moved


def _left(prior: float, error: float) -> float:
    return prior if math.isinf(error) else prior * error / max(prior + error, 1e-300)
