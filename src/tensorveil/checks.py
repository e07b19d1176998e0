"""Checks of arguments. Each returns the clean value or raises an InputError that states the rule."""

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from tensorveil.errors import InputError, SizeError

MIN_ORDER = 2
MAX_ORDER = 6
MAX_MODE_SIZE = 2**32 - 1  # coordinates are stored as uint32
MAX_DENSE_CELLS = 10**8  # 0.8 GB of float64


def positive_integer(name: str, value: object, remedy: str = "give a whole number of at least 1") -> int:
    """A whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise InputError(f"{name} must be a positive whole number, got {value!r}; {remedy}")
    return int(value)


def finite_number(name: str, value: object, remedy: str = "give a finite number") -> float:
    """A real, finite number."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond the floats
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{name} must be a finite number, got {value!r}; {remedy}")
    return number


def positive_number(name: str, value: object, remedy: str = "give a number above 0") -> float:
    """A finite number above zero."""
    number = finite_number(name, value, remedy)
    if number <= 0:
        raise InputError(f"{name} must be above 0, got {value!r}; {remedy}")
    return number


def nonnegative_number(name: str, value: object, remedy: str = "give 0 or a number above it") -> float:
    """A finite number of at least zero."""
    number = finite_number(name, value, remedy)
    if number < 0:
        raise InputError(f"{name} must be at least 0, got {value!r}; {remedy}")
    return number


def fraction(name: str, value: object, remedy: str = "give a share, e.g. 0.9") -> float:
    """A number strictly between zero and one."""
    number = finite_number(name, value, remedy)
    if not 0 < number < 1:
        raise InputError(f"{name} must be between 0 and 1, both excluded, got {value!r}; {remedy}")
    return number


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}; use one of these")
    return str(value)


def levels_within(name: str, levels: Sequence[float] | None, low: float, high: float) -> None:
    """Refuse public levels beyond the bounds, which no clipped value has."""
    outside = [level for level in levels or () if not low <= level <= high]
    if outside:
        told = ", ".join(f"{level:g}" for level in outside)
        raise InputError(
            f"{name} must be within the bounds, {low:g} to {high:g}, got {told}; leave them out, or widen the bounds"
        )


def seed(value: object) -> int | None:
    """A seed for experiments: None (fresh randomness) or a whole number of at least zero."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
        raise InputError(f"seed must be None or a whole number of at least 0, got {value!r}; use e.g. seed=0")
    return int(value)


def order(number_of_modes: int) -> int:
    """The number of modes of a tensor, 2 to 6."""
    if not MIN_ORDER <= number_of_modes <= MAX_ORDER:
        raise InputError(
            f"a tensor must have {MIN_ORDER} to {MAX_ORDER} modes, got {number_of_modes}; "
            "join or drop modes before completing"
        )
    return number_of_modes


def shape(value: object) -> tuple[int, ...]:
    """Mode sizes: 2 to 6 positive whole numbers."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)) or np.ndim(value) != 1:
        raise InputError(f"shape must be a sequence of mode sizes, got {value!r}; give e.g. (943, 1682, 213)")
    order(len(value))
    sizes = tuple(positive_integer(f"shape[{mode}]", size) for mode, size in enumerate(value))
    for mode, size in enumerate(sizes):
        if size > MAX_MODE_SIZE:
            raise InputError(f"shape[{mode}] must be at most {MAX_MODE_SIZE}, got {size}; renumber the labels in use")
    return sizes


def dense_size(sizes: Sequence[int], max_cells: int, remedy: str) -> None:
    """Refuse to build a dense tensor of more than `max_cells` cells."""
    cells = math.prod(sizes)
    if cells > max_cells:
        raise SizeError(
            f"a dense tensor must have at most {max_cells:,} cells, got {cells:,} "
            f"({cells * 8 / 2**30:,.1f} GiB); {remedy}"
        )


def mode(value: object, number_of_modes: int) -> int:
    """The number of a mode, negative ones counted from the end."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or not -number_of_modes <= int(value) < number_of_modes
    ):
        raise InputError(
            f"mode must be a whole number from {-number_of_modes} to {number_of_modes - 1}, got {value!r}; "
            f"the tensor has {number_of_modes} modes"
        )
    return int(value) % number_of_modes


def coordinates(value: object, sizes: tuple[int, ...]) -> NDArray[np.uint32]:
    """Integer coordinates, one row per entry, each inside its mode; returned as contiguous uint32."""
    array = np.asarray(value)
    if array.ndim != 2 or array.shape[1] != len(sizes):
        raise InputError(
            f"coordinates must be a table with one row per entry and {len(sizes)} columns, one per mode, "
            f"got an array of shape {array.shape}; stack the index columns with numpy.column_stack"
        )
    if array.size == 0:
        return np.empty((0, len(sizes)), dtype=np.uint32)
    if array.dtype == np.bool_ or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"coordinates must be whole numbers, got dtype {array.dtype}; for labels use Observations.from_table"
        )
    low, high = array.min(axis=0), array.max(axis=0)
    for number, size in enumerate(sizes):
        if low[number] < 0 or high[number] >= size:
            wrong = array[:, number]
            row = int(np.flatnonzero((wrong < 0) | (wrong >= size))[0])
            raise InputError(
                f"coordinates of mode {number} must be from 0 to {size - 1}, got {int(wrong[row])} in row {row}; "
                "correct the row or the shape"
            )
    return np.ascontiguousarray(array, dtype=np.uint32)
