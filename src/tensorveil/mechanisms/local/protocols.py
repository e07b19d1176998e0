"""The design of local protocols, and what to expect of their answers: accuracy alone, as protocols check themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.values.noisy import symbol_numbers
from tensorveil.inference.values.public_scales import UNKNOWN, even_scale, public_scale
from tensorveil.inference.values.scale import Scale
from tensorveil.mechanisms.planning.channel_design import design_channel, kept_information
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.local.client import LocalProtocol
from tensorveil.privacy.local.randomizing import channel_of
from tensorveil.privacy.plan import bounds_of

Integers = NDArray[np.int64]

MOST_LEVELS = 32  # a channel merges those that it cannot tell apart
FEWEST_DEFAULT = 5  # levels of a grid that nobody asked for: fewer would round continuous values too far
STEPS = (1.0, 0.5)  # of such a grid: the first that has 5 to 32 levels
PER_INDEX = 1.0  # values per index for which a channel is designed: nothing is known of the data


def checked_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Public levels, increasing."""
    grid = tuple(checks.finite_number(f"levels[{place}]", float(level)) for place, level in enumerate(levels))
    if not 2 <= len(grid) <= MOST_LEVELS:
        raise InputError(f"levels must be 2 to {MOST_LEVELS} numbers, got {len(grid)}; merge some, or leave them out")
    if not all(low < high for low, high in pairwise(grid)):
        raise InputError(f"levels must increase, got {grid}; sort them and drop doubles")
    return grid


def default_levels(bounds: Bounds) -> tuple[float, ...] | None:
    """Whole numbers, or else halves, if both bounds are such and there are 5 to 32 of them; or else None.

    Examples
    --------
    >>> default_levels(Bounds(1, 5))
    (1.0, 2.0, 3.0, 4.0, 5.0)
    >>> len(default_levels(Bounds(0.5, 5))), default_levels(Bounds(0, 1)), default_levels(Bounds(0, 100))
    (10, None, None)
    """
    for step in STEPS:
        count = bounds.width / step + 1
        on_grid = (bounds.low / step).is_integer() and (bounds.high / step).is_integer()
        if on_grid and FEWEST_DEFAULT <= count <= MOST_LEVELS:
            return tuple(bounds.low + step * place for place in range(int(count)))
    return None


def design_protocol(
    bounds: Bounds | tuple[float, float], epsilon: float, *, levels: Sequence[float] | None = None
) -> LocalProtocol:
    """The protocol whose answers tell most, if nothing is known of the values but their bounds and levels.

    Parameters
    ----------
    bounds : the public range of the values
    epsilon : what each answer may cost
    levels : the 2 to 32 public values that there are; others are rounded to the nearest. None: whole numbers, or
        else halves, if the bounds are such and there are 5 to 32 of them; otherwise 32 even cells of the bounds

    Examples
    --------
    >>> protocol = design_protocol(Bounds(1, 5), 2.0, levels=[1, 2, 3, 4, 5])
    >>> len(protocol.counts), protocol.edges
    (5, (1.5, 2.5, 3.5, 4.5))
    """
    bounds = bounds_of(bounds)
    budget = checks.positive_number("epsilon", epsilon)
    grid = default_levels(bounds) if levels is None else checked_levels(levels)
    if grid is None:
        edges = np.linspace(bounds.low, bounds.high, MOST_LEVELS + 1)[1:-1]
    elif not bounds.low <= grid[0] <= grid[-1] <= bounds.high:
        raise InputError(f"levels must be from {bounds.low:g} to {bounds.high:g}, got {grid}; stay within bounds")
    else:
        edges = np.array([(one + two) / 2 for one, two in pairwise(grid)])
    channel = design_channel(_scale(bounds, grid, len(edges) + 1), budget, PER_INDEX)
    counts = tuple(tuple(row) for row in channel.counts.tolist())
    return LocalProtocol(budget, bounds.low, bounds.high, grid, tuple(edges.tolist()), counts)


def scale_of_protocol(protocol: LocalProtocol) -> Scale:
    """The levels of a protocol on the latent scale, their shares unknown."""
    return _scale(Bounds(protocol.low, protocol.high), protocol.levels, len(protocol.counts))


def released_answers(protocol: LocalProtocol, symbols: Integers) -> Released:
    """Answers with their law, for inference."""
    return Released(symbols, channel_of(protocol).chances, scale_of_protocol(protocol), UNKNOWN)


def _scale(bounds: Bounds, levels: Sequence[float] | None, count: int) -> Scale:
    if levels is None:
        return even_scale(count, VALUE_STEPS)
    return public_scale(bounds.centred(np.array(levels)).tolist(), VALUE_STEPS)


@final
@dataclass(frozen=True)
class Expected:
    """What answers tell, if all levels are equally frequent.

    Attributes
    ----------
    kept : the share of the information about means that answers keep, of that in the values
    noise_std : standard deviation of the noise of one answer, on the scale of the values
    """

    kept: float
    noise_std: float

    def __str__(self) -> str:
        lines = [
            f"expected error: an answer is a value with noise of standard deviation {self.noise_std:.3g}; the mean of "
            f"100 answers is off by about {self.noise_std / 10:.2g}",
            f"answers keep {100 * self.kept:.2g} % of what values tell about means",
        ]
        if self.kept < FAINT:
            lines.append(
                "at so small an epsilon, noisy sums over many people would tell more, but nobody can add before "
                "noise is added where no server is trusted: use a larger epsilon, or a trusted server"
            )
        return "\n".join(lines)


FAINT = 0.4  # of the information: about epsilon 2 on five levels, where sums take over in the central model


def expected_of(protocol: LocalProtocol) -> Expected:
    """What the answers of a protocol will tell, before anybody gave one."""
    channel, scale = channel_of(protocol), scale_of_protocol(protocol)
    noise = symbol_numbers(Released(np.empty(0, np.int64), channel.chances, scale, UNKNOWN)).variance
    return Expected(kept_information(scale, channel), math.sqrt(noise) * (protocol.high - protocol.low) / 2)
