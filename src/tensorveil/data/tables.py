"""Arrow tables: columns of labels become indices, columns of numbers become values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats, Integers, Labels
from tensorveil.errors import InputError


def arrow_table(table: Any) -> pa.Table:
    """An Arrow table, made from any kind of table that can be exported to Arrow."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, Mapping):
        try:
            return pa.table(dict(table))
        except (pa.ArrowException, TypeError) as error:
            raise InputError(
                f"table must have columns of the same length, got others ({error}); correct them"
            ) from error
    if hasattr(table, "__arrow_c_stream__"):  # pandas from 2.2, polars, and every other Arrow-speaking frame
        try:
            return pa.table(table)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"table must be one that Arrow can read, got another ({error}); convert its columns"
            ) from error
    raise InputError(
        "table must be an Arrow table, a pandas or polars data frame or a dict of columns, "
        f"got {type(table).__name__}; "
        "convert it with pyarrow.table"
    )


def chosen_columns(
    table: Any, modes: Sequence[str], value: str, labels: Mapping[str, ArrayLike] | None
) -> tuple[pa.Table, list[str], dict[str, ArrayLike]]:
    """The table, the names of its modes and the labels given for them, all of which fit each other."""
    if labels is not None and not isinstance(labels, Mapping):
        raise InputError(f"labels must map names of modes to lists, got {type(labels).__name__}; write {{name: [...]}}")
    columns = arrow_table(table)
    if isinstance(modes, str):
        raise InputError(f"modes must be a list of column names, got the single text {modes!r}; write [{modes!r}]")
    names, given = list(modes), dict(labels or {})
    checks.order(len(names))
    named = {"modes": names, "value": [value], "labels": list(given)}
    for parameter, name in ((parameter, name) for parameter, some in named.items() for name in some):
        if name not in columns.column_names:
            raise InputError(
                f"{parameter} must name columns of the data, got {name!r}; the columns are {columns.column_names}"
            )
    if value in names:
        raise InputError(f"value must not be one of the modes, got {value!r} as both; name another column")
    for name in given:
        if name not in names:
            raise InputError(f"labels must be for modes, got labels of {name!r}; the modes are {names}")
    if columns.num_rows == 0:
        raise InputError("the table must have at least one row, got none; check the source")
    return columns, names, given


def value_column(column: pa.ChunkedArray, name: str) -> Floats:
    """A column of numbers, none of them missing."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InputError(f"the value column {name!r} must hold numbers, got {kind}; convert it first")
    if column.null_count:
        raise InputError(
            f"the value column {name!r} must have no empty cells, got {column.null_count}; leave those rows out"
        )
    try:
        return np.array(as_numpy(column.cast(pa.float64())), dtype=np.float64)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"the value column {name!r} must hold numbers that fit a float, got others ({error}); scale it first"
        ) from error


def encode(column: pa.ChunkedArray, name: str, given: ArrayLike | None) -> tuple[Integers, Labels]:
    """Indices into the mode's labels, and the labels."""
    column = plain_column(column)
    kind = column.type
    if column.null_count:
        raise InputError(f"the column {name!r} must have no empty cells, got {column.null_count}; leave those rows out")
    check_label_kind(column, name)
    if given is None:
        codes, labels = distinct(column)
        return sorted_labels(codes, labels)
    try:
        array = np.asarray(given)
        # Arrow knows the unit of a time and refuses to cut a fraction off
        labels = pa.array(array).cast(kind) if array.dtype.kind in "Mf" else pa.array(array.tolist(), type=kind)
        if labels.null_count:
            raise TypeError("empty label")
    except (pa.ArrowException, TypeError) as error:
        raise InputError(
            f"the labels of {name!r} must be of the column's type {kind}, got others; convert one of them"
        ) from error
    indices = pc.index_in(column, value_set=labels)
    if indices.null_count:
        raise InputError(
            f"every label of {name!r} must be among the {len(labels)} given, "
            f"got {indices.null_count} rows with others; "
            "add their labels or leave those rows out"
        )
    return as_numpy(indices).astype(np.int64), label_array(labels)


