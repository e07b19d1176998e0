"""Offsets: a mean and one number per index of each mode, added to the predictions of a factor model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError


@final
class Offsets:
    """mean + sum over modes of an offset for the index; a mode without offsets has None.

    Examples
    --------
    >>> Offsets(3.5, [np.array([0.5, -0.5]), None]).predict([[0, 7], [1, 2]], shape=(2, 8))
    array([4., 3.])
    """

    def __init__(self, mean: float, modes: Sequence[ArrayLike | None]) -> None:
        self.mean = checks.finite_number("mean", mean)
        parts: list[Floats | None] = []
        for number, part in enumerate(modes):
            if part is None:
                parts.append(None)
                continue
            array = np.array(part, dtype=np.float64)
            if array.ndim != 1 or not np.isfinite(array).all():
                raise InputError(f"offsets of mode {number} must be a list of finite numbers, got something else")
            array.setflags(write=False)
            parts.append(array)
        checks.order(len(parts))
        self.modes: tuple[Floats | None, ...] = tuple(parts)

    @classmethod
    def none(cls, order: int) -> Offsets:
        """No offsets: zero everywhere."""
        return cls(0.0, [None] * order)

    def at(self, coordinates: NDArray[np.uint32]) -> Floats:
        """Sum of mean and offsets at checked coordinates."""
        total = np.full(len(coordinates), self.mean)
        for number, part in enumerate(self.modes):
            if part is not None:
                total += part[coordinates[:, number]]
        return total

    def predict(self, coordinates: ArrayLike, shape: tuple[int, ...]) -> Floats:
        """Sum of mean and offsets at coordinates."""
        return self.at(checks.coordinates(coordinates, shape))

    def with_mode(self, mode: int, values: Floats) -> Offsets:
        """The same with offsets of one mode set."""
        return Offsets(self.mean, [values if number == mode else part for number, part in enumerate(self.modes)])

    def __add__(self, other: Offsets) -> Offsets:
        """Offsets that predict the sum of what both predict."""
        parts = [
            theirs if mine is None else mine if theirs is None else mine + theirs
            for mine, theirs in zip(self.modes, other.modes, strict=True)
        ]
        return Offsets(self.mean + other.mean, parts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Offsets)
            and self.mean == other.mean
            and len(self.modes) == len(other.modes)
            and all(
                (mine is None) == (theirs is None) and (mine is None or theirs is None or np.array_equal(mine, theirs))
                for mine, theirs in zip(self.modes, other.modes, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, and large
