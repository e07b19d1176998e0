"""Runs of the command line: each in a process of its own, which can be watched and interrupted as with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import IO, Any, final

PATIENCE = 60.0  # seconds for an interrupted process to end by itself
WRONG_INPUT, LEDGER_REFUSED, FAILED_AFTER_SPENDING = 2, 3, 4  # statuses of the command line


@final
class Run:
    """One command in a process of its own.

    Attributes
    ----------
    task, done, total : the last report of progress
    status : the exit status; None while the process runs
    cancelled : whether `cancel` was called
    result : what the command printed as JSON; None if it printed none
    error : the error as the command line shows it, without "error:"; empty if there is none
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.task, self.done, self.total = "starting", 0, 0
        self.status: int | None = None
        self.cancelled = False
        self.result: dict[str, Any] | None = None
        self.error = ""
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tensorveil", *arguments],
            env={**os.environ, "TENSORVEIL_PROGRESS": "json", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C in the terminal of the app reaches it through `cancel` alone
        )
        self._watcher = Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def process_id(self) -> int:
        """The number by which the ledger names the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.status is None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def cancel(self) -> None:
        """Interrupt the process, as Ctrl-C does."""
        self.cancelled = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    @property
    def progress(self) -> tuple[Any, ...]:
        """What changes while the process runs."""
        return (
            id(self),
            self.task,
            self.done,
            self.total,
            self.status,
            self.cancelled,
            self.running and int(self.seconds),
        )

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end, or for so many seconds."""
        self._watcher.join(seconds)

    def stop(self) -> None:
        """Interrupt the process and wait; one that does not end is killed."""
        self.cancel()
        self.wait(PATIENCE)
        if self.running:
            self._process.kill()
            self.wait()

    def _watch(self) -> None:
        printed: list[str] = []
        errors: list[str] = []
        with self._process as process:  # closes the pipes at the end, and waits
            reader = Thread(target=lambda: printed.append(_stream(process.stdout).read()), daemon=True)
            reader.start()
            for line in _stream(process.stderr):
                report = _report(line)
                if report is not None:
                    self.task, self.done, self.total = str(report["task"]), int(report["done"]), int(report["total"])
                else:
                    errors.append(line.rstrip("\n"))
            reader.join()
        status = process.wait()
        stated = [line.removeprefix("error: ") for line in errors if line.startswith("error: ")]
        if stated:
            self.error = stated[-1]
        elif status and not self.cancelled:
            self.error = f"the run ended with status {status}: {errors[-1] if errors else 'no message'}"
        if "".join(printed).strip() and status == 0:
            self.result = json.loads("".join(printed))
        self.status = status


def _stream(found: IO[str] | None) -> IO[str]:
    if found is None:
        raise RuntimeError("a process without pipes")
    return found


def _report(line: str) -> dict[str, Any] | None:
    """A report of progress, or None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"task", "done", "total"} <= set(found) else None


def job_text(options: Mapping[str, Any]) -> str:
    """A configuration file of `tensorveil complete` with these options; those that are None or empty are left out.

    Examples
    --------
    >>> print(job_text({"modes": ["user", "film"], "epsilon": 2, "rank": None, "bin": {"film": "day"}}))
    modes = ["user", "film"]
    epsilon = 2
    <BLANKLINE>
    [bin]
    "film" = "day"
    <BLANKLINE>
    """
    given = {name: found for name, found in options.items() if found not in (None, "", [], (), {})}
    lines = [f"{name} = {_toml(found)}" for name, found in given.items() if not isinstance(found, Mapping)]
    for name, found in given.items():
        if isinstance(found, Mapping):
            lines += ["", f"[{name}]", *(f"{_toml(key)} = {_toml(part)}" for key, part in found.items())]
    return "\n".join([*lines, ""])


def advice_arguments(options: Mapping[str, Any]) -> list[str]:
    """The arguments of `tensorveil advise` for a job with these options, whatever its epsilon."""
    found = ["advise", str(options["input"]), "--json"]
    for name in ("modes", "public_labels"):
        found += [f"--{name.replace('_', '-')}={','.join(options[name])}"] if options[name] else []
    for name in ("value", "unit", "delta", "at_most", "expected_count", "mechanism", "format", "columns", "shape"):
        found += [f"--{name.replace('_', '-')}={options[name]}"] if options[name] not in (None, "") else []
    for name in ("bin", "labels"):
        found += [f"--{name}={mode}={kind}" for mode, kind in options[name].items()]
    found += [f"--duplicates={options['duplicates']}"]
    found += ["--bounds", *map(str, options["bounds"])] if options["bounds"] else []
    found += [f"--models={'cp,tucker' if options['model'] == 'auto' else options['model']}"]
    return [*found, f"--ranks={options['rank']}"] if options["rank"].isdecimal() else found


def _toml(found: Any) -> str:
    """A text, a number or a list in TOML, whose texts and numbers JSON writes in the same way, but for one letter."""
    return json.dumps(found, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
