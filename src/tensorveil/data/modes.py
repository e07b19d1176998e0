"""Names and labels of the modes of a tensor, as a caller gives them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Labels
from tensorveil.errors import InputError


def checked_public(names: Sequence[str], modes: Sequence[str]) -> tuple[str, ...]:
    """The names of the modes whose labels the caller states to be public, checked."""
    if isinstance(names, str) or not isinstance(names, (Sequence, set, frozenset)):
        raise InputError(f"public_labels must be a list of modes, got {names!r}; write e.g. [{modes[0]!r}]")
    for name in names:
        if name not in modes:
            raise InputError(f"public_labels must be among the modes {list(modes)}, got {name!r}; correct it")
    return tuple(names)


def checked_names(names: Sequence[str] | None, order: int) -> tuple[str, ...]:
    """The names of the modes; mode_0, mode_1, ... if none are given."""
    if names is None:
        return tuple(f"mode_{number}" for number in range(order))
    result = tuple(names)
    if (
        isinstance(names, str)
        or len(result) != order
        or len(set(result)) != order
        or not all(isinstance(name, str) and name for name in result)
    ):
        raise InputError(f"mode_names must be {order} different, non-empty names, got {names!r}; give one per mode")
    return result


def checked_mode(mode: int | str, names: Sequence[str]) -> int:
    """The number of a mode that is given by its name or number."""
    if not isinstance(mode, str):
        return checks.mode(mode, len(names))
    if mode not in names:
        raise InputError(f"mode must be one of {list(names)}, got {mode!r}; correct it")
    return list(names).index(mode)


def checked_labels(labels: Sequence[ArrayLike | None] | None, shape: tuple[int, ...]) -> tuple[Labels | None, ...]:
    """For each mode different labels, one per index and read-only, or None."""
    if labels is None:
        return (None,) * len(shape)
    if len(labels) != len(shape):
        raise InputError(
            f"labels must be one list (or None) per mode, got {len(labels)} for {len(shape)} modes; give one per mode"
        )
    result: list[Labels | None] = []
    for mode, (mode_labels, size) in enumerate(zip(labels, shape, strict=True)):
        if mode_labels is None:
            result.append(None)
            continue
        array = np.array(mode_labels)
        if array.ndim != 1 or len(array) != size:
            raise InputError(
                f"labels of mode {mode} must be {size}, one per index, got an array of shape {array.shape}; "
                "give one label per index"
            )
        if len(set(array.tolist())) != size:
            raise InputError(f"labels of mode {mode} must be different, got repeated ones; make them unique")
        array.setflags(write=False)
        result.append(array)
    return tuple(result)
