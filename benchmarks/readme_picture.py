"""The picture of README: error against epsilon on MovieLens 100K, from committed rows alone.

`python benchmarks/readme_picture.py` reads benchmarks/results/accuracy.jsonl and experiments/results/figure3.json and
writes docs/_static/error_against_epsilon.svg. No number is written here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracies.measuring import DEFAULT, MEAN, NO_UNIT, OURS, SVDPP
from accuracies.running import read_rows
from accuracies.summary import Results

ROOT = Path(__file__).parents[1]
ROWS, FIGURE = ROOT / "benchmarks/results/accuracy.jsonl", ROOT / "experiments/results/figure3.json"
PICTURE = ROOT / "docs/_static/error_against_epsilon.svg"
DATA, SPLIT, UNIT = "ml-100k ua", "ua", "value"
# of the paper's three algorithms the most accurate, in the more accurate of the two scalings that were run
PAPER = {"model": "cp", "approach": "gradient", "scaling": "none", "split": SPLIT, "subset": "all"}
OKABE_ITO = {"ours": "#0072B2", "paper": "#D55E00"}


@dataclass(frozen=True)
class Curves:
    """What the picture shows: epsilon -> RMSE of ours and of the paper's, and the two levels without privacy."""

    ours: dict[float, float]
    paper: dict[float, float]
    svdpp: float
    mean: float


def curves(rows: Path = ROWS, figure: Path = FIGURE) -> Curves:
    """The numbers of the picture; a LookupError names a row that is missing."""
    results = Results(read_rows(rows))
    ours = {
        cell.epsilon: cell.rmse
        for cell in results.cells
        if (cell.data, cell.unit, cell.method, cell.variant) == (DATA, UNIT, OURS, DEFAULT) and cell.epsilon is not None
    }
    levels = []
    for method in (SVDPP, MEAN):
        cell = results.find(DATA, NO_UNIT, None, method)
        if cell is None:
            raise LookupError(f"{rows} must have a row of {DATA}, {method}, got none; run benchmarks/accuracy.py")
        levels.append(cell.rmse)
    found: list[dict[str, Any]] = json.loads(figure.read_text())["rows"]
    wanted = [row for row in found if all(row[name] == value for name, value in PAPER.items())]
    paper = {row["epsilon"]: row["mean"] for row in wanted if row["mean"] is not None}
    if not ours or not paper:
        raise LookupError(f"{rows} and {figure} must have rows of {DATA}, got none; run both programs")
    return Curves(dict(sorted(ours.items())), dict(sorted(paper.items())), *levels)


def draw(found: Curves, path: Path = PICTURE) -> None:
    """The SVG, written aside and renamed."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    look = {"svg.hashsalt": "tensorveil", "font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    plt.rcParams.update(look)
    figure, axes = plt.subplots(figsize=(7.2, 4.1), layout="constrained")
    right = max(*found.ours, *found.paper) * 1.12
    axes.axhline(found.mean, color="#555555", linestyle=":", linewidth=1.3)
    axes.axhline(found.svdpp, color="#555555", linestyle="--", linewidth=1.3)
    axes.plot(list(found.paper), list(found.paper.values()), "^-", color=OKABE_ITO["paper"], linewidth=1.8)
    axes.plot(list(found.ours), list(found.ours.values()), "o-", color=OKABE_ITO["ours"], linewidth=2.4)
    ends = (
        (found.mean, "predicting the mean", "#555555"),
        (found.svdpp, "SVD++, no privacy", "#555555"),
        (list(found.paper.values())[-1], "the paper's best, claimed\nepsilon (it is not true)", OKABE_ITO["paper"]),
        (list(found.ours.values())[-1], "tensorveil, proven epsilon", OKABE_ITO["ours"]),
    )
    for height, name, colour in ends:
        axes.annotate(name, (right, height), xytext=(4, 0), textcoords="offset points", va="center", color=colour)
    ticks = sorted({*found.ours, *found.paper})
    axes.set(xscale="log", xlabel="epsilon (smaller: more private)", ylabel="RMSE of held-out ratings")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(right=right)
    axes.set_title("MovieLens 100K: error against privacy", loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".svg.part")
    figure.savefig(aside, format="svg", metadata={"Date": None})
    aside.replace(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(curves())
    print(PICTURE.relative_to(ROOT))
