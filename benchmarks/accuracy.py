"""Accuracy against epsilon: python benchmarks/accuracy.py [--quick] [--json OUT] [--data NAME ...] [--picture SVG].

One table: data x unit x epsilon x method. Ours runs with the defaults of `mechanism="auto"`; beside it stand the floors
(global mean, private mean), the paper's baseline and its published algorithms (claimed), ours without privacy, plain
DP-SGD, and peers that are installed. Real data come from the folder that TENSORVEIL_DATA names. Noise is seeded, so
that a table can be made again; such releases are not for publication.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import datasets
import methods
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SEEDS, QUICK_SEEDS = 5, 2
KEYS = ("data", "split", "unit", "epsilon", "delta", "method", "status")


def measured(case: datasets.Case, method: methods.Method, epsilon: float | None, seeds: int) -> dict:
    """One row: mean and standard error over noise seeds (and data draws, where the data are drawn)."""
    errors, covered = [], []
    for seed in range(seeds if method.random else 1):
        drawn = case.draw(seed)
        predicted, inside = method.predict(drawn, epsilon, seed)
        errors.append(drawn.error(predicted))
        if inside is not None:
            covered.append(inside)
    row = {"data": case.data, "split": case.split, "unit": case.unit, "epsilon": epsilon}
    row |= {"delta": case.delta_of(method), "method": method.name, "status": method.status}
    row["rmse_mean"] = statistics.fmean(errors)
    row["rmse_se"] = statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else None
    row["seeds"] = len(errors)
    return row | ({"coverage_90": statistics.fmean(covered)} if covered else {})


def work(quick: bool, wanted: list[str] | None) -> Iterator[tuple[datasets.Case, methods.Method, float | None]]:
    """Every row that is to be measured."""
    for case in datasets.cases(quick):
        if wanted and case.data not in wanted:
            continue
        for method in methods.methods(case, quick):
            for epsilon in case.epsilons if method.private else (None,):
                yield case, method, epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="MovieLens 100K, unit value, few seeds: under 25 minutes")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--picture", type=Path, help="file for the picture (SVG)")
    parser.add_argument("--data", nargs="*", help="only these data sets")
    parser.add_argument("--seeds", type=int, help="noise seeds a row")
    options = parser.parse_args()
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    rows, console = [], Console(width=140)
    tasks = list(work(options.quick, options.data))
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        line = bar.add_task("", total=len(tasks))
        for case, method, epsilon in tasks:
            bar.update(line, description=f"{case.data} {case.split} {case.unit} {method.name} {epsilon or ''}")
            rows.append(measured(case, method, epsilon, seeds))
            bar.advance(line)
            if options.json:
                write(options.json, json.dumps(rows, indent=1))
    console.print(table(rows))
    for text in (*datasets.left_out(), *methods.left_out()):
        console.print(text)
    if options.picture:
        import pictures

        pictures.draw_accuracy(rows, options.picture)


def write(path: Path, text: str) -> None:
    """Whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_text(text)
    aside.replace(path)


def table(rows: list[dict]) -> Table:
    """The rows as a person reads them."""
    shown = Table(title="RMSE (synthetic data: as a fraction of the truth's standard deviation)")
    for name in (*KEYS, "RMSE", "coverage of 90 %"):
        shown.add_column(name, justify="right" if name in ("epsilon", "delta", "RMSE") else "left")
    for row in rows:
        error = f"{row['rmse_mean']:.4f}" + (f" ± {row['rmse_se']:.4f}" if row["rmse_se"] is not None else "")
        coverage = f"{row['coverage_90']:.3f}" if "coverage_90" in row else ""
        shown.add_row(*("" if row[key] is None else str(row[key]) for key in KEYS), error, coverage)
    return shown


if __name__ == "__main__":
    main()
