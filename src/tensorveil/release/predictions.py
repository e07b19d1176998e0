"""Predictions by label, from tables to tables. Rows with unknown labels are predicted from the known offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data import tables
from tensorveil.data.observations import Observations
from tensorveil.data.readers import time_bins
from tensorveil.data.readers.labels import coordinates_of
from tensorveil.data.readers.text import shown_names
from tensorveil.errors import InputError, MissingDependencyError
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.offsets import Offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.release.release import Release


UNKNOWN = ("error", "offsets")
FRAMES = ("arrow", "pandas", "polars")
PREDICTION = "prediction"
MAX_CELLS = 10**7  # of a whole completion as a table
BLOCK_CELLS = 2**20  # predicted at a time


@final
@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions, one per row of a table, and the number of rows with labels unknown to the release.

    Attributes
    ----------
    known : rows whose labels are all known. The others are predicted from the mean and the offsets of their known
        labels.
    unknown : mode name -> number of rows whose label of that mode is unknown
    """

    values: Floats
    known: NDArray[np.bool_]
    unknown: Mapping[str, int]


def predict_rows(release: Release, table: Any, unknown: str = "error", *, model: Completion | None = None) -> Predicted:
    """Predictions for the rows of a table with one column of labels per mode.

    Parameters
    ----------
    table : one column of labels per mode
    unknown : "error", or "offsets" to predict rows with unknown labels from the offsets of their known labels
    model : the model to predict with instead of the release's, e.g. an owner's
    """
    checks.choice("unknown", unknown, UNKNOWN)
    where = coordinates_in(release, table)
    used = release.model if model is None else model
    known, missing = np.asarray((where >= 0).all(axis=1)), unknown_labels(release, where)
    if missing and unknown == "error":
        told = ", ".join(f"{count:,} of {name}" for name, count in missing.items())
        raise InputError(
            f"labels must be known to the release, got rows with unknown labels: {told}; leave these rows out, "
            'or pass unknown="offsets" to predict them from the offsets of their known labels'
        )
    values = np.empty(len(where))
    values[known] = used.predict(where[known])
    values[~known] = offset_predictions(used, where[~known])
    return Predicted(values, known, missing)


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


def offset_predictions(model: Completion, where: Integers) -> Floats:
    """Predictions for rows with unknown labels (indices below 0): mean and known offsets, without factors."""
    if len(where) == 0:
        return np.empty(0)
    if not model.clipped:
        raise InputError(
            "unknown labels need offsets for a prediction, got a published model, which has none; leave those rows out"
        )
    unknown = (where < 0) | (np.arange(len(model.shape)) == model.withheld_mode)  # nobody in particular
    return with_unknown_indices(model).predict(np.where(unknown, np.array(model.shape), where))


def with_unknown_indices(model: Completion) -> Completion:
    """The model with one extra index per mode, about which nothing is known: a row of zeros and an offset of zero.

    A product with a row of zeros is zero, so an entry with such an index is predicted from offsets alone.
    """
    parts = [None if part is None else np.append(part, 0.0) for part in model.offsets.modes]
    blocks = [np.vstack([factor, np.zeros(factor.shape[1])]) for factor in model.factors.factors]
    if model.factors.core is not None:
        blocks.append(np.array(model.factors.core))
    return Completion(
        Offsets(model.offsets.mean, parts),
        model.factors.family.model(blocks),
        model.low,
        model.high,
        draws=None if model.draws is None else _wider_draws(model.draws),
    )


def _wider_draws(draws: PosteriorDraws) -> PosteriorDraws:
    shapes, count, order = draws.family.block_shapes(draws.shape), len(draws), len(draws.shape)
    sizes = np.array([int(np.prod(shape)) for shape in shapes])
    blocks = np.split(draws.parameters, np.cumsum(sizes)[:-1], axis=1)
    rows = [np.append(block, np.zeros((count, shapes[mode][1])), axis=1) for mode, block in enumerate(blocks[:order])]
    starts = 1 + np.concatenate([[0], np.cumsum(draws.shape)])
    offsets = [np.append(draws.offsets[:, a:b], np.zeros((count, 1)), axis=1) for a, b in pairwise(starts)]
    return replace(
        draws,
        shape=tuple(size + 1 for size in draws.shape),
        parameters=np.concatenate([*rows, *blocks[order:]], axis=1),
        offsets=np.concatenate([draws.offsets[:, :1], *offsets], axis=1),
    )


