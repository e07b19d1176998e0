"""From labels of tables to indices of a release, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data import tables
from tensorveil.data.readers import time_bins
from tensorveil.data.readers.labels import coordinates_of
from tensorveil.data.readers.text import shown_names
from tensorveil.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.release.release import Release

FRAMES = ("arrow", "pandas", "polars")
PREDICTION = "prediction"


def coordinates_in(release: Release, table: Any) -> Integers:
    """Indices by the labels of a table, one column per mode; -1 where the release does not know the label."""
    columns = tables.arrow_table(table)
    for name in release.mode_names:
        if columns.column_names.count(name) != 1:
            raise InputError(
                f"the table must have the columns {list(release.mode_names)}, got {shown_names(columns.column_names)}; "
                "rename them, or name the columns of a file without a header"
            )
    parts = [indices_of(release, mode, columns.column(name)) for mode, name in enumerate(release.mode_names)]
    return np.column_stack(parts)


def indices_of(release: Release, mode: int, column: Any) -> Integers:
    """Indices of one mode by a column of its labels; -1 where the release does not know the label."""
    name, kind = release.mode_names[mode], release.bins[mode]
    if kind is not None and _written_as_bins(column, kind):
        kind = None
    found = coordinates_of({name: column}, [name], [release.labels[mode]], [kind])[:, 0]
    return np.where(found < release.shape[mode], found, -1)


def _written_as_bins(column: Any, kind: str) -> bool:
    """Whether all cells are labels of bins, e.g. 1998-W10, and not times that still have to be binned."""
    import pyarrow as pa

    _, cells = tables.distinct(column)
    if not (pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type) or pa.types.is_integer(cells.type)):
        return False
    return all(re.fullmatch(time_bins.PATTERNS[kind], str(cell)) for cell in cells.to_pylist())


def values_in(release: Release, table: pa.Table, value: str | None = None) -> Floats:
    """The column of values of a table, by default named as in the release."""
    name = release.value_name if value is None else value
    if name not in table.column_names:
        told = shown_names(table.column_names)
        raise InputError(f"the table must have a column {name!r} of values, got {told}; name the column of values")
    return tables.numbers_of(table.column(name), name)


def unknown_labels(release: Release, where: Integers) -> dict[str, int]:
    """Mode name -> number of rows with an unknown index, for modes that have any."""
    counts = (where < 0).sum(axis=0)
    return {name: int(count) for name, count in zip(release.mode_names, counts, strict=True) if count}


def fixed_indices(release: Release, table: pa.Table, left_open: Sequence[int]) -> Integers:
    """Indices by the labels of a table without columns of the open modes, which are 0 here; -1 for unknown labels."""
    found = np.zeros((table.num_rows, len(release.shape)), dtype=np.int64)
    for mode, name in enumerate(release.mode_names):
        if mode not in left_open:
            found[:, mode] = indices_of(release, mode, table.column(name))
    return found


def refuse_unknown(release: Release, where: Integers) -> None:
    """Raise an error where labels are unknown."""
    for name, count in unknown_labels(release, where).items():
        raise InputError(f"labels of {name!r} must be known to the release, got {count:,} others; leave them out")


def labelled(release: Release, where: NDArray[np.uint32], values: Floats) -> pa.Table:
    """An Arrow table of labels, one column per mode, and predictions."""
    import pyarrow as pa

    columns = {}
    for mode, (name, labels) in enumerate(zip(release.mode_names, release.labels, strict=True)):
        index = where[:, mode].astype(np.int64)
        columns[name] = pa.array(index) if labels is None else _arrow_labels(labels).take(pa.array(index))
    if PREDICTION in columns:
        raise InputError(f"a mode must not be called {PREDICTION!r}, got one; rename it before completing")
    return pa.table({**columns, PREDICTION: pa.array(values)})


def to_frame(table: pa.Table, frame: str) -> Any:
    """An Arrow table converted to the requested kind of frame."""
    kind = checks.choice("frame", frame, FRAMES)
    if kind == "arrow":
        return table
    try:
        if kind == "pandas":
            return table.to_pandas()
        import polars
    except ImportError as error:
        raise MissingDependencyError(
            f"{kind} must be installed, but is not; run pip install 'tensorveil[{kind}]'"
        ) from error
    return polars.from_arrow(table)


def _arrow_labels(labels: NDArray[Any]) -> pa.Array:
    import pyarrow as pa

    if labels.dtype.kind != "M":
        return pa.array(labels.tolist())
    unit = np.datetime_data(labels.dtype)[0]
    if unit in ("Y", "M", "W", "D"):
        return pa.array(labels.astype("datetime64[D]"))
    return pa.array(labels.astype(f"datetime64[{unit if unit in ('s', 'ms', 'us', 'ns') else 's'}]"))
