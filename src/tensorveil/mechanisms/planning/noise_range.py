"""Which noise fits the grids of the queries: asked while planning, so that no paid stage is refused by the vault."""

import math

from tensorveil.errors import InputError
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.noise.source import GRID_BITS, LARGEST_SCALE, ROUND_UP, grid_for, laplace_scale, row_scale
from tensorveil.privacy.queries.base import Change, Norm
from tensorveil.privacy.vault import FINEST

SMALLEST_NOISE = 2.0**-4  # of one contribution, so that the vault need not clamp sums on its finer grid
LARGEST_NOISE = 2.0**17  # 2^50 steps of the finest grid in use


def check_noise(event: Event, sensitivity: float) -> None:
    """Refuse, while planning, a budget so small that its noise would not fit the grid."""
    scale = sensitivity * _times(event)
    if scale < SMALLEST_NOISE and not isinstance(event, PureEvent):
        raise InputError(
            f"epsilon must leave Gaussian noise of at least {SMALLEST_NOISE:g} of one contribution, "
            f"got {scale:.2g}; use less epsilon"
        )
    if scale > LARGEST_NOISE:
        raise InputError(
            f"epsilon must give every stage noise of at most {LARGEST_NOISE:,.0f} times one contribution, "
            f"got {scale:,.0f}; use more epsilon or fewer stages"
        )


def check_row_noise(event: Event, change: Change, count: int, width: int) -> None:
    """`check_noise` for so many rows of so many numbers: pure noise on wide rows reaches further."""
    check_noise(event, change.bound)
    if isinstance(event, PureEvent):
        check_change(event, change, count, width)


def check_change(event: Event, change: Change, count: int, width: int = 1) -> None:
    """Refuse noise on so many rows of so many numbers, or on so many numbers, that the vault could not draw.

    All arguments are public. What is asked is what the vault will ask, of the same functions: less strict than
    `check_noise`, for queries whose grid and whose number of answers are known before anything is paid.
    """
    try:
        if not isinstance(event, PureEvent):
            _check_gaussian(event, change)
        elif change.norm is Norm.ROWS:
            row_scale(count, width, grid=change.grid, sensitivity=change.bound, epsilon=event.epsilon)
        else:
            laplace_scale(count, sensitivity=math.ceil(change.bound / change.grid), epsilon=event.epsilon)
    except InputError as error:
        scale = change.bound * _times(event)
        raise InputError(
            f"epsilon must give every answer noise that can be drawn on its grid, got {scale / change.grid:.3g} "
            f"grid steps for a change by {change.bound / change.grid:.3g}; use "
            f"{'more' if scale > change.bound else 'less'} epsilon"
        ) from error


def _check_gaussian(event: GaussianEvent | SampledGaussianEvent, change: Change) -> None:
    std = event.noise_multiplier * change.bound
    grid = min(change.grid, grid_for(std))
    if change.grid > FINEST * grid or std * ROUND_UP > LARGEST_SCALE * grid:
        raise InputError(f"noise must be from 2^{GRID_BITS} to 2^50 grid steps, got {std / grid:.3g}; change epsilon")


def _times(event: Event) -> float:
    """The scale of the noise, in sensitivities."""
    return 1 / event.epsilon if isinstance(event, PureEvent) else event.noise_multiplier
