"""Dense arrays in MATLAB files of version 5 to 7.2, as described in MathWorks' "MAT-File Format".

SciPy's reader can crash the process on a damaged file; this one checks every length before it uses it.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError, SizeError

HEADER_BYTES = 128
DESCRIPTION_BYTES = 4096  # the flags, sizes and name of an array lie within these
MOST_BYTES = 2**33
MATRIX, COMPRESSED = 14, 15
NUMERIC_CLASSES = range(6, 16)  # double, single, and whole numbers of 8 to 64 bits
COMPLEX = 0x08
# the types in which numbers are stored
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


@final
@dataclass(frozen=True)
class MatArray:
    """A dense array of real numbers in a MATLAB file, not read yet."""

    name: str
    shape: tuple[int, ...]
    content: memoryview
    compressed: bool
    order: str

    def read(self) -> Floats:
        """The numbers; MATLAB stores the first index as the fastest."""
        cells = math.prod(self.shape)
        content = _unpacked(self.content, self.compressed, DESCRIPTION_BYTES + 8 * cells + 16)
        at = 8 if self.compressed else 0
        for _ in ("flags", "sizes", "name"):
            at = _element(content, at, self.order)[3]
        kind, start, size, _ = _element(content, at, self.order)
        stored = np.dtype(self.order + STORED[kind])
        if size != cells * stored.itemsize:
            raise ValueError("the numbers do not fill the array")
        numbers = np.frombuffer(content[start : start + size], stored)
        return numbers.astype(np.float64).reshape(self.shape, order="F")


def mat_array(path: Path, value: str | None) -> Floats:
    """The dense array of a MATLAB file: the only one, or the one that `value` names."""
    if path.stat().st_size > MOST_BYTES:
        raise SizeError(f"{path.name} must have at most {MOST_BYTES:,} bytes, got more; save a part of it")
    content = path.read_bytes()
    if b"MATLAB 7.3" in content[:HEADER_BYTES]:
        raise InputError(f"{path.name} must be a MATLAB file of version 7.2 or less, got 7.3; save with '-v7'")
    try:
        found = {array.name: array for array in _arrays(memoryview(content))}
        chosen = found.get(value or "")
        if chosen is None:
            candidates = [array for array in found.values() if math.prod(array.shape) > 1]
            if len(candidates) != 1:
                names = sorted(array.name for array in candidates)[:20]
                raise InputError(
                    f"value must name one of the arrays {names} of {path.name}, got {value!r}; "
                    "choose one that is dense and real"
                )
            chosen = candidates[0]
        checks.dense_size(chosen.shape, checks.MAX_DENSE_CELLS, "save coordinates and values as a table")
        return chosen.read()
    except InputError:
        raise
    except (ValueError, KeyError, struct.error, zlib.error) as error:
        raise InputError(
            f"{path.name} must be a MATLAB file of version 5 to 7.2, got something else or a damaged one; "
            "save it again with '-v7'"
        ) from error


def _arrays(content: memoryview) -> Iterator[MatArray]:
    """The numeric arrays of a file; others (texts, cells, structures, sparse) are skipped."""
    order = {b"IM": "<", b"MI": ">"}[bytes(content[126:128])]
    if struct.unpack_from(order + "H", content, 124)[0] != 0x0100:
        raise ValueError("another version")
    at = HEADER_BYTES
    while at < len(content):
        kind, start, size, after = _element(content, at, order)
        at = after
        if kind not in (MATRIX, COMPRESSED):
            raise ValueError("not an array")
        part = content[start : start + size]
        described = _described(part, kind == COMPRESSED, order)
        if described is not None:
            yield described


def _described(part: memoryview, compressed: bool, order: str) -> MatArray | None:
    """Name and sizes of an array, or None if it is not a dense array of real numbers."""
    head = _unpacked(part, compressed, DESCRIPTION_BYTES)
    at = 0
    if compressed:
        kind, _ = struct.unpack_from(order + "II", head)
        at = 8
        if kind != MATRIX:
            raise ValueError("not an array")
    _, start, size, at = _element(head, at, order)
    flags = struct.unpack_from(order + "I", head, start)[0]
    if size != 8 or flags & 0xFF not in NUMERIC_CLASSES or flags >> 8 & COMPLEX:
        return None
    _, start, size, at = _element(head, at, order)
    shape = struct.unpack_from(f"{order}{size // 4}i", head, start)
    if size % 4 or len(shape) < 2 or min(shape) < 0:
        raise ValueError("no sizes of an array")
    _, start, size, _ = _element(head, at, order)
    return MatArray(bytes(head[start : start + size]).decode("ascii"), shape, part, compressed, order)


def _element(content: memoryview, at: int, order: str) -> tuple[int, int, int, int]:
    """The kind of the element at a position, where its bytes begin, how many there are, and where the next one is."""
    kind, size = struct.unpack_from(order + "II", content, at)
    if kind >> 16:  # a small element: up to four bytes in the tag itself
        kind, size, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if size > 4:
            raise ValueError("too much for a small element")
    else:
        start = at + 8
        after = start + size + (0 if kind == COMPRESSED else -size % 8)
    if start + size > len(content):
        raise ValueError("an element reaches beyond its end")
    return kind, start, size, after


def _unpacked(part: memoryview, compressed: bool, most: int) -> memoryview:
    """The first bytes of an array, decompressed no further than `most`."""
    return memoryview(zlib.decompressobj().decompress(part, most)) if compressed else part[:most]
