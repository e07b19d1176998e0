"""The pictures of the accuracy benchmark, from the rows alone: error against epsilon, and coverage by tenth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from accuracies.measuring import DEFAULT, MEAN, NO_UNIT, OFFSETS, OURS, PRIVATE_MEAN, Row
from accuracies.summary import COVERAGE_OF_TENTHS, Cell, Results, epsilon_text

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"value": "#0072B2", "entry": "#D55E00", "slice": "#009E73"}  # Okabe and Ito
ANCHORS = {MEAN: "--", OFFSETS: ":", OURS: "-"}  # without privacy
PANELS_ABREAST = 4
MOST = 1.3  # errors over that of the mean: what is worse is cut off


def draw_errors(rows: Sequence[Row], path: Path) -> None:
    """One panel per data set: our error and that of the private mean against epsilon; lines for what is not private."""
    results = Results(rows)
    names = [name for name in dict.fromkeys(cell.data for cell in results.cells) if _private(results, name, OURS)]
    abreast = max(1, min(PANELS_ABREAST, len(names)))
    lines = max(1, -(-len(names) // abreast))
    figure, axes = _panels(lines, abreast)
    for place, name in zip(axes, names, strict=False):
        _errors(place, results, name)
    for place in axes[len(names) :]:
        place.set_visible(False)
    _save(figure, path)


def _private(results: Results, data: str, method: str) -> list[Cell]:
    wanted = (data, method, DEFAULT)
    return [one for one in results.cells if (one.data, one.method, one.variant) == wanted and one.epsilon is not None]


def _errors(axes: Axes, results: Results, data: str) -> None:
    for method, style in ((OURS, "o-"), (PRIVATE_MEAN, "x:")):
        series: dict[tuple[str, float], list[Cell]] = {}
        for cell in _private(results, data, method):
            series.setdefault((cell.unit, cell.delta), []).append(cell)
        for (unit, delta), cells in series.items():
            cells.sort(key=lambda cell: cell.epsilon or 0.0)
            label = f"{unit}{f', delta {delta:g}' if delta else ''}" if method == OURS else None
            errors = [cell.error() or 0.0 for cell in cells]
            axes.errorbar(
                [cell.epsilon or 0.0 for cell in cells],
                [cell.rmse for cell in cells],
                errors,
                fmt=style,
                color=COLOURS[unit.partition(":")[0]],
                alpha=1.0 if method == OURS else 0.5,
                markersize=4,
                linewidth=1.4 if method == OURS else 0.8,
                label=label,
            )
    for method, style in ANCHORS.items():
        anchor = results.find(data, NO_UNIT, None, method)
        if anchor is not None:
            label = "no privacy" if method == OURS else method
            axes.axhline(anchor.rmse, color="#444444", linestyle=style, linewidth=1.0, label=label)
    floor = results.find(data, NO_UNIT, None, MEAN)
    if floor is not None and axes.get_ylim()[1] > MOST * floor.rmse:
        axes.set_ylim(top=MOST * floor.rmse)
    ticks = sorted({cell.epsilon for cell in _private(results, data, OURS) if cell.epsilon is not None})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [epsilon_text(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(title=data, xlabel="epsilon", ylabel="RMSE")
    axes.legend(fontsize=7)


def draw_coverage(rows: Sequence[Row], path: Path) -> None:
    """One panel per unit: coverage of 90 % intervals in every tenth of the predictions, a line per data and epsilon."""
    results = Results(rows)
    figure, axes = _panels(1, len(COLOURS))
    for place, (unit, colour) in zip(axes, COLOURS.items(), strict=True):
        place.axhspan(*COVERAGE_OF_TENTHS, color="#dddddd")
        place.axhline(0.9, color="#444444", linewidth=0.8)
        for cell in results.ours():
            tenths = [row["tenths"] for row in cell.rows if len(row.get("tenths", ())) == 10]
            if cell.unit.startswith(unit) and cell.variant == DEFAULT and tenths:
                place.plot(range(1, 11), np.mean(tenths, axis=0), color=colour, alpha=0.35, linewidth=0.9)
        place.set(title=unit, xlabel="tenth of the predictions", ylabel="coverage of 90 % intervals", ylim=(0, 1.02))
        place.set_xticks(range(1, 11))
    _save(figure, path)


def _panels(lines: int, abreast: int) -> tuple[Figure, list[Axes]]:
    plt.rcParams.update({"svg.hashsalt": "tensorveil", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    figure, axes = plt.subplots(
        lines, abreast, figsize=(4.2 * abreast, 3.3 * lines), squeeze=False, layout="constrained"
    )
    return figure, list(axes.flat)


def _save(figure: Figure, path: Path) -> None:
    """Whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".svg.part")
    figure.savefig(aside, format="svg", metadata={"Date": None})
    aside.replace(path)
    plt.close(figure)
