"""How much memory a run will need, from public sizes, and how much there is: a run that cannot end must not spend.

The estimates count the arrays that are largest at the peak of a run, per observation and per index; a test compares
them with measured peaks. They include saving and the report.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tensorveil.data.shards import Sharded
from tensorveil.errors import SizeError
from tensorveil.inference.posterior.pattern import MOST_FEATURES
from tensorveil.inference.posterior.sampler import FEWEST_KEPT, MOST_NUMBERS, Posterior
from tensorveil.inference.sums.latent import DRAWS as DRAWS_OF_SUMS
from tensorveil.inference.values.starts import LARGEST_SPECTRAL
from tensorveil.mechanisms.base import Mechanism
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.local.answers import LocalAnswers
from tensorveil.mechanisms.parts.cells import cells_fit
from tensorveil.mechanisms.sums import SumPerturbation
from tensorveil.privacy.plan import Plan, Request
from tensorveil.solvers.directions import SPACE

FIXED = 180 * 10**6  # compiled code, the compiler at work, and the libraries that a run loads
NUMBER = 8  # bytes
WORKER = 300 * 10**6  # a worker with the compiled code and libraries of its tasks
REPORT_SPACE = 2 * 10**6  # of the report and the certificate: 0.2 to 1 MB each
LABEL = 8  # bytes of a label in JSON besides its text
# bytes per value of the least squares that chains start from: unfoldings of the tensor, or sorted lists beyond
SPECTRAL_START, OTHER_START = 144, 64
NUMBERS_OF_CELLS = 6  # counts, sums, levels, random words, symbols, and a copy of one of them
SYMBOLS_OF_CELLS = 6.0  # intervals of levels that a channel of cells tells apart, about
SUMS_PER_INDEX = 18_000  # covariances of the effects of up to 24 groups, four at a time; offsets on a grid; draws


def needed_memory(plan: Plan, elsewhere: bool = False) -> int:
    """About how many bytes the run of a plan will take besides the observations, at its peak.

    With the observations on a cluster, this process needs none per observation where coordinates are private; where
    they are public it holds them, and what is released of every value, as ever.
    """
    remote = elsewhere and not plan.request.unit.coordinates_public
    return FIXED + round(_largest(plan.mechanism, plan.request, remote))


def _largest(mechanism: Mechanism, request: Request, remote: bool) -> float:
    """Of a mechanism and of those that it runs as a part of its own run."""
    inner = [_largest(part, request, remote) for part in mechanism.inner_mechanisms]
    return max([_own(mechanism, request, remote), *inner])


def _own(mechanism: Mechanism, request: Request, remote: bool) -> float:
    shape, order = request.shape, len(request.shape)
    ranks = request.family.zeros(shape).ranks
    count, indices = 0.0 if remote else request.count_or_guess, sum(shape)
    numbers = request.family.zeros(shape).parameters.size
    copy = count * (NUMBER + 4 * order)  # clipped values and coordinates
    if isinstance(mechanism, SumPerturbation):
        symbols = _symbols_of_cells(request, numbers + indices) if mechanism.cells and cells_fit(request) else 0.0
        return copy + max(count * 3 * NUMBER + indices * SUMS_PER_INDEX, symbols)
    if isinstance(mechanism, InputPerturbation | LocalAnswers) and request.unit.coordinates_public:
        solver = mechanism.solver if isinstance(mechanism.solver, Posterior) else Posterior()
        waves = 3.0 * sum(part.matrix.nbytes for part in (mechanism.smooth or {}).values())
        table = request.coupled
        second = 0.0
        if table is not None:
            own = (max(ranks) + 1) * sum(table.joint_shape)
            second = _posterior(solver, table.count, table.joint_shape, max(ranks) + 1, own)
            second += table.count * (NUMBER + 4 * len(table.shape))
        return copy + waves + second + _posterior(solver, count, shape, max(ranks), numbers + indices)
    if isinstance(mechanism, InputPerturbation) and mechanism.learns_offsets(request.unit):
        return copy + _symbols_of_cells(request, numbers + indices)
    dense = isinstance(mechanism, InputPerturbation)  # each cell gets noise
    cells = 6 * NUMBER * float(np.prod(shape, dtype=np.float64)) if dense else 0.0
    rows = max(size * (rank * (rank + 1) // 2 + rank) for size, rank in zip(shape, ranks, strict=True))
    return copy + count * 10 * NUMBER + 4 * NUMBER * (rows + numbers) + cells


def _symbols_of_cells(request: Request, numbers: int) -> float:
    """What numbers and symbols of all cells take, and the posterior of those that may be observed."""
    cells = math.prod(map(float, request.shape))
    false = SYMBOLS_OF_CELLS * math.exp(-request.epsilon)  # over the chance of an observed one
    entries = (request.expected_count or cells / 2) + cells * false / (1 + false)  # where none are declared, many
    ranks = request.family.zeros(request.shape).ranks
    return NUMBERS_OF_CELLS * NUMBER * cells + _posterior(Posterior(), entries, request.shape, max(ranks), numbers)


def _posterior(solver: Posterior, count: float, shape: tuple[int, ...], rank: int, numbers: int) -> float:
    """What is largest: the start, features of the pattern, or orders, means of every chain and the draws kept."""
    start = count * (SPECTRAL_START if count <= LARGEST_SPECTRAL else OTHER_START)
    entries = count * NUMBER * (len(shape) + solver.chains + 1)
    while_features = 4 * SPACE * max(shape) + count * 4 * NUMBER if solver.pattern else 0.0
    features = 3 * NUMBER * (MOST_FEATURES + 1) * sum(shape)
    rows = solver.chains * 4 * NUMBER * (rank + 1) * sum(shape)
    sweeps = solver.planned_sweeps(max(round(count), 1), len(shape))
    kept = min(solver.draws, max(FEWEST_KEPT, MOST_NUMBERS // numbers), solver.chains * sweeps)
    draws = 3 * 4 * kept * numbers  # single precision, and copies while they are collected
    return max(entries + rows + draws, while_features, start) + features


def needed_space(plan: Plan, labels: Iterable[Any]) -> int:
    """About how many bytes the folder of a release of this plan will take, from public sizes and labels."""
    request, mechanism = plan.request, plan.mechanism
    numbers = request.family.zeros(request.shape).parameters.size + sum(request.shape)
    draws = 0
    sampled = isinstance(mechanism, LocalAnswers) or (
        isinstance(mechanism, InputPerturbation) and mechanism.learns_offsets(request.unit)
    )
    if sampled or (isinstance(mechanism, SumPerturbation) and mechanism.cells):
        draws = min(Posterior().draws, max(FEWEST_KEPT, MOST_NUMBERS // numbers))
    elif isinstance(mechanism, SumPerturbation):
        draws = DRAWS_OF_SUMS
    texts = sum(len(str(label).encode()) + LABEL for part in labels if part is not None for label in part)
    return REPORT_SPACE + texts + NUMBER * numbers + 4 * draws * numbers


def traffic(plan: Plan, shards: Sharded) -> str:
    """What a pass over shards moves, and what a worker holds, from public sizes and counts of rows."""
    request = plan.request
    model = request.family.zeros(request.shape)
    rows = max(size * (rank * (rank + 3) // 2) for size, rank in zip(request.shape, model.ranks, strict=True))
    boxes = 2 * math.prod(request.shape) if any(stage.theorems[-1] == "input-cells" for stage in plan.stages) else 0
    answer = NUMBER * max(model.parameters.size, rows, 2 * max(request.shape), boxes)
    count, part = len(shards.files), shards.largest_part * (NUMBER + 4 * len(request.shape))
    return (
        f"{count:,} shard{'s' * (count > 1)}, the largest of {part / 1e6:,.1f} MB in memory; a pass sends each worker "
        f"up to {NUMBER * model.parameters.size / 1e6:,.1f} MB and takes up to {answer / 1e6:,.1f} MB from each task; "
        f"a worker needs about {(WORKER + 8 * part + 3 * answer) / 1e6:,.0f} MB and the shards that it keeps "
        "(for the data holder, not for release)"
    )


def free_memory() -> int | None:
    """Bytes that this process can still get on this machine, in its control groups and under its own limit."""
    found = [*_machine(), *_own_limit(), *group_memory()]
    return max(min(found), 0) if found else None


def check_memory(plan: Plan, elsewhere: bool = False) -> None:
    """Refuse a run, before anything is spent, that needs more memory than there is."""
    needed, free = needed_memory(plan, elsewhere), free_memory()
    if free is not None and needed > free:
        raise SizeError(
            f"the run must fit in memory, got {free / 1e6:,.0f} MB free for about {needed / 1e6:,.0f} MB, so "
            "nothing was started or spent; use a machine with more memory, a smaller rank, or statistic perturbation"
        )


def _number(path: Path) -> list[int]:
    try:
        return [int(path.read_text())]
    except (OSError, ValueError):  # no such file, or "max"
        return []


def _machine() -> list[int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    try:
        return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        return []


def _own_limit() -> list[int]:
    """What `ulimit -v` leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return []
    return [] if limit == resource.RLIM_INFINITY else [limit - used]


def group_memory(process: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What the control groups of this process leave, versions 1 and 2; files in the cache can be dropped."""
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = mounted / "memory" if kinds else mounted
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else ("memory.max", "memory.current")
        inside = root / name.lstrip("/")
        for group in (inside, *(parent for parent in inside.parents if parent.is_relative_to(root))):
            for most, now in zip(_number(group / limit), _number(group / used), strict=False):
                left.append(most - now + _cached(group / "memory.stat"))
    return left


def _cached(path: Path) -> int:
    try:
        return sum(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("inactive_file "))
    except OSError:
        return 0
