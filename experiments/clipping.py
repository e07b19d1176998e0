"""The clipping constant m that the paper leaves open, and the clamping that it offers: RMSE against both."""

import math

import charts
import study
import tensorveil as tv

CLIP_NORMS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
EPSILONS = (0.1, 1.0, 10.0)
INPUT_EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
CLAMP = (0.0, 1.0)  # the range that the truth is scaled to, which is public here


def clipped_runs(model: str, run: int) -> list[dict]:
    """One realisation: gradient and output perturbation for every m, input perturbation with and without clamping."""
    data = tv.synthetic.observe(study.GENERATORS[model]((20, 20, 20), study.RANK, seed=run), seed=10_000 + run)
    where = data.test.coordinates
    truth = data.truth_at(where)
    family, sgd = study.FAMILIES[model], tv.SGD.preset(f"{model}-synthetic")

    def row(approach: str, epsilon: float | None, m: float | None, clamped: bool, fit) -> dict:
        keys = {"model": model, "approach": approach, "epsilon": epsilon, "missing_ratio": 0.5, "m": m}
        return {
            **keys,
            "clamped": clamped,
            "rmse": study.rmse_or_none(truth, lambda: fit().model.predict(where)),
        }

    def private(mechanism, epsilon: float):
        return lambda: mechanism.run(data.train, family, epsilon, sgd, seed=run)

    rows = [row("baseline", None, None, False, lambda: sgd.solve(data.train, family, seed=run))]
    mean = data.train.values.mean()
    rows.append({**rows[0], "approach": "mean", "rmse": tv.rmse(truth, 0 * truth + mean)})
    for m in CLIP_NORMS:
        norms = [math.inf, math.inf, m] + ([math.inf] if model == "tucker" else [])
        rows.append(
            row(
                "baseline-clipped",
                None,
                m,
                False,
                lambda norms=norms: sgd.solve(data.train, family, seed=run, clip_norms=norms),
            )
        )
        for epsilon in EPSILONS:
            for approach in ("gradient", "output"):
                rows.append(row(approach, epsilon, m, False, private(study.published(approach, m), epsilon)))
    for epsilon in INPUT_EPSILONS:
        for clamp in (None, CLAMP):
            mechanism = tv.published.PublishedInput(clamp=clamp)
            rows.append(row("input", epsilon, None, clamp is not None, private(mechanism, epsilon)))
    return rows


def main() -> None:
    options = study.arguments(__doc__).parse_args()
    runs = 2 if options.quick else 20
    tasks = [(model, run) for model in study.FAMILIES for run in range(runs)]
    rows = study.summarise(study.parallel(clipped_runs, tasks, "clipping"))
    settings = {
        "shape": [20, 20, 20],
        "rank": study.RANK,
        "snr": 1,
        "snr_kind": "norms",
        "clamp": list(CLAMP),
        "runs": runs,
        "quick": options.quick,
    }
    print(study.write_results(options.out, "clipping", None, settings, rows))

    figure, axes = charts.panels(2, 3, width=4.4)
    for line, model in enumerate(study.FAMILIES):
        for column, approach in enumerate(("gradient", "output")):
            panel = axes[line, column]
            for epsilon, style in zip(EPSILONS, (":", "--", "-"), strict=True):
                found = sorted(
                    study.select(rows, model=model, approach=approach, epsilon=epsilon), key=lambda row: row["m"]
                )
                label = f"{charts.NAMES[approach]}, claimed epsilon {epsilon:g}"
                charts.curve(panel, found, approach, x="m", label=label, linestyle=style)
            clipped = sorted(study.select(rows, model=model, approach="baseline-clipped"), key=lambda row: row["m"])
            charts.curve(panel, clipped, "baseline-clipped", x="m", color="#555555", marker="", linestyle=":")
            levels(panel, rows, model)
            charts.finish(panel, f"{charts.TITLES[model]}, {approach}", "clipping constant m")
        panel = axes[line, 2]
        for clamped, style in ((False, "-"), (True, "--")):
            found = study.select(rows, model=model, approach="input", clamped=clamped)
            label = charts.NAMES["input"] + (", clamped to [0, 1]" if clamped else "")
            charts.curve(panel, found, "input", label=label, linestyle=style)
        levels(panel, rows, model)
        charts.finish(panel, f"{charts.TITLES[model]}, input", "claimed epsilon")
    note = f"20 x 20 x 20, rank 3, half missing, SNR 1 as ratio of norms, {runs} runs. Claimed, not proven."
    charts.save(figure, axes, options.out / "clipping.svg", note)
    print(options.out / "clipping.svg")


def levels(panel, rows: list[dict], model: str) -> None:
    for approach in ("baseline", "mean"):
        charts.level(panel, study.select(rows, model=model, approach=approach), approach)


if __name__ == "__main__":
    main()
