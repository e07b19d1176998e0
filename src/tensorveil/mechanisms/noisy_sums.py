"""Noisy sums of bounded contributions: what the level, offsets and private least squares release."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorveil.errors import InputError
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.source import NoiseSource, grid_for
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CONTRIBUTION_STEPS = 2**30  # grid steps of a contribution of one
SMALLEST_NOISE = 2.0**-4  # below it the finer grid could overflow
LARGEST_NOISE = 2.0**17  # 2^50 steps of the finest grid in use


@proves("sums-modes", "sums-pairs")
def sums_sensitivity(unit: Unit) -> float:
    """How far one unit moves the sums of sum perturbation, in L1 for pure and in L2 for Gaussian noise.

    Public coordinates: the sums of all modes and the total together, mode m with weight a_m, sum a_m <= 1 (pure) or sum
    a_m^2 <= 1 (Gaussian) for every observation; a unit whose values are replaced moves them by 2. Otherwise the paired
    sums of one mode; a unit that comes or goes moves them by 1.
    """
    return 2.0 if unit.coordinates_public else 1.0  # [L1]


def describe(event: Event, sensitivity: float) -> str:
    """The noise that `noisy_totals` adds, in words."""
    if isinstance(event, PureEvent):
        return f"discrete Laplace noise of scale {sensitivity / event.epsilon:.4g}"
    if isinstance(event, GaussianEvent):
        return f"discrete Gaussian noise of std {sensitivity * event.noise_multiplier:.4g}"
    return str(event)


def check_noise(event: Event, sensitivity: float) -> None:
    """Refuse, while planning, a budget so small that its noise would not fit the grid."""
    scale = sensitivity / event.epsilon if isinstance(event, PureEvent) else 0.0
    if isinstance(event, GaussianEvent):
        scale = sensitivity * event.noise_multiplier
        if scale < SMALLEST_NOISE:
            raise InputError(
                f"epsilon must leave Gaussian noise of at least {SMALLEST_NOISE:g} of one contribution, "
                f"got {scale:.2g}; use less epsilon"
            )
    if scale > LARGEST_NOISE:
        raise InputError(
            f"epsilon must give every stage noise of at most {LARGEST_NOISE:,.0f} times one contribution, "
            f"got {scale:,.0f}; use more epsilon or fewer stages"
        )


def slice_weights(data: BoundedObservations, rows: Integers, pure: bool) -> Floats:
    """A weight for each observation, such that a whole unit stays bounded however active it is.

    Single observations: 1. Slices: with k_r the number of the slice's observations in row r, the weight a is the same
    for all of them, and sum_r (k_r a)^2 <= 1 for Gaussian noise, sum_r k_r a <= 1 for pure noise. It reads the
    coordinates of that slice alone.
    """
    if not data.unit.whole_slices:
        return np.ones(len(data))
    slices = data.index(data.unit.mode_number)
    size = data.shape[data.unit.mode_number]
    if pure:
        totals = np.bincount(slices, minlength=size).astype(np.float64)
    else:
        pairs = slices * (int(rows.max(initial=0)) + 1) + rows
        _, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        # sum_r k_r^2 is the sum, over the slice's observations, of the k_r of their row
        totals = np.sqrt(np.bincount(slices, weights=counts[place].astype(np.float64), minlength=size))  # [W1]
    return np.asarray((1.0 - 2.0**-40) / np.maximum(totals, 1.0))[slices]  # [W2] the shave covers the last bits


def whole_sums(rows: Integers, contributions: Floats, size: int) -> Integers:
    """Sums by row in grid steps, each contribution rounded towards zero, exact whatever their order. [W3]"""
    totals = np.zeros(size, dtype=np.int64)
    np.add.at(totals, rows, np.trunc(contributions * CONTRIBUTION_STEPS).astype(np.int64))
    return totals


def noisy_totals(noise: NoiseSource, event: Event, totals: Integers, sensitivity: float) -> tuple[Floats, float]:
    """Totals of `whole_sums` with noise, and its variance; the sensitivity is L1 for pure, L2 for Gaussian noise."""
    grid = 1.0 / CONTRIBUTION_STEPS
    if isinstance(event, PureEvent):
        steps = int(np.ceil(sensitivity * CONTRIBUTION_STEPS))
        released = noise.laplace(totals, grid=grid, sensitivity=steps, epsilon=event.epsilon)
        return released, 2 * (sensitivity / event.epsilon) ** 2
    return _gaussian(noise, event, totals, grid, sensitivity)


def noisy_rows(
    noise: NoiseSource, event: Event, totals: Integers, grid: float, sensitivity: float
) -> tuple[Floats, float]:
    """Rows of sums with noise, and the variance of the noise on each number.

    Parameters
    ----------
    totals : whole numbers of grid steps, one row an index
    sensitivity : pure: a bound on the sum over rows of the norms of their changes; Gaussian: on the norm of the change
    """
    if isinstance(event, PureEvent):
        released = noise.rows(totals, grid=grid, sensitivity=sensitivity, epsilon=event.epsilon)
        return released, (totals.shape[1] + 1) * (sensitivity / event.epsilon) ** 2
    return _gaussian(noise, event, totals, grid, sensitivity)


def _gaussian(
    noise: NoiseSource, event: Event, totals: Integers, grid: float, sensitivity: float
) -> tuple[Floats, float]:
    """Whole sums with Gaussian noise, on a grid fine enough for it."""
    if not isinstance(event, GaussianEvent):
        raise InputError(f"event must be pure or Gaussian, got {event!r}; sums are not sampled")
    std = event.noise_multiplier * sensitivity
    fine = min(grid, grid_for(std))
    factor = grid / fine  # a power of two
    if factor > 2**20:
        raise InputError(
            f"the noise must be at least 2^-20 of the largest single contribution, got std {std:.3g}; use less epsilon"
        )
    return noise.gaussian(totals * np.int64(factor), grid=fine, sensitivity=sensitivity, noise_std=std), std**2
