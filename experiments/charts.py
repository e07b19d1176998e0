"""How the figures look: colours that everybody can tell apart, bands of one standard deviation, floors, SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

TITLES = {"cp": "CP", "tucker": "Tucker"}
NAMES = {
    "baseline": "baseline, no privacy",
    "baseline-clipped": "baseline with the same clipping",
    "mean": "predicting the mean",
    "input": "input perturbation",
    "gradient": "gradient perturbation",
    "output": "output perturbation",
}
COLOURS = {"input": "#0072B2", "gradient": "#009E73", "output": "#D55E00"}  # Okabe and Ito
MARKS = {"input": "s", "gradient": "o", "output": "^"}
LEVELS = {"baseline": ("black", "-"), "baseline-clipped": ("#555555", ":"), "mean": ("#CC79A7", "--")}


def panels(rows: int, columns: int, width: float = 5.2, height: float = 3.7) -> tuple[Figure, Any]:
    """A figure with a grid of axes."""
    plt.rcParams.update({"svg.hashsalt": "tensorveil", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3})
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    return figure, axes


def level(axes: Axes, rows: Sequence[dict[str, Any]], approach: str) -> None:
    """A horizontal line: a baseline or a floor."""
    colour, style = LEVELS[approach]
    if rows and rows[0]["mean"] is not None:
        axes.axhline(rows[0]["mean"], color=colour, linestyle=style, linewidth=1.4, label=NAMES[approach])


def curve(
    axes: Axes,
    rows: Sequence[dict[str, Any]],
    approach: str,
    x: str = "epsilon",
    label: str | None = None,
    **style: Any,
) -> None:
    """A line with a band of one standard deviation; the share of runs that diverged stands at the point, a cross at the
    top where all did."""
    known = [row for row in rows if row["mean"] is not None]
    points = [row[x] for row in known]
    means = [row["mean"] for row in known]
    stds = [row["std"] or 0.0 for row in known]
    look = {"color": COLOURS.get(approach, "black"), "marker": MARKS.get(approach, "."), "markersize": 4} | style
    axes.plot(points, means, label=label or NAMES[approach], **look)
    low = [max(mean - std, 0.2 * mean) for mean, std in zip(means, stds, strict=True)]
    high = [mean + std for mean, std in zip(means, stds, strict=True)]
    axes.fill_between(points, low, high, color=look["color"], alpha=0.18, linewidth=0)
    for row in rows:
        if row["mean"] is None:
            axes.plot(
                row[x], 0.96, marker="x", color=look["color"], transform=axes.get_xaxis_transform(), clip_on=False
            )
        if row["diverged"]:
            top = row["mean"] is None
            axes.annotate(
                f"{row['diverged']}/{row['runs']}",
                (row[x], 0.96 if top else row["mean"]),
                xycoords=axes.get_xaxis_transform() if top else "data",
                xytext=(0, -6 if top else 6),
                textcoords="offset points",
                fontsize=7,
                va="top" if top else "bottom",
                ha="center",
                color=look["color"],
            )


def finish(axes: Axes, title: str, xlabel: str, log_x: bool = True, log_y: bool = True) -> None:
    """Scales, plain numbers on them, room above for the counts of diverged runs."""
    axes.set(xlabel=xlabel, ylabel="RMSE", title=title)
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    axes.set_ylim(top=high * 1.6 if log_y else high + 0.2 * (high - low))
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, axes: Any, path: Path, note: str) -> None:
    """One legend for all panels, a note below it, and the file, written aside and renamed."""
    entries: dict[str, Any] = {}
    for panel in axes.ravel():
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(f"{note} n/N: n of N runs diverged.", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".svg.part")
    figure.savefig(aside, format="svg", metadata={"Date": None})
    aside.replace(path)
    plt.close(figure)
