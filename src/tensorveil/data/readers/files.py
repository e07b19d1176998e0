"""Read observations from CSV, TSV, Parquet, .tns, .npz and .mat files; errors name the lines of bad rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Integers
from tensorveil.data import tables
from tensorveil.data.merging import RepeatedCellsError
from tensorveil.data.modes import checked_public
from tensorveil.data.observations import DUPLICATES, Observations
from tensorveil.data.readers import text as text_files
from tensorveil.data.readers import time_bins
from tensorveil.data.readers.labels import binned_positions, coordinates_of, index_numbers, label_list, positions
from tensorveil.data.readers.sources import Asked, Reading, open_source
from tensorveil.errors import InputError, SizeError

__all__ = ["coordinates_of", "read", "read_table"]

FilePath = str | os.PathLike[str]

MOST_NUMBERED_LABELS = 10**8


def read(
    path: FilePath,
    modes: Sequence[str] | None = None,
    value: str | None = None,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    bins: Mapping[str, str] | None = None,
    labels: Mapping[str, Any] | None = None,
    shape: Sequence[int | None] | None = None,
    first_index: int = 0,
    public_labels: Sequence[str] = (),
    duplicates: str = "error",
) -> Observations:
    """Read the observed entries of a tensor from a file; see docs/files.md.

    Parameters
    ----------
    path : the file, or a folder of Parquet parts
    modes : names of the columns that are modes; for .tns, .npz and .mat the names to give to the modes
    value : name of the column of values; for .npz and .mat the name of the dense array, if there are several
    format : "csv", "tsv", "parquet", "tns", "npz" or "mat"; default: according to the ending of the path
    columns : names of the columns of a CSV or TSV file without a header
    bins : mode -> "hour", "day", "week", "month" or "year", for columns of times (seconds since 1970, ISO texts, dates)
    labels : mode -> its labels, a list or the path of a file with one label per line; this makes the mode public
    shape : sizes of the modes, None where not stated; a mode with a size and no labels holds numbers from `first_index`
    first_index : the number of a mode's first index, if the file has indices (a .tns file always counts from 1)
    public_labels : modes whose labels are read off the data and which the caller states to be public
    duplicates : what to do when a cell occurs more than once: "error", "keep" all, or take the "mean"

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "ratings.csv"
    >>> _ = path.write_text("user,film,stars,time\\nann,7,4,889228800\\nbob,9,2.5,889315200\\n")
    >>> ratings = read(path, modes=["user", "film", "time"], value="stars", bins={"time": "day"})
    >>> ratings
    Observations(2 values in 2 x 2 x 2 (user x film x time), 25 % observed)
    >>> ratings.labels[2]
    array(['1998-03-07', '1998-03-08'], dtype=object)
    >>> ratings.inferred_modes
    ('user', 'film', 'time')
    """
    checks.choice("duplicates", duplicates, DUPLICATES)
    if isinstance(first_index, bool) or not isinstance(first_index, Integral) or abs(int(first_index)) > 2**40:
        raise InputError(f"first_index must be a whole number, got {first_index!r}; use 0 or 1")
    names = _names("modes", modes)
    if value is not None and not isinstance(value, str):
        raise InputError(f"value must be the name of a column, got {value!r}; give its name")
    binned = _by_mode("bins", bins, "{mode: 'day'}")
    for name, kind in binned.items():
        checks.choice(f"the bin of {name!r}", kind, time_bins.BINS)
    given = {name: label_list(found, name) for name, found in _by_mode("labels", labels, "{mode: list}").items()}
    asked = Asked(names, value, _names("columns", columns), tuple(binned), tuple(given), shape is not None)
    source = open_source(path, format, asked)
    if names is not None and value is not None and value in names:
        raise InputError(f"value must not be one of the modes, got {value!r} as both; name another column")
    for told, found in (("bins", binned), ("labels", given)):
        for name in found:
            if name not in source.modes:
                raise InputError(f"{told} must be for modes, got {name!r}; the modes are {list(source.modes)}")
    public = checked_public(public_labels, source.modes)
    sizes = _sizes(shape, source, given)
    first = source.first_index if source.first_index is not None else int(first_index)
    problems: list[tuple[Integers, str]] = []
    encoded = []
    for name, size in zip(source.modes, sizes, strict=True):
        mode = _mode(source, name, size, given.get(name), binned.get(name), first)
        problems.append((np.flatnonzero(mode.codes < 0), mode.rule))
        encoded.append(mode)
    numbers = tables.numbers_of(source.table.column(source.value), source.value)
    bad_values = np.flatnonzero(~np.isfinite(numbers))
    problems.append((bad_values, f"have a finite number in column {source.value!r}, got none"))
    text_files.refuse_rows(problems, source.word, source.lines)
    coordinates = np.empty((len(numbers), len(encoded)), np.uint32)
    for number, mode in enumerate(encoded):
        coordinates[:, number] = mode.codes
    try:
        observations = Observations(
            coordinates,
            numbers,
            tuple(mode.size for mode in encoded),
            mode_names=source.modes,
            labels=[mode.labels for mode in encoded],
            duplicates=duplicates,
        )
    except RepeatedCellsError as error:
        where = text_files.places(source.word, source.lines(error.rows), len(error.rows))
        raise InputError(
            f"every cell must occur once, got {len(error.rows):,} again in {where}; correct them, or pass "
            'duplicates="keep" to keep all or duplicates="mean" to average them'
        ) from None
    return observations._described(
        inferred_modes=[name for name, mode in zip(source.modes, encoded, strict=True) if mode.inferred],
        public=public,
        bins=[binned.get(name) for name in source.modes],
        value=source.value,
    )


def read_table(path: FilePath, *, format: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """All columns of a file as an Arrow table, e.g. rows to predict.

    A column of a text file holds whole numbers, or numbers, if all its cells are such, and texts otherwise; 007 is a
    text. Files .tns, .npz and .mat give columns mode_0, mode_1, ... of indices, as they are in the file, and value.
    """
    table = open_source(path, format, Asked(columns=_names("columns", columns), everything=True)).table
    return pa.table({name: _typed_column(table.column(name)) for name in table.column_names})


@final
@dataclass(frozen=True)
class _Mode:
    """The indices in a mode's column, -1 for rows that break the rule."""

    codes: Integers
    size: int
    labels: NDArray[Any] | None
    rule: str
    inferred: bool = False


