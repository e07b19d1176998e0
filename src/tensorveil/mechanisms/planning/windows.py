"""Windows that values are clipped to before they are summed: narrow ones need less noise, wide ones keep more.

One value moves a sum by the width of its window at most, and a shift of all values moves it by the share that lies
inside. If the noise is large, the best window covers only the middle of the distribution (the sum then acts like a
median). If the noise is small, it covers all values.
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
    """The ends of a window, which are mapped to -1 and 1, and its effect on normal values.

    Attributes
    ----------
    low, high : float
    slope : float
        How far a shift of all values by one moves the mean of the clipped values.
    variance : float
        Variance of the clipped values.
    """

    low: float
    high: float
    slope: float
    variance: float


def window(std: float, reach: float, lowest: float = -math.inf, highest: float = math.inf) -> Window:
    """The window of `reach` standard deviations around zero, no wider than the possible range of values.

    Slope and variance are those of normal values that are clipped to the possible range.
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
    """The reach that minimizes the expected error of offsets of indices with these counts, for normal values.

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
