"""What the experiments share: runs on both cores with a progress bar, means over runs, results as JSON."""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import tensorveil as tv

RESULTS = Path(__file__).parent / "results"
RANK = 3
FAMILIES = {"cp": tv.CP(RANK), "tucker": tv.Tucker(RANK)}
GENERATORS = {"cp": tv.synthetic.cp_tensor, "tucker": tv.synthetic.tucker_tensor}

Measurement = dict[str, Any]  # the keys of a row, and "rmse": a number, or None where the run diverged


def arguments(description: str) -> argparse.ArgumentParser:
    """The command line that every experiment has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few runs: to see the shape in a minute or so")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON and the SVG")
    return parser


def parallel(function: Callable[..., list[Measurement]], tasks: Sequence[tuple[Any, ...]], title: str) -> list[Any]:
    """All measurements of function(*task) over the tasks, on all cores, with a progress bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    found: dict[int, list[Measurement]] = {}
    with Progress(*columns, console=Console(file=sys.stderr)) as bar, ProcessPoolExecutor(os.cpu_count()) as pool:
        line = bar.add_task(title, total=len(tasks))
        futures = {pool.submit(function, *task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                found[futures[future]] = future.result()
                bar.advance(line)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [measurement for number in sorted(found) for measurement in found[number]]


def rmse_or_none(truth: Any, predict: Callable[[], Any]) -> float | None:
    """The error of a prediction, or None where its run diverged."""
    try:
        error = tv.rmse(truth, predict())
    except tv.DivergenceError:
        return None
    return error if math.isfinite(error) else None


def published(approach: str, clip_norm: float) -> Any:
    """A published mechanism by the name of its approach."""
    return {
        "input": tv.published.PublishedInput(),
        "gradient": tv.published.PublishedGradient(clip_norm=clip_norm),
        "output": tv.published.PublishedOutput(lipschitz=clip_norm),
    }[approach]


def synthetic_runs(
    model: str, run: int, missing_ratio: float, epsilons: dict[str, Sequence[float]], snr_kind: str, clip_norm: float
) -> list[Measurement]:
    """One realisation of the paper's synthetic tensor, completed by the baselines and by every approach."""
    data = tv.synthetic.observe(
        GENERATORS[model]((20, 20, 20), RANK, seed=run),
        missing_ratio=missing_ratio,
        snr_kind=snr_kind,
        seed=10_000 + run,
    )
    where = data.test.coordinates
    truth = data.truth_at(where)
    family, sgd = FAMILIES[model], tv.SGD.preset(f"{model}-synthetic")

    def row(approach: str, epsilon: float | None, predict: Callable[[], Any]) -> Measurement:
        keys = {"model": model, "approach": approach, "epsilon": epsilon, "missing_ratio": missing_ratio}
        return {**keys, "rmse": rmse_or_none(truth, predict)}

    clipped = [math.inf] * 2 + [clip_norm] + ([math.inf] if model == "tucker" else [])
    rows = [
        row("mean", None, lambda: 0 * truth + data.train.values.mean()),
        row("baseline", None, lambda: sgd.solve(data.train, family, seed=run).model.predict(where)),
        row(
            "baseline-clipped",
            None,
            lambda: sgd.solve(data.train, family, seed=run, clip_norms=clipped).model.predict(where),
        ),
    ]
    for approach, grid in epsilons.items():
        mechanism = published(approach, clip_norm)
        for epsilon in grid:
            rows.append(
                row(
                    approach,
                    epsilon,
                    lambda mechanism=mechanism, epsilon=epsilon: mechanism.run(
                        data.train, family, epsilon, sgd, seed=run
                    ).model.predict(where),
                )
            )
    return rows


def summarise(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """One row a group of equal keys: mean and standard deviation of the runs that did not diverge."""
    groups: dict[str, tuple[dict[str, Any], list[float | None]]] = {}
    for measurement in measurements:
        keys = {name: value for name, value in measurement.items() if name != "rmse"}
        groups.setdefault(json.dumps(keys, sort_keys=True), (keys, []))[1].append(measurement["rmse"])
    rows = []
    for keys, errors in groups.values():
        finite = [error for error in errors if error is not None]
        rows.append(
            {
                **keys,
                "mean": statistics.fmean(finite) if finite else None,
                "std": statistics.stdev(finite) if len(finite) > 1 else None,
                "runs": len(errors),
                "diverged": len(errors) - len(finite),
            }
        )
    return rows


def write_results(folder: Path, name: str, figure: int | None, settings: dict[str, Any], rows: list[Any]) -> Path:
    """Write name.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    aside = path.with_suffix(".json.part")
    aside.write_text(json.dumps({"figure": figure, "settings": settings, "rows": rows}, indent=1) + "\n")
    aside.replace(path)
    return path


def select(rows: Iterable[dict[str, Any]], **keys: Any) -> list[dict[str, Any]]:
    """Rows with these keys, in the order of epsilon."""
    found = [row for row in rows if all(row.get(name) == value for name, value in keys.items())]
    return sorted(found, key=lambda row: -1 if row.get("epsilon") is None else row["epsilon"])
