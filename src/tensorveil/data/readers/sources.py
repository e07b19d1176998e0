"""The contents of a file of any format: its columns, what it states about the modes, and where each row is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa

from tensorveil import checks
from tensorveil.arrays import Integers
from tensorveil.data import tables
from tensorveil.data.readers import arrays as array_files
from tensorveil.data.readers import text as text_files
from tensorveil.errors import InputError, SizeError

FORMATS = ("csv", "tsv", "parquet", "tns", "npz", "mat")
ENDINGS = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet", ".tns": "tns", ".npz": "npz"}
ENDINGS[".mat"] = "mat"
DELIMITERS = {"csv": ",", "tsv": "\t"}
MOST_ROWS = 2**30
SUSPECT_ROWS, SUSPECT_RATIO = 10**7, 100  # larger files that compress better than this are refused as bombs


@final
@dataclass(frozen=True)
class Asked:
    """What the caller asked for."""

    modes: tuple[str, ...] | None = None
    value: str | None = None
    columns: tuple[str, ...] | None = None
    binned: tuple[str, ...] = ()
    labelled: tuple[str, ...] = ()
    sized: bool = False
    everything: bool = False


@final
@dataclass(frozen=True)
class Reading:
    """The columns of a file, and what the file states about them."""

    table: pa.Table
    modes: tuple[str, ...]
    value: str
    word: str
    lines: Callable[[Integers], list[int]]
    indexed: bool = False  # modes are indices, not labels
    texts: bool = False  # labels come from a text file: 7 may be a number
    first_index: int | None = None
    shape: tuple[int, ...] | None = None


def open_source(path: Any, format: Any, asked: Asked) -> Reading:
    """The columns that the caller needs from a file of any format."""
    place, kind = _place(path, format)
    if asked.columns is not None and kind not in DELIMITERS:
        raise InputError(
            f"columns must be given for CSV and TSV only, got some for {kind}; use modes to name its modes"
        )
    try:
        if kind in DELIMITERS:
            return _text_reading(place, kind, asked)
        if kind == "parquet":
            return _parquet_reading(place, asked)
        if kind == "tns":
            text = text_files.open_tns(place, asked.modes, asked.value or "value")
            table, text = text_files.tns_table(text)
            return Reading(table, text.names[:-1], text.names[-1], "line", text.lines, indexed=True, first_index=1)
        entries = array_files.npz_entries if kind == "npz" else array_files.mat_entries
        return _array_reading(entries(place, asked.value), asked)
    except OSError as error:
        raise InputError(
            f"the input must be a readable file, got an error ({error.strerror}); check its permissions"
        ) from error


def column_names(path: Any, format: str | None = None) -> tuple[str, ...] | None:
    """Names of the columns of a CSV, TSV or Parquet file, from its header alone; None for formats without names.

    A first line that looks like data is refused, so that no value is taken for a name and shown.
    """
    place, kind = _place(path, format)
    try:
        if kind in DELIMITERS:
            names = text_files.open_text(place, DELIMITERS[kind], None).names
        elif kind == "parquet":
            from pyarrow import dataset

            names = tuple(dataset.dataset(str(place), format="parquet", partitioning="hive").schema.names)
        else:
            return None
    except pa.ArrowException as error:
        raise InputError(f"{place.name} must be a Parquet file, got something else; write it again") from error
    except OSError as error:
        raise InputError(
            f"the input must be a readable file, got an error ({error.strerror}); check its permissions"
        ) from error
    if kind in DELIMITERS and text_files.look_like_data(names):
        raise InputError(
            f"the first line of {place.name} must hold the names of the columns, got names that look like numbers; "
            "if the file has no header, give columns"
        )
    return names


def _place(path: Any, format: Any) -> tuple[Path, str]:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"path must be the name of a file, got {type(path).__name__}; use Observations.from_table for it"
        )
    place = Path(os.fsdecode(path))
    try:
        is_folder, is_file = place.is_dir(), place.is_file()
    except (OSError, ValueError):  # a name too long, or one with a zero byte
        is_folder = is_file = False
    if not (is_folder or is_file):
        raise InputError(
            f"the input must be an existing file, or a folder of Parquet parts, got {os.fspath(path)!r}; correct it"
        )
    if format is not None:
        kind = checks.choice("format", format, FORMATS)
    else:
        kind = "parquet" if is_folder else ENDINGS.get(place.suffix.lower(), "")
    if not kind:
        raise InputError(
            f"format must be given for a file that does not end in {', '.join(ENDINGS)}, got {place.name!r}; "
            f"use one of {', '.join(FORMATS)}, and decompress it first if it is compressed"
        )
    if is_folder and kind != "parquet":
        raise InputError(f"the input must be a file for the format {kind!r}, got a folder; read its files one by one")
    return place, kind


def _wanted(asked: Asked, found: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Modes and value of a table with these columns."""
    if asked.everything:
        return tuple(found), ""
    told = text_files.shown_names(found)
    if asked.modes is None or asked.value is None:
        raise InputError(f"modes and value must name columns of the file, got None; its columns are {told}")
    checks.order(len(asked.modes))
    for name in (*asked.modes, asked.value):
        if name not in found:
            parameter = "modes" if name in asked.modes else "value"
            raise InputError(f"{parameter} must name columns of the data, got {name!r}; the columns are {told}")
    return asked.modes, asked.value