def everybody(release: Release, own: Observations) -> Completion:
    """For internal use under joint privacy: the model with every owner's row, from all owners' observations.

    It is not private and must not be published.
    """
    return replace(release.with_own_rows(own), withheld_mode=None)


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


def predicted_arrow(
    release: Release, table: Any, unknown: str = "error", *, model: Completion | None = None
) -> tuple[pa.Table, Predicted]:
    """An Arrow table with a column of predictions, and the predictions themselves."""
    import pyarrow as pa

    columns = tables.arrow_table(table)
    if PREDICTION in columns.column_names:
        raise InputError(f"the table must not have a column {PREDICTION!r}, got one; rename it")
    predicted = predict_rows(release, columns, unknown, model=model)
    return columns.append_column(PREDICTION, pa.array(predicted.values)), predicted


def predicted_table(release: Release, table: Any, unknown: str = "error") -> Any:
    """The table with a column of predictions, as the same kind of table."""
    found, predicted = predicted_arrow(release, table, unknown)
    if isinstance(table, Mapping):
        return {**table, PREDICTION: predicted.values}
    if hasattr(table, "assign"):  # pandas, whose index is kept
        return table.assign(**{PREDICTION: predicted.values})
    if hasattr(table, "with_columns"):
        import polars

        return table.with_columns(polars.Series(PREDICTION, predicted.values))
    return found


def completed_table(release: Release, coordinates: ArrayLike | None, frame: str) -> Any:
    """Labels and predictions of all cells, or of the given cells."""
    checks.choice("kind", frame, FRAMES)
    if coordinates is None:
        checks.dense_size(release.shape, MAX_CELLS, "give the coordinates that you need")
        coordinates = np.indices(release.shape, dtype=np.uint32).reshape(len(release.shape), -1).T
    where = checks.coordinates(coordinates, release.shape)
    return to_frame(labelled(release, where, release.predict(where)), frame)


def top_table(
    release: Release, known: Any, k: int, *, distinct: int | str | None = None, model: Completion | None = None
) -> pa.Table:
    """For each row of `known`, the k cells with the highest predictions; ties go to the smaller index.

    Parameters
    ----------
    known : table with columns of labels for some of the modes; all labels of the other modes are tried
    k : number of cells per row
    distinct : a mode whose indices are listed at most once per row, each with its best cell
    model : the model to predict with instead of the release's, e.g. an owner's
    """
    import pyarrow as pa

    most = checks.positive_integer("k", k)
    columns = tables.arrow_table(known)
    names = [name for name in release.mode_names if name in columns.column_names]
    free = [mode for mode, name in enumerate(release.mode_names) if name not in names]
    only = None if distinct is None else release.mode_number(distinct)
    if not free:
        raise InputError(
            f"the table must leave out one of the modes {list(release.mode_names)}, got all; drop a column"
        )
    if only is not None and only not in free:
        raise InputError(
            f"the table must not have a column of the ranked mode, got {release.mode_names[only]!r}; drop it"
        )
    fixed = np.zeros((columns.num_rows, len(release.shape)), dtype=np.int64)
    for name in names:
        mode = release.mode_names.index(name)
        fixed[:, mode] = indices_of(release, mode, columns.column(name))
        if (fixed[:, mode] < 0).any():
            count = int((fixed[:, mode] < 0).sum())
            raise InputError(f"labels of {name!r} must be known to the release, got {count:,} others; leave them out")
    sizes = [release.shape[mode] for mode in free]
    checks.dense_size(sizes, checks.MAX_DENSE_CELLS, "name more modes in the table")
    grid = np.indices(sizes, dtype=np.uint32).reshape(len(sizes), -1).T
    predict = release.predict if model is None else model.predict
    rows, values = [], []
    for start in fixed:
        where = np.tile(start, (len(grid), 1)).astype(np.uint32)
        where[:, free] = grid
        found = np.concatenate([predict(where[at : at + BLOCK_CELLS]) for at in range(0, len(where), BLOCK_CELLS)])
        order = np.argsort(-found, kind="stable")
        if only is not None:
            order = order[np.sort(np.unique(where[order, only], return_index=True)[1])]
        rows.append(where[order[:most]])
        values.append(found[order[:most]])
    if not rows:
        rows, values = [np.empty((0, len(release.shape)), dtype=np.uint32)], [np.empty(0)]
    ranks = np.concatenate([np.arange(1, len(part) + 1) for part in values])
    return labelled(release, np.concatenate(rows), np.concatenate(values)).append_column("rank", pa.array(ranks))


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
