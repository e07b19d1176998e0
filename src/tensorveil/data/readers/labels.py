"""Labels given by a caller, a file or a release, and the rows of a table that have them."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Integers, Labels
from tensorveil.data import tables
from tensorveil.data.readers import time_bins
from tensorveil.errors import InputError


def coordinates_of(
    table: Any,
    mode_names: Sequence[str],
    labels: Sequence[ArrayLike | None],
    bins: Sequence[str | None] | Mapping[str, str] | None = None,
    first_index: int = 0,
) -> Integers:
    """Coordinates of a table's rows, looked up in known labels, e.g. those of a release.

    Parameters
    ----------
    table : an Arrow table, a pandas or polars data frame, or a dict of columns; one column per mode
    mode_names : names of the columns
    labels : for each mode its labels, or None if the column holds indices; their upper end is not checked
    bins : for each mode how its times are binned, or None
    first_index : the number of the first index, if labels are None

    Returns
    -------
    One row per row of the table and one column per mode; -1 where a label is unknown or missing.

    Examples
    --------
    >>> coordinates_of({"user": ["bob", "eve"], "film": [7, 9]}, ["user", "film"], [["ann", "bob"], [7, 9]])
    array([[ 1,  0],
           [-1,  1]])
    """
    columns = tables.arrow_table(table)
    order = len(mode_names)
    if len(labels) != order or (bins is not None and not isinstance(bins, Mapping) and len(bins) != order):
        raise InputError(f"labels and bins must be {order}, one per mode, got others; give one (or None) per mode")
    by_mode = bins if bins is None or isinstance(bins, Mapping) else dict(zip(mode_names, bins, strict=True))
    found = np.empty((columns.num_rows, len(mode_names)), np.int64)
    for mode, (name, known) in enumerate(zip(mode_names, labels, strict=True)):
        if columns.column_names.count(name) != 1:
            raise InputError(
                f"the table must have one column for each of the modes {list(mode_names)}, got {columns.column_names}; "
                "rename its columns"
            )
        column, kind = columns.column(name), (by_mode or {}).get(name)
        if kind is not None and known is not None:
            found[:, mode] = binned_positions(column, kind, name, label_list(known, name))
        elif known is not None:
            tables.check_label_kind(column, name, numbers=True)
            codes, cells = tables.distinct(column)
            found[:, mode] = np.append(positions(cells, label_list(known, name)), -1)[codes]
        else:
            found[:, mode] = index_numbers(column, name, first_index, None)
    return found


def index_numbers(column: Any, name: str, first_index: int, size: int | None) -> Integers:
    """Indices, counted from 0, of a column that counts from `first_index`; -1 where a row has no index."""
    numbers = tables.numbers_of(column, name)
    last = first_index + (checks.MAX_MODE_SIZE if size is None else size) - 1
    with np.errstate(invalid="ignore"):
        good = (numbers >= first_index) & (numbers <= last) & (numbers == np.floor(numbers))
    return np.where(good, numbers - first_index, -1).astype(np.int64)


def binned_positions(column: Any, kind: str, name: str, labels: Any) -> Integers:
    """The position of each time's bin among the labels; -1 where it is not one of them."""
    numbers, known = time_bins.bin_numbers(column, kind, name)
    codes, bins = tables.distinct(pa.array(numbers))
    texts = pa.array(time_bins.bin_texts(bins.to_numpy(), kind), pa.string())
    found = positions(texts, time_bins.bin_labels(labels, kind, name))
    return np.where(known, found[codes], -1)


def positions(cells: pa.Array, labels: Labels) -> Integers:
    """The position of each cell among the labels, -1 where it is not one of them; 7 is the label "7" but not "007"."""
    known = pa.array(labels)
    if pa.types.is_temporal(cells.type) or pa.types.is_temporal(known.type):
        cells, known = _moments(cells, known)
    elif pa.types.is_floating(cells.type):
        known = pa.array(tables.text_numbers(known.cast(pa.string())))
        if len(pc.unique(known)) != len(known):  # labels such as 1.5 and 1.50: a cell could be either
            return np.full(len(cells), -1)
    else:
        cells, known = cells.cast(pa.string()), known.cast(pa.string())
    return np.asarray(tables.as_numpy(pc.fill_null(pc.index_in(cells, value_set=known), -1)), np.int64)


