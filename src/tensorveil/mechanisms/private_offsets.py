"""Mean and per-mode offsets as a private first stage that other mechanisms can start with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.mechanisms.noisy_sums import check_noise, describe, noisy_totals, slice_weights, whole_sums
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request, Stage
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

Floats = NDArray[np.float64]

RESIDUAL_VARIANCE = 1 / 9  # of values brought to three standard deviations of their level; weighs noise only
LARGEST_OFFSET_VARIANCE = 1 / 9


def offset_modes(request: Request, withheld: int | None = None) -> tuple[int, ...]:
    """The modes that get offsets, smallest first: its sums tell the mean with the least noise."""
    modes = [mode for mode in range(len(request.shape)) if mode != withheld]
    return tuple(sorted(modes, key=lambda mode: (request.shape[mode], mode)))


def offset_stages(request: Request, modes: Sequence[int], events: Sequence[Event]) -> list[Stage]:
    """One paid stage a mode."""
    theorem = "offsets-sums" if request.unit.coordinates_public else "offsets-pairs"
    sensitivity = sums_sensitivity(request.unit)
    what = "sums" if request.unit.coordinates_public else "paired sums"
    for event in events:
        check_noise(event, sensitivity)
    return [
        Stage(
            f"offsets of {request.mode_names[mode]}",
            theorem,
            event,
            f"{sensitivity:g} ({'L1' if isinstance(event, PureEvent) else 'L2'}, centred values)",
            f"{what} with {describe(event, sensitivity)}",
        )
        for mode, event in zip(modes, events, strict=True)
    ]


def offset_coordinates(request: Request, modes: Sequence[int]) -> int:
    """How many numbers the stages release."""
    return sum(request.shape[mode] for mode in modes) * (1 if request.unit.coordinates_public else 2)


@proves("offsets-sums", "offsets-pairs")
def sums_sensitivity(unit: Unit) -> float:
    """How far one unit moves the released sums, in L1 for pure and L2 for Gaussian noise.

    Public coordinates: a weighted sum of residuals in [-1, 1] a row; a replaced unit moves it by 2. Otherwise pairs of
    sums of (1 + r)/2 and (1 - r)/2; an added unit moves them by 1 in L1, hence by at most 1 in L2.
    """
    return 2.0 if unit.coordinates_public else 1.0  # [L1]


@final
@dataclass(frozen=True)
class RowSums:
    """Released sums of one mode: of residuals, of weights, and the variances of their noise."""

    sums: Floats
    counts: Floats
    sum_variance: float
    count_variance: float


def release_offsets(
    data: BoundedObservations, values: Floats, modes: Sequence[int], events: Sequence[Event], noise: NoiseSource
) -> Offsets:
    """Mean and offsets of the modes for values in [-1, 1], one paid stage each; later ones see what is left."""
    offsets = Offsets.none(len(data.shape))
    for place, (mode, event) in enumerate(zip(modes, events, strict=True)):
        released = release_row_sums(data, values - offsets.at(data.coordinates), mode, event, noise)
        offsets = add_offsets(offsets, mode, released, with_mean=place == 0)
    return offsets


def release_row_sums(
    data: BoundedObservations, residuals: Floats, mode: int, event: Event, noise: NoiseSource
) -> RowSums:
    """Sums of residuals of each index of a mode, with noise."""
    rows, size = data.index(mode), data.shape[mode]
    weights = slice_weights(data, rows, isinstance(event, PureEvent))
    inside = np.clip(residuals, -1.0, 1.0)  # [L2]
    sensitivity = sums_sensitivity(data.unit)
    if data.unit.coordinates_public:
        totals = whole_sums(rows, weights * inside, size)  # [L3] towards zero: never longer
        sums, variance = noisy_totals(noise, event, totals, sensitivity)
        counts = np.bincount(rows, weights=weights, minlength=size).astype(np.float64)
        return RowSums(sums, counts, variance, 0.0)
    halves = [weights * (1 + sign * inside) / 2 for sign in (1.0, -1.0)]  # [L4] both at least 0, together at most a
    pairs = np.concatenate([whole_sums(rows, half, size) for half in halves])
    released, variance = noisy_totals(noise, event, pairs, sensitivity)
    return RowSums(released[:size] - released[size:], released[:size] + released[size:], 2 * variance, 2 * variance)


def add_offsets(offsets: Offsets, mode: int, released: RowSums, with_mean: bool) -> Offsets:
    """Offsets with one more mode: the posterior mean of each, given its noisy sum (post-processing).

    A sum is N b + e with b ~ N(0, s^2) and e of variance N sigma^2 + noise; s^2 is found by moments.
    """
    counts = np.maximum(released.counts, 0.0)
    mean = 0.0
    if with_mean:
        total = released.counts.sum()
        uncertain = np.sqrt(len(counts) * released.count_variance)
        mean = float(np.clip(released.sums.sum() / max(total, 2 * uncertain, 1.0), -1.0, 1.0))
    deviations = released.sums - counts * mean
    spread = counts * RESIDUAL_VARIANCE + released.sum_variance + mean**2 * released.count_variance
    believed = float(
        np.clip((deviations**2 - spread).sum() / max((counts**2).sum(), 1e-12), 0.0, LARGEST_OFFSET_VARIANCE)
    )
    values = np.clip(believed * counts * deviations / (believed * counts**2 + spread), -1.0, 1.0)
    return Offsets(offsets.mean + mean, offsets.with_mode(mode, values).modes)
