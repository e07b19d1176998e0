"""Arrays in NumPy's .npz and MATLAB's .mat files: dense with NaN for missing cells, or coordinates and values."""

import io
import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.data.readers import matlab as mat_files
from tensorveil.errors import InputError, SizeError

MOST_BYTES = 2**33
SUSPECT_BYTES, SUSPECT_RATIO = 2**28, 200  # larger arrays that compress better than this are refused as bombs

Array = NDArray[Any]
Entries = tuple[Array, Array, tuple[int, ...] | None]  # coordinates as they are in the file, values, declared shape


def npz_entries(path: Path, value: str | None) -> Entries:
    """Entries of a .npz file.

    The file holds `coordinates`, `values` and optionally `shape`; or a sparse matrix in SciPy's coordinate form (`row`,
    `col`, `data`, `shape`); or dense arrays, of which `value` names one if there are several. Pickled objects are never
    read.
    """
    with _Archive(path) as archive:
        names = set(archive.sizes)
        if {"coordinates", "values"} <= names:
            shape = _declared_shape(archive.array("shape"), path) if "shape" in names else None
            return archive.array("coordinates"), archive.array("values"), shape
        if {"row", "col", "data", "shape"} <= names:
            row, column = archive.array("row"), archive.array("col")
            if row.ndim != 1 or row.shape != column.shape:
                raise InputError(
                    f"row and col of {path.name} must be lists of the same length, got others; check the source"
                )
            return np.column_stack([row, column]), archive.array("data"), _declared_shape(archive.array("shape"), path)
        if {"indices", "indptr"} <= names:
            raise InputError(
                f"a sparse matrix in {path.name} must be in coordinate form, got another; save matrix.tocoo()"
            )
        name = _the_one(sorted(names), value, path)
        checks.dense_size([archive.sizes[name]], checks.MAX_DENSE_CELLS, "save coordinates, values and shape")
        return _dense_entries(archive.array(name), path)


def mat_entries(path: Path, value: str | None) -> Entries:
    """Entries of a dense array in a MATLAB file of version 5 to 7.2; NaN marks the missing cells."""
    return _dense_entries(mat_files.mat_array(path, value), path)


def _dense_entries(array: Array, path: Path) -> Entries:
    if array.dtype.kind not in "iuf":
        raise InputError(f"the array of {path.name} must hold real numbers, got {array.dtype}; convert it")
    checks.order(array.ndim)
    dense = array.astype(np.float64)
    known = ~np.isnan(dense)
    return np.argwhere(known), dense[known], dense.shape


def _declared_shape(array: Array, path: Path) -> tuple[int, ...]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"shape in {path.name} must be a list of whole numbers, got others; check the source")
    return checks.shape(array.tolist())


def _the_one(names: Sequence[str], value: str | None, path: Path) -> str:
    """The name of the array to read: the only one, or the one that `value` names."""
    if value in names:
        return str(value)
    if len(names) != 1:
        raise InputError(
            f"value must name one of the arrays {sorted(names)[:20]} of {path.name}, got {value!r}; choose one"
        )
    return names[0]


class _Archive:
    """Arrays of a .npz file, whose sizes are checked before anything is decompressed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = zipfile.ZipFile(path)
            self._members = {
                info.filename.removesuffix(".npy"): info
                for info in self._file.infolist()
                if info.filename.endswith(".npy")
            }
        except Exception as error:  # a damaged directory of the archive raises almost anything
            raise self._damaged(error) from error
        try:
            self.sizes = {name: self._cells(info) for name, info in self._members.items()}
        except InputError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _damaged(self, error: Exception) -> InputError:
        return InputError(
            f"{self._path.name} must be a .npz file of plain arrays, got something else ({type(error).__name__}); "
            "save it with numpy.savez"
        )

    def _cells(self, info: zipfile.ZipInfo) -> int:
        """How many numbers a member holds by its header, which must fit the size that the archive declares."""
        bomb = info.file_size > SUSPECT_BYTES and info.file_size > SUSPECT_RATIO * info.compress_size
        if info.file_size > MOST_BYTES or bomb:
            raise SizeError(
                f"an array of {self._path.name} must have at most {MOST_BYTES:,} bytes and, if it is large, at most "
                f"{SUSPECT_RATIO} times its compressed size, got one that declares {info.file_size:,}; save a part "
                "of it, or save it without compression"
            )
        try:
            with warnings.catch_warnings(), self._file.open(info) as member:
                warnings.simplefilter("ignore")
                version = np.lib.format.read_magic(member)
                read_header = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, _, kind = read_header(member)
                cells = math.prod(shape)
                if (
                    kind.hasobject
                    or min(shape, default=0) < 0
                    or cells * kind.itemsize + member.tell() != info.file_size
                ):
                    raise ValueError("the header does not fit the bytes")
        except Exception as error:  # a damaged member too
            raise self._damaged(error) from error
        return cells

    def array(self, name: str) -> Array:
        """One array."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = io.BytesIO(self._file.read(self._members[name]))
                found: Array = np.lib.format.read_array(content, allow_pickle=False)
                return found
        except Exception as error:
            raise self._damaged(error) from error
