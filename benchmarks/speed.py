"""Speed and size against a C yardstick and peers: `python benchmarks/speed.py [--quick] [--json OUT]`, or `make bench`.

Every figure is the smallest of several repeats, ours and the yardstick's taking turns in one process. --quick keeps the
workloads W1 to W3 and the yardstick; without it peers from the package index and 10^8 observations are added, and time
is drawn against the number of observations. Results: benchmarks/results/speed.json and speed.svg.

Systems: `tensorveil`, least squares in double precision (10^8 observations: single); `tensorveil-single`; and
`tensorveil-two-way`, ours on the two-way cut that two-way peers get.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from speed_peers import PEERS, UNADAPTED, installed
from workloads import NOISE, SIZES, Workload, workload
from yardstick import Yardstick, compiler

import tensorveil as tv
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import Noisy, released_numbers
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.solvers.als import ALS
from tensorveil.solvers.block_updates import Entries, update_blocks
from tensorveil.solvers.gradient_sums import joint_sums, local_order
from tensorveil.solvers.layouts.sorted_entries import SortedEntries
from tensorveil.solvers.layouts.strata import Strata, padded_parameters
from tensorveil.solvers.parallel_sgd import ParallelSGD
from tensorveil.solvers.serial_tucker import SerialTucker

RESULTS = Path(__file__).with_name("results")
THREADS = 2
TARGET = 1.10  # of the noise level
TILES = {"W1": (1, 1, 1), "W2": (1, 1, 1), "W3": (8, 4, 1), "1e8": (64, 32, 1)}
REPEATS = {"W1": 40, "W2": 40, "W3": 8, "1e8": 3}
PEER_PASSES = {"W1": 60, "W2": 10, "W3": 2}
TUCKER_RANK = {"W1": 3, "W2": 5, "W3": 4}
OBSERVATION = 20  # bytes of its coordinates and value, to which come those that a solver adds
STARTED = time.perf_counter()
GROWTH = (10**5, 10**6, 10**7, 10**8)
PASSES_TO_TARGET, SWEEPS_TO_TARGET = 18, 13

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="W1 to W3 and the yardstick alone")
    parser.add_argument("--json", type=Path, default=RESULTS / "speed.json", help="where the rows go")
    parser.add_argument("--workloads", nargs="*", choices=tuple(SIZES), help="only these")
    options = parser.parse_args()
    names = options.workloads or [*SIZES][: 3 if options.quick else 4]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            say(f"{name}: making the data")
            data = workload(name)
            rows += measured(data, Path(folder) if compiler() else None)
            if not options.quick:
                rows += peers_on(data)
            print(table([one for one in rows if one["workload"] == name]), flush=True)
            write(options.json, rows)
            del data  # before the next one is made
    left_out = [name for name in (*PEERS, *UNADAPTED) if options.quick or name in UNADAPTED or not installed(name)]
    left_out += [] if compiler() else ["yardstick (no C compiler)"]
    print("left out:", ", ".join(left_out) or "nothing")
    growth = [] if options.quick or options.workloads else grown()
    picture(rows, growth, options.json.with_suffix(".svg"))
    say("done")


def write(path: Path, rows: list[Row]) -> None:
    """All rows so far; the file is whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(rows, indent=1) + "\n")
    whole.replace(path)


