"""The demonstration behind `tensorveil demo`: the paper's benchmark tensor, completed by every approach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.data import synthetic
from tensorveil.errors import DivergenceError
from tensorveil.mechanisms import published
from tensorveil.metrics import rmse
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.solvers.sgd import SGD

SHAPE = (20, 20, 20)
RANK = 3
EPSILONS = (1.0, 5.0)
RUNS = 5
SLICE = 0  # of the last mode, shown in the picture
MECHANISMS = (published.InputPerturbation(), published.OutputPerturbation(), published.GradientPerturbation())


@final
@dataclass(frozen=True)
class DemoRow:
    """One line of the table: an approach for one model, its errors over the runs (None where one diverged)."""

    model: str
    approach: str
    epsilon: float | None
    errors: tuple[float | None, ...]
    completed: NDArray[np.float64] | None = None

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(error is None for error in self.errors)

    @property
    def mean(self) -> float:
        """Mean error of the runs that did not diverge; NaN where all did."""
        finite = [error for error in self.errors if error is not None]
        return statistics.fmean(finite) if finite else math.nan

    @property
    def text(self) -> str:
        """The cell of the table."""
        if self.diverged == len(self.errors):
            return "diverged"
        return f"{self.mean:.3f}" + (f" ({self.diverged}/{len(self.errors)} diverged)" if self.diverged else "")


def run_demo(advance: Callable[[], None] = lambda: None) -> tuple[dict[str, synthetic.SyntheticTensor], list[DemoRow]]:
    """Complete the paper's 20 x 20 x 20 tensors with every approach; `advance` is called after each fit."""
    shown: dict[str, synthetic.SyntheticTensor] = {}
    rows: list[DemoRow] = []
    for family, generate in ((CP(RANK), synthetic.cp_tensor), (Tucker(RANK), synthetic.tucker_tensor)):
        data = [synthetic.observe(generate(SHAPE, RANK, seed=run), seed=100 + run) for run in range(RUNS)]
        shown[family.name] = data[0]
        sgd = SGD.preset(f"{family.name}-synthetic")
        rows.append(_floor(family, data))
        baseline = partial(sgd.solve, family=family)
        rows.append(_row(family, "no privacy", None, data, baseline, advance))
        for mechanism in MECHANISMS:
            for epsilon in EPSILONS:
                private = partial(mechanism.run, family=family, epsilon=epsilon, sgd=sgd)
                rows.append(_row(family, mechanism.name, epsilon, data, private, advance))
    return shown, rows


def number_of_fits() -> int:
    """How often `run_demo` calls `advance`."""
    return 2 * RUNS * (1 + len(MECHANISMS) * len(EPSILONS))


def _floor(family: ModelFamily, data: Iterable[synthetic.SyntheticTensor]) -> DemoRow:
    errors = [rmse(truth := one.truth_at(one.test.coordinates), 0 * truth + one.train.values.mean()) for one in data]
    return DemoRow(family.name, "the mean", None, tuple(errors))


def _row(
    family: ModelFamily,
    approach: str,
    epsilon: float | None,
    data: Iterable[synthetic.SyntheticTensor],
    fit: Callable[..., Any],
    advance: Callable[[], None],
) -> DemoRow:
    errors: list[float | None] = []
    completed = None
    for run, one in enumerate(data):
        where = one.test.coordinates
        try:
            model: FactorModel = fit(one.train, seed=run).model
        except DivergenceError:
            errors.append(None)
        else:
            errors.append(rmse(one.truth_at(where), model.predict(where)))
            if run == 0:
                completed = model.slice(-1, SLICE)
        advance()
    return DemoRow(family.name, approach, epsilon, tuple(errors), completed)


def draw_demo(shown: dict[str, synthetic.SyntheticTensor], rows: list[DemoRow], path: Path) -> None:
    """A picture: one slice as it is, as it is observed and as each approach completes it."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    wanted = [("no privacy", None)] + [(mechanism.name, EPSILONS[-1]) for mechanism in MECHANISMS]
    figure, axes = plt.subplots(len(shown), 2 + len(wanted), figsize=(15, 5.6), layout="constrained")
    for line, (name, data) in enumerate(shown.items()):
        observed = data.train.to_dense()[..., SLICE]
        panels: list[tuple[str, NDArray[np.float64] | None]] = [
            ("truth", data.truth[..., SLICE]),
            ("observed, with noise", observed),
        ]
        for approach, epsilon in wanted:
            row = next(row for row in rows if (row.model, row.approach, row.epsilon) == (name, approach, epsilon))
            claim = "" if epsilon is None else f", claimed epsilon {epsilon:g}"
            panels.append((f"{approach}{claim}\nRMSE {row.mean:.3f}", row.completed))
        for panel, (title, picture) in zip(axes[line], panels, strict=True):
            panel.set_title(title, fontsize=9)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_facecolor("#dddddd")  # missing cells
            if picture is None:
                panel.text(0.5, 0.5, "diverged", ha="center", va="center", transform=panel.transAxes)
            else:
                panel.imshow(picture, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
        axes[line, 0].set_ylabel({"cp": "CP", "tucker": "Tucker"}[name])
        figure.colorbar(axes[line, 0].images[0], ax=axes[line], shrink=0.9)
    figure.suptitle("One slice of a 20 x 20 x 20 tensor, half missing. What the approaches claim is not proven.")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".svg.part")
    figure.savefig(aside, format="svg", metadata={"Date": None})
    aside.replace(path)
    plt.close(figure)
