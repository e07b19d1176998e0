"""The main job end to end, `tensorveil complete` from a file to a folder: `python benchmarks/main_job.py [--quick]`.

Files hold a planted tensor of three modes: offsets, three CP components and normal noise, rounded to the stars 1 to 5.
Cells are drawn evenly; "value, skewed" is the unit value where few indices have most cells. Every job runs with its
defaults in a process of its own, so that its peak memory is its own. One row per job:
{"job", "unit", "model", "rows", "seconds", "peak_mb", "sweeps", "rmse_over_truth_sd", "system"}. The error is that of
predicted means of 100,000 cells, drawn as those of the file, over the standard deviation of the true means; a constant
has 1. Under `slice:user` the cells are those of 50 users, who predict with their own rows. A job that fails is a row
with its error. Beside them, on the same file, jobs without privacy that a user might run instead (main_job_peers.py):
our own ALS, and those of Surprise, implicit and myfm that are installed; unit "none".

--quick keeps 10^4 to 10^6 rows (under 15 minutes). Results: benchmarks/results/main_job.json and main_job.svg.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from main_job_peers import PEERS
from numpy.typing import NDArray

import tensorveil as tv
from tensorveil.kernels.cores import available_cores

RESULTS = Path(__file__).with_name("results") / "main_job.json"
SHAPES = {
    10**4: (200, 100, 10),
    10**5: (1_500, 800, 30),
    10**6: (5_000, 2_000, 50),
    10**7: (50_000, 20_000, 100),
    10**8: (500_000, 200_000, 1_000),
}
QUICK = 10**6
UNITS = {"value": (), "entry": ("--delta",), "slice:user": ("--at-most", "500", "--delta")}  # delta is 0.1 / rows
SKEWED = "value, skewed"  # the unit value, where index i of a mode of n is floor(n u^SKEW) for an even u
SKEW = 2.5
MODELS = ("cp", "tucker")
MODES = ("user", "film", "day")
CHUNK = 10**6
CELLS, OWNERS = 10**5, 50
COMPONENTS, EACH, NOISE = 3, 0.5, 0.7
SIGMAS = np.arange(-4, 4.01, 0.05)

Floats = NDArray[np.float64]


class Planted:
    """Parameters of the truth, and the true mean star of a cell."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        generator = np.random.default_rng(1)
        self.shape = shape
        self.offsets = [EACH * generator.standard_normal(size) for size in shape]
        self.factors = [generator.standard_normal((size, COMPONENTS)) for size in shape]

    def cells(self, generator: np.random.Generator, count: int, skewed: bool) -> NDArray[np.int32]:
        """Cells at random."""
        power = SKEW if skewed else 1.0
        return np.column_stack([(size * generator.random(count) ** power).astype(np.int32) for size in self.shape])

    def latent(self, where: NDArray[np.integer]) -> Floats:
        offsets = sum(part[column] for part, column in zip(self.offsets, where.T, strict=True))
        product = np.ones((len(where), COMPONENTS))
        for factor, column in zip(self.factors, where.T, strict=True):
            product *= factor[column]
        return np.asarray(3 + offsets + EACH * product.sum(axis=1))

    def mean(self, where: NDArray[np.integer]) -> Floats:
        """The mean of the rounded and clipped value, by integration over the noise."""
        weights = np.exp(-(SIGMAS**2) / 2) / np.exp(-(SIGMAS**2) / 2).sum()
        latent = self.latent(where)
        return np.asarray(sum(w * stars(latent + NOISE * z) for w, z in zip(weights, SIGMAS, strict=True)))


def stars(latent: Floats) -> Floats:
    """Whole numbers from 1 to 5."""
    return np.clip(np.round(latent), 1, 5)


def write(path: Path, planted: Planted, rows: int, skewed: bool) -> None:
    """A Parquet file of so many rows at random, written in parts."""
    generator = np.random.default_rng(2)
    schema = pa.schema([*((name, pa.int32()) for name in MODES), ("rating", pa.float64())])
    with pq.ParquetWriter(path, schema) as file:
        for begin in range(0, rows, CHUNK):
            count = min(CHUNK, rows - begin)
            where = planted.cells(generator, count, skewed)
            values = stars(planted.latent(where) + NOISE * generator.standard_normal(count))
            file.write_table(pa.table([*where.T.copy(), values], schema=schema))


def options(path: Path, rows: int, unit: str, model: str, folder: Path) -> list[str]:
    """The command of a job."""
    command = ["-m", "tensorveil", "complete", str(path), "--modes", ",".join(MODES), "--value", "rating"]
    command += ["--bounds", "1", "5", "--unit", unit, "--epsilon", "5", "--model", model]
    command += ["--shape", ",".join(str(size) for size in SHAPES[rows]), "--duplicates", "keep"]
    command += ["--expected-count", str(rows), "--out", str(folder), *UNITS[unit]]
    return command + ([str(0.1 / rows)] if UNITS[unit] else [])


def measured(command: list[str]) -> dict[str, Any]:
    """Run Python in a process of its own; its seconds and its peak memory, or its error."""
    inner = (
        "import json, resource, subprocess, sys; ended = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss; "
        "print(json.dumps([ended.returncode, peak, ended.stderr.strip().splitlines()[-1:]]))"
    )
    started = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", inner, sys.executable, *command], capture_output=True, text=True, check=True
    )
    status, peak, error = json.loads(ended.stdout)
    row: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 1), "peak_mb": round(peak / 1024)}
    return row | ({"error": "".join(error)} if status else {})


