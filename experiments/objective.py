"""Objective perturbation, the fourth approach that the paper cites, beside its three and our output perturbation.

Data: the paper's 20 x 20 x 20 benchmark in both readings of its signal-to-noise ratio, and MovieLens 100K (split ua,
users x films x days, without bi-scaling). Unit `value`, pure privacy for all of ours. "Plain" is the form of the
literature: each row is the minimiser of its perturbed objective with lambda 1, which was not tuned. Without that word,
lambda and a shrinkage come from the released numbers (docs/proofs/objective.md).

`noise_ratio` in the results compares the noise alone: for each row of the largest mode, the variance that noise on the
objective adds to the predictions of the row's own cells, divided by that of noise on the solution; features of the
paper's SGD without privacy, lambda 1.
"""

from pathlib import Path

import numpy as np

import charts
import proven_vs_published
import study
import tensorveil as tv
from tensorveil.data.datasets.movielens import find_movielens
from tensorveil.inference.rows import RidgeMatrices
from tensorveil.mechanisms.output import largest_lengths
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.rows.exact_rows import row_features

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PLAIN_RIDGE = 1.0
PROVEN = {
    "objective": tv.OutputPerturbation(perturbed="objective"),
    "output": tv.OutputPerturbation(),
    "objective, plain": tv.OutputPerturbation(perturbed="objective", ridge=PLAIN_RIDGE),
    "output, plain": tv.OutputPerturbation(ridge=PLAIN_RIDGE),
    "statistic": tv.StatisticPerturbation(),
}
PUBLISHED = ("input", "gradient", "output")
MODELS = tuple(study.FAMILIES)
MOVIELENS = "MovieLens 100K"
PANELS = [(name, model) for name in ("20^3, norms", "20^3, variances") for model in MODELS] + [(MOVIELENS, "cp")]
COLOURS = {"objective": "#E69F00", "statistic": "#CC79A7", **charts.COLOURS}


def data_of(name: str, model: str, run: int) -> tuple:
    """Training data, their public bounds, test cells, what is right there, and the paper's preset."""
    if name == MOVIELENS:
        split = tv.load_movielens("ua")
        return split.train, tv.Bounds(1, 5), split.test.coordinates, split.test.values, f"{model}-ml-100k"
    kind = proven_vs_published.DATA[name][1]
    truth = study.GENERATORS[model]((20, 20, 20), study.RANK, seed=run)
    data = tv.synthetic.observe(truth, snr_kind=kind, seed=10_000 + run)
    where = data.test.coordinates
    return data.train, proven_vs_published.BOUNDS[kind], where, data.truth_at(where), f"{model}-synthetic"


def runs(name: str, model: str, run: int, epsilons: tuple[float, ...]) -> list[dict]:
    """One realisation, completed by everything."""
    train, bounds, where, truth, preset = data_of(name, model, run)
    family, sgd = study.FAMILIES[model], tv.SGD.preset(preset)
    limits = (bounds.low, bounds.high) if name == MOVIELENS else (-np.inf, np.inf)  # as in Figures 3 and 1

    def row(approach: str, status: str, epsilon: float | None, predict) -> dict:
        keys = {"data": name, "model": model, "approach": approach, "status": status, "epsilon": epsilon}
        return {**keys, "rmse": study.rmse_or_none(truth, lambda: predict().clip(*limits))}

    rows = [row("mean", "none", None, lambda: 0 * truth + train.values.mean())]
    for epsilon in epsilons:
        mean = proven_vs_published.private_mean(train, bounds, epsilon, run)
        rows.append(row("private-mean", "proven", epsilon, lambda mean=mean: 0 * truth + mean))
        for approach, mechanism in PROVEN.items():
            plan = mechanism.plan(family, bounds, "value", epsilon, shape=train.shape)
            rows.append(
                row(approach, "proven", epsilon, lambda plan=plan: tv.fit(train, plan, seed=run).predict(where))
            )
        for approach in PUBLISHED:
            published = study.published(approach, 0.1)
            rows.append(
                row(
                    f"published-{approach}",
                    "claimed",
                    epsilon,
                    lambda published=published, epsilon=epsilon: published.run(
                        train, family, epsilon, sgd, seed=run
                    ).model.predict(where),
                )
            )
    return rows


