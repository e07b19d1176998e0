"""The pictures of a report: labels with the largest effects, lines over time, slices of predictions.

The choice reads the release alone, by rules that the captions state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.models.factor_model import FactorModel
from tensorveil.release.report.plots import Drawing, bar_plot, clean, heat_map, line_plot, short, times_of
from tensorveil.release.report.variation import level_and_unit

if TYPE_CHECKING:
    from tensorveil.release.release import Release

Indices = Integers

COMPONENTS = 5  # drawn of each mode, the strongest first: with the offsets they fill two rows of a page
WEAK = 0.05  # of the effect of the strongest component; weaker ones are not drawn
SAME = 1e-9  # of the largest number of a component: it does not differ between labels
TIMES = ("time", "hour", "day", "date", "week", "month", "quarter", "year")  # modes whose numbers are points in time
ENDS = 5  # labels drawn at each end of a long mode
ALL = 12  # a mode of so many labels is drawn whole
TILES = 14  # rows and columns of a heat map


@final
@dataclass(frozen=True)
class Picture:
    """A drawing with its title and caption."""

    drawing: Drawing
    title: str
    caption: str


@final
@dataclass(frozen=True)
class Group:
    """The pictures of one mode, or of the predictions, under one heading, with a sentence on how to read them."""

    title: str
    note: str
    pictures: tuple[Picture, ...]


def mode_groups(release: Release, hidden: Collection[int] = ()) -> list[Group]:
    """For every released mode: its offsets and its strongest components; labels of hidden modes are not shown."""
    shown = [mode for mode in range(len(release.shape)) if mode != release.withheld_mode]
    return [_mode_group(release, mode, mode in hidden) for mode in shown]


def _mode_group(release: Release, mode: int, hidden: bool) -> Group:
    name, size = clean(release.mode_names[mode]), release.shape[mode]
    value = clean(release.value_name)
    pictures = []
    offsets = _offsets(release, mode)
    if offsets is not None:
        caption = f"against the overall level, in units of {value}"
        pictures.append(Picture(_series(release, mode, offsets, hidden), f"Offset of each {name}", caption))
    column, strengths = release.factors.factors[mode], _strengths(release, mode)
    order = [number for number in np.argsort(-strengths, kind="stable").tolist() if strengths[number] > 0]
    drawn = [number for number in order if strengths[number] >= WEAK * strengths[order[0]]][:COMPONENTS]
    for place, number in enumerate(drawn, 1):
        if size > 1 and np.ptp(column[:, number]) <= SAME * np.abs(column[:, number]).max():
            continue  # the same for all labels
        scaled = column[:, number] / np.sqrt(np.mean(column[:, number] ** 2))
        caption = f"typical effect on predictions: {short(strengths[number])}"
        if release.withheld_mode is not None:
            caption = f"its weight differs for each {clean(release.mode_names[release.withheld_mode])}"
        pictures.append(Picture(_series(release, mode, scaled, hidden), f"Component {place} of {name}", caption))
    note = f"{size:,} {'label' if size == 1 else 'labels'}"
    if pictures:
        ends = "from the highest to the lowest" if size <= ALL else f"by the {ENDS} highest and the {ENDS} lowest"
        kind = ends if _places(release, mode) is None else "as lines over time"
        note += ", shown " + (kind if not hidden else "from the highest to the lowest, without names: each is a person")
    note += "."
    if len(order) > len(drawn):
        note += (
            f" Components are numbered by their effect; the {len(drawn)} strongest of {len(order)} are drawn, and all "
            "are in the released model."
            if len(drawn) > 1
            else f" The strongest of {len(order)} components is drawn; all are in the released model."
        )
    if not order:
        note += " No component was distinguishable from the noise, so all are zero in the release."
    return Group(name, note, tuple(pictures))


def slice_group(release: Release, hidden: Collection[int] = ()) -> Group | None:
    """Predictions as heat maps of the two largest modes; None under joint privacy.

    Hidden modes are taken only where there are no two others; their labels are then numbers by rank.
    """
    if release.withheld_mode is not None:
        return None
    shape = release.shape
    ranked = sorted(range(len(shape)), key=lambda mode: (mode in hidden, -shape[mode], mode))
    rows, columns = sorted(ranked[:2])
    others = ranked[2:]
    chosen = {mode: _chosen(release, mode) for mode in (rows, columns)}
    rules = [f"{clean(release.mode_names[mode])}: {rule}" for mode, (_, rule) in chosen.items()]
    note = "Shown are " + "; ".join(rules) + "."
    fixed = {mode: _middle(release, mode) for mode in others}
    varied: list[dict[int, int]] = [fixed]
    if others and others[0] not in hidden:  # no person is picked out
        picks, rule = _spread(release, others[0])
        varied = [{**fixed, others[0]: pick} for pick in picks]
        note += f" One map each for {rule}."
    if others[1:] or (others and others[0] in hidden):
        note += " The remaining modes are held at the label of middle rank."
    note += " All maps share one colour scale."
    maps = [_predicted(release, rows, columns, chosen[rows][0], chosen[columns][0], where) for where in varied]
    low, high = min(float(one.min()) for one in maps), max(float(one.max()) for one in maps)
    pictures = []
    for where, values in zip(varied, maps, strict=True):
        names = [_map_names(release, mode, chosen[mode][0], mode in hidden) for mode in (rows, columns)]
        at = ", ".join(
            f"{clean(release.mode_names[mode])} "
            + ("of middle rank" if mode in hidden else _bare(release, mode, index))
            for mode, index in sorted(where.items())
        )
        caption = f"{clean(release.mode_names[rows])} (rows) by {clean(release.mode_names[columns])} (columns)"
        title = f"Predicted {clean(release.value_name)}" + (f", {at}" if at else "")
        pictures.append(Picture(heat_map(names[0], names[1], values, low, high), title, caption))
    return Group("Predicted slices", note, tuple(pictures))


def label_names(release: Release, mode: int, indices: Sequence[int] | Indices) -> list[str]:
    """Labels as a reader knows them; bare numbers get the name of their mode."""
    labels = release.labels[mode]
    bare = [_bare(release, mode, int(index)) for index in indices]
    if labels is None or np.asarray(labels).dtype.kind in "iuf":
        return [f"{clean(release.mode_names[mode], 12)} {text}" for text in bare]
    return bare


def _map_names(release: Release, mode: int, indices: Indices, hidden: bool) -> list[str]:
    if not hidden:
        return label_names(release, mode, indices)
    return [_bare(release, mode, int(index), hidden=True) for index in indices]


def _bare(release: Release, mode: int, index: int, hidden: bool = False) -> str:
    if hidden:  # by rank, which names nobody
        return f"rank {int(np.sum(_height(release, mode) > _height(release, mode)[index])) + 1:,}"
    labels = release.labels[mode]
    return str(index) if labels is None else clean(labels[index], 60)


def _places(release: Release, mode: int) -> tuple[NDArray[Any], list[str] | None] | None:
    """Where the indices of a mode lie on an axis of time, with their names if they are no dates; None if they do not.

    Labels that are dates or times of day are known by their form. Numbers are points in time if the mode is called so.
    """
    labels = release.labels[mode]
    times = times_of(labels)
    if times is not None:
        return times, None
    numbered = labels is None or np.asarray(labels).dtype.kind in "iu" or release.bins[mode] is not None
    if not numbered or not (release.mode_names[mode].lower() in TIMES or release.bins[mode] is not None):
        return None
    names = [_bare(release, mode, index) for index in range(release.shape[mode])]
    try:
        return np.array([float(name) for name in names]), names
    except ValueError:
        return None


def _series(release: Release, mode: int, values: Floats, hidden: bool) -> Drawing:
    if hidden:
        names = [f"rank {place + 1:,}" for place in range(len(values))]
        return line_plot(np.arange(len(values)), np.sort(values)[::-1], names)
    places = _places(release, mode)
    if places is not None and len(values) > 1:
        return line_plot(places[0], values, places[1])
    order = np.argsort(-values, kind="stable")
    if len(values) <= ALL:
        return bar_plot(label_names(release, mode, order), values[order])
    picked = np.concatenate([order[:ENDS], order[-ENDS:]])
    return bar_plot(label_names(release, mode, picked), values[picked], len(values) - len(picked), ENDS)


def _offsets(release: Release, mode: int) -> Floats | None:
    """Offsets in units of the values; None where there are none, or nothing but zeros."""
    model = release.model
    part = model.offsets.modes[mode]
    if part is None or not part.any():
        return None
    return part * level_and_unit(model)[1]


def _strengths(release: Release, mode: int) -> Floats:
    """Root mean square, over all cells, of what each component of a mode adds, in units of the values.

    The mean over cells of a square factorizes: with the matrices A'A / size of all modes it is a quadratic form of
    the core's slice. The rows of a withheld mode are not known; they count as one.
    """
    factors: FactorModel = release.factors
    grams = []
    for number, factor in enumerate(factors.factors):
        gram = factor.T @ factor / len(factor)
        grams.append(np.eye(factor.shape[1]) if number == release.withheld_mode else gram)
    unit = level_and_unit(release.model)[1]
    if factors.core is None:
        return np.asarray(unit * np.sqrt(np.prod([np.diag(gram) for gram in grams], axis=0)))
    moved = factors.core
    for number, gram in enumerate(grams):
        if number != mode:
            moved = np.moveaxis(np.tensordot(gram, moved, axes=(1, number)), 0, number)
    rest = tuple(number for number in range(factors.order) if number != mode)
    squares = np.sum(factors.core * moved, axis=rest) * np.diag(grams[mode])
    return np.asarray(unit * np.sqrt(np.maximum(squares, 0)))


def _height(release: Release, mode: int) -> Floats:
    """What labels are ranked by: their offset; without offsets, the size of their row."""
    offsets = _offsets(release, mode)
    return np.linalg.norm(release.factors.factors[mode], axis=1) if offsets is None else offsets


def _chosen(release: Release, mode: int) -> tuple[Indices, str]:
    """The labels of a mode that a heat map shows, and the rule in words."""
    size = release.shape[mode]
    if size <= TILES:
        return np.arange(size), "all labels"
    if _places(release, mode) is not None:
        return np.linspace(0, size - 1, TILES).round().astype(np.int64), f"{TILES} points spread over time"
    order = np.argsort(-_height(release, mode), kind="stable")
    kind = "row of the factor" if _offsets(release, mode) is None else "offset"
    spread = np.linspace(0, size - 1, TILES).round().astype(np.int64)
    return order[spread], f"{TILES} labels spread evenly by rank from the largest to the smallest {kind}"


def _spread(release: Release, mode: int) -> tuple[list[int], str]:
    """Up to three indices of a mode that span it."""
    size = release.shape[mode]
    name = clean(release.mode_names[mode])
    if size <= 3:
        return list(range(size)), f"every {name}"
    if _places(release, mode) is not None or _offsets(release, mode) is None:
        return [0, size // 2, size - 1], f"the first, the middle and the last {name}"
    order = np.argsort(-_height(release, mode), kind="stable").tolist()
    return [order[0], order[size // 2], order[-1]], f"the {name} with the highest, the middle and the lowest offset"


def _middle(release: Release, mode: int) -> int:
    order = np.argsort(_height(release, mode), kind="stable")
    return int(order[len(order) // 2])


def _predicted(
    release: Release, rows: int, columns: int, row_indices: Indices, column_indices: Indices, at: dict[int, int]
) -> Floats:
    cells = np.empty((len(row_indices) * len(column_indices), len(release.shape)), dtype=np.int64)
    for mode, index in at.items():
        cells[:, mode] = index
    cells[:, rows] = np.repeat(row_indices, len(column_indices))
    cells[:, columns] = np.tile(column_indices, len(row_indices))
    return release.predict(cells).reshape(len(row_indices), len(column_indices))
