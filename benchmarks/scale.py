"""What a pass over shards costs on a cluster of any size: measured here per row, per task and per byte, then simulated.

    python benchmarks/scale.py                      measure, and predict 10^7 to 10^10 rows
    python benchmarks/scale.py --check 10000000     compare the prediction with passes on a cluster of this machine

The simulation runs the task graph of a pass as the scheduler does: one task per shard, on the first worker that is
free, each taking a share of the scheduler's time, then sums in a tree of eight branches. Sizes beyond 2^30 rows are
predictions only: the library refuses them, because its proofs of exact sums end there.
"""

import argparse
import heapq
import math
import pickle
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import tensorveil as tv
from tensorveil.data.shards import Part
from tensorveil.engines.dask import BRANCHES, Dask, cluster
from tensorveil.engines.local import LocalEngine
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.gradients import JointGradients

SHAPE = (50_000, 20_000, 100)
NAMES = ("user", "item", "week")
RANK = 8
BOUNDS = tv.Bounds(1, 5)
ROWS_PER_SHARD = 2_000_000


@dataclass(frozen=True)
class Costs:
    """Seconds per row and per task, bytes of an answer and of a task in the scheduler, and bytes per second."""

    row: float
    task: float
    answer: int
    task_bytes: float = 6_500.0  # (1.3 GB - 0.1 GB) / 200,000 tasks, as others have measured, rounded up
    network: float = 1e9  # bytes per second between two machines: 10 Gbit/s

    @property
    def moved(self) -> float:
        """Seconds to move one answer, or one state, which is as large."""
        return self.answer / self.network


def simulated(rows: float, workers: int, costs: Costs) -> dict[str, float]:
    """The time of one pass, the number of its tasks, and the scheduler's memory for it."""
    shards = math.ceil(rows / ROWS_PER_SHARD)
    each = rows / shards * costs.row
    free = [costs.moved * math.ceil(math.log2(workers + 1))] * workers  # the state spreads from worker to worker
    heapq.heapify(free)
    scheduler, ends, tasks = 0.0, [], 0
    for _ in range(shards):
        scheduler += costs.task
        end = max(heapq.heappop(free), scheduler) + each
        heapq.heappush(free, end)
        ends.append(end)
        tasks += 1
    while len(ends) > 1:
        groups = [ends[first : first + BRANCHES] for first in range(0, len(ends), BRANCHES)]
        ends = []
        for group in groups:
            scheduler = max(scheduler, 0.0) + costs.task
            ends.append(max(*group, scheduler) + (len(group) - 1) * costs.moved)
            tasks += 1
    return {"seconds": ends[0] + costs.moved, "tasks": tasks, "scheduler_mb": (1e8 + tasks * costs.task_bytes) / 1e6}


def observations(rows: int) -> tv.Observations:
    rng = np.random.default_rng(0)
    where = np.column_stack([rng.integers(0, size, rows) for size in SHAPE])
    return tv.Observations(where, rng.uniform(1, 5, rows), SHAPE, mode_names=NAMES, duplicates="keep")


def query() -> JointGradients:
    factors = [np.random.default_rng(1).normal(0, 0.3, (size, RANK)) for size in SHAPE]
    return JointGradients(tv.CP(RANK).model(factors), 0.0, 1.0, 2.0**-28, sampled=False)


def measured(rows: int = 500_000) -> Costs:
    """The cost of a row in one thread, and of a task, on this machine."""
    shard = clip(observations(rows), BOUNDS, tv.Unit.entry(), bytes(32))
    asked = query()
    LocalEngine().sum(asked.of, [shard])  # compiles, and sorts the shard once
    cpu = []
    for _ in range(3):
        started = time.process_time()
        LocalEngine().sum(asked.of, [shard])
        cpu.append(time.process_time() - started)
    with cluster() as engine:
        small = engine.keep(np.square, [np.arange(3)] * 64)
        engine.sum(_pair, small)
        started = time.perf_counter()
        engine.sum(_pair, small)
        task = (time.perf_counter() - started) / (64 + math.ceil(64 / BRANCHES) + 1)
    return Costs(min(cpu) / rows, task, len(pickle.dumps(asked.model.parameters)))


def _pair(shard: np.ndarray) -> tuple[np.ndarray, ...]:
    return (shard,)


def checked(rows: int, costs: Costs, workers: int) -> None:
    """Passes over so many rows in shards, on a cluster of this machine, beside the prediction."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = observations(rows)
        columns = dict(zip(NAMES, np.ascontiguousarray(data.coordinates.T), strict=True))
        parquet.write_table(pa.table({**columns, "stars": data.values}), folder / "rows.parquet")
        del data, columns
        request = (folder / "rows.parquet", "user", folder / "shards", NAMES, "stars")
        shards = tv.write_shards(*request, shape=SHAPE, duplicates="keep", rows_per_part=ROWS_PER_SHARD)
        with cluster() as engine:
            kept = Dask(engine.client).keep(_loaded, shards.files)
            seconds = []
            for _ in range(4):
                started = time.perf_counter()
                engine.sum(query().of, kept)
                seconds.append(time.perf_counter() - started)
            held = engine.client.run(_memory)
    told = simulated(rows, workers, costs)["seconds"]
    peaks = ", ".join(f"{peak / 1e6:,.0f} MB" for peak in held.values())
    print(f"{rows:,} rows, {workers} workers: {min(seconds):.2f} s a pass, predicted {told:.2f} s; peaks {peaks}")


def _loaded(part: Part) -> object:
    return clip(part.read(), BOUNDS, tv.Unit.entry(), bytes(32))


def _memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=int, nargs="*", default=[], help="numbers of rows to run as well")
    given = parser.parse_args()
    costs = measured()
    print(
        f"{costs.row * 1e9:.1f} ns per row, {costs.task * 1e3:.2f} ms per task, {costs.answer / 1e6:.1f} MB per answer"
    )
    for rows, workers in ((1e7, 2), (1e8, 8), (1e9, 32), (1e10, 100)):
        found = simulated(rows, workers, costs)
        print(
            f"{rows:.0e} rows, {workers} workers: {found['seconds']:.1f} s a pass, {found['tasks']:,.0f} tasks, "
            f"scheduler {found['scheduler_mb']:,.0f} MB"
        )
    for rows in given.check:
        from tensorveil.kernels.cores import available_cores

        checked(rows, costs, available_cores())


if __name__ == "__main__":
    main()
