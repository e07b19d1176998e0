"""Scales of values that need no marginal: levels that are public, or even cells of the bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from tensorveil.inference.values.scale import Scale

Floats = NDArray[np.float64]

UNKNOWN = 1.0  # standard error of shares of which nothing is known


def public_scale(levels: Sequence[float], steps: int) -> Scale:
    """The scale of values that can only be these centred levels, or are rounded to the nearest; shares unknown.

    Half-way between two levels is the upper one. Levels beyond the bounds hold no values.
    """
    places = np.asarray(levels, dtype=np.float64)
    count = len(places)
    edges = np.ceil(np.clip((places[1:] + places[:-1]) / 2, -2.0, 2.0) * steps).astype(np.int64)
    scores = scipy.special.ndtri((np.arange(count) + 0.5) / count)
    masses = np.full(count, 1 / count)
    cuts = scipy.special.ndtri(np.arange(1, count) / count)
    return Scale(steps, edges, cuts, places, places, scores[[0, -1]], masses, True, UNKNOWN)


def even_scale(count: int, steps: int) -> Scale:
    """The scale of continuous values: so many even cells of the bounds, linear in the values; shares unknown."""
    ends = np.linspace(-1.0, 1.0, count + 1)
    edges = np.ceil(ends[1:-1] * steps).astype(np.int64)
    return Scale(
        steps, edges, ends[1:-1], ends[:-1], ends[1:], ends[[0, -1]], np.full(count, 1 / count), False, UNKNOWN
    )
