"""Terminal output shared by the commands: progress goes to standard error, results to standard output."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Literal

import typer

LINE_EVERY = 10.0  # seconds, where no bar can be drawn
REPORT_EVERY = 0.2  # seconds between reports for programs
FOR_PROGRAMS = "TENSORVEIL_PROGRESS"  # environment variable: "json" makes every report a line of JSON

Advance = Callable[[str, int, int], None]


@contextmanager
def progress_bar(threads: bool = True) -> Iterator[Advance]:
    """A function (task, done, total) that shows progress on standard error inside the `with` block.

    In a terminal it draws a bar; in a log file or a pipe it writes a line every ten seconds. Without `threads` the bar
    moves at reports only, and no lines are written. A program that starts the command line, such as the browser app,
    sets TENSORVEIL_PROGRESS=json and gets the reports as lines of JSON.
    """
    if os.environ.get(FOR_PROGRAMS) == "json":
        yield _Reports()
    elif sys.stderr.isatty():
        with _bar(threads) as advance:
            yield advance
    elif threads:
        with _lines() as advance:
            yield advance
    else:
        yield lambda what, done, total: None


@contextmanager
def _bar(refreshing: bool) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    look = (*columns, TimeElapsedColumn())
    with Progress(*look, console=Console(stderr=True), transient=True, auto_refresh=refreshing) as bar:
        line = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            line, description=what, completed=done, total=total, refresh=not refreshing
        )


@contextmanager
def _lines() -> Iterator[Advance]:
    """A thread of its own writes the lines, so that they also appear while one step takes long."""
    pace, ended = Pace(time.monotonic()), Event()

    def write() -> None:
        while not ended.wait(LINE_EVERY):
            typer.echo(pace.line(time.monotonic()), err=True)

    writer = Thread(target=write, daemon=True)
    writer.start()
    try:
        yield lambda what, done, total: pace.advance(what, done, total, time.monotonic())
    finally:
        ended.set()
        writer.join()


class _Reports:
    """Writes reports as lines of JSON: the first and the last of each task, and others a few times per second."""

    def __init__(self) -> None:
        self._task, self._last = "", -REPORT_EVERY

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._task or done >= total or now - self._last >= REPORT_EVERY:
            self._task, self._last = what, now
            typer.echo(json.dumps({"task": what, "done": done, "total": total}), err=True)


class Pace:
    """How far a run is, and how long the rest of its task will take at the pace of the task so far.

    The first step of a task is not counted, since it includes what is prepared once.
    """

    def __init__(self, now: float) -> None:
        self.started = now
        self.what, self.done, self.total = "starting", 0, 0
        self.first, self.since, self.last = 0, now, now  # steps and time at the first report of the task

    def advance(self, what: str, done: int, total: int, now: float) -> None:
        """Note a report of progress."""
        if what != self.what:
            self.first, self.since = done, now
        self.what, self.done, self.total, self.last = what, done, total, now

    def left(self, now: float) -> float | None:
        """Seconds until the task ends, or None if its pace is not known yet."""
        steps = self.done - self.first
        if steps <= 0:
            return None
        return max((self.total - self.done) * (self.last - self.since) / steps - (now - self.last), 0.0)

    def line(self, now: float) -> str:
        """The task, its steps, the time so far and the time left, e.g. "sweeps 12 of 48, 1:30 so far, 4:10 left"."""
        steps = f" {self.done:,} of {self.total:,}" if self.total > 1 else ""
        left = self.left(now)
        rest = "" if left is None else f", about {_clock(left)} left for {self.what}"
        return f"{self.what}{steps}, {_clock(now - self.started)} so far{rest}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def say(text: str, *, aside: bool = False) -> None:
    """Print a line; with `aside` it goes to standard error, so that standard output holds only JSON."""
    typer.echo(text, err=aside)


def print_json(found: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json.dumps(found, indent=1, allow_nan=False))


def print_table(
    rows: Iterable[Sequence[str]],
    headings: Sequence[str] = ("", ""),
    *,
    title: str | None = None,
    caption: str | None = None,
    numbers: Sequence[str] = (),
) -> None:
    """Print a table whose long cells are folded, not cut; columns of `numbers` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=caption, show_header=any(headings))
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if heading in numbers else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=place == 0 or heading in numbers)
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)


def counted(number: int, thing: str) -> str:
    """A number of things, e.g. "1 row" or "2,000 rows"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
