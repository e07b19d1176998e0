"""Read observations from CSV, TSV, Parquet, .tns, .npz and .mat files; errors name the lines of bad rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tensorveil.data import tables
from tensorveil.data.observations import Observations
from tensorveil.data.readers.columns import Layout, Modes, checked_list, observations_of, without_empty
from tensorveil.data.readers.labels import coordinates_of
from tensorveil.data.readers.sources import Asked, open_source

__all__ = ["coordinates_of", "read", "read_table"]

FilePath = str | os.PathLike[str]


def read(
    path: FilePath,
    modes: Modes | None = None,
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
    modes : names of the columns that are modes, or {mode: column} to give the modes other names than the columns have;
        for .tns, .npz and .mat the names to give to the modes
    value : name of the column of values; for .npz and .mat the name of the dense array, if there are several
    format : "csv", "tsv", "parquet", "tns", "npz" or "mat"; default: according to the ending of the path
    columns : names of the columns of a CSV or TSV file without a header
    bins : mode -> "hour", "day", "week", "month" or "year", for columns of times (seconds since 1970, ISO, dates),
        or a bin that comes again: "hour_of_day", "weekday", "month_of_year". "day+hour" makes two modes, day and hour
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
    layout = Layout.checked(modes, value, bins, labels, shape, first_index, public_labels, duplicates)
    names = checked_list("columns", columns)
    wanted = layout.wanted_columns
    asked = Asked(wanted, value, names, layout.binned_columns, layout.labelled_columns, shape is not None)
    return observations_of(open_source(path, format, asked), layout, Observations)


def read_table(path: FilePath, *, format: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """All columns of a file as an Arrow table, e.g. rows to predict.

    A column of a text file holds whole numbers, or numbers, if all its cells are such, and texts otherwise; 007 is a
    text. Files .tns, .npz and .mat give columns mode_0, mode_1, ... of indices, as they are in the file, and value.
    """
    table = open_source(path, format, Asked(columns=checked_list("columns", columns), everything=True)).table
    return pa.table({name: _typed_column(table.column(name)) for name in table.column_names})


def _typed_column(column: Any) -> Any:
    """A column of texts, as numbers if all its cells are numbers, with nulls for empty cells."""
    if not pa.types.is_string(column.type):
        return column
    codes, texts = without_empty(*tables.distinct(column))
    cells = tables.typed_labels(texts)
    if pa.types.is_string(cells.type):
        numbers = tables.text_numbers(texts)
        plain = not np.asarray(tables.odd_numbers(texts)).any()
        cells = pa.array(numbers) if plain and len(texts) and np.isfinite(numbers).all() else texts
    return cells.take(pa.array(codes, mask=codes < 0))