def measured(data: Workload, folder: Path | None) -> list[Row]:
    """All tasks on one workload, ours and the yardstick's."""
    R, large = data.rank, data.name == "1e8"
    generator = np.random.default_rng(0)
    model = CP(R).model([generator.normal(0.15, 0.1, (size, R)) for size in data.shape])
    observations = tv.Observations(data.coordinates, data.values, data.shape, duplicates="keep")
    data.coordinates, data.values = observations.coordinates, observations.values  # one copy is enough
    rows = descent(data, model, observations, None if large else folder)
    rows += sweeps(data, model, observations, np.float32, None if large else folder)
    if large:
        return rows
    rows += sweeps(data, model, observations, np.float64, folder)
    seconds = {(one["task"], one["system"]): one["seconds_per_pass"] for one in rows}
    epoch, sweep = seconds["sgd", "tensorveil"], seconds["als", "tensorveil"]
    yard_epoch, yard_sweep = seconds.get(("sgd", "yardstick")), seconds.get(("als", "yardstick"))
    threads = threads_on(data)
    ours, peak = with_peak(lambda: gradient(data, model))
    rows.append(row(data, "gradient", "tensorveil", threads, ours, yard_epoch, peak))
    say(f"{data.name}: clipped gradient {ours / epoch:.2f} x an epoch of SGD")
    ours, peak = with_peak(lambda: private_sweep(observations, R))
    rows.append(row(data, "private-als", "tensorveil", threads, ours, yard_sweep, peak))
    say(f"{data.name}: private sweep {ours / sweep:.2f} x a sweep")
    ours, peak = with_peak(lambda: gibbs_sweep(data))
    rows.append(row(data, "gibbs", "tensorveil", threads, ours, yard_sweep, peak))
    say(f"{data.name}: Gibbs sweep {ours / sweep:.2f} x a sweep")
    rows += tucker(data)
    if data.name == "W2":
        noisy, plain = published_epoch(observations, R)
        say(f"{data.name}: published gradient perturbation {noisy / plain:.2f} x an epoch of its serial SGD")
    return rows


def gradient(data: Workload, model: Any) -> float:
    """Seconds of one sum of clipped gradients over all entries."""
    order = local_order(data.coordinates, model)
    sums = partial(joint_sums, model, data.coordinates[order], data.values[order], 1.0, 2.0**-29, fast=True)
    ours, _ = in_turns(data, lambda: timed(sums), None)
    return ours


def threads_on(data: Workload) -> int:
    """Small data are left to one thread."""
    return 1 if data.name == "W1" else THREADS


def descent(data: Workload, model: Any, observations: tv.Observations, folder: Path | None) -> list[Row]:
    """Stochastic gradient descent."""
    generator, threads = np.random.default_rng(0), threads_on(data)
    forget_peak()
    strata = Strata.of(data.coordinates, data.values, model, threads, np.float32, generator)
    parameters = padded_parameters(model, np.float32)
    passes = strata.passes_at_once()
    peak = peak_mb()

    def descend() -> float:
        return timed(lambda: strata.visit(parameters, model, np.full(passes, 1e-4), 0.01, generator)) / passes

    yard = Yardstick(data, np.float32, folder) if folder else None
    if yard:
        yard.prepare_descent(TILES[data.name])
    ours, theirs = in_turns(data, descend, (lambda: yard.descend(threads, passes)) if yard else None)
    rows = [row(data, "sgd", "tensorveil", threads, ours, theirs, peak)]
    if yard:
        rows.append(row(data, "sgd", "yardstick", threads, theirs, theirs, None))
    if data.name in ("W3", "1e8"):
        if yard:
            rows[1]["seconds_to_target"] = yardstick_to_target(data, yard)
        strata = parameters = yard = None  # so that the peak is the solver's
        solver = ParallelSGD(iterations=PASSES_TO_TARGET)
        note_fit(rows[0], data, lambda: solver.solve(observations, CP(data.rank), seed=0))
    return rows


def sweeps(data: Workload, model: Any, observations: tv.Observations, dtype: Any, folder: Path | None) -> list[Row]:
    """Alternating least squares in one precision."""
    single = dtype == np.float32
    threads, suffix = threads_on(data), "-single" if single and data.name != "1e8" else ""
    forget_peak()
    entries = SortedEntries.of(data.coordinates, data.values, data.shape, threads, dtype)
    packed = entries.pack(model, model.parameters, [])
    peak = peak_mb()
    yard = Yardstick(data, dtype, folder) if folder else None
    if yard:
        yard.prepare_sweeps()
    ours, theirs = in_turns(
        data,
        lambda: timed(lambda: entries.sweep(packed, data.rank, 0.0, 1.0, [])),
        (lambda: yard.sweep(threads)) if yard else None,
    )
    rows = [row(data, "als", "tensorveil" + suffix, threads, ours, theirs, peak)]
    if yard:
        rows.append(row(data, "als", "yardstick" + suffix, threads, theirs, theirs, None))
    entries.lists.clear()
    yard = None  # so that the peak is the solver's
    if data.name in ("W3", "1e8"):
        solver = ALS(sweeps=SWEEPS_TO_TARGET, precision="single" if single else "double")
        note_fit(rows[0], data, lambda: solver.solve(observations, CP(data.rank), seed=0))
    return rows