def check_label_kind(column: Any, name: str, *, numbers: bool = False) -> None:
    """Labels are texts, whole numbers, dates or timestamps; `numbers` to be compared with them may be floats."""
    kind = plain_column(column.slice(0, 0)).type
    known = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    if pa.types.is_null(kind) or (numbers and pa.types.is_floating(kind)):
        return
    if not any(test(kind) for test in known):
        raise InputError(
            f"the column {name!r} must hold texts, whole numbers or dates, got {kind}; "
            "convert or bin it before using it as a mode"
        )


def sorted_labels(codes: Integers, labels: pa.Array) -> tuple[Integers, Labels]:
    """Labels sorted, and the codes renumbered to match; a code of -1 stays."""
    order = pc.sort_indices(labels)
    ranks = np.full(len(labels) + 1, -1)
    ranks[as_numpy(order)] = np.arange(len(labels))
    return ranks[codes], label_array(labels.take(order))


def plain_column(column: Any) -> Any:
    """A column as Arrow's compute functions need it: dictionaries decoded, and views, which polars uses, copied."""
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if pa.types.is_dictionary(column.type):
        inner = _plain_texts(pa.array([], column.type.value_type)).type
        column = pa.chunked_array(
            [_plain_texts(chunk.dictionary).take(chunk.indices) for chunk in column.chunks], type=inner
        )
    return _plain_texts(column)


def distinct(column: Any) -> tuple[Integers, pa.Array]:
    """Each row's number among the distinct cells of a column, -1 where empty, and these cells.

    The cells are in order of appearance, which is private: sort them before they become labels.
    """
    column = plain_column(column)
    if pa.types.is_null(column.type):
        return np.full(len(column), -1), pa.array([], pa.string())
    encoded = column.dictionary_encode()  # with one dictionary for all chunks
    if encoded.num_chunks == 0:
        return np.empty(0, np.int64), pa.array([], column.type)
    parts = [chunk.indices.fill_null(-1) if chunk.null_count else chunk.indices for chunk in encoded.chunks]
    return np.concatenate([as_numpy(part) for part in parts], dtype=np.int64), encoded.chunk(0).dictionary


def as_floats(column: Any) -> Floats:
    """Numbers of a numeric column, rounded to the nearest float; NaN where empty."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())  # a decimal of any precision has a nearest float
    return np.asarray(as_numpy(column.cast(pa.float64(), safe=False)), dtype=np.float64)


def text_numbers(texts: pa.Array) -> Floats:
    """Texts that are decimal numbers, as numbers; NaN for others."""
    plain = pc.utf8_trim_whitespace(texts)
    known = pc.match_substring_regex(plain, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    without_plus = pc.utf8_ltrim(pc.if_else(known, plain, pa.scalar("nan")), "+")
    return np.asarray(as_numpy(without_plus.cast(pa.float64())))


def numbers_of(column: Any, name: str) -> Floats:
    """A column of numbers or of texts of numbers; NaN where a row holds none."""
    column = plain_column(column)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return as_floats(column)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise InputError(f"the column {name!r} must hold numbers, got {kind}; convert it first")
    codes, texts = distinct(column)
    return np.append(text_numbers(texts), np.nan)[codes]


def typed_labels(texts: pa.Array) -> pa.Array:
    """Whole numbers where every text is one in its plainest form (7, not 007 or +7), the texts otherwise."""
    try:
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return texts
    return numbers if numbers.cast(texts.type).equals(texts) else texts


def _plain_texts(column: Any) -> Any:
    """Texts as Arrow's compute functions need them: views, which polars uses, copied."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(column.type):
        return column.cast(pa.large_binary())
    return column


def label_array(labels: pa.Array) -> Labels:
    """Labels as a NumPy array."""
    texts = pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type)
    return np.array(labels.to_pylist(), dtype=object) if texts else as_numpy(labels)


def as_numpy(column: Any) -> Any:
    """A column as a NumPy array, which may share its memory. Arrow's own way would import pandas for it."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count or not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return np.from_dlpack(array)


def odd_numbers(texts: pa.Array) -> Any:
    """Which texts are numbers in an unusual form, e.g. 007: these are probably names and not amounts."""
    return pc.match_substring_regex(texts, r"^\s*(\+|[+-]?0\d)")