def accuracy(folder: Path, planted: Planted, path: Path, skewed: bool) -> dict[str, Any]:
    """Sweeps of the posterior, and the error of predicted means over the spread of the true ones."""
    release = tv.Release.load(folder)
    generator = np.random.default_rng(3)
    where = planted.cells(generator, CELLS, skewed).astype(np.uint32)
    if release.withheld_mode is None:
        predicted = release.predict(where)
    else:
        owners = generator.choice(planted.shape[0], OWNERS, replace=False)
        where[:, 0] = np.repeat(owners, CELLS // OWNERS)
        predicted = _personal(release, path, owners, where)
    draws = release.model.draws
    return {"sweeps": 0 if draws is None else int(draws.mixing[0]), **_error(predicted, planted.mean(where))}


def _error(predicted: Floats, truth: Floats) -> dict[str, float]:
    return {"rmse_over_truth_sd": round(float(np.sqrt(np.square(predicted - truth).mean()) / truth.std()), 4)}


def peer(name: str, path: Path, planted: Planted, folder: Path) -> dict[str, Any]:
    """A job without privacy, and its error."""
    where = planted.cells(np.random.default_rng(3), CELLS, skewed=False)
    asked, predicted = folder.with_suffix(".asked.npy"), folder.with_suffix(".predicted.npy")
    np.save(asked, where)
    found = measured([str(Path(__file__).with_name("main_job_peers.py")), name, str(path), str(asked), str(predicted)])
    if "error" in found:
        return found
    return found | {"sweeps": 0, **_error(np.load(predicted), planted.mean(where))}


def _personal(release: tv.Release, path: Path, owners: NDArray[np.int64], where: NDArray[np.uint32]) -> Floats:
    """What owners predict, each for their own cells, from the release and their own rows of the file."""
    rows = pq.read_table(path, filters=[(MODES[0], "in", owners.tolist())])
    known = np.column_stack([rows[name].to_numpy() for name in MODES]).astype(np.uint32)
    values = rows["rating"].to_numpy()
    found = np.empty(len(where))
    for owner in owners:
        own, asked = known[:, 0] == owner, where[:, 0] == owner
        data = tv.Observations(known[own], values[own], release.model.shape, duplicates="keep")
        found[asked] = release.personalize(data).predict(where[asked])
    return found


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds against rows, one line per kind of job, with the slope between its first and its last."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if "error" not in row:
            name = f"{row['job']}, {row['unit']}, {row['model']}" if row["job"] == "complete" else row["job"]
            lines.setdefault(name, []).append((row["rows"], row["seconds"]))
    figure, panel = plt.subplots(figsize=(8, 5.5), layout="constrained")
    for name, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        slope = f", slope {np.log(y[-1] / y[0]) / np.log(x[-1] / x[0]):.2f}" if len(x) > 1 else ""
        panel.loglog(x, y, "o-" if name.startswith("complete") else "s:", label=name + slope, linewidth=1.3)
    panel.set_xlabel("rows of the file")
    panel.set_ylabel("seconds, from file to folder")
    panel.grid(which="both", linewidth=0.3)
    panel.legend(fontsize=7.5, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10^4 to 10^6 rows")
    parser.add_argument("--rows", type=float, nargs="*", help="only these numbers of rows")
    parser.add_argument("--units", nargs="*", default=[*UNITS, SKEWED], choices=[*UNITS, SKEWED])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--json", type=Path, default=RESULTS)
    asked = parser.parse_args()
    sizes = [int(rows) for rows in asked.rows or SHAPES if not asked.quick or rows <= QUICK]
    system = f"{platform.machine()}, {available_cores()} cores, Python {platform.python_version()}"
    found: list[dict[str, Any]] = []

    def say(row: dict[str, Any]) -> None:
        found.append(row | {"system": system})
        print(json.dumps(found[-1]), flush=True)

    with tempfile.TemporaryDirectory() as place:
        for rows in sizes:
            planted = Planted(SHAPES[rows])
            for skewed in (False, True):
                path = Path(place) / f"{rows}.parquet"
                write(path, planted, rows, skewed)
                for unit in asked.units:
                    for model in asked.models if (unit == SKEWED) == skewed else ():
                        folder = Path(place) / f"{rows}-{unit.replace(':', '-').replace(', ', '-')}-{model}"
                        kind = "value" if skewed else unit
                        row = measured(options(path, rows, kind, model, folder))
                        row |= accuracy(folder, planted, path, skewed) if "error" not in row else {}
                        say({"job": "complete", "unit": unit, "model": model, "rows": rows} | row)
                for name in asked.peers if not skewed else ():
                    if importlib.util.find_spec(PEERS[name].package) and rows <= PEERS[name].most_rows:
                        told = {"job": name, "unit": "none", "model": PEERS[name].model, "rows": rows}
                        say(told | peer(name, path, planted, Path(place) / f"{rows}-{name}"))
                path.unlink()
    asked.json.write_text(json.dumps(found, indent=1) + "\n")
    picture(found, asked.json.with_suffix(".svg"))


if __name__ == "__main__":
    main()