def _mode(source: Reading, name: str, size: int | None, given: Any, kind: str | None, first: int) -> _Mode:
    column = source.table.column(name)
    if kind is not None and (source.indexed or (size is not None and given is None)):
        raise InputError(
            f"a binned mode must hold times and have no size, got a size or indices for {name!r}; give labels instead"
        )
    if source.indexed or (size is not None and given is None):
        codes = index_numbers(column, name, first, size)
        found = max(int(codes.max(initial=0)) + 1, 1) if size is None else size
        upper = f"to {first + found - 1}" if size is not None else "on"
        numbered = given if given is not None else _numbers(first, found, name)
        return _Mode(
            codes,
            found,
            numbered,
            f"have a whole number from {first} {upper} in column {name!r}, got another or none",
            inferred=size is None,
        )
    if kind is not None:
        if given is not None:
            texts = time_bins.bin_labels(given, kind, name)
            rule = f"have a time of the {len(texts):,} given labels of column {name!r}, got another or none"
            return _Mode(binned_positions(column, kind, name, texts), len(texts), texts, rule)
        numbers, known = time_bins.bin_numbers(column, kind, name)
        codes, found_bins = tables.distinct(pa.array(numbers[known]))
        codes, bins = tables.sorted_labels(codes, found_bins)
        everywhere = np.full(len(known), -1)
        everywhere[known] = codes
        rule = f"have a time of the years 1 to 9999 in column {name!r}, got none"
        return _Mode(everywhere, max(len(bins), 1), time_bins.bin_texts(bins, kind), rule, inferred=True)
    tables.check_label_kind(column, name, numbers=given is not None)
    codes, cells = tables.distinct(column)
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        codes, cells = _without_empty(codes, cells)
    if given is not None:
        rule = f"have one of the {len(given):,} given labels in column {name!r}, got another or none"
        return _Mode(np.append(positions(cells, given), -1)[codes], len(given), given, rule)
    codes, labels = tables.sorted_labels(codes, tables.typed_labels(cells) if source.texts else cells)
    return _Mode(codes, max(len(labels), 1), labels, f"have a label in column {name!r}, got none", inferred=True)


