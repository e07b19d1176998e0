"""The vocabulary of the fast kernels: rows of numbers as SIMD vectors, written out instead of left to the compiler.

A fast kernel knows its number of modes and its rank when it is compiled: they are part of the type of an argument,
`Constants(N, R)`, so that each pair has its own machine code, which is cached on disk like that of any kernel. The
innermost steps are instructions on vectors of 32 bytes (8 single or 4 double numbers), row after row. Every sum has a
fixed order, which the compiler may not change. The reference kernels follow the same order where both must give the
same integers (fused.py): one partial sum for each of `LANES` numbers, `fma` for each product that is added, and the
sum of the four partial sums in pairs, (0 + 1) + (2 + 3).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types
from numba.core.datamodel import models
from numpy.typing import NDArray

numba: Any = extending  # without types of its own
declared: Any = cgutils.get_or_insert_function
for_range: Any = cgutils.for_range
alloca: Any = cgutils.alloca_once
VECTOR_BYTES = 32  # on every machine: the number of lanes decides the order of sums
LINE = 64  # bytes of a cache line
NEAR = 2**20  # bytes that about fit a core's own cache: smaller models need no prefetching
AHEAD = 8  # entries between prefetching rows and using them; lists of entries end with as many spare entries
INT32, INT64 = ir.IntType(32), ir.IntType(64)


def intrinsic(function: Callable[..., Any]) -> Any:
    """A function that emits instructions; kernels call it without its first argument."""
    return numba.intrinsic(function)


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


@numba.typeof_impl.register(Constants)  # type: ignore[untyped-decorator]
def _type_of_constants(value: Constants, context: Any) -> ConstantsType:
    return value.kind


numba.register_model(ConstantsType)(models.OpaqueModel)


@numba.unbox(ConstantsType)  # type: ignore[untyped-decorator]
def _unbox_constants(kind: Any, value: Any, c: Any) -> Any:
    return numba.NativeValue(c.context.get_dummy_value())


def padded(R: int, dtype: Any) -> int:
    """Length of a row of R numbers together with the zeros that fill its last vector."""
    lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    return int(-(-R // lanes) * lanes)


def aligned_zeros(size: int, dtype: Any) -> NDArray[Any]:
    """Zeros that begin at a cache line: a vector that lies across two cache lines is slow to write."""
    wanted = size * np.dtype(dtype).itemsize
    room = np.zeros(wanted + LINE, dtype=np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + wanted].view(dtype)


class Code:
    """Emits instructions on rows of numbers of one type."""

    def __init__(self, context: Any, builder: Any, number: Any) -> None:
        self.builder = builder
        self.number = context.get_value_type(number)
        self.bytes = number.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.bytes

    def padded(self, R: int) -> int:
        """`padded` for numbers of this type."""
        return int(-(-R // self.lanes) * self.lanes)

    def pieces(self, length: int) -> list[tuple[int, int]]:
        """(begin, lanes) of the vectors that make up a row of a padded length."""
        return [(begin, self.lanes) for begin in range(0, length, self.lanes)]

    def pointer(self, row: Any, index: Any) -> Any:
        """Address of a number after `row`; the index is a number or a value."""
        place = INT64(index) if isinstance(index, int) else index
        return self.builder.gep(row, [place], source_etype=self.number)

    def row(self, base: Any, starts: Any, entry: Any, m: int, length: int) -> Any:
        """Address of the row that coordinate m of an entry names; rows of mode m begin at starts[m] after `base`."""
        b = self.builder
        index = b.load(b.gep(entry, [INT64(m)], source_etype=INT32), align=4, typ=INT32)
        return self.pointer(base, b.add(b.extract_value(starts, m), b.mul(b.zext(index, INT64), INT64(length))))

    def load(self, row: Any, begin: Any, lanes: int) -> Any:
        address = self.pointer(row, begin)
        kind = ir.VectorType(self.number, lanes)
        return self.builder.load(_as(self.builder, address, kind), align=self.bytes, typ=kind)

    def store(self, value: Any, row: Any, begin: Any) -> None:
        self.builder.store(value, _as(self.builder, self.pointer(row, begin), value.type), align=self.bytes)

    def load_one(self, row: Any, begin: Any) -> Any:
        return self.builder.load(self.pointer(row, begin), align=self.bytes, typ=self.number)

    def fill(self, value: Any, lanes: int) -> Any:
        """A vector of one number."""
        kind = ir.VectorType(value.type, lanes)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
        mask = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), mask)

    def zero(self, lanes: int) -> Any:
        return ir.Constant(ir.VectorType(self.number, lanes), [0.0] * lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        letter = "f64" if self.bytes == 8 else "f32"
        name = f"llvm.fma.v{a.type.count}{letter}" if isinstance(a.type, ir.VectorType) else f"llvm.fma.{letter}"
        kind = ir.FunctionType(a.type, [a.type] * 3)
        return self.builder.call(declared(self.builder.module, kind, name), [a, b, c])

    def product(self, values: Sequence[Any]) -> Any:
        total = values[0]
        for value in values[1:]:
            total = self.builder.fmul(total, value)
        return total

    def others(self, rows: Sequence[Any]) -> list[Any]:
        """For each of the rows the product of all others, from the left and from the right."""
        left: list[Any] = [None, rows[0]]
        for row in rows[1:-1]:
            left.append(self.builder.fmul(left[-1], row))
        right, found = None, []
        for n in range(len(rows) - 1, -1, -1):
            sides = [side for side in (left[n], right) if side is not None]
            found.append(self.product(sides))
            right = rows[n] if right is None else self.builder.fmul(rows[n], right)
        return found[::-1]

    def sum(self, vectors: Sequence[Any]) -> Any:
        """Sum of all lanes of all vectors: vectors first, then halves upon halves; always in this order."""
        b = self.builder
        total = vectors[0]
        for vector in vectors[1:]:
            total = b.fadd(total, vector)
        lanes = self.lanes // 2
        while lanes:
            halves = [*range(lanes)], [*range(lanes, 2 * lanes)]
            total = b.fadd(*(self.picked(total, total, half) for half in halves))
            lanes //= 2
        return b.extract_element(total, INT32(0))

    def two_sums(self, one: Any, others: Sequence[Any]) -> Any:
        """Sum of all lanes of one vector, and of all lanes of some others, as a pair; four lanes of doubles.

        The lanes are added in pairs, (0 + 1) + (2 + 3), as in `four_sums` and in the reference kernels.
        """
        second = others[0]
        for vector in others[1:]:
            second = self.builder.fadd(second, vector)
        pairs = self._pairs(one, second)
        return self.builder.fadd(self.picked(pairs, pairs, [0, 1]), self.picked(pairs, pairs, [2, 3]))

    def four_sums(self, vectors: Sequence[Any]) -> Any:
        """Sums of all lanes of each of four vectors of doubles, added in pairs: (0 + 1) + (2 + 3)."""
        low, high = self._pairs(*vectors[:2]), self._pairs(*vectors[2:])
        return self.builder.fadd(self.picked(low, high, [0, 1, 4, 5]), self.picked(low, high, [2, 3, 6, 7]))

    def _pairs(self, first: Any, other: Any) -> Any:
        """Sums of neighbouring lanes of two vectors of four, by turns."""
        return self.builder.fadd(self.picked(first, other, [0, 4, 2, 6]), self.picked(first, other, [1, 5, 3, 7]))

    def picked(self, first: Any, other: Any, places: list[int]) -> Any:
        """A vector of the lanes at these places, where those of the other vector follow those of the first."""
        return self.builder.shuffle_vector(first, other, ir.Constant(ir.VectorType(INT32, len(places)), places))

    def eight_sums(self, vectors: Sequence[Any]) -> Any:
        """Sums of all lanes of each of eight vectors of single numbers: neighbours, then pairs, then halves."""

        def added(first: Any, other: Any, places: list[int], others: list[int]) -> Any:
            return self.builder.fadd(self.picked(first, other, places), self.picked(first, other, others))

        while len(vectors) > 2:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [added(one, two, [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]) for one, two in pairs]
        return added(vectors[0], vectors[1], [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])

    def quads(self, array: Any, places: Any) -> list[Any]:
        """Four vectors of eight single numbers: array[places], and those one, two and three places later."""
        b, picked = self.builder, self.picked
        fours = [self.load(array, b.zext(b.extract_element(places, INT32(lane)), INT64), 4) for lane in range(8)]
        wide = [picked(fours[lane], fours[lane + 4], list(range(8))) for lane in range(4)]
        low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        found = []
        for part in (low, high):
            one, two = picked(wide[0], wide[1], part), picked(wide[2], wide[3], part)
            found += [picked(one, two, [0, 1, 8, 9, 4, 5, 12, 13]), picked(one, two, [2, 3, 10, 11, 6, 7, 14, 15])]
        return found

    def truncate(self, vector: Any) -> Any:
        """Doubles rounded towards zero."""
        kind = vector.type
        function = declared(self.builder.module, ir.FunctionType(kind, [kind]), f"llvm.trunc.v{kind.count}f64")
        return self.builder.call(function, [vector])

    def whole(self, vector: Any) -> Any:
        """Numbers rounded towards zero, as 64-bit integers; right for finite doubles below 2^51.

        Adding 1.5 * 2^52 to a whole number leaves it, in two's complement, in the last bits of the sum.
        """
        b, kind, lanes = self.builder, vector.type, vector.type.count
        magic = ir.Constant(kind, [6755399441055744.0] * lanes)
        integers = ir.VectorType(INT64, lanes)
        bits = b.bitcast(b.fadd(self.truncate(vector), magic), integers)
        return b.sub(bits, ir.Constant(integers, [0x4338000000000000] * lanes))

    def add_whole(self, vector: Any, row: Any, begin: Any) -> None:
        """Add 64-bit integers to those from `begin` on after `row`."""
        b = self.builder
        place = INT64(begin) if isinstance(begin, int) else begin
        address = _as(b, b.gep(row, [place], source_etype=INT64), vector.type)
        b.store(b.add(b.load(address, align=8, typ=vector.type), vector), address, align=8)

    def prefetch(self, row: Any, length: int, *, write: bool) -> None:
        """Prefetch the cache lines of a row, for writing only if no other thread reads it meanwhile."""
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, INT32, INT32, INT32])
        function = declared(self.builder.module, kind, "llvm.prefetch.p0")
        for begin in range(0, length, LINE // self.bytes):
            address = _as(self.builder, self.pointer(row, begin), ir.IntType(8))
            self.builder.call(function, [address, INT32(int(write)), INT32(3), INT32(1)])


def _as(builder: Any, address: Any, kind: Any) -> Any:
    """The address as one of another kind of number."""
    return builder.bitcast(address, kind.as_pointer())


def data_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Where the numbers of an array begin."""
    return context.make_array(kind)(context, builder, array).data


