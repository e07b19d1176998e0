"""RMSE against epsilon for every proven mechanism, the published ones beside them, the private mean as floor.

Data: the paper's 20 x 20 x 20 benchmark in both readings of its signal-to-noise ratio, and a 100 x 100 x 100 tensor
(CP, half observed, ratio of variances). Unit `value`. Every mechanism runs with its defaults. Bounds come from the
generators' laws, not from the data.
"""

import charts
import study
import tensorveil as tv
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.noise.source import NoiseSource

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DELTA = 1e-6  # for gradient and statistic perturbation; input and output perturbation are pure here
BOUNDS = {"norms": tv.Bounds(-1, 2), "variances": tv.Bounds(-0.5, 1.5)}
PROVEN = {
    "input": (tv.InputPerturbation(), 0.0),
    "gradient": (tv.GradientPerturbation(), DELTA),
    "output": (tv.OutputPerturbation(), 0.0),
    "statistic": (tv.StatisticPerturbation(), DELTA),
}
PUBLISHED = ("input", "gradient", "output")
DATA = {
    "20^3, norms": ((20, 20, 20), "norms", ("cp", "tucker")),
    "20^3, variances": ((20, 20, 20), "variances", ("cp", "tucker")),
    "100^3, variances": ((100, 100, 100), "variances", ("cp",)),
}
COLOURS = {"statistic": "#CC79A7", **charts.COLOURS}


def private_mean(train: tv.Observations, bounds: tv.Bounds, epsilon: float, seed: int) -> float:
    """The mean with Laplace noise (unit value: width / (n epsilon))."""
    data = clip(train, bounds, tv.Unit.value(), bytes(32))
    steps = 2 * 2**20  # a replaced value moves the sum by the width, two in centred values
    total = NoiseSource(seed).laplace(data.steps.sum(keepdims=True), grid=2.0**-20, sensitivity=steps, epsilon=epsilon)
    return float(bounds.uncentred(total / len(data)).clip(bounds.low, bounds.high)[0])


def runs(name: str, model: str, run: int, epsilons: tuple[float, ...], plans: dict) -> list[dict]:
    """One realisation, completed by everything."""
    shape, kind, _ = DATA[name]
    data = tv.synthetic.observe(study.GENERATORS[model](shape, study.RANK, seed=run), snr_kind=kind, seed=10_000 + run)
    where = data.test.coordinates
    truth = data.truth_at(where)
    family, sgd = study.FAMILIES[model], tv.SGD.preset(f"{model}-synthetic")

    def row(approach: str, status: str, epsilon: float | None, delta: float, predict) -> dict:
        keys = {"data": name, "model": model, "approach": approach, "status": status, "epsilon": epsilon}
        keys |= {"delta": delta, "missing_ratio": 0.5}
        return {**keys, "rmse": study.rmse_or_none(truth, predict)}

    rows = [
        row("mean", "none", None, 0.0, lambda: 0 * truth + data.train.values.mean()),
        row("baseline", "none", None, 0.0, lambda: sgd.solve(data.train, family, seed=run).model.predict(where)),
        row("als", "none", None, 0.0, lambda: tv.ALS().solve(data.train, family).predict(where)),
    ]
    for epsilon in epsilons:
        mean = private_mean(data.train, BOUNDS[kind], epsilon, run)
        rows.append(row("private-mean", "proven", epsilon, 0.0, lambda mean=mean: 0 * truth + mean))
        for approach, (_, delta) in PROVEN.items():
            plan = plans[approach, epsilon]
            rows.append(
                row(
                    approach,
                    "proven",
                    epsilon,
                    delta,
                    lambda plan=plan: tv.fit(data.train, plan, seed=run).predict(where),
                )
            )
        for approach in PUBLISHED:
            mechanism = study.published(approach, 0.1)
            rows.append(
                row(
                    f"published-{approach}",
                    "claimed",
                    epsilon,
                    0.0,
                    lambda mechanism=mechanism, epsilon=epsilon: mechanism.run(
                        data.train, family, epsilon, sgd, seed=run
                    ).model.predict(where),
                )
            )
    return rows


def main() -> None:
    options = study.arguments(__doc__).parse_args()
    epsilons = (0.5, 5.0) if options.quick else EPSILONS
    measurements = []
    for name, (shape, kind, models) in DATA.items():
        small = max(shape) <= 20
        if options.quick and not small:
            continue
        number = 1 if options.quick else (5 if small else 1)
        for model in models:
            plans = {
                (approach, epsilon): mechanism.plan(
                    study.FAMILIES[model], BOUNDS[kind], "value", epsilon, delta, shape=shape
                )
                for approach, (mechanism, delta) in PROVEN.items()
                for epsilon in epsilons
            }
            tasks = [(name, model, run, epsilons, plans) for run in range(number)]
            measurements += study.parallel(runs, tasks, f"{name}, {model}")
    rows = study.summarise(measurements)
    settings = {
        "rank": study.RANK,
        "missing_ratio": 0.5,
        "unit": "value",
        "delta": DELTA,
        "bounds": {kind: [bounds.low, bounds.high] for kind, bounds in BOUNDS.items()},
        "quick": options.quick,
    }
    print(study.write_results(options.out, "proven_vs_published", None, settings, rows))
    draw(rows, options.out)


def draw(rows: list[dict], out) -> None:
    """A panel for each data set and model: proven solid, published dashed."""
    found_data = {row["data"] for row in rows}
    wanted = [(name, model) for name, (_, _, models) in DATA.items() for model in models if name in found_data]
    figure, axes = charts.panels(2, 3, width=4.8)
    for panel, (name, model) in zip(axes.ravel(), wanted, strict=False):
        for approach in PROVEN:
            found = study.select(rows, data=name, model=model, approach=approach)
            charts.curve(panel, found, approach, label=f"{approach}, proven", color=COLOURS[approach])
        for approach in PUBLISHED:
            found = study.select(rows, data=name, model=model, approach=f"published-{approach}")
            look = {"color": COLOURS[approach], "linestyle": "--", "alpha": 0.6, "marker": ""}
            charts.curve(panel, found, approach, label=f"{approach} as published, claimed", **look)
        floor = study.select(rows, data=name, model=model, approach="private-mean")
        charts.curve(panel, floor, "mean", label="private mean", color="black", linestyle=":", marker="")
        for approach, label in (("baseline", "the paper's SGD, no privacy"), ("als", "ALS, no privacy")):
            level = study.select(rows, data=name, model=model, approach=approach)
            if level and level[0]["mean"] is not None:
                style = "-" if approach == "als" else "-."
                panel.axhline(level[0]["mean"], color="#777777", linestyle=style, linewidth=1, label=label)
        charts.finish(panel, f"{name}, {charts.TITLES[model]}", "epsilon (stated)")
    for panel in axes.ravel()[len(wanted) :]:
        panel.set_visible(False)
    note = "Unit value, half observed. Dashed: claimed, not proven."
    charts.save(figure, axes, out / "proven_vs_published.svg", note)
    print(out / "proven_vs_published.svg")


if __name__ == "__main__":
    main()
