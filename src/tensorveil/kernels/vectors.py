"""The vocabulary of the fast kernels: rows of numbers as SIMD vectors, written out instead of left to the compiler.

A fast kernel knows its number of modes and its rank when it is compiled: they are part of the type of an argument,
`Constants(N, R)`, so that each pair has its own machine code, which is cached on disk like that of any kernel. The
innermost steps are instructions on vectors of 32 bytes (8 single or 4 double numbers), row after row. They are written
as functions marked `@emits`, in the words of this page and of no other: a body runs once, while a kernel is compiled;
what it computes with `Value` becomes instructions, `for k in c.loop(count)` a loop, and loops of Python, over the
vectors of a row say, are written out. Every sum has a
fixed order, which the compiler may not change. The reference kernels follow the same order where both must give the
same integers (fused.py): one partial sum for each of `LANES` numbers, `fma` for each product that is added, and the
sum of the four partial sums in pairs, (0 + 1) + (2 + 3).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types
from numpy.typing import NDArray

from tensorveil.kernels.compiling import Constants as Constants
from tensorveil.kernels.compiling import ConstantsType

intrinsic: Any = extending.intrinsic  # without types of its own
declared: Any = cgutils.get_or_insert_function
for_range: Any = cgutils.for_range
alloca: Any = cgutils.alloca_once
VECTOR_BYTES = 32  # on every machine: the number of lanes decides the order of sums
LINE = 64  # bytes of a cache line
NEAR = 2**20  # bytes that about fit a core's own cache: smaller models need no prefetching
AHEAD = 8  # entries between prefetching rows and using them; lists of entries end with as many spare entries
BIT, BYTE, INT32, INT64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
SINGLE, DOUBLE = ir.FloatType(), ir.DoubleType()


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


def _operator(name: str, swapped: bool = False) -> Callable[["Value", Any], "Value"]:
    return lambda one, other: one._computed(name, other, swapped)


def _comparison(sign: str) -> Callable[["Value", Any], "Value"]:
    return lambda one, other: one._compared(sign, other)


class Value:
    """A number or a vector of numbers that instructions will compute; operators emit those instructions.

    Beside a vector, a single number stands for a vector of it, and so does a number of Python.
    """

    def __init__(self, code: "Code", value: Any) -> None:
        self.code, self.value = code, value
        self.kind = value.type
        self.lanes = self.kind.count if isinstance(self.kind, ir.VectorType) else 0
        self.is_float = not isinstance(self.kind.element if self.lanes else self.kind, ir.IntType)

    def _matched(self, other: Any) -> tuple[Any, Any]:
        """Both as values of one type."""
        if not isinstance(other, Value):
            other = Value(self.code, ir.Constant(self.kind, [other] * self.lanes if self.lanes else other))
        one = self.code.fill(self, other.lanes) if other.lanes and not self.lanes else self
        other = self.code.fill(other, self.lanes) if self.lanes and not other.lanes else other
        return one.value, other.value

    def _computed(self, name: str, other: Any, swapped: bool = False) -> "Value":
        one, two = self._matched(other)
        emit = getattr(self.code.builder, f"f{name}" if self.is_float else name)
        return Value(self.code, emit(two, one) if swapped else emit(one, two))

    def _compared(self, sign: str, other: Any) -> "Value":
        """Comparisons are false where one of both is not a number."""
        compare = self.code.builder.fcmp_ordered if self.is_float else self.code.builder.icmp_signed
        return Value(self.code, compare(sign, *self._matched(other)))

    def __and__(self, other: "Value") -> "Value":
        return Value(self.code, self.code.builder.and_(self.value, other.value))

    def __neg__(self) -> "Value":
        return self._computed("sub", -0.0, swapped=True)

    __add__, __sub__, __rsub__ = _operator("add"), _operator("sub"), _operator("sub", swapped=True)
    __mul__, __truediv__, __rtruediv__ = _operator("mul"), _operator("div"), _operator("div", swapped=True)
    __floordiv__ = _operator("sdiv")
    __lt__, __gt__, __ge__, equals = _comparison("<"), _comparison(">"), _comparison(">="), _comparison("==")

    def __getitem__(self, lane: int) -> "Value":
        return Value(self.code, self.code.builder.extract_element(self.value, INT32(lane)))

    def picked(self, places: list[int], other: "Value | None" = None) -> "Value":
        """A vector of the lanes at these places, where those of the other vector follow those of this one."""
        mask = ir.Constant(ir.VectorType(INT32, len(places)), places)
        return Value(self.code, self.code.builder.shuffle_vector(self.value, (other or self).value, mask))

    def replaced(self, lane: int, number: Any) -> "Value":
        """The vector with another number in one lane."""
        number = number.value if isinstance(number, Value) else ir.Constant(self.kind.element, number)
        return Value(self.code, self.code.builder.insert_element(self.value, number, INT32(lane)))

    def converted(self, to: Any) -> "Value":
        """The same numbers in another type: `SINGLE`, `DOUBLE`, `INT32` or `INT64`, rounded towards zero if whole."""
        b, own = self.code.builder, self.kind.element if self.lanes else self.kind
        if self.is_float and isinstance(to, ir.IntType):
            convert = b.fptosi
        elif self.is_float:
            convert = b.fpext if to == DOUBLE else b.fptrunc
        elif isinstance(to, ir.IntType):
            convert = b.trunc if to.width < own.width else b.zext
        else:
            convert = b.sitofp
        return Value(self.code, convert(self.value, ir.VectorType(to, self.lanes) if self.lanes else to))


class Row:
    """Numbers in memory from an address on. Places are numbers of Python, or values."""

    def __init__(self, code: "Code", address: Any, kind: Any, alignment: int = 0) -> None:
        self.code, self.address, self.kind = code, address, kind
        self.bytes = kind.width // 8 if isinstance(kind, ir.IntType) else 8 if kind == DOUBLE else 4
        self.alignment = alignment or self.bytes

    def at(self, place: Any) -> "Row":
        """What begins at a place of this row."""
        index = place.value if isinstance(place, Value) else INT64(place)
        address = self.code.builder.gep(self.address, [index], source_etype=self.kind)
        return Row(self.code, address, self.kind, self.alignment)

    def of(self, kind: Any) -> "Row":
        """The same memory as numbers of another type."""
        return Row(self.code, self.code.builder.bitcast(self.address, kind.as_pointer()), kind, self.alignment)

    def __getitem__(self, place: Any) -> Value:
        """One number; coordinates become whole numbers of 64 bits."""
        found = Value(self.code, self.code.builder.load(self.at(place).address, align=self.alignment, typ=self.kind))
        return found.converted(INT64) if self.kind == INT32 else found

    def __setitem__(self, place: Any, number: Value) -> None:
        self.code.builder.store(number.value, self.at(place).address, align=self.alignment)

    def vector(self, place: Any, lanes: int = 0) -> Value:
        """As many numbers as a vector holds, or `lanes` of them."""
        kind = ir.VectorType(self.kind, lanes or VECTOR_BYTES // self.bytes)
        address = self.code.builder.bitcast(self.at(place).address, kind.as_pointer())
        return Value(self.code, self.code.builder.load(address, align=self.alignment, typ=kind))

    def store(self, vector: Value, place: Any) -> None:
        """Write a vector over the numbers from a place on."""
        address = self.code.builder.bitcast(self.at(place).address, vector.kind.as_pointer())
        self.code.builder.store(vector.value, address, align=self.alignment)


class Variable:
    """A value that changes in loops, kept in a register: `sum.now += term`."""

    def __init__(self, start: Value) -> None:
        self.code, self.place = start.code, alloca(start.code.builder, start.kind)
        self.now = start

    @property
    def now(self) -> Value:
        return Value(self.code, self.code.builder.load(self.place))

    @now.setter
    def now(self, value: Value) -> None:
        self.code.builder.store(value.value, self.place)


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

    def pieces(self, length: int) -> range:
        """Where the vectors begin that make up a row of a padded length."""
        return range(0, length, self.lanes)

    def loop(self, count: Value) -> Iterator[Value]:
        """`for k in c.loop(count):` emits its body once, as a loop over k = 0, ..., count - 1."""
        with for_range(self.builder, count.value) as loop:
            yield Value(self, loop.index)

    def rows(self, base: Row, starts: Sequence[Value], entry: Row, count: int, length: int) -> list[Row]:
        """Rows that the first `count` coordinates of an entry name; those of mode m begin at starts[m] of `base`."""
        return [base.at(starts[m] + entry[m] * length) for m in range(count)]

    def constant(self, numbers: float | Sequence[float], kind: Any = None) -> Value:
        """A number known when the kernel is compiled, or a vector of such."""
        kind = kind or self.number
        if isinstance(numbers, Sequence):
            return Value(self, ir.Constant(ir.VectorType(kind, len(numbers)), list(numbers)))
        return Value(self, ir.Constant(kind, numbers))

    @property
    def zero(self) -> Value:
        """A vector of zeros."""
        return self.constant([0.0] * self.lanes)

    def fill(self, number: Value, lanes: int = 0) -> Value:
        """A vector of one number."""
        kind = ir.VectorType(number.kind, lanes or self.lanes)
        none = ir.Constant(kind, ir.Undefined)
        return Value(self, self.builder.insert_element(none, number.value, INT32(0))).picked([0] * kind.count)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a b + c, rounded once."""
        values = [self.fill(value) if c.lanes and not value.lanes else value for value in (a, b, c)]
        return self._called("fma", *values)

    def root(self, a: Value) -> Value:
        """Square roots."""
        return self._called("sqrt", a)

    def size(self, a: Value) -> Value:
        """Magnitudes."""
        return self._called("fabs", a)

    def truncate(self, a: Value) -> Value:
        """Numbers rounded towards zero."""
        return self._called("trunc", a)

    def _called(self, name: str, *values: Value) -> Value:
        kind = values[0].kind
        letters = f"{'v' + str(kind.count) if values[0].lanes else ''}f{8 * self.bytes}"
        function = declared(self.builder.module, ir.FunctionType(kind, [kind] * len(values)), f"llvm.{name}.{letters}")
        return Value(self, self.builder.call(function, [value.value for value in values]))

    def choose(self, condition: Value, yes: Value, no: Any) -> Value:
        """Lane by lane one of two values."""
        return Value(self, self.builder.select(condition.value, *yes._matched(no)))

    def larger(self, a: Value, b: Any) -> Value:
        """a if a > b, else b: also where a is not a number."""
        return self.choose(a > b, a, b)

    def smaller(self, a: Value, b: Any) -> Value:
        """a if a < b, else b: also where a is not a number."""
        return self.choose(a < b, a, b)

    def product(self, values: Sequence[Value]) -> Value:
        """Product of all, from the left."""
        total = values[0]
        for value in values[1:]:
            total = total * value
        return total

    def others(self, rows: Sequence[Value]) -> list[Value]:
        """For each of the rows the product of all others, from the left and from the right."""
        left: list[Any] = [None, rows[0]]
        for row in rows[1:-1]:
            left.append(left[-1] * row)
        right, found = None, []
        for n in range(len(rows) - 1, -1, -1):
            sides = [side for side in (left[n], right) if side is not None]
            found.append(self.product(sides))
            right = rows[n] if right is None else rows[n] * right
        return found[::-1]

    def sum(self, vectors: Sequence[Value]) -> Value:
        """Sum of all lanes of all vectors: vectors first, then halves upon halves; always in this order."""
        total = vectors[0]
        for vector in vectors[1:]:
            total = total + vector
        lanes = self.lanes // 2
        while lanes:
            total = total.picked([*range(lanes)]) + total.picked([*range(lanes, 2 * lanes)])
            lanes //= 2
        return total[0]

    def two_sums(self, one: Value, others: Sequence[Value]) -> Value:
        """Sum of all lanes of one vector, and of all lanes of some others, as a pair; four lanes of doubles.

        The lanes are added in pairs, (0 + 1) + (2 + 3), as in `four_sums` and in the reference kernels.
        """
        second = others[0]
        for vector in others[1:]:
            second = second + vector
        pairs = _pairs(one, second)
        return pairs.picked([0, 1]) + pairs.picked([2, 3])

    def four_sums(self, vectors: Sequence[Value]) -> Value:
        """Sums of all lanes of each of four vectors of doubles, added in pairs: (0 + 1) + (2 + 3)."""
        low, high = _pairs(*vectors[:2]), _pairs(*vectors[2:])
        return low.picked([0, 1, 4, 5], high) + low.picked([2, 3, 6, 7], high)

    def eight_sums(self, vectors: Sequence[Value]) -> Value:
        """Sums of all lanes of each of eight vectors of single numbers: neighbours, then pairs, then halves."""
        even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
        while len(vectors) > 2:
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [one.picked(even, two) + one.picked(odd, two) for one, two in pairs]
        one, two = vectors
        return one.picked([0, 1, 2, 3, 8, 9, 10, 11], two) + one.picked([4, 5, 6, 7, 12, 13, 14, 15], two)

    def quads(self, array: Row, places: Value) -> list[Value]:
        """Four vectors of eight single numbers: array[places], and those one, two and three places later."""
        fours = [array.vector(places[lane].converted(INT64), 4) for lane in range(8)]
        wide = [fours[lane].picked(list(range(8)), fours[lane + 4]) for lane in range(4)]
        found = []
        for part in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]):
            one, two = wide[0].picked(part, wide[1]), wide[2].picked(part, wide[3])
            found += [one.picked([0, 1, 8, 9, 4, 5, 12, 13], two), one.picked([2, 3, 10, 11, 6, 7, 14, 15], two)]
        return found

    def whole(self, vector: Value) -> Value:
        """Numbers rounded towards zero, as 64-bit integers; right for finite doubles below 2^51.

        Adding 1.5 * 2^52 to a whole number leaves it, in two's complement, in the last bits of the sum.
        """
        sums = self.truncate(vector) + 6755399441055744.0
        bits = Value(self, self.builder.bitcast(sums.value, ir.VectorType(INT64, sums.lanes)))
        return bits - 0x4338000000000000

    def prefetch(self, row: Row, length: int, *, write: bool) -> None:
        """Prefetch the cache lines of a row, for writing only if no other thread reads it meanwhile."""
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, INT32, INT32, INT32])
        function = declared(self.builder.module, kind, "llvm.prefetch.p0")
        for begin in range(0, length, LINE // self.bytes):
            address = row.at(begin).of(BYTE).address
            self.builder.call(function, [address, INT32(int(write)), INT32(3), INT32(1)])


def _pairs(first: Value, other: Value) -> Value:
    """Sums of neighbouring lanes of two vectors of four, by turns."""
    return first.picked([0, 4, 2, 6], other) + first.picked([1, 5, 3, 7], other)


def emits(body: Callable[..., Any], result: Any = None) -> Any:
    """An intrinsic whose instructions the body emits; kernels call it without its first argument, the `Code`.

    The code is one for the numbers of the first array. In the body an array is a `Row`, `Constants` are whole numbers
    of Python, a tuple is a list, a named tuple has its fields as attributes, and anything else is a `Value`: whole
    numbers have 64 bits, other numbers the type of the code. A body that returns something returns one number, of the
    type of the code or of the type `result`.
    """
    returns = body.__annotations__["return"] is not None

    @wraps(body)
    def typed(typingctx: Any, *kinds: Any) -> Any:
        inside = kinds[0].types if isinstance(kinds[0], types.NamedTuple) else kinds
        number = next((kind.dtype for kind in inside if isinstance(kind, types.Array)), types.float64)
        real = number if isinstance(number, types.Float) else types.float64
        numbers = ((types.Integer, types.int64), (types.Float, real))
        taken = [next((to for old, to in numbers if isinstance(kind, old)), kind) for kind in kinds]

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c = Code(context, builder, number)
            found = body(c, *(_given(c, context, kind, value) for kind, value in zip(taken, args, strict=True)))
            return found.value if returns else context.get_dummy_value()

        return ((result or number) if returns else types.void)(*taken), code

    return intrinsic(typed)


def _given(c: Code, context: Any, kind: Any, value: Any) -> Any:
    """An argument as the body of an intrinsic takes it."""
    if hasattr(kind, "types"):  # a tuple
        parts = [_given(c, context, one, c.builder.extract_value(value, m)) for m, one in enumerate(kind.types)]
        return SimpleNamespace(**dict(zip(kind.fields, parts, strict=True))) if hasattr(kind, "fields") else parts
    if isinstance(kind, types.Array):
        return Row(c, context.make_array(kind)(context, c.builder, value).data, context.get_data_type(kind.dtype))
    return kind.numbers if isinstance(kind, ConstantsType) else Value(c, value)


@emits
def load_acquire(c: Code, array: Row, place: Value) -> Value:
    """array[place] as int64, in one order for all threads."""
    return Value(c, c.builder.load_atomic(array.at(place).address, "seq_cst", 8, typ=INT64))


@emits
def add_release(c: Code, array: Row, place: Value, amount: Value) -> Value:
    """array[place] += amount, atomically; returns the old number."""
    return Value(c, c.builder.atomic_rmw("add", array.at(place).address, amount.value, "seq_cst"))
