"""Windows that values are clipped to before they are summed: narrow ones need less noise, wide ones tell more.

One value moves a sum by the width of its window at most, and a shift of all values moves it by the share that lies
inside. Where noise is large the best window holds the middle of the values only (as a median hears more than a mean
does); where it is small, all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

REACHES = (1.5, 2.0, 3.0)  # standard deviations


@final
@dataclass(frozen=True)
class Window:
    """The ends of a window, which are read as -1 and 1, and what it shows of normal values.

    Attributes
    ----------
    low, high : float
    slope : float
        How far a shift of all values by one moves the mean of what is read.
    variance : float
        Of what is read.
    """

    low: float
    high: float
    slope: float
    variance: float


def window(std: float, reach: float, lowest: float = -math.inf, highest: float = math.inf) -> Window:
    """The window of `reach` standard deviations around zero, no wider than what values can be.

    Slope and variance are those of normal values; such as would lie beyond what can be lie at its ends.
    """
    std = max(std, 1e-6)
    low, high = max(-reach * std, lowest), min(reach * std, highest)
    if high - low < 1e-6 * std:  # the level is at an end of the bounds
        low, high = min(low, -std), max(high, std)
    half = (high - low) / 2
    inside = (1.0 if high >= highest else _below(high / std)) - (0.0 if low <= lowest else _below(low / std))
    points = std * np.linspace(-6, 6, 241)
    masses = np.exp(-0.5 * np.square(points / std))
    read = np.clip((points - low - half) / half, -1.0, 1.0)
    mean = float(read @ masses / masses.sum())
    variance = float(np.square(read - mean) @ masses / masses.sum())
    return Window(low, high, max(inside, 1e-3) / half, variance)


def best_reach(noise: float, counts: Sequence[float], offset_share: float) -> float:
    """The reach with which offsets of indices with these counts are expected to be known best; normal values.

    Parameters
    ----------
    noise : variance of the noise on a sum of numbers from -1 to 1
    counts : of the indices of each mode
    offset_share : the variance of offsets over that of values
    """

    def error(reach: float) -> float:
        seen = window(1.0, reach)
        left = 0.0
        for count in counts:
            known = (noise + seen.variance * count) / (seen.slope * max(count, 1e-9)) ** 2
            left += known / (offset_share + known)
        return left

    return min(REACHES, key=error)


def _below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
