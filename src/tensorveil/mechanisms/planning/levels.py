"""The public levels of a channel for whole or continuous values, and the channels on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tensorveil.mechanisms.planning.channel_design import LevelChannel, design_channel, telling_channel
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds

CONTINUOUS = "continuous"  # levels
EVEN_LEVELS = 12  # of continuous values
WHOLE_LEVELS = range(5, 15)  # whole bounds 4 to 13 apart: every whole number is a level


def channel_levels(levels: Sequence[float] | str | None, bounds: Bounds) -> tuple[float, ...]:
    """The levels that were given, or those of the rule: whole numbers where there are few, else twelve even ones."""
    if levels is not None and not isinstance(levels, str):
        return tuple(float(level) for level in levels)
    if levels is None and _has_whole_levels(bounds):
        return tuple(float(level) for level in range(int(bounds.low), int(bounds.high) + 1))
    return tuple(np.linspace(bounds.low, bounds.high, EVEN_LEVELS).tolist())


def are_continuous(levels: Sequence[float] | str | None, bounds: Bounds) -> bool:
    """Whether values between two levels are expected."""
    return levels == CONTINUOUS or (levels is None and not _has_whole_levels(bounds))


def level_edges(levels: Sequence[float], bounds: Bounds) -> tuple[int, ...]:
    """Edges, in whole steps, that give every value the number of its nearest level; half-way, of the upper one."""
    grid = np.asarray(levels)
    places = np.clip(bounds.centred((grid[1:] + grid[:-1]) / 2), -2.0, 2.0)  # beyond the bounds all are alike
    return tuple(int(edge) for edge in np.ceil(places * VALUE_STEPS))


def channel_on(levels: Sequence[float] | str | None, bounds: Bounds, epsilon: float) -> LevelChannel:
    """The channel on the levels that were given, or on those of the rule."""
    return made_channel(channel_levels(levels, bounds), epsilon)


@lru_cache(maxsize=16)
def made_channel(levels: tuple[float, ...], epsilon: float) -> LevelChannel:
    """`design_channel`, made once for a plan and its run."""
    return design_channel(levels, epsilon)


def told_levels(levels: tuple[float, ...], epsilon: float) -> LevelChannel:
    """The best channel whose symbols show how often each level occurs: see telling_channel."""
    best = made_channel(levels, epsilon)
    if np.linalg.matrix_rank(best.chances) == len(levels):
        return best
    return telling_channel(made_channel(levels, epsilon * (1 - 2.0**-30)), epsilon)  # what rounding may take


def _has_whole_levels(bounds: Bounds) -> bool:
    return bounds.low.is_integer() and bounds.high.is_integer() and bounds.width + 1 in WHOLE_LEVELS
