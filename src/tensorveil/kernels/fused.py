"""Products that are added with one rounding, and how many partial sums there are: what twin kernels must share.

The reference kernels follow the order of the vectorised ones where both must give the same integers.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types

intrinsic: Any = extending.intrinsic
declared: Any = cgutils.get_or_insert_function
LANES = 4  # partial sums: the double numbers in a vector of 32 bytes


@intrinsic  # type: ignore[untyped-decorator]
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c in double precision, rounded once, as each lane of the fast kernels does."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        double = ir.DoubleType()
        function = declared(builder.module, ir.FunctionType(double, [double] * 3), "llvm.fma.f64")
        return builder.call(function, args)

    return types.float64(types.float64, types.float64, types.float64), code
