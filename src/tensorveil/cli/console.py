"""Terminal output shared by the commands: progress goes to standard error, results to standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


@contextmanager
def progress_bar(shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A function (task, done, total) that draws a progress bar on standard error inside the `with` block."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    hidden = not shown or not console.is_terminal  # in a log the bar would leave empty lines
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=hidden) as bar:
        line = bar.add_task("", total=None)

        def advance(what: str, done: int, total: int) -> None:
            bar.update(line, description=what, completed=done, total=total)

        yield advance


def say(text: str, *, aside: bool = False) -> None:
    """Print a line; with `aside` it goes to standard error, so that standard output holds only JSON."""
    typer.echo(text, err=aside)


def print_json(found: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json.dumps(found, indent=1, allow_nan=False))


def counted(number: int, thing: str) -> str:
    """A number of things, e.g. "1 row" or "2,000 rows"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