def noise_ratio(name: str, model: str) -> dict[str, float]:
    """Noise on the objective against noise on the solution, for the median row and the tenths at both ends."""
    train, bounds, _, _, preset = data_of(name, model, 0)
    fitted = tv.SGD.preset(preset).solve(train, study.FAMILIES[model], seed=0).model
    mode = int(np.argmax(train.shape))
    where, features = row_features(clip(train, bounds, tv.Unit.value(), bytes(32)), fitted, mode)
    size, width = train.shape[mode], features.shape[1]
    matrices = RidgeMatrices.of(where, features, size, PLAIN_RIDGE)
    identity = np.broadcast_to(np.eye(width), (size, width, width))
    values = matrices.values - PLAIN_RIDGE  # of sum phi phi^T, which weighs what noise does to the row's own cells
    known = np.bincount(where, minlength=size) > 0
    objective = largest_lengths(identity, features, where, size) ** 2 * (values / matrices.values**2).sum(axis=1)
    solution = largest_lengths(matrices.inverse_roots, features, where, size) ** 2 * (values / matrices.values).sum(1)
    low, middle, high = np.quantile(objective[known] / solution[known], (0.1, 0.5, 0.9))
    return {"0.1": float(low), "0.5": float(middle), "0.9": float(high)}


def main() -> None:
    options = study.arguments(__doc__).parse_args()
    epsilons = (0.5, 5.0) if options.quick else EPSILONS
    number = 1 if options.quick else 5
    names = {name for name, _ in PANELS if name != MOVIELENS or find_movielens() is not None}
    tasks = [
        (name, model, run, epsilons)
        for name, model in PANELS
        if name in names
        for run in range(1 if name == MOVIELENS else number)
    ]
    rows = study.summarise(study.parallel(runs, tasks, "objective perturbation"))
    settings = {"rank": study.RANK, "unit": "value", "delta": 0, "plain_ridge": PLAIN_RIDGE, "quick": options.quick}
    settings["noise_ratio"] = {f"{name}, {model}": noise_ratio(name, model) for name, model in PANELS if name in names}
    print(study.write_results(options.out, "objective", None, settings, rows))
    draw(rows, options.out)


def draw(rows: list[dict], out: Path) -> None:
    """A panel for each data set and model: proven solid, plain forms dotted, published dashed."""
    found_data = {row["data"] for row in rows}
    wanted = [panel for panel in PANELS if panel[0] in found_data]
    figure, axes = charts.panels(2, 3, width=4.8)
    for panel, (name, model) in zip(axes.ravel(), wanted, strict=False):
        for approach in PROVEN:
            found = study.select(rows, data=name, model=model, approach=approach)
            kind, _, plain = approach.partition(", ")
            style = {"linestyle": ":", "marker": ""} if plain else {}
            charts.curve(panel, found, kind, label=f"{approach}, proven", color=COLOURS[kind], **style)
        for approach in PUBLISHED:
            found = study.select(rows, data=name, model=model, approach=f"published-{approach}")
            look = {"color": COLOURS[approach], "linestyle": "--", "alpha": 0.6, "marker": ""}
            charts.curve(panel, found, approach, label=f"{approach} as published, claimed", **look)
        floor = study.select(rows, data=name, model=model, approach="private-mean")
        charts.curve(panel, floor, "mean", label="private mean", color="black", linestyle="-.", marker="")
        charts.finish(panel, f"{name}, {charts.TITLES[model]}", "epsilon (stated)")
    for panel in axes.ravel()[len(wanted) :]:
        panel.set_visible(False)
    charts.save(figure, axes, out / "objective.svg", "Unit value. Dashed: claimed, not proven.")
    print(out / "objective.svg")


if __name__ == "__main__":
    main()
