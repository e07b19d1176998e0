"""What input perturbation plans from public facts: events, sizes, and how many values one unit changes."""

import math
from dataclasses import replace

import numpy as np

from tensorveil import checks
from tensorveil.errors import InputError, SizeError
from tensorveil.mechanisms.base import split_budget
from tensorveil.mechanisms.parts.marginal import marginal_share
from tensorveil.mechanisms.planning.channel_design import check_epsilon
from tensorveil.mechanisms.planning.noise_range import check_change
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.values.values import values_change
from tensorveil.privacy.stages import Stage

MAX_CELLS = 2 * 10**7  # of the dense form: about 1 GB while the solver runs
LARGEST_COUNT = 10**9  # observations of one slice that a plan allows for where it cannot know


def default_steps(bounds: Bounds, default: float | None) -> int:
    """The public default of a missing cell, in steps from the middle."""
    if default is None:
        return 0
    number = checks.finite_number("default", default)
    if not bounds.low <= number <= bounds.high:
        raise InputError(f"default must be from {bounds.low:g} to {bounds.high:g}, got {default!r}; stay within bounds")
    return int(bounds.steps(np.array([number]))[0])


def event_of(request: Request, noise: str, most: int) -> Event:
    return split_budget(request, [1.0], most)[0] if noise == "gaussian" else PureEvent(request.epsilon)


def check_values(stage: Stage, changes: int, count: int) -> None:
    """Refuse a stage whose noise could not be drawn where one unit changes so many of so many observed values."""
    if stage.law is not Law.CHANNEL:
        check_change(stage.event, values_change(changes, stage.law is Law.LAPLACE), count)
    elif isinstance(stage.event, PureEvent):
        check_epsilon(stage.event.epsilon, changes)


def check_dense(request: Request) -> None:
    cells = math.prod(request.shape)
    if cells > MAX_CELLS:
        raise SizeError(
            f"the tensor must have at most {MAX_CELLS:,} cells under {request.unit.kind!r}, as each one gets noise, "
            f"got {cells:,}; use statistic or gradient perturbation"
        )
    if request.unit.whole_slices and request.unit.at_most is None:
        raise InputError(
            "at_most must be given under 'slice', got None; state how many observations are kept per "
            f"{request.unit_name}, e.g. at_most=20"
        )


def most_changes(request: Request) -> int:
    """How many observed values one unit may change, as far as the plan can know."""
    unit = request.unit
    if not unit.whole_slices:
        return 1
    cells = math.prod(request.shape) // request.shape[unit.mode_number]
    return unit.at_most or request.expected_count or min(cells, LARGEST_COUNT)


def changes_in_words(request: Request) -> str:
    """The number of values that one unit changes, in words."""
    unit = request.unit
    if unit.kind == "value" or unit.at_most == 1:
        return "1 value"
    limit = "" if unit.at_most is None else f", at most {unit.at_most:,}"
    return f"k values, k the largest number of observations of one {request.unit_name}{limit}"


def share_of_marginals(request: Request, levels_known: bool) -> float:
    """The share of the budget for the marginals; 0 if all levels are known.

    Both of two coupled tables are asked the same stages. If both need a marginal, the share is the geometric mean of
    those that they would have: the marginal of a small table takes more of its budget than that of a large one.
    """
    shares = [] if levels_known else [marginal_share(request)]
    if request.coupled is not None and request.coupled.levels is None:
        shares.append(marginal_share(replace(request, expected_count=request.coupled.count)))
    return math.exp(math.fsum(map(math.log, shares)) / len(shares)) if shares else 0.0