def _text_reading(path: Path, kind: str, asked: Asked) -> Reading:
    file = text_files.open_text(path, DELIMITERS[kind], asked.columns)
    modes, value = _wanted(asked, file.names)
    kinds: dict[str, Any] = {}
    for name in modes:
        indexed = asked.sized and name not in asked.labelled
        kinds[name] = None if name in asked.binned else pa.int64() if indexed else pa.string()
    if value:
        kinds[value] = pa.float64()
    return Reading(file.table(kinds), modes, value, "line", file.lines, texts=True)


def _parquet_reading(path: Path, asked: Asked) -> Reading:
    from pyarrow import dataset

    parts = [path]
    if path.is_dir():
        parts = sorted(
            part for part in path.rglob("*") if part.suffix.lower() in (".parquet", ".pq") and part.is_file()
        )
        parts = [part for part in parts if not part.name.startswith((".", "_"))]
        if not parts:
            raise InputError(f"the folder {path.name!r} must hold files that end in .parquet, got none; correct path")
    base = str(path if path.is_dir() else path.parent)
    try:
        found = dataset.dataset(
            [str(part) for part in parts], format="parquet", partitioning="hive", partition_base_dir=base
        )
        if len(set(found.schema.names)) != len(found.schema.names):
            raise InputError(f"the columns of {path.name} must have different names, got repeated ones; rename them")
        modes, value = _wanted(asked, found.schema.names)
        rows = found.count_rows()
        size = sum(part.stat().st_size for part in parts)
        if rows > MOST_ROWS or (rows > SUSPECT_ROWS and rows > SUSPECT_RATIO * size):
            raise SizeError(
                f"a Parquet file must have at most 2^30 rows and, if large, at most {SUSPECT_RATIO} rows per byte, "
                f"got one that declares {rows:,} in {size:,} bytes; read a part of it"
            )
        table = found.to_table(columns=list(dict.fromkeys((*modes, value))) if value else list(modes))
        table.validate(full=True)
    except InputError:
        raise
    except (pa.ArrowException, MemoryError, OSError, ValueError) as error:
        raise InputError(
            f"{path.name or path} must be a Parquet file, or parts with the same columns, got something else "
            f"({type(error).__name__}); write it again"
        ) from error
    if rows == 0:
        raise InputError(f"{path.name} must have at least one row of data, got none; check the source")
    return Reading(table, modes, value, "row", _counted)


def table_reading(table: Any, modes: tuple[str, ...] | None, value: str) -> Reading:
    """The columns of a table in memory: Arrow, a data frame or a dictionary of columns."""
    columns = tables.arrow_table(table)
    if columns.num_rows == 0:
        raise InputError("the table must have at least one row, got none; check the source")
    repeated = sorted({name for name in columns.column_names if columns.column_names.count(name) > 1})
    if repeated:
        raise InputError(f"the columns of the table must have different names, got {repeated} more than once")
    wanted, number = _wanted(Asked(modes, value), columns.column_names)
    return Reading(columns, wanted, number, "row", _counted)


def _array_reading(entries: array_files.Entries, asked: Asked) -> Reading:
    where, numbers, shape = entries
    if where.ndim != 2 or where.dtype.kind not in "iu" or numbers.dtype.kind not in "iuf" or numbers.ndim != 1:
        raise InputError(
            "coordinates must be a table of whole numbers and values a list of numbers, "
            f"got {where.dtype} of shape {where.shape} and {numbers.dtype} of shape {numbers.shape}; save them so"
        )
    order = checks.order(where.shape[1])
    modes = asked.modes or tuple(f"mode_{number}" for number in range(order))
    if len(where) != len(numbers) or len(modes) != order or (shape is not None and len(shape) != order):
        raise InputError(
            f"coordinates, values, shape and modes must fit each other, got coordinates of shape {where.shape}, "
            f"{len(numbers)} values, shape {shape} and modes {list(modes)}; correct one of them"
        )
    if not len(numbers):
        raise InputError("the arrays must hold at least one entry, got none; check the source")
    value = asked.value or "value"
    if value in modes:
        raise InputError(f"value must not be one of the modes, got {value!r} as both; name another")
    columns = {name: np.ascontiguousarray(where[:, mode]) for mode, name in enumerate(modes)}
    table = pa.table({**columns, value: numbers.astype(np.float64)})
    return Reading(table, modes, value, "row", _counted, indexed=True, shape=shape)


def _counted(rows: Integers) -> list[int]:
    return [int(row) + 1 for row in rows[: text_files.LINES_SHOWN]]
