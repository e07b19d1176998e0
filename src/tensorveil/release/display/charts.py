"""Charts of a release as Matplotlib axes. They read the release alone, so they are post-processing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.models.factor_model import FactorModel
from tensorveil.release.cells.labels import indices_of
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.report.plots import clean, times_of
from tensorveil.release.report.variation import level_and_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tensorveil.release.release import Release

MOST_BARS = 40  # of a longer mode, the labels at both ends
MOST_TICKS = 20
MOST_TILES = 10**6


def plot_offsets(release: Release, mode: int | str, ax: Axes | None = None) -> Axes:
    """Offsets of a mode in units of the values: a line over time, or bars from the highest to the lowest."""
    number = _released_mode(release, mode)
    part = release.model.offsets.modes[number]
    if part is None:
        raise InputError(
            f"mode must have offsets to be drawn, got {release.mode_names[number]!r} without; take another"
        )
    offsets = part * level_and_unit(release.model)[1]
    axes = _axes(ax)
    times = times_of(release.labels[number])
    if times is not None:
        order = np.argsort(times, kind="stable")
        axes.plot(times[order], offsets[order])
        axes.set_ylabel(f"offset ({release.value_name})")
    else:
        order = np.argsort(-offsets, kind="stable")
        shown = order
        if len(order) > MOST_BARS:
            shown = np.concatenate([order[: MOST_BARS // 2], order[-MOST_BARS // 2 :]])
        axes.barh(np.arange(len(shown)), offsets[shown])
        axes.set_yticks(np.arange(len(shown)), _names(release, number, shown))
        axes.invert_yaxis()
        axes.set_xlabel(f"offset ({release.value_name})")
    hidden = 0 if times is not None else len(offsets) - min(len(offsets), MOST_BARS)
    more = f" ({hidden:,} in between not shown)" if hidden else ""
    axes.set_title(f"offsets of {release.mode_names[number]}{more}")
    return axes


def plot_components(release: Release, mode: int | str, count: int = 4, ax: Axes | None = None) -> Axes:
    """The components of a mode with the largest columns, scaled to a root mean square of one, one line each."""
    number = _released_mode(release, mode)
    wanted = checks.positive_integer("count", count)
    matrix = release.factors.factors[number]
    sizes = np.sqrt(np.mean(matrix**2, axis=0))
    order = [column for column in np.argsort(-_lengths(release.factors, number), kind="stable") if sizes[column] > 0]
    axes = _axes(ax)
    times = times_of(release.labels[number])
    places = np.arange(len(matrix)) if times is None else times
    for column in order[:wanted]:
        axes.plot(places, matrix[:, column] / sizes[column], marker="." if times is None else "", label=str(column + 1))
    if times is None:
        ticks = np.unique(np.linspace(0, len(matrix) - 1, min(MOST_TICKS, len(matrix))).round().astype(np.int64))
        axes.set_xticks(ticks, _names(release, number, ticks), rotation=90)
    if order:
        axes.legend(title="component")
    axes.set_title(f"components of {release.mode_names[number]}" + ("" if order else ": none beside the noise"))
    return axes


def plot_slice(
    release: Release, rows: int | str, columns: int | str, at: Mapping[str, Any], ax: Axes | None = None
) -> Axes:
    """Predictions of two modes as a heat map, with one label of each of the other modes."""
    first, second = release.mode_number(rows), release.mode_number(columns)
    if first == second:
        raise InputError(f"rows and columns must be two modes, got {rows!r} twice; name another")
    others = [mode for mode in range(len(release.shape)) if mode not in (first, second)]
    wanted = [release.mode_names[mode] for mode in others]
    if set(at) != set(wanted):
        raise InputError(f"the labels of the other modes must be given, {wanted}, got {sorted(at)}; write mode=label")
    shape = release.shape[first], release.shape[second]
    checks.dense_size(shape, MOST_TILES, "draw smaller modes, or predict the cells that you need")
    cells = np.empty((shape[0] * shape[1], len(release.shape)), dtype=np.int64)
    cells[:, first] = np.repeat(np.arange(shape[0]), shape[1])
    cells[:, second] = np.tile(np.arange(shape[1]), shape[0])
    for mode, name in zip(others, wanted, strict=True):
        index = int(indices_of(release, mode, _column(at[name]))[0])
        if index < 0:
            raise InputError(f"the label of {name!r} must be known to the release, got {at[name]!r}; take another")
        cells[:, mode] = index
    axes = _axes(ax)
    low, high = (release.model.low, release.model.high) if release.model.clipped else (None, None)
    image = axes.imshow(release.predict(cells).reshape(shape), aspect="auto", cmap="cividis", vmin=low, vmax=high)
    axes.figure.colorbar(image, ax=axes, label=release.value_name)
    for mode, ticks_of, turned in ((first, axes.set_yticks, 0), (second, axes.set_xticks, 90)):
        size = release.shape[mode]
        ticks = np.unique(np.linspace(0, size - 1, min(MOST_TICKS, size)).round().astype(np.int64))
        ticks_of(ticks, _names(release, mode, ticks), rotation=turned)
    axes.set_ylabel(release.mode_names[first])
    axes.set_xlabel(release.mode_names[second])
    axes.set_title(", ".join([f"predicted {release.value_name}", *(f"{name} {at[name]}" for name in wanted)]))
    return axes


def plot_curve(release: Release, ax: Axes | None = None) -> Axes:
    """Epsilon against delta as steps, never too low, with the stated pair marked."""
    points = sorted(Certificate.of(release).curve)
    known = [(delta, epsilon) for delta, epsilon in points if math.isfinite(epsilon)]
    if len(known) < 2:
        raise InputError("the release must have a curve to draw, got a guarantee without one; it states one pair only")
    axes = _axes(ax)
    deltas, epsilons = (np.array(part) for part in zip(*known, strict=True))
    axes.step(deltas, epsilons, where="post", marker=".")
    axes.plot([release.guarantee.delta], [release.guarantee.epsilon], "o", label="stated")
    if deltas[deltas > 0].min(initial=1.0) < 1e-3:
        axes.set_xscale("symlog", linthresh=float(deltas[deltas > 0].min()))
    axes.set_xlabel("delta")
    axes.set_ylabel("epsilon")
    axes.legend()
    axes.set_title(f"guarantee for the unit {release.guarantee.unit}")
    return axes


def _axes(given: Axes | None) -> Axes:
    if given is not None:
        return given
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _released_mode(release: Release, mode: int | str) -> int:
    number = release.mode_number(mode)
    if number == release.withheld_mode:
        raise InputError(
            f"mode must be one whose rows are released, got {release.mode_names[number]!r}; its rows are for their "
            "owners alone"
        )
    return number


def _lengths(factors: FactorModel, mode: int) -> Floats:
    """The size of what every component of a mode adds: products of the norms of columns, or with the core's slice."""
    if factors.core is None:
        return np.asarray(np.prod([np.linalg.norm(matrix, axis=0) for matrix in factors.factors], axis=0))
    scaled = factors.core
    for number, matrix in enumerate(factors.factors):
        sides = [1] * factors.order
        sides[number] = -1
        scaled = scaled * np.linalg.norm(matrix, axis=0).reshape(sides)
    return np.asarray(np.linalg.norm(np.moveaxis(scaled, mode, 0).reshape(factors.ranks[mode], -1), axis=1))


def _names(release: Release, mode: int, indices: Integers) -> list[str]:
    labels: NDArray[Any] | None = release.labels[mode]
    return [str(index) if labels is None else clean(labels[index], 30) for index in indices.tolist()]


def _column(label: Any) -> Any:
    import pyarrow as pa

    return pa.chunked_array([pa.array([label])])
