"""The one place that says how kernels are compiled, and what they know by then."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba import extending
from numba.core import types
from numba.core.datamodel import models

typed: Any = extending  # without types of its own
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


class Constants:
    """Whole numbers that a kernel knows when it is compiled."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = tuple(int(number) for number in numbers)
        self.kind = _constants_type(self.numbers)


class ConstantsType(types.Type):
    """Type of `Constants`: other numbers, another type."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        super().__init__(name=f"Constants{numbers}")


@lru_cache(maxsize=256)
def _constants_type(numbers: tuple[int, ...]) -> ConstantsType:
    return ConstantsType(numbers)


@typed.typeof_impl.register(Constants)  # type: ignore[untyped-decorator]
def _type_of_constants(value: Constants, context: Any) -> ConstantsType:
    return value.kind


typed.register_model(ConstantsType)(models.OpaqueModel)


@typed.unbox(ConstantsType)  # type: ignore[untyped-decorator]
def _unbox_constants(kind: Any, value: Any, c: Any) -> Any:
    return typed.NativeValue(c.context.get_dummy_value())