def _without_empty(codes: Integers, cells: pa.Array) -> tuple[Integers, pa.Array]:
    """Distinct cells without the empty text, whose rows get the code -1."""
    filled = tables.as_numpy(pc.binary_length(cells)) > 0
    if filled.all():
        return codes, cells
    numbers = np.append(np.where(filled, np.cumsum(filled) - 1, -1), -1)
    return numbers[codes], cells.filter(filled)


def _numbers(first: int, size: int, name: str) -> Integers | None:
    """Labels of a mode of indices: None if they count from 0, or else the numbers themselves."""
    if first == 0:
        return None
    if size > MOST_NUMBERED_LABELS:
        raise SizeError(
            f"a mode whose indices do not begin at 0 must have at most {MOST_NUMBERED_LABELS:,}, "
            f"got {size:,} for {name!r}; renumber them from 0"
        )
    return np.arange(first, first + size)


def _typed_column(column: Any) -> Any:
    """A column of texts, as numbers if all its cells are numbers, with nulls for empty cells."""
    if not pa.types.is_string(column.type):
        return column
    codes, texts = _without_empty(*tables.distinct(column))
    cells = tables.typed_labels(texts)
    if pa.types.is_string(cells.type):
        numbers = tables.text_numbers(texts)
        plain = not np.asarray(tables.odd_numbers(texts)).any()
        cells = pa.array(numbers) if plain and len(texts) and np.isfinite(numbers).all() else texts
    return cells.take(pa.array(codes, mask=codes < 0))


def _sizes(shape: Any, source: Reading, given: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The size of each mode as stated by the shape, the file or the labels, which must agree; None if unstated."""
    order = len(source.modes)
    if shape is None:
        sizes: list[int | None] = [None] * order
    elif isinstance(shape, (str, bytes)) or not isinstance(shape, (Sequence, np.ndarray)) or len(shape) != order:
        raise InputError(
            f"shape must be {order} sizes, one per mode of {list(source.modes)}, got {shape!r}; give one each"
        )
    else:
        sizes = [None if size is None else checks.positive_integer("a size of shape", size) for size in shape]
    for mode, name in enumerate(source.modes):
        stated = {
            "shape": sizes[mode],
            "the file": None if source.shape is None else source.shape[mode],
            "labels": len(given[name]) if name in given else None,
        }
        told = {word: size for word, size in stated.items() if size is not None}
        if len(set(told.values())) > 1:
            raise InputError(f"the size of {name!r} must be one number, got {told}; correct one of them")
        sizes[mode] = next(iter(told.values()), None)
    checks.shape([1 if size is None else size for size in sizes])
    return tuple(sizes)


def _names(parameter: str, names: Any) -> tuple[str, ...] | None:
    """A tuple of different names, or None."""
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, (Sequence, np.ndarray)):
        raise InputError(f"{parameter} must be a list of names, got {names!r}; write e.g. ['user', 'film', 'day']")
    found = tuple(names)
    if not all(isinstance(name, str) and name for name in found) or len(set(found)) != len(found) or not found:
        raise InputError(f"{parameter} must be different, non-empty names, got {list(names)!r}; correct them")
    return tuple(str(name) for name in found)


def _by_mode(parameter: str, found: Any, example: str) -> dict[str, Any]:
    if found is not None and not (isinstance(found, Mapping) and all(isinstance(name, str) for name in found)):
        raise InputError(f"{parameter} must map names of modes, got {found!r}; write {example}")
    return dict(found or {})
