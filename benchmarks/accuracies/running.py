"""Runs in several processes, and the file that their rows are appended to as they come.

A row is one run, one line of JSON. It holds the version of the code that made it: a digest of the sources without
comments and docstrings, so that it does not depend on a commit. A run whose row of this version is there is not
repeated.
"""

from __future__ import annotations

import ast
import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing.queues import Queue
from pathlib import Path

import tensorveil
from accuracies import halves, others
from accuracies.measuring import OF_THE_LIBRARY, OURS, OURS_WITH_FEATURES, Row, Run, measured

HERE = Path(__file__).parent
PEERS = HERE.parent / "peers"
LIBRARY = Path(tensorveil.__file__).parent
NO_INFLUENCE = ("cli", "audit", "demo.py", "release/report", "release/certificate", "release/ledger")
KEY = ("data", "unit", "epsilon", "delta", "method", "variant", "seed")


def key(row: Row) -> tuple[object, ...]:
    """What tells a row's run from others, whatever version of the code made it."""
    return tuple(row[name] for name in KEY)


@cache
def _digest(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:12]


@cache
def _library_files() -> tuple[Path, ...]:
    found = ((path.relative_to(LIBRARY).as_posix(), path) for path in sorted(LIBRARY.rglob("*.py")))
    return tuple(path for name, path in found if not name.startswith(NO_INFLUENCE))


def version(run: Run) -> str:
    """The digest of the sources that the row of a run depends on."""
    files = [HERE / "measuring.py", HERE / "halves.py"]
    if run.data not in halves.REAL:
        files.append(HERE / "generated.py")
    if run.method in others.METHODS:
        files += [HERE / "others.py", PEERS / "cells.py", Path(str(others.METHODS[run.method].__file__))]
    elif run.method not in (OURS, OURS_WITH_FEATURES):
        files.append(HERE / "baselines.py")
    library = run.method in (*OF_THE_LIBRARY, *others.PRIVATE)
    return _digest((*files, *(_library_files() if library else ())))


def read_rows(path: Path) -> list[Row]:
    """The latest row of every run in a file, in the order of the runs; a line that was cut off is left out."""
    latest: dict[tuple[object, ...], Row] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the program was ended while it wrote
                continue
            latest[key(row)] = row
    return [latest[found] for found in sorted(latest, key=str)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """The file with these rows and no others, whole or as it was."""
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
    aside.replace(path)


def missing(runs: Sequence[Run], rows: Sequence[Row], tag: str | None) -> list[Run]:
    """The runs without a row of their version (or of the given one), failed ones included."""
    there = {(key(row), row["version"]) for row in rows if "error" not in row}
    return [run for run in runs if (key(run.facts), tag or version(run)) not in there]


def run_all(runs: Sequence[Run], path: Path, workers: int, tag: str | None) -> Iterator[Row]:
    """Rows as they come, each appended to the file before it is handed on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes: a core each
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    available = sorted(os.sched_getaffinity(0))
    for worker in range(workers):
        cores.put(available[worker % len(available)])
    with path.open("a") as file, ProcessPoolExecutor(workers, context, _pin, (cores,)) as pool:
        waiting = {pool.submit(others.measured if run.method in others.METHODS else measured, run): run for run in runs}
        try:
            for done in as_completed(waiting):
                run = waiting[done]
                row = done.result() | {"version": tag or version(run)}
                file.write(json.dumps(row, allow_nan=False) + "\n")
                file.flush()
                yield row
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _pin(cores: Queue[int]) -> None:
    """A process per core, each with one thread: faster than threads that wait for each other."""
    os.sched_setaffinity(0, {cores.get()})