def tucker(data: Workload) -> list[Row]:
    """One serial epoch and one sweep of a Tucker model."""
    family = Tucker((TUCKER_RANK[data.name],) * 3)
    repeats = 1 if data.name == "W3" else 5
    generator = np.random.default_rng(0)
    model = family.model([generator.normal(0.3, 0.2, block) for block in family.block_shapes(data.shape)])

    def epoch() -> float:
        layout = SerialTucker(data.coordinates, data.values, 1.0, 0.0)
        packed, rates = layout.pack(model), np.full(1, 1e-4)
        return min(timed(lambda: layout.visit(packed, model, rates, 0.01, generator)) for _ in range(repeats + 1))

    def sweep() -> float:
        parameters = model.parameters.copy()
        entries = Entries.of(data.coordinates, data.values, data.shape)
        return min(
            timed(lambda: update_blocks(entries, data.values, model, parameters, 1.0)) for _ in range(repeats + 1)
        )

    seconds, peak = with_peak(epoch)
    rows = [row(data, "sgd-tucker", "tensorveil", 1, seconds, None, peak)]
    seconds, peak = with_peak(sweep)
    rows.append(row(data, "als-tucker", "tensorveil", threads_on(data), seconds, None, peak))
    say(f"{data.name}: Tucker epoch {rows[0]['seconds_per_pass']:.3g} s, sweep {seconds:.3g} s")
    return rows


def private_sweep(observations: tv.Observations, rank: int) -> float:
    """Seconds of a sweep of statistic perturbation, by the difference of runs with one and five."""
    bounds = tv.Bounds(-3.0, 5.0)
    seconds: dict[int, list[float]] = {1: [], 5: []}
    for _ in range(3 if len(observations) > 10**6 else 12):
        for sweeps, found in seconds.items():
            plan = tv.StatisticPerturbation(sweeps=sweeps).plan(
                CP(rank), shape=observations.shape, bounds=bounds, unit="value", epsilon=1.0, delta=5e-8
            )
            found.append(timed(lambda plan=plan: tv.fit(observations, plan)))
    return (min(seconds[5]) - min(seconds[1])) / 4


def gibbs_sweep(data: Workload, modes: int = 3) -> float:
    """Seconds of one sweep of one chain of the posterior, over all modes or the first two."""
    times: list[float] = []
    law = released_numbers(Noisy(np.clip(data.values / 5, -1, 1), 0.01), False, VALUE_STEPS)
    where = np.ascontiguousarray(data.coordinates[:, :modes])
    Posterior(sweeps=8 if len(data) > 10**6 else 40, chains=1, pattern=False).solve(
        where, law, CP(data.rank), data.shape[:modes], progress=lambda *_: times.append(time.perf_counter())
    )
    return float(np.diff(times).min())


def published_epoch(observations: tv.Observations, rank: int) -> tuple[float, float]:
    """Seconds of an epoch of Algorithm 2 and of the serial SGD it is made of."""
    from tensorveil.published import GradientPerturbation

    sgd = tv.SGD(iterations=1, learning_rate=1e-6)
    noisy = min(
        timed(lambda: GradientPerturbation(1.0).run(observations, CP(rank), 1.0, sgd, seed=0)) for _ in range(7)
    )
    plain = min(timed(lambda: sgd.solve(observations, CP(rank), seed=0)) for _ in range(7))
    return noisy, plain


