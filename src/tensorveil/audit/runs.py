"""Many runs of two worlds, in several processes: every run gives a vector of numbers, or is marked as failed."""

from __future__ import annotations

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
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.errors import InputError, TensorveilError
from tensorveil.mechanisms.base import Progress, no_progress

Floats = NDArray[np.float64]
Run = Callable[[], Any]
Reading = Callable[[Any], ArrayLike] | None
Batch = tuple[int, list[list[Floats | None]]]  # process, and for each world the vectors of its runs, None for a failure

# An error that a reader of the release would see is an output; errors of programming are not among these.
FAILURES: tuple[type[BaseException], ...] = (ArithmeticError, np.linalg.LinAlgError)
BATCH_SECONDS = 0.25
SUSPICIOUS_BITS = 60.0  # two processes that agree in so much chance have copied their randomness

_job: tuple[Run, Run, Reading, tuple[type[BaseException], ...]] | None = None  # of a worker process


def run_both(
    run_world_0: Run,
    run_world_1: Run,
    runs: int,
    reading: Reading = None,
    failures: tuple[type[BaseException], ...] = FAILURES,
    workers: int = 2,
    progress: Progress = no_progress,
) -> tuple[Floats, Floats]:
    """Vectors of so many runs of each world, one row a run; a row of NaN is a run that failed.

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
    """So many runs of both worlds in turn: processes that copied one generator then give the same series."""
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
    """Batches from several processes, in the order they were asked for; on any error, Ctrl-C too, no process stays."""
    sizes = [size] * (runs // size) + ([runs % size] if runs % size else [])
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=(job,))
    finished = 0

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: those of numpy survive it
            futures: list[Future[Batch]] = [executor.submit(_batch, count) for count in sizes]
        done: list[Batch] = []
        for future, count in zip(futures, sizes, strict=True):
            done.append(future.result())
            finished += count
            advance(finished)
        executor.shutdown()
        return done
    except BrokenProcessPool as error:
        raise TensorveilError("a process of the audit must not be killed, got one that was; free memory") from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()


def _start(job: Any) -> None:
    """In a new process: what to run; Ctrl-C is the parent's to handle; generators of the libraries start afresh."""
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.random.seed()  # noqa: NPY002  pipelines of others may use the global one
    _job = job


def _batch(count: int) -> Batch:
    if _job is None:
        raise InputError("a process must be started with its job, got none; call run_both")
    return _batch_of(_job, count)


def _check_fresh(done: list[Batch]) -> None:
    """Refuse runs of processes that repeat each other: then they are fewer than they seem, and the bound is wrong."""
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
    """Bits of chance in a series, by the frequencies of its outputs: two independent ones agree with chance 2^-bits."""
    bits = 0.0
    for part in (outputs[0::2], outputs[1::2]):
        bits -= sum(count * math.log2(count / len(part)) for count in Counter(part).values())
    return bits
