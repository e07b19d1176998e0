"""Which noise fits the grids of the queries: asked while planning, so that no paid stage is refused by the vault."""

from tensorveil.errors import InputError
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.noise.source import row_scale

SMALLEST_NOISE = 2.0**-4  # of one contribution, so that the vault need not clamp sums on its finer grid
LARGEST_NOISE = 2.0**17  # 2^50 steps of the finest grid in use


def check_noise(event: Event, sensitivity: float) -> None:
    """Refuse, while planning, a budget so small that its noise would not fit the grid."""
    scale = sensitivity * (1 / event.epsilon if isinstance(event, PureEvent) else event.noise_multiplier)
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


def check_row_noise(event: Event, sensitivity: float, grid: float, count: int, width: int) -> None:
    """`check_noise` for so many rows of so many numbers: pure noise on wide rows reaches further."""
    check_noise(event, sensitivity)
    if isinstance(event, PureEvent):
        row_scale(count, width, grid=grid, sensitivity=sensitivity, epsilon=event.epsilon)
