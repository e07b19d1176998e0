"""The picture of an audit: the scores of both worlds, the event, the claim and the bound."""

from pathlib import Path

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.audit.lower_bounds import LowerBound
from tensorveil.release.saving import written_aside

COLOURS = ("#2b6cb0", "#dd6b20")  # world 0, world 1: told apart in grey, too
BINS = 45
SHOWN = (0.002, 0.998)  # quantiles of the finite scores


def draw_scores(bound: LowerBound, title: str, path: Path, stated_epsilon: float | None = None) -> None:
    """Write an SVG of the two distributions of scores, with the event that was chosen before, and of the two epsilons.

    Parameters
    ----------
    bound : from `lower_bound`
    title : what was audited
    path : of the picture; it is written aside and renamed
    stated_epsilon : the claim
    """
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 4.2), layout="constrained", gridspec_kw={"width_ratios": [3, 1]}
    )
    low, high, edges = _range(bound)
    step = edges[1] - edges[0]
    for world, (scores, colour) in enumerate(zip(bound.scores, COLOURS, strict=True)):
        inside = np.clip(scores, low - step / 2, high + step / 2)  # ends hold what lies beyond, failures too
        weights = np.full(len(inside), 100 / len(inside))
        left.hist(inside, edges, weights=weights, color=colour, alpha=0.45, label=f"world {world}")
        left.hist(inside, edges, weights=weights, color=colour, histtype="step", linewidth=1.4)
    event = bound.event
    line = float(np.clip(event.threshold, edges[0], edges[-2] if event.above else edges[-1]))
    left.axvline(line, color="#222222", linewidth=1.3, linestyle="--")
    side = (line, edges[-1]) if event.above else (edges[0], line)
    left.axvspan(*side, color="#222222", alpha=0.06)
    own, other = 100 * bound.hits / bound.counted, 100 * bound.false_positives / bound.counted
    left.set_title(
        f"event: score {'≥' if event.above else '≤'} {event.threshold:.3g} (shaded)   "
        f"{own:.3g} % in world {event.world}, {other:.3g} % in world {1 - event.world}",
        fontsize=9.5,
        loc="left",
    )
    note = f"score ({bound.score})"
    if any(bound.failures):
        note += f"; runs that failed, {bound.failures[0]} and {bound.failures[1]}, stand at the end"
    left.set_xlabel(note)
    left.set_ylabel("runs, %")
    left.legend(frameon=False)
    names = ["shown\nat least"] if stated_epsilon is None else ["stated", "shown\nat least"]
    heights = [bound.epsilon] if stated_epsilon is None else [stated_epsilon, bound.epsilon]
    refuted = stated_epsilon is not None and bound.refutes(stated_epsilon)
    bars = right.bar(names, heights, color=["#a0aec0", "#c53030" if refuted else "#2f855a"][-len(names) :], width=0.6)
    right.bar_label(bars, [f"{height:.3g}" for height in heights], padding=3)
    right.margins(y=0.15)
    right.set_ylim(bottom=0)
    right.set_ylabel("epsilon")
    verdict = "" if stated_epsilon is None else "refuted" if refuted else "not refuted"
    right.set_title(f"{verdict}\n" * bool(verdict) + f"confidence {100 * bound.confidence:.10g} %", fontsize=9.5)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}: {bound.runs:,} runs per world, half of them counted", x=0.01, ha="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        figure.savefig(aside, format="svg", metadata={"Date": None})
    plt.close(figure)


def _range(bound: LowerBound) -> tuple[float, float, Floats]:
    """Where the finite scores lie, outliers left aside, and the edges of the bars."""
    finite = np.concatenate([scores[np.isfinite(scores)] for scores in bound.scores])
    low, high = (float(end) for end in np.quantile(finite, SHOWN)) if len(finite) else (0.0, 1.0)
    if np.isfinite(bound.event.threshold):
        low, high = min(low, bound.event.threshold), max(high, bound.event.threshold)
    if not low < high:
        low, high = low - 0.5, high + 0.5
    step = (high - low) / BINS
    return low, high, np.linspace(low - step, high + step, BINS + 3)
