"""The one place that says how kernels are compiled."""

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
T = TypeVar("T")


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a kernel: cached on disk, without the interpreter's lock, IEEE arithmetic to the letter (no fastmath)."""
    dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    # A cached kernel contains the code of the kernels it calls, yet Numba looks at the date of its own file only:
    # every kernel gets the dates of all source files
    if hasattr(dispatcher, "_cache"):
        dispatcher._cache._cache_file._source_stamp = _SOURCES
    return cast(Callable[P, T], dispatcher)


_SOURCES = tuple(
    (str(path.relative_to(Path(__file__).parent)), path.stat().st_mtime, path.stat().st_size)
    for path in sorted(Path(__file__).parent.rglob("*.py"))
)
