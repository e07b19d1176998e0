"""The demonstration behind `tensorveil demo`: the paper's benchmark tensor, completed by every approach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.data import synthetic
from tensorveil.data.observations import Observations
from tensorveil.errors import DivergenceError
from tensorveil.mechanisms import published
from tensorveil.mechanisms.base import Mechanism
from tensorveil.mechanisms.gradient_perturbation import GradientPerturbation
from tensorveil.mechanisms.input_perturbation import InputPerturbation
from tensorveil.mechanisms.output_perturbation import OutputPerturbation
from tensorveil.mechanisms.statistic_perturbation import StatisticPerturbation
from tensorveil.metrics import rmse
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.plan import Plan
from tensorveil.release.fitting import fit
from tensorveil.release.release import Release
from tensorveil.solvers.als import ALS
from tensorveil.solvers.sgd import SGD

Predictor = Callable[[Any], NDArray[np.float64]]

SHAPE = (20, 20, 20)
RANK = 3
EPSILONS = (1.0, 5.0)
RUNS = 5
SLICE = 0  # of the last mode, shown in the picture
BOUNDS = Bounds(-0.25, 1.25)  # the truth lies in [0, 1], the noise has a standard deviation below one tenth
DELTA = 1e-6
PUBLISHED = (published.InputPerturbation(), published.OutputPerturbation(), published.GradientPerturbation())
PROVEN: tuple[tuple[Mechanism, float], ...] = (
    (InputPerturbation(), 0.0),
    (OutputPerturbation(), 0.0),
    (GradientPerturbation(), DELTA),
    (StatisticPerturbation(), DELTA),
)


@final
@dataclass(frozen=True)
class DemoRow:
    """One line of the table: an approach for one model, its errors over the runs (None where one diverged)."""

    model: str
    approach: str
    status: str
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


def run_demo(
    advance: Callable[[], None] = lambda: None,
) -> tuple[dict[str, synthetic.SyntheticTensor], list[DemoRow], Guarantee]:
    """Complete the paper's 20 x 20 x 20 tensors with every approach; `advance` is called after each fit.

    Returns the first tensor of each model, the rows of the table, and the guarantee of the last proven release.
    """
    shown: dict[str, synthetic.SyntheticTensor] = {}
    rows: list[DemoRow] = []
    releases: list[Release] = []
    for family, generate in ((CP(RANK), synthetic.cp_tensor), (Tucker(RANK), synthetic.tucker_tensor)):
        data = [
            synthetic.observe(generate(SHAPE, RANK, seed=run), snr_kind="variances", seed=100 + run)
            for run in range(RUNS)
        ]
        shown[family.name] = data[0]
        sgd = SGD.preset(f"{family.name}-synthetic")
        measure = partial(_row, family, data, advance)
        rows.append(_floor(family, data))
        rows.append(measure("SGD (the paper's)", "none", None, partial(_predictor, partial(sgd.solve, family=family))))
        rows.append(measure("ALS", "none", None, partial(_least_squares, family)))
        for mechanism, delta in PROVEN:
            for epsilon in EPSILONS:
                plan = mechanism.plan(family, BOUNDS, "value", epsilon, delta, shape=SHAPE)
                fitted = partial(_private, plan, releases)
                rows.append(measure(mechanism.name, "proven", epsilon, fitted))
        for claimed in PUBLISHED:
            for epsilon in EPSILONS:
                fit_claimed = partial(claimed.run, family=family, epsilon=epsilon, sgd=sgd)
                rows.append(measure(claimed.name, "claimed", epsilon, partial(_predictor, fit_claimed)))
    return shown, rows, releases[-1].guarantee


def number_of_fits() -> int:
    """How often `run_demo` calls `advance`."""
    return 2 * RUNS * (2 + (len(PUBLISHED) + len(PROVEN)) * len(EPSILONS))


def _private(plan: Plan, releases: list[Release], train: Observations, run: int) -> Predictor:
    releases.append(fit(train, plan))
    return releases[-1].predict


def _least_squares(family: ModelFamily, train: Observations, run: int) -> Predictor:
    return ALS().solve(train, family).predict


def _predictor(solve: Callable[..., Any], train: Observations, run: int) -> Predictor:
    model: FactorModel = solve(train, seed=run).model
    return model.predict


def _floor(family: ModelFamily, data: Iterable[synthetic.SyntheticTensor]) -> DemoRow:
    errors = [rmse(truth := one.truth_at(one.test.coordinates), 0 * truth + one.train.values.mean()) for one in data]
    return DemoRow(family.name, "the mean (floor)", "none", None, tuple(errors))


def _row(
    family: ModelFamily,
    data: Sequence[synthetic.SyntheticTensor],
    advance: Callable[[], None],
    approach: str,
    status: str,
    epsilon: float | None,
    fit_one: Callable[[Observations, int], Predictor],
) -> DemoRow:
    errors: list[float | None] = []
    completed = None
    cells = np.column_stack([*np.unravel_index(np.arange(SHAPE[0] * SHAPE[1]), SHAPE[:2]), np.full(400, SLICE)])
    for run, one in enumerate(data):
        where = one.test.coordinates
        try:
            predict = fit_one(one.train, run)
        except DivergenceError:
            errors.append(None)
        else:
            errors.append(rmse(one.truth_at(where), predict(where)))
            if run == 0:
                completed = predict(cells).reshape(SHAPE[:2])
        advance()
    return DemoRow(family.name, approach, status, epsilon, tuple(errors), completed)


def draw_demo(shown: dict[str, synthetic.SyntheticTensor], rows: list[DemoRow], path: Path) -> None:
    """A picture: one slice as it is, as it is observed and as each approach completes it."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    wanted: list[tuple[str, str, float | None]] = [("ALS", "none", None)]
    wanted += [(mechanism.name, "proven", EPSILONS[-1]) for mechanism, _ in PROVEN]
    wanted += [(mechanism.name, "claimed", EPSILONS[-1]) for mechanism in PUBLISHED]
    figure, axes = plt.subplots(len(shown), 2 + len(wanted), figsize=(22, 5.2), layout="constrained")
    for line, (name, data) in enumerate(shown.items()):
        observed = data.train.to_dense()[..., SLICE]
        panels: list[tuple[str, NDArray[np.float64] | None]] = [
            ("truth", data.truth[..., SLICE]),
            ("observed, with noise", observed),
        ]
        for approach, status, epsilon in wanted:
            row = next(
                row
                for row in rows
                if (row.model, row.approach, row.status, row.epsilon) == (name, approach, status, epsilon)
            )
            stated = "no privacy" if epsilon is None else f"{status}, epsilon {epsilon:g}"
            panels.append((f"{approach}\n{stated}\nRMSE {row.mean:.3f}", row.completed))
        for panel, (title, picture) in zip(axes[line], panels, strict=True):
            panel.set_title(title, fontsize=9)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_facecolor("#dddddd")  # missing cells
            if picture is None:
                panel.text(0.5, 0.5, "diverged", ha="center", va="center", transform=panel.transAxes)
            else:
                panel.imshow(picture, vmin=0.2, vmax=0.8, cmap="viridis", interpolation="nearest")
        axes[line, 0].set_ylabel({"cp": "CP", "tucker": "Tucker"}[name])
        figure.colorbar(axes[line, 0].images[0], ax=axes[line], shrink=0.9)
    figure.suptitle("One slice of a 20 x 20 x 20 tensor, half missing, and how each approach completes it")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".svg.part")
    figure.savefig(aside, format="svg", metadata={"Date": None})
    aside.replace(path)
    plt.close(figure)
