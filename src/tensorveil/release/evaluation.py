"""Errors of predictions on known values (for internal use), and differences between two releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Integers
from tensorveil.data import tables
from tensorveil.data.observations import Observations
from tensorveil.data.readers.text import shown_names
from tensorveil.errors import InputError
from tensorveil.metrics import rmse
from tensorveil.release import predictions
from tensorveil.release.cells.labels import coordinates_in, fixed_indices, unknown_labels, values_in
from tensorveil.release.cells.ranking import offsets_alone

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.release.release import Release

INTERVAL = 0.9  # whose coverage is reported
NEAR = 1e-9  # of the ends of intervals, for values that are one of them
SAMPLE = 10_000  # cells on which two releases are compared
SEED = 0  # of that sample, so that a comparison can be repeated


@final
@dataclass(frozen=True)
class Evaluation:
    """Errors of predictions on known values. For internal use only: they are not private.

    Attributes
    ----------
    unknown_rows : rows with a label that the release does not know, predicted from the offsets of their known labels
    unknown : mode name -> number of rows whose label of that mode is unknown
    rmse, mae : of the predictions
    known_rmse : RMSE of the rows whose labels are all known; None if there are no such rows.
    release_mean_rmse, release_mean_mae : baseline: errors of predicting the release's own mean everywhere. None for a
        published model, which has no mean.
    test_mean_rmse : error of the best constant, the mean of the test values themselves
    offsets_rmse, offsets_mae : baseline: errors of the release's mean and offsets alone, without its factors. None for
        a published model, which has no offsets.
    coverage : share of the values inside of their 90 % intervals; None for models without posterior draws
    interval_width : mean width of these intervals
    personal : for a joint release: whether the owners' own rows were used
    """

    rows: int
    unknown_rows: int
    unknown: Mapping[str, int]
    rmse: float
    mae: float
    known_rmse: float | None
    release_mean_rmse: float | None
    release_mean_mae: float | None
    test_mean_rmse: float
    offsets_rmse: float | None = None
    offsets_mae: float | None = None
    coverage: float | None = None
    interval_width: float | None = None
    personal: str = ""


def evaluate_table(
    release: Release,
    table: Any,
    value: str | None = None,
    own: Observations | None = None,
    average: Sequence[str] = (),
) -> Evaluation:
    """Compare predictions with the values of a table.

    Parameters
    ----------
    table : one column of labels per mode, and one of values
    value : the column of values, by default named as in the release
    own : for a joint release, the observations of all owners, from which personal rows are computed. Without it, the
        predictions use the public offsets alone
    average : modes to average over, with equal weights; the table need not have columns of them
    """
    columns = tables.arrow_table(table)
    if average and (own is not None or release.withheld_mode is not None):
        raise InputError("average must be used with a release that is not joint, got a joint one; leave it out")
    for name in average:
        checks.choice("average", name, release.mode_names)
    truth = values_in(release, columns, value)
    if len(truth) == 0 or not np.isfinite(truth).all():
        raise InputError("the column of values must hold at least one number, all finite, got others; correct the rows")
    personal, ends = "", None
    kept = [name for name in release.mode_names if name not in average]
    where, model = _indices_in(release, columns, kept), release.model
    shows_intervals = model.draws is not None and model.withheld_mode is None
    if average:
        share = INTERVAL if shows_intervals else None
        found, predicted = predictions.predicted_arrow(
            release, columns.select(kept), "offsets", interval=share, averaged={}
        )
        if shows_intervals:
            ends = tuple(tables.as_floats(found.column(name)) for name in predictions.ENDS)
    elif own is not None:
        model = predictions.everybody(release, own)
        predicted = predictions.predict_rows(release, columns, "offsets", model=model)
        personal = "with everybody's personal rows"
    elif release.withheld_mode is None:
        predicted = predictions.predict_rows(release, columns, "offsets")
    else:
        known, unknown = np.asarray((where >= 0).all(axis=1)), unknown_labels(release, where)
        predicted = predictions.Predicted(predictions.offset_predictions(release.model, where), known, unknown)
        personal = "without personal rows, from public offsets alone"
    known = predicted.known
    floor = _release_mean(release)
    plain = offsets_alone(model).predict(np.where(where < 0, np.array(model.shape), where)) if model.clipped else None
    if shows_intervals and not average:
        ends = predictions.intervals_of(model, where, INTERVAL)
    return Evaluation(
        len(truth),
        int((~known).sum()),
        predicted.unknown,
        rmse(truth, predicted.values),
        float(np.abs(truth - predicted.values).mean()),
        rmse(truth[known], predicted.values[known]) if known.any() else None,
        None if floor is None else rmse(truth, np.full(len(truth), floor)),
        None if floor is None else float(np.abs(truth - floor).mean()),
        rmse(truth, np.full(len(truth), truth.mean())),
        None if plain is None else rmse(truth, plain),
        None if plain is None else float(np.abs(truth - plain).mean()),
        None if ends is None else float(((truth >= ends[0] - NEAR) & (truth <= ends[1] + NEAR)).mean()),
        None if ends is None else float((ends[1] - ends[0]).mean()),
        personal,
    )


def _indices_in(release: Release, columns: pa.Table, kept: Sequence[str]) -> Integers:
    """Indices by the labels of these modes; -1 where the release does not know the label, and in all other modes."""
    if len(kept) == len(release.shape):
        return coordinates_in(release, columns)
    if not kept or not set(kept) <= set(columns.column_names):
        raise InputError(
            f"modes that are not averaged over, {kept or 'none'}, must be columns of the table, and there must be one "
            f"at least, got {shown_names(columns.column_names)}; rename its columns, or average over fewer modes"
        )
    left_open = [mode for mode, name in enumerate(release.mode_names) if name not in kept]
    where = fixed_indices(release, columns, left_open)
    where[:, left_open] = -1
    return where


def _release_mean(release: Release) -> float | None:
    """What the release predicts where it knows nothing."""
    if not release.model.clipped:
        return None
    return float(predictions.offset_predictions(release.model, np.full((1, len(release.shape)), -1))[0])


@final
@dataclass(frozen=True)
class Difference:
    """Difference of the predictions of two releases on their common cells.

    Attributes
    ----------
    cells : number of cells compared; 0 if the releases cannot be compared
    rms : root mean square difference
    why : why nothing was compared, or ""
    """

    cells: int
    rms: float | None
    why: str = ""


def difference(first: Release, second: Release) -> Difference:
    """Compare predictions on a sample of the common cells."""
    if set(first.mode_names) != set(second.mode_names):
        return Difference(0, None, "the modes have different names")
    if first.withheld_mode is not None or second.withheld_mode is not None:
        return Difference(0, None, "a joint release cannot predict before it is personalized")
    mine, theirs = [], []
    for mode, name in enumerate(first.mode_names):
        other = second.mode_names.index(name)
        left, right = _common(first, mode, second, other)
        if len(left) == 0:
            return Difference(0, None, f"the releases have no label of {name} in common")
        mine.append(left)
        theirs.append(right)
    generator = np.random.default_rng(SEED)
    total = int(np.prod([float(len(part)) for part in mine]).clip(max=2**62))
    if total <= SAMPLE:
        picks = list(np.indices([len(part) for part in mine]).reshape(len(mine), -1))
    else:
        picks = [generator.integers(0, len(part), SAMPLE) for part in mine]
    here = np.column_stack([part[pick] for part, pick in zip(mine, picks, strict=True)])
    there = np.empty_like(here)
    for mode, (part, pick) in enumerate(zip(theirs, picks, strict=True)):
        there[:, second.mode_names.index(first.mode_names[mode])] = part[pick]
    return Difference(len(here), rmse(first.predict(here), second.predict(there)))


def _common(first: Release, mode: int, second: Release, other: int) -> tuple[Integers, Integers]:
    """Indices of the labels that both releases have, in the first and in the second."""
    left, right = (
        np.arange(release.shape[number]).tolist() if labels is None else labels.tolist()
        for release, number, labels in ((first, mode, first.labels[mode]), (second, other, second.labels[other]))
    )
    places = {label: place for place, label in enumerate(right)}
    pairs = [(place, places[label]) for place, label in enumerate(left) if label in places]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