def emits(body: Callable[..., Any]) -> Any:
    """An intrinsic whose instructions the body emits; kernels call it without its first argument, the `Code`.

    The code is one for the numbers of the first array. In the body an array is the address of its numbers, `Constants`
    are whole numbers, a named tuple has its fields as attributes, and anything else is a value: whole numbers have 64
    bits, other numbers the type of the code. A body that returns something returns one such number.
    """
    returns = body.__annotations__["return"] is not None

    @wraps(body)
    def typed(typingctx: Any, *kinds: Any) -> Any:
        inside = kinds[0].types if isinstance(kinds[0], types.NamedTuple) else kinds
        number = next(kind.dtype for kind in inside if isinstance(kind, types.Array))
        real = number if isinstance(number, types.Float) else types.float64
        numbers = ((types.Integer, types.int64), (types.Float, real))
        taken = [next((to for old, to in numbers if isinstance(kind, old)), kind) for kind in kinds]

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = [_given(context, builder, kind, value) for kind, value in zip(taken, args, strict=True)]
            found = body(Code(context, builder, number), *given)
            return found if returns else context.get_dummy_value()

        return (number if returns else types.void)(*taken), code

    return intrinsic(typed)


def _given(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """An argument as the body of an intrinsic takes it."""
    if isinstance(kind, types.NamedTuple):
        parts = [builder.extract_value(value, place) for place in range(len(kind.types))]
        fields = zip(kind.fields, kind.types, parts, strict=True)
        return SimpleNamespace(**{name: _given(context, builder, *field) for name, *field in fields})
    if isinstance(kind, types.Array):
        return data_of(context, builder, kind, value)
    return kind.numbers if isinstance(kind, ConstantsType) else value


@emits
def load_acquire(c: Code, array: Any, place: Any) -> Any:
    """array[place] as int64, in one order for all threads."""
    return c.builder.load_atomic(c.pointer(array, place), "seq_cst", 8, typ=INT64)


@emits
def add_release(c: Code, array: Any, place: Any, amount: Any) -> Any:
    """array[place] += amount, atomically; returns the old number."""
    return c.builder.atomic_rmw("add", c.pointer(array, place), amount, "seq_cst")