def note_fit(one: Row, data: Workload, solve: Callable[[], Any]) -> None:
    """Time to the target and peak memory of a whole fit."""
    before = forget_peak()
    one["seconds_to_target"], one["peak_mb"] = with_peak(lambda: to_target(data, solve))
    size = OBSERVATION + 2**20 * (one["peak_mb"] - before) / len(data)
    say(f"{data.name}: {size:.1f} bytes an observation at the peak of {one['peak_mb']:.0f} MB")


def to_target(data: Workload, solve: Callable[[], Any]) -> float | None:
    """Seconds of a whole fit from its own start, if it brings the error on held-out entries to the target."""
    start = time.perf_counter()
    run = solve()
    seconds = time.perf_counter() - start
    error = float(np.sqrt(np.mean((run.predict(data.test_coordinates) - data.test_values) ** 2))) / NOISE
    say(f"{data.name}: {type(run).__name__} held-out error {error:.3f} of the noise in {seconds:.2f} s")
    return seconds if error <= TARGET else None


def yardstick_to_target(data: Workload, yard: Yardstick) -> float | None:
    """The same for the yardstick, with our start values and step sizes."""
    start = time.perf_counter()
    shift = 1.0 - float(data.values.mean())
    yard.prepare_descent(TILES[data.name], 1.0, shift)
    level = (1.0 / data.rank) ** (1 / 3)
    yard.restart(level, 0.3 * level)
    for number in range(PASSES_TO_TARGET):
        rate = 0.05 * 0.5 * (1 + np.cos(np.pi * number / PASSES_TO_TARGET))
        yard.descend(THREADS, 1, rate, 0.01)
    seconds = time.perf_counter() - start
    errors = yard.predict(data.test_coordinates) - shift - data.test_values
    return seconds if float(np.sqrt(np.mean(errors**2))) / NOISE <= TARGET else None


def peers_on(data: Workload) -> list[Row]:
    """What is installed of the peers, on workloads they can take."""
    rows = []
    for name, (task, seconds_of) in PEERS.items():
        if data.name == "1e8" or not installed(name):
            continue
        say(f"{data.name}: {name}")
        seconds, peak = with_peak(lambda seconds_of=seconds_of: seconds_of(data, PEER_PASSES[data.name]))
        if seconds is not None:
            rows.append(row(data, task, name, THREADS, seconds, None, peak))
    if data.name != "1e8":
        seconds, peak = with_peak(lambda: gibbs_sweep(data, 2))
        rows.append(row(data, "gibbs", "tensorveil-two-way", threads_on(data), seconds, None, peak))
    return rows


def grown() -> list[tuple[str, int, float, float]]:
    """(task, observations, seconds of a pass, bytes an observation at peak) on tensors of W3's shape."""
    found = []
    for count in GROWTH:
        data = workload("W3", count)
        generator = np.random.default_rng(0)
        model = CP(data.rank).model([generator.normal(0.15, 0.1, (size, data.rank)) for size in data.shape])
        for task in (grown_descent, grown_sweep):
            base = forget_peak()
            seconds = task(data, model, 3 if count >= 10**8 else 7)
            size = OBSERVATION + 2**20 * (peak_mb() - base) / count
            found.append((task.__name__.removeprefix("grown_"), count, seconds, size))
            say(f"{found[-1][0]} of {count:,} observations: {seconds:.3g} s a pass, {size:.1f} bytes an observation")
    for name in ("descent", "sweep"):
        line = [(count, seconds) for task, count, seconds, _ in found if task == name and count >= 10**6]
        slope = np.polyfit(*np.log(np.array(line)).T, 1)[0]
        say(f"{name}: slope {slope:.3f} of seconds against observations from 10^6 on")
    return found


def grown_descent(data: Workload, model: Any, repeats: int) -> float:
    """Seconds of an epoch."""
    generator = np.random.default_rng(0)
    strata = Strata.of(data.coordinates, data.values, model, THREADS, np.float32, generator)
    parameters = padded_parameters(model, np.float32)
    rates = np.full(1, 1e-4)
    return min(timed(lambda: strata.visit(parameters, model, rates, 0.01, generator)) for _ in range(repeats))


