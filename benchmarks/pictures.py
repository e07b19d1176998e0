"""The picture of the accuracy benchmark: RMSE against epsilon, one panel a data set and unit, anchors as lines."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito
CURVES = dict(
    zip(
        (
            "ours",
            "private mean",
            "plain DP-SGD, delta 1e-6",
            "published input",
            "published gradient",
            "published output",
            "ours, without side information",
        ),
        (*COLOURS, "#777777"),
        strict=True,
    )
)
MOST = 1.6  # errors over that of the global mean: what is worse is cut off
STYLES = ("-", "--", ":", "-.")


def draw_accuracy(rows: Sequence[dict], path: Path) -> None:
    """Splits of one data set are averaged."""
    panels = list(dict.fromkeys((row["data"], row["unit"]) for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    plt.rcParams.update({"svg.hashsalt": "tensorveil", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3})
    figure, axes = plt.subplots(lines, columns, figsize=(5.4 * columns, 4 * lines), squeeze=False, layout="constrained")
    for place, panel in zip(axes.flat, panels, strict=False):
        _panel(place, [row for row in rows if (row["data"], row["unit"]) == panel], ", ".join(panel))
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".svg.part")
    figure.savefig(aside, format="svg", metadata={"Date": None})
    aside.replace(path)
    plt.close(figure)


def _panel(axes: Axes, rows: Sequence[dict], title: str) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    anchors = iter(STYLES)
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        points: dict[float | None, list[float]] = {}
        for row in mine:
            points.setdefault(row["epsilon"], []).append(row["rmse_mean"])
        means = {epsilon: statistics.fmean(errors) for epsilon, errors in points.items()}
        label = f"{method} (claimed)" if mine[0]["status"] == "claimed" else method
        if None in means:
            axes.axhline(means[None], color="#444444", linestyle=next(anchors, "-"), linewidth=1.2, label=label)
        else:
            order = sorted(means)
            axes.plot(
                order, [means[epsilon] for epsilon in order], "o-", color=CURVES.get(method, "#000000"), label=label
            )
    floor = [row["rmse_mean"] for row in rows if row["method"] == "global mean"]
    if floor and axes.get_ylim()[1] > MOST * max(floor):
        axes.set_ylim(top=MOST * max(floor))
    axes.set_xscale("log")
    ticks = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("epsilon")
    axes.set_ylabel("RMSE")
    axes.set_title(title)
    axes.legend(fontsize=8)
