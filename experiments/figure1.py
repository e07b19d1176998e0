"""Figure 1 of the paper: RMSE against epsilon on the synthetic tensors, and gradient perturbation at tiny epsilon."""

import charts
import study

APPROACHES = ("input", "output", "gradient")
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TINY_EPSILONS = (1e-4, 1e-3, 1e-2)  # the exponential panels (c) and (d) go on from 0.1 to 10 with EPSILONS
MISSING_RATIO = 0.5


def main() -> None:
    parser = study.arguments(__doc__)
    parser.add_argument("--snr-kind", choices=("norms", "variances"), default="norms", help="reading of 'SNR is one'")
    parser.add_argument("--clip-norm", type=float, default=0.1, help="m of Algorithm 2 and L of Algorithm 3")
    options = parser.parse_args()
    runs = 4 if options.quick else 50
    epsilons = {"input": EPSILONS, "output": EPSILONS, "gradient": TINY_EPSILONS + EPSILONS}
    tasks = [
        (model, run, MISSING_RATIO, epsilons, options.snr_kind, options.clip_norm)
        for model in study.FAMILIES
        for run in range(runs)
    ]
    rows = study.summarise(study.parallel(study.synthetic_runs, tasks, "figure 1"))
    settings = {
        "shape": [20, 20, 20],
        "rank": study.RANK,
        "missing_ratio": MISSING_RATIO,
        "snr": 1,
        "snr_kind": options.snr_kind,
        "clip_norm": options.clip_norm,
        "runs": runs,
        "quick": options.quick,
    }
    name = "figure1" if options.snr_kind == "norms" else "figure1_variances"
    print(study.write_results(options.out, name, 1, settings, rows))

    figure, axes = charts.panels(2, 2)
    for column, model in enumerate(study.FAMILIES):
        for line, (approaches, grid, title) in enumerate(
            ((APPROACHES, EPSILONS, "three approaches"), (("gradient",), TINY_EPSILONS + EPSILONS, "gradient alone"))
        ):
            panel = axes[line, column]
            for approach in approaches:
                shown = [row for row in study.select(rows, model=model, approach=approach) if row["epsilon"] in grid]
                charts.curve(panel, shown, approach)
            for approach in charts.LEVELS:
                charts.level(panel, study.select(rows, model=model, approach=approach), approach)
            letter = "abcd"[2 * line + column]
            charts.finish(panel, f"({letter}) {charts.TITLES[model]}, {title}", "claimed epsilon")
    note = (
        f"20 x 20 x 20, rank 3, half missing, SNR 1 as ratio of {options.snr_kind}, {runs} runs. Claimed, not proven."
    )
    charts.save(figure, axes, options.out / f"{name}.svg", note)
    print(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