def grown_sweep(data: Workload, model: Any, repeats: int) -> float:
    """Seconds of a sweep in single precision."""
    entries = SortedEntries.of(data.coordinates, data.values, data.shape, THREADS, np.float32)
    packed = entries.pack(model, model.parameters, [])
    return min(timed(lambda: entries.sweep(packed, data.rank, 0.0, 1.0, [])) for _ in range(repeats))


def picture(rows: list[Row], growth: list[tuple[str, int, float, float]], path: Path) -> None:
    """Ours against the yardstick, and time against size where that was measured."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    shown = [r for r in rows if r["system"].startswith("tensorveil") and r["ratio_to_yardstick"] is not None]
    labels = [f"{r['workload']} {r['task']}{' (single)' if 'single' in r['system'] else ''}" for r in shown]
    figure, panels = plt.subplots(1, 2 if growth else 1, figsize=(11 if growth else 6, 5), layout="constrained")
    left = panels[0] if growth else panels
    bars = left.barh(labels, [r["ratio_to_yardstick"] for r in shown], color="#0072B2")
    left.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    left.axvline(1.0, color="black", linewidth=0.8)
    left.set_xscale("log")
    left.set_xlim(right=2 * max(r["ratio_to_yardstick"] for r in shown))
    left.invert_yaxis()
    left.set_xlabel("time over the C yardstick's: its SGD epoch for sgd, gradient; its ALS sweep for the rest")
    left.xaxis.label.set_fontsize(8)
    names = (("descent", "SGD epoch", "#0072B2"), ("sweep", "ALS sweep, single", "#D55E00"))
    for task, name, colour in names if growth else ():
        line = [(count, seconds) for each, count, seconds, _ in growth if each == task]
        panels[1].loglog(*zip(*line, strict=True), "o-", color=colour, label=name)
        panels[1].set_xlabel("observations")
        panels[1].set_ylabel("seconds of a pass")
        panels[1].grid(alpha=0.3)
        panels[1].legend()
    figure.savefig(path, metadata={"Date": None})


def in_turns(
    data: Workload, ours: Callable[[], float], theirs: Callable[[], float] | None
) -> tuple[float, float | None]:
    """Smallest seconds of both, taking turns; the first call of ours compiles and does not count."""
    ours()
    mine, yours = [], []
    for _ in range(REPEATS[data.name]):
        mine.append(ours())
        if theirs is not None:
            yours.append(theirs())
    return min(mine), min(yours) if yours else None


def row(
    data: Workload, task: str, system: str, threads: int, seconds: float | None, yard: float | None, peak: float | None
) -> Row:
    """One row of the results."""
    return {
        "workload": data.name,
        "task": task,
        "system": system,
        "threads": threads,
        "seconds_per_pass": seconds,
        "seconds_to_target": None,
        "peak_mb": peak,
        "ratio_to_yardstick": seconds / yard if seconds is not None and yard else None,
    }


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    print(f"[{time.perf_counter() - STARTED:6.0f} s] {text}", flush=True)


def with_peak(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and the peak of memory meanwhile, in MB."""
    forget_peak()
    return work(), peak_mb()


def timed(work: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def forget_peak() -> float:
    """Begin to measure peak memory anew, where the system can; returns the memory in use, in MB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    """Peak memory of this process, in MB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(rows: list[Row]) -> str:
    """Rows as text."""
    lines = [f"{platform.machine()}, {os.cpu_count()} cores"]
    for one in rows:
        ratio = "" if one["ratio_to_yardstick"] is None else f"{one['ratio_to_yardstick']:8.2f} x yardstick"
        lines.append(
            f"{one['workload']:4} {one['task']:12} {one['system']:18} {1e3 * one['seconds_per_pass']:12.3f} ms{ratio}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
