"""The one place that says how kernels are compiled."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
T = TypeVar("T")


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a kernel: cached on disk, without the interpreter's lock, IEEE arithmetic to the letter (no fastmath)."""
    return cast(Callable[P, T], numba.njit(cache=True, nogil=True, error_model="numpy")(function))