def _moments(cells: pa.Array, known: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Both as timestamps in UTC, or as texts where that is not possible."""
    for kind in (pa.timestamp("ns"), pa.timestamp("us")):
        try:
            return _without_zone(cells).cast(kind), _without_zone(known).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    if pa.types.is_timestamp(known.type):
        with contextlib.suppress(pa.ArrowInvalid):
            known = known.cast(pa.date32())  # written as texts of days where all are midnights
    return cells.cast(pa.string()), known.cast(pa.string())


def _without_zone(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp(times.type.unit)) if pa.types.is_timestamp(times.type) else times


def label_list(source: Any, name: str) -> Labels:
    """Labels of a mode as given: a list, or the path of a file with one label per line or with one column."""
    if isinstance(source, (str, os.PathLike)):
        source = _labels_in(Path(source), name)
    try:
        array = np.asarray(source)
    except ValueError as error:
        raise InputError(
            f"the labels of {name!r} must be a list, got something else; give one label per index"
        ) from error
    if array.ndim == 1 and not array.size:
        raise InputError(f"the labels of {name!r} must be at least one, got none; give one label per index")
    if array.ndim != 1:
        raise InputError(
            f"the labels of {name!r} must be a list, got an array of shape {array.shape}; give one per index"
        )
    if array.dtype.kind in "UO":
        items = array.tolist()
        if all(isinstance(item, dt.date) for item in items):
            array = np.array([_in_utc(item) for item in items], dtype="datetime64[us]")
        elif all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in items):
            array = np.array([str(item) for item in items], dtype=object)
        else:
            array = np.array([np.nan])
    if array.dtype.kind not in "iuOM" or (array.dtype.kind == "M" and np.isnat(array).any()):
        raise InputError(f"the labels of {name!r} must be texts, whole numbers or dates, got others; convert them")
    if "" in array.tolist():
        raise InputError(f"the labels of {name!r} must not be empty, got an empty one; name every index")
    if len(set(array.tolist())) != len(array):
        raise InputError(f"the labels of {name!r} must be different, got repeated ones; make them unique")
    return array


def _in_utc(moment: dt.date) -> dt.date:
    """The time in UTC, without a time zone, because NumPy warns about zones."""
    if not isinstance(moment, dt.datetime) or moment.tzinfo is None:
        return moment
    return moment.replace(tzinfo=None) - (moment.utcoffset() or dt.timedelta())


def _labels_in(path: Path, name: str) -> Labels:
    """Labels in a file; in CSV and TSV a first cell that is the mode's name is a header."""
    from pyarrow import parquet

    ending = path.suffix.lower()
    try:
        if ending in (".parquet", ".pq"):
            table = parquet.read_table(path)
            if table.num_columns != 1 or table.column(0).null_count:
                raise InputError(
                    f"the file {path.name} of the labels of {name!r} must have one column without empty cells, "
                    f"got {table.num_columns} columns; choose one"
                )
            cells = tables.plain_column(table.column(0))
            tables.check_label_kind(cells, name)
            return tables.label_array(cells.combine_chunks())
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the file {path.name} of labels must be a text in UTF-8, got other bytes; convert it"
        ) from error
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"labels of {name!r} must be a list or a readable file, got {os.fspath(path)!r}; correct the path"
        ) from error
    if ending in (".csv", ".tsv"):
        try:
            rows = [row for row in csv.reader(io.StringIO(text), delimiter="," if ending == ".csv" else "\t") if row]
        except csv.Error as error:
            raise InputError(f"the file {path.name} of labels must be well-formed, got {error}; correct it") from error
        if any(len(row) != 1 for row in rows):
            raise InputError(
                f"the file {path.name} of the labels of {name!r} must have one column, got more; choose one"
            )
        lines = [row[0] for row in rows]
        lines = lines[1:] if lines[:1] == [name] else lines
    else:
        lines = [line for line in text.split("\n") if line.strip()]
        lines = [line.removesuffix("\r") for line in lines]
    return tables.label_array(tables.typed_labels(pa.array(lines, pa.string())))
