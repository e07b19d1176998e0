"""Many runs of two worlds, in several processes: every run gives a vector of numbers, or is marked as failed."""

import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError, TensorveilError
from tensorveil.mechanisms.base import Progress, no_progress

Run = Callable[[], Any]
Reading = Callable[[Any], ArrayLike] | None
Batch = tuple[int, list[list[Floats | None]]]  # process, and for each world the vectors of its runs, None for a failure

# An error that a reader of the release would see is an output; errors of programming are not among these.
FAILURES: tuple[type[BaseException], ...] = (ArithmeticError, np.linalg.LinAlgError)
BATCH_SECONDS = 0.25
SUSPICIOUS_BITS = 60.0  # two processes that agree in so much chance have copied their randomness


def run_both(
    run_world_0: Run,
    run_world_1: Run,
    runs: int,
    reading: Reading = None,
    failures: tuple[type[BaseException], ...] = FAILURES,
    workers: int = 2,
    progress: Progress = no_progress,
) -> tuple[Floats, Floats]:
    """Vectors of so many runs of each world, one row per run; a row of NaN is a run that failed.

    A run whose numbers are not all finite is counted as failed, except that a single number may be infinite. No run is
    left out.
    """
    processes = checks.positive_integer("workers", workers)
    job = (run_world_0, run_world_1, reading, failures)
    for name, run in (("run_world_0", run_world_0), ("run_world_1", run_world_1)):
        if not callable(run):
            raise InputError(f"{name} must be a function without arguments, got {run!r}; wrap the pipeline in one")
    began = time.perf_counter()
    first = _batch_of(job, 1)  # here: compiles what is compiled once, and shows mistakes at once
    took = time.perf_counter() - began
    done: list[Batch] = [first]
    progress("runs", 2, 2 * runs)
    context = _context(job) if processes > 1 and runs > 2 else None
    size = max(1, min(math.ceil((runs - 1) / processes), round(BATCH_SECONDS / max(took, 1e-6))))
    if context is None:
        while (left := runs - _total(done)) > 0:
            done.append(_batch_of(job, min(left, size)))
            progress("runs", 2 * _total(done), 2 * runs)
    else:
        done += _in_processes(context, processes, job, runs - 1, size, lambda n: progress("runs", 2 + 2 * n, 2 * runs))
        _check_fresh(done)
    vectors = [[vector for _, worlds in done for vector in worlds[world]] for world in (0, 1)]
    lengths = {len(vector) for part in vectors for vector in part if vector is not None}
    if len(lengths) > 1:
        raise InputError(f"every run must give the same number of numbers, got {sorted(lengths)}; pass features=")
    width = lengths.pop() if lengths else 1
    missing = np.full(width, np.nan)
    tables = [np.array([missing if vector is None else vector for vector in part]) for part in vectors]
    return tables[0], tables[1]


def _total(done: list[Batch]) -> int:
    return sum(len(worlds[0]) for _, worlds in done)


def _batch_of(job: tuple[Run, Run, Reading, tuple[type[BaseException], ...]], count: int) -> Batch:
    """Runs of both worlds in turn, so that processes with a copied generator give the same series."""
    *worlds, reading, failures = job
    found: list[list[Floats | None]] = [[], []]
    for _ in range(count):
        for world, run in enumerate(worlds):
            try:
                output = run()
                vector = np.asarray(output if reading is None else reading(output), dtype=np.float64).ravel()
            except failures:
                found[world].append(None)
                continue
            except (TypeError, ValueError) as error:
                if isinstance(error, TensorveilError):
                    raise
                raise InputError(
                    f"run_world_{world} must give numbers, or what features or score can read, got an error: {error}; "
                    "correct it"
                ) from error
            finite = np.isfinite(vector).all() if vector.size > 1 else not np.isnan(vector).any()
            found[world].append(vector if finite else None)
    return os.getpid(), found


def _context(job: Any) -> Any:
    """How to start processes: by fork on Linux, for it needs no pickling; else afresh, if the job can be pickled."""
    if sys.platform == "linux":
        return multiprocessing.get_context("fork")
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return multiprocessing.get_context("spawn")


def _in_processes(
    context: Any, processes: int, job: Any, runs: int, size: int, advance: Callable[[int], None]
) -> list[Batch]:
    """Batches from several processes, in turn. On any error or Ctrl-C, all processes are stopped.

    Every process has its own share: with one queue for all, a process that starts late could find it empty, and then
    nothing would show whether the processes repeat each other. No thread is started here: a fork beside a thread that
    holds a lock never ends.
    """
    sizes = [size] * (runs // size) + ([runs % size] if runs % size else [])
    shares = [sizes[place::processes] for place in range(processes)]
    workers: list[Any] = []
    batches: dict[Any, list[Batch]] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: those of numpy survive it
            for share in shares:
                here, there = context.Pipe(duplex=False)
                workers.append(context.Process(target=_work, args=(job, share, there), daemon=True))
                workers[-1].start()
                there.close()
                batches[here] = []
        expected = dict(zip(batches, map(len, shares), strict=True))
        finished = 0
        while open_ends := [end for end in batches if len(batches[end]) < expected[end]]:
            ready: list[Any] = wait(open_ends)
            for end in ready:
                found = end.recv()
                if isinstance(found, BaseException):
                    raise found
                batches[end].append(found)
                finished += len(found[1][0])
                advance(finished)
    except EOFError as error:
        raise TensorveilError(
            "a process of the audit was killed, perhaps for lack of memory; use fewer workers or free memory"
        ) from error
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        for end in batches:
            end.close()
    return [batch for turn in zip_longest(*batches.values()) for batch in turn if batch is not None]


def _work(job: Any, share: list[int], end: Any) -> None:
    """Run in a new process: leave Ctrl-C to the parent, reseed the global generators, then do the runs.

    The parent ends its processes by SIGTERM once it has all runs; a handler of the parent would raise an error then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    np.random.seed()  # noqa: NPY002  pipelines of others may use the global one
    for count in share:
        try:
            found: Batch | Exception = _batch_of(job, count)
        except Exception as error:
            found = error
        try:
            end.send(found)
        except (pickle.PicklingError, TypeError, AttributeError):
            end.send(TensorveilError(f"run_world must not fail, got {found!r}; correct the error"))
        if isinstance(found, Exception):
            return


def _check_fresh(done: list[Batch]) -> None:
    """Refuse runs of processes that repeat each other, as they are not independent and the bound would be wrong."""
    series: dict[int, list[bytes]] = {}
    for process, worlds in done[1:]:
        pairs = zip(*worlds, strict=True)
        series.setdefault(process, []).extend(
            b"" if vector is None else vector.tobytes() for pair in pairs for vector in pair
        )
    parts = list(series.values())
    for place, mine in enumerate(parts):
        for theirs in parts[place + 1 :]:
            common = min(len(mine), len(theirs))
            same = next((i for i in range(common) if mine[i] != theirs[i]), common)
            if _surprise(mine[:same]) > SUSPICIOUS_BITS:
                raise InputError(
                    "run_world must draw fresh noise in every process, got two processes that repeat each other; "
                    "make the generator inside the function, or pass workers=1"
                )


def _surprise(outputs: list[bytes]) -> float:
    """Entropy of a series in bits: two independent series agree with probability 2^-bits."""
    bits = 0.0
    for part in (outputs[0::2], outputs[1::2]):
        bits -= sum(count * math.log2(count / len(part)) for count in Counter(part).values())
    return bits
