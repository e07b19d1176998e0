"""Figure 2 of the paper: RMSE against the missing ratio, three approaches x two models, epsilon 1 and 5."""

import charts
import study

APPROACHES = ("input", "gradient", "output")
EPSILONS = (1.0, 5.0)
MISSING_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def main() -> None:
    parser = study.arguments(__doc__)
    parser.add_argument("--clip-norm", type=float, default=0.1, help="m of Algorithm 2 and L of Algorithm 3")
    options = parser.parse_args()
    runs = 2 if options.quick else 10
    ratios = MISSING_RATIOS[::2] if options.quick else MISSING_RATIOS
    tasks = [
        (model, run, ratio, dict.fromkeys(APPROACHES, EPSILONS), "norms", options.clip_norm)
        for ratio in ratios
        for model in study.FAMILIES
        for run in range(runs)
    ]
    rows = study.summarise(study.parallel(study.synthetic_runs, tasks, "figure 2"))
    settings = {
        "shape": [20, 20, 20],
        "rank": study.RANK,
        "snr": 1,
        "snr_kind": "norms",
        "clip_norm": options.clip_norm,
        "runs": runs,
        "quick": options.quick,
    }
    print(study.write_results(options.out, "figure2", 2, settings, rows))

    figure, axes = charts.panels(2, 3, width=4.2, height=3.4)
    for line, model in enumerate(study.FAMILIES):
        for column, approach in enumerate(APPROACHES):
            panel = axes[line, column]
            for epsilon, style in zip(EPSILONS, ("--", "-"), strict=True):
                found = study.select(rows, model=model, approach=approach, epsilon=epsilon)
                label = f"{charts.NAMES[approach]}, claimed epsilon {epsilon:g}"
                charts.curve(panel, by_ratio(found), approach, x="missing_ratio", label=label, linestyle=style)
            for name, (colour, style) in charts.LEVELS.items():
                found = by_ratio(study.select(rows, model=model, approach=name))
                look = {"color": colour, "linestyle": style, "marker": ""}
                charts.curve(panel, found, name, x="missing_ratio", **look)
            charts.finish(panel, f"{charts.TITLES[model]}, {approach}", "missing ratio", log_x=False)
    note = f"20 x 20 x 20, rank 3, SNR 1 as ratio of norms, {runs} runs. Claimed, not proven."
    charts.save(figure, axes, options.out / "figure2.svg", note)
    print(options.out / "figure2.svg")


def by_ratio(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: row["missing_ratio"])


if __name__ == "__main__":
    main()
