"""Predictions by label, from tables to tables. Rows with unknown labels are predicted from the known offsets."""

from __future__ import annotations

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
from tensorveil.errors import InputError
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.offsets import Offsets
from tensorveil.release.cells.labels import (
    FRAMES,
    PREDICTION,
    coordinates_in,
    fixed_indices,
    labelled,
    refuse_unknown,
    to_frame,
    unknown_labels,
)
from tensorveil.release.cells.open_modes import OpenModes, Weights, open_modes

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.release.release import Release


UNKNOWN = ("error", "offsets")
ENDS = ("low", "high")  # of intervals
MAX_CELLS = 10**7  # of a whole completion as a table


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


def intervals_of(model: Completion, where: Integers, share: float) -> tuple[Floats, Floats]:
    """Ends of intervals of values, also for rows with unknown labels (indices below 0)."""
    known = np.asarray((where >= 0).all(axis=1))
    low, high = np.empty(len(where)), np.empty(len(where))
    low[known], high[known] = model.interval(where[known], share)
    if not known.all():
        inside = np.where(where < 0, np.array(model.shape), where)[~known]
        low[~known], high[~known] = with_unknown_indices(model).interval(inside, share)
    return low, high


def with_unknown_indices(model: Completion) -> Completion:
    """The model with one extra index per mode, about which nothing is known: a row of zeros and an offset of zero.

    A product with a row of zeros is zero, so an entry with such an index is predicted from offsets alone. Rows of
    non-negative factors lie above zero, not around it: there the unknown index has the average row.
    """
    usual = float(model.factors.family.nonnegative)
    parts = [None if part is None else np.append(part, 0.0) for part in model.offsets.modes]
    blocks = [np.vstack([factor, usual * factor.mean(axis=0)]) for factor in model.factors.factors]
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
    usual = float(draws.family.nonnegative)
    rows = [
        np.append(block, usual * block.reshape(count, *shapes[mode]).mean(axis=1), axis=1)
        for mode, block in enumerate(blocks[:order])
    ]
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


def predicted_arrow(
    release: Release,
    table: Any,
    unknown: str = "error",
    *,
    interval: float | None = None,
    averaged: Weights | None = None,
) -> tuple[pa.Table, Predicted]:
    """An Arrow table with a column of predictions, and the predictions themselves.

    With `interval`, e.g. 0.9, columns low and high are added. With `averaged`, which maps names of modes to weights,
    predictions are averaged over the modes that have no column; modes without weights are averaged evenly.
    """
    import pyarrow as pa

    columns = tables.arrow_table(table)
    for name in (PREDICTION,) if interval is None else (PREDICTION, *ENDS):
        if name in columns.column_names:
            raise InputError(f"the table must not have a column {name!r}, got one; rename it")
    left_open = [] if averaged is None else open_modes(release, columns.column_names)
    if left_open:
        cells = OpenModes.of(release, left_open, averaged)
        where = fixed_indices(release, columns, left_open)
        known, missing, model = (where >= 0).all(axis=1), unknown_labels(release, where), release.model
        if checks.choice("unknown", unknown, UNKNOWN) == "error":
            refuse_unknown(release, where)
        if missing:
            model, where = with_unknown_indices(model), np.where(where < 0, np.array(model.shape), where)
        predicted = Predicted(cells.predict(model, where), np.asarray(known), missing)
    else:
        predicted = predict_rows(release, columns, unknown)
    found = columns.append_column(PREDICTION, pa.array(predicted.values))
    if interval is not None:
        if left_open:
            ends = cells.interval(model, where, interval)
        else:
            ends = intervals_of(release.model, coordinates_in(release, columns), interval)
        for name, numbers in zip(ENDS, ends, strict=True):
            found = found.append_column(name, pa.array(numbers))
    return found, predicted


def predicted_table(
    release: Release,
    table: Any,
    unknown: str = "error",
    averaged: Weights | None = None,
    interval: float | None = None,
) -> Any:
    """The table with a column of predictions, and with columns of the ends of intervals, as the same kind of table."""
    found, _ = predicted_arrow(release, table, unknown, interval=interval, averaged=averaged)
    names = (PREDICTION,) if interval is None else (PREDICTION, *ENDS)
    added = {name: tables.as_floats(found.column(name)) for name in names}
    if isinstance(table, Mapping):
        return {**table, **added}
    if hasattr(table, "assign"):  # pandas, whose index is kept
        return table.assign(**added)
    if hasattr(table, "with_columns"):
        import polars

        return table.with_columns(*(polars.Series(name, numbers) for name, numbers in added.items()))
    return found


def completed_table(release: Release, coordinates: ArrayLike | None, frame: str) -> Any:
    """Labels and predictions of all cells, or of the given cells."""
    checks.choice("kind", frame, FRAMES)
    if coordinates is None:
        checks.dense_size(release.shape, MAX_CELLS, "give the coordinates that you need")
        coordinates = np.indices(release.shape, dtype=np.uint32).reshape(len(release.shape), -1).T
    where = checks.coordinates(coordinates, release.shape)
    return to_frame(labelled(release, where, release.predict(where)), frame)
