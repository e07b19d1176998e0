"""Accuracy against epsilon: python benchmarks/accuracy.py [--quick] [--json OUT] [--picture SVG].

One table: data x unit x epsilon x method. Ours runs with the defaults of `mechanism="auto"`; beside it stand the floors
(global mean, private mean), the paper's baseline and its published algorithms (claimed), ours without privacy, plain
DP-SGD, and peers that are installed. Real data come from the folder that TENSORVEIL_DATA names. Noise is seeded, so
that a table can be made again; such releases are not for publication.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import datasets
import methods
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SEEDS, QUICK_SEEDS = 5, 2
Found = tuple[float, float | None]  # error, coverage
Task = tuple[datasets.Case, methods.Method, float | None]
KEYS = ("data", "split", "unit", "epsilon", "delta", "method", "status")


def measured(
    case: datasets.Case, method: methods.Method, epsilon: float | None, seed: int
) -> tuple[float, float | None]:
    """Error of one run, and the share of test values inside its 90 % intervals."""
    drawn = case.draw(seed)
    predicted, inside = method.predict(drawn, epsilon, seed)
    return drawn.error(predicted), inside


def row(task: Task, found: list[Found]) -> dict:
    """One row: mean and standard error over noise seeds (and data draws, where the data are drawn)."""
    case, method, epsilon = task
    errors = [error for error, _ in found]
    covered = [inside for _, inside in found if inside is not None]
    made = {"data": case.data, "split": case.split, "unit": case.unit, "epsilon": epsilon}
    made |= {"delta": case.delta_of(method), "method": method.name, "status": method.status}
    made["rmse_mean"] = statistics.fmean(errors)
    made["rmse_se"] = statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else None
    made["seeds"] = len(errors)
    return made | ({"coverage_90": statistics.fmean(covered)} if covered else {})


def work(quick: bool, wanted: list[str] | None, units: list[str] | None) -> Iterator[Task]:
    """Every row that is to be measured."""
    for case in datasets.cases(quick):
        if (wanted and case.data not in wanted) or (units and case.unit not in units):
            continue
        for method in methods.methods(case, quick):
            for epsilon in case.epsilons if method.private else (None,):
                yield case, method, epsilon


def pin(cores: "multiprocessing.Queue[int]") -> None:
    """A process a core, each with one thread: faster than threads that wait for each other."""
    os.sched_setaffinity(0, {cores.get()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="MovieLens 100K, unit value, few seeds: under 25 minutes")
    parser.add_argument("--json", type=Path, help="file for the rows; rows of other data and units in it stay")
    parser.add_argument("--picture", type=Path, help="file for the picture (SVG) of all rows")
    parser.add_argument("--data", nargs="*", help="only these data sets")
    parser.add_argument("--unit", nargs="*", help="only these units")
    parser.add_argument("--seeds", type=int, help="noise seeds a row")
    options = parser.parse_args()
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    tasks = list(work(options.quick, options.data, options.unit))
    measured_here = {(case.data, case.unit) for case, _, _ in tasks}
    earlier = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    kept = [old for old in earlier if (old["data"], old["unit"]) not in measured_here]
    rows = []
    for made in run(tasks, seeds):
        rows.append(made)
        if options.json:
            write(options.json, json.dumps(kept + rows, indent=1))
    console = Console(width=140)
    console.print(table(rows))
    for text in (*datasets.left_out(), *methods.left_out()):
        console.print(text)
    if options.picture:
        import pictures

        pictures.draw_accuracy(kept + rows, options.picture)


def run(tasks: list[Task], seeds: int) -> Iterator[dict]:
    """Rows in the order of the tasks, every core at work; where a run fails, the error names its row."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes: a core each
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    available = sorted(os.sched_getaffinity(0))
    for core in available:
        cores.put(core)
    with (
        Progress(console=Console(file=sys.stderr), transient=True) as bar,
        ProcessPoolExecutor(len(available), context, pin, (cores,)) as pool,
    ):
        counts = [seeds if method.random else 1 for _, method, _ in tasks]
        line = bar.add_task("", total=sum(counts))
        futures = [
            [pool.submit(measured, *task, seed) for seed in range(n)] for task, n in zip(tasks, counts, strict=True)
        ]
        try:
            for task, mine in zip(tasks, futures, strict=True):
                case, method, epsilon = task
                bar.update(line, description=f"{case.data} {case.split} {case.unit} {method.name} {epsilon or ''}")
                found = []
                for future in mine:
                    found.append(future.result())
                    bar.advance(line)
                yield row(task, found)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            error.add_note(f"in {case.data} {case.split}, unit {case.unit}, {method.name}, epsilon {epsilon}")
            raise


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
