"""Figure 3 of the paper: MovieLens 100K (users x films x days), RMSE against epsilon, ua and ub averaged.

As in the paper every day's matrix is bi-scaled; the same without bi-scaling, over fewer runs, stands beside it. The
rank, which the paper does not give, is swept for the baseline, and the curves are drawn at the best one of each model
and scaling.
"""

import statistics
from functools import lru_cache

import charts
import study
import tensorveil as tv
from tensorveil.data.datasets.movielens import find_movielens

RANKS = (2, 3, 5, 10)
EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
APPROACHES = ("input", "output", "gradient")
SCALINGS = ("bi-scaled", "none")
SPLITS = ("ua", "ub")
CLIP_NORM = 0.1
SUBSETS = ("all", "covered")  # covered: user and film both rated on that day in training, where bi-scaling is defined


@lru_cache(maxsize=4)
def load(split: str, scaling: str) -> tuple:
    """The split, training data on the scale it is fitted on, the bi-scaling, and the way back to ratings."""
    data = tv.load_movielens(split)
    bi_scaling = tv.BiScaling.of(data.train)
    if scaling == "none":
        return data, data.train, bi_scaling, lambda predictions: predictions
    return data, bi_scaling.scaled(data.train), bi_scaling, lambda z: bi_scaling.unscaled(data.test.coordinates, z)


def movielens_runs(
    split: str, scaling: str, model: str, approach: str, rank: int | None, epsilon: float | None, run: int
) -> list[dict]:
    """One fit, measured on all test lines and on those where bi-scaling is defined."""
    data, train, bi_scaling, unscaled = load(split, scaling)
    test, where = data.test, data.test.coordinates
    sgd = tv.SGD.preset(f"{model}-ml-100k")
    try:
        if approach == "mean":
            predictions = 0 * test.values + data.train.values.mean()
        else:
            family = {"cp": tv.CP, "tucker": tv.Tucker}[model](rank)
            if approach == "baseline":
                fitted = sgd.solve(train, family, seed=run)
            else:
                fitted = study.published(approach, CLIP_NORM).run(train, family, epsilon, sgd, seed=run)
            predictions = unscaled(fitted.model.predict(where)).clip(1, 5)
    except tv.DivergenceError:
        predictions = None
    covered = bi_scaling.covers(where)
    return [
        {
            "model": model,
            "approach": approach,
            "epsilon": epsilon,
            "missing_ratio": None,
            "rank": rank,
            "scaling": scaling,
            "split": split,
            "subset": subset,
            "run": run,
            "rmse": None if predictions is None else tv.rmse(test.values[chosen], predictions[chosen]),
        }
        for subset, chosen in (("all", slice(None)), ("covered", covered))
    ]


def average_splits(measurements: list[dict]) -> list[dict]:
    """For each run the mean of ua and ub, which diverged where either did."""
    pairs: dict[tuple, list] = {}
    for measurement in measurements:
        key = tuple((name, value) for name, value in measurement.items() if name not in ("split", "rmse"))
        pairs.setdefault(key, []).append(measurement["rmse"])
    return [
        {**dict(key), "split": "ua+ub", "rmse": None if None in errors else statistics.fmean(errors)}
        for key, errors in pairs.items()
    ]


def rows_of(measurements: list[dict]) -> list[dict]:
    """Rows over the runs: the mean of both splits first, then each split."""
    rows = study.summarise(
        {name: value for name, value in measurement.items() if name != "run"}
        for measurement in average_splits(measurements) + measurements
    )
    places = {name: place for place, name in enumerate(("ua+ub", *SPLITS, *SUBSETS, *SCALINGS))}
    return sorted(
        rows,
        key=lambda row: (
            *(places[row[name]] for name in ("split", "subset", "scaling")),
            row["model"],
            row["approach"],
            row["rank"] or 0,
            row["epsilon"] or 0,
        ),
    )


def main() -> None:
    options = study.arguments(__doc__).parse_args()
    if find_movielens() is None:
        print("figure 3 is left out: set TENSORVEIL_DATA to the folder that holds ml-100k/")
        return
    runs, sweep_runs = (1, 1) if options.quick else (10, 3)
    ranks = RANKS[:3] if options.quick else RANKS
    sweep = [
        (split, scaling, model, "baseline", rank, None, run)
        for rank in reversed(ranks)  # the longest first
        for model in study.FAMILIES
        for split in SPLITS
        for scaling in SCALINGS
        for run in range(sweep_runs)
    ]
    floors = [
        (split, scaling, model, "mean", None, None, 0)
        for model in study.FAMILIES
        for split in SPLITS
        for scaling in SCALINGS
    ]
    measurements = study.parallel(movielens_runs, sweep + floors, "figure 3, ranks of the baseline")
    best = {}
    for model in study.FAMILIES:
        for scaling in SCALINGS:
            found = study.select(
                rows_of(measurements), model=model, scaling=scaling, approach="baseline", split="ua+ub", subset="all"
            )
            whole = [row for row in found if row["diverged"] == 0]
            best[model, scaling] = min(whole, key=lambda row: row["mean"])["rank"]
    grid = EPSILONS[::2] if options.quick else EPSILONS
    curves = [
        (split, scaling, model, approach, best[model, scaling], epsilon, run)
        for model in reversed(study.FAMILIES)
        for scaling in SCALINGS
        for split in SPLITS
        for run in range(runs if scaling == "bi-scaled" else sweep_runs)
        for approach, epsilons in (("baseline", (None,)), *((name, grid) for name in APPROACHES))
        for epsilon in epsilons
        if approach != "baseline" or run >= sweep_runs
    ]
    measurements += study.parallel(movielens_runs, curves, "figure 3, curves")
    rows = rows_of(measurements)
    settings = {
        "data": "MovieLens 100K, users x films x distinct UTC days over train and test (213)",
        "test": "every line of ua.test and ub.test; covered: user and film both occur in that day's training",
        "predictions": "clipped to [1, 5]",
        "clip_norm": CLIP_NORM,
        "best_rank": {f"{model}, {scaling}": rank for (model, scaling), rank in best.items()},
        "runs": runs,
        "runs_without_bi_scaling": sweep_runs,
        "quick": options.quick,
    }
    print(study.write_results(options.out, "figure3", 3, settings, rows))
    draw(rows, best, runs, options.out)


def draw(rows: list[dict], best: dict, runs: int, out) -> None:
    figure, axes = charts.panels(2, 2)
    for column, model in enumerate(study.FAMILIES):
        for line, scaling in enumerate(SCALINGS):
            panel = axes[line, column]
            rank = best[model, scaling]
            keys = {"model": model, "scaling": scaling, "split": "ua+ub", "subset": "all"}
            for approach in APPROACHES:
                charts.curve(panel, study.select(rows, **keys, approach=approach), approach)
            charts.level(panel, study.select(rows, **keys, approach="baseline", rank=rank), "baseline")
            charts.level(panel, study.select(rows, **keys, approach="mean"), "mean")
            title = "bi-scaled by day" if scaling == "bi-scaled" else "without bi-scaling"
            charts.finish(panel, f"{charts.TITLES[model]}, {title}, rank {rank}", "claimed epsilon", log_y=False)
    note = f"MovieLens 100K, mean of ua and ub, all test lines, {runs} runs (top). Claimed, not proven."
    charts.save(figure, axes, out / "figure3.svg", note)
    print(out / "figure3.svg")


if __name__ == "__main__":
    main()
