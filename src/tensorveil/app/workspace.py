"""What the app works with on disk: releases in a folder, a ledger, and uploads that are deleted at the end."""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tensorveil.app.runs import FAILED_AFTER_SPENDING, LEDGER_REFUSED, Run, job_text
from tensorveil.errors import InputError, TensorveilError
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.ledger.accounts import VOID, accounts_of
from tensorveil.release.ledger.chain import Chain
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.saving import CERTIFICATE, FILES

NAME = re.compile(r"[^\W_][\w .()-]{0,99}")
PREFIX, LOCK = "tensorveil-app-", "in-use"  # of temporary folders
MOST_COLUMNS = 1000  # that a page can offer for choice


@final
@dataclass(frozen=True)
class Outcome:
    """How a run ended: whether it is good, in a few words, and what the command line or the ledger says about it."""

    good: bool
    title: str
    text: str


@final
@dataclass(frozen=True)
class Past:
    """A folder of a release: its certificate, or why it cannot be read."""

    name: str
    certificate: Certificate | None
    error: str = ""


@final
class Workspace:
    """The folder of releases, the ledger, the temporary folder, and the run that is going on, if any.

    Attributes
    ----------
    folder : where releases are written; created if it does not exist
    ledger : the file of the ledger; it need not exist
    run, job, name : the last run, the text of its job and the name of its release
    """

    def __init__(self, folder: Path, ledger: Path | None = None) -> None:
        self.folder = folder.absolute()
        self.ledger = (self.folder / "ledger.sqlite" if ledger is None else ledger).absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"folder must be one that can be created, got {folder} ({error.strerror}); choose another"
            ) from error
        _remove_leftovers()
        self.temporary = Path(tempfile.mkdtemp(prefix=PREFIX))  # for its owner alone
        self._lock = (self.temporary / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # as long as this process lives
        self.run: Run | None = None
        self.name = self._dataset = ""
        self._entries = 0

    def close(self) -> Outcome | None:
        """Interrupt what is running and delete all uploads; returns how an interrupted run ended."""
        interrupted = self.run if self.run is not None and self.run.running else None
        if interrupted is not None:
            interrupted.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self._lock.close()
        return None if interrupted is None else self.outcome()

    def taken_in(self, upload: Path, name: str) -> Path:
        """Move an upload to a folder of its own, under the name that it had; returns the new place."""
        place = Path(tempfile.mkdtemp(prefix="upload-", dir=self.temporary))
        kept = "".join(sign for sign in Path(name.replace("\\", "/")).name if sign.isprintable()).strip(" .")[-100:]
        return Path(shutil.move(upload, place / (kept or "upload")))

    def forget(self, upload: Path) -> None:
        """Delete an upload, unless a run may still read it; that one is deleted at the end."""
        if upload.is_relative_to(self.temporary) and (self.run is None or not self.run.running):
            shutil.rmtree(upload.parent, ignore_errors=True)

    def target(self, name: str) -> Path:
        """The folder of a new release of this name."""
        if not NAME.fullmatch(name):
            raise InputError(
                f"the name of a release must be letters, digits, spaces or _.()- and begin with a letter or digit, "
                f"got {name!r:.60}; correct it"
            )
        return self.folder / name

    def free_name(self) -> str:
        """A name that no release has."""
        number = 1
        while (self.folder / f"release {number}").exists():
            number += 1
        return f"release {number}"

    def job_file(self, options: dict[str, Any]) -> Path:
        """A configuration file with these options."""
        place = Path(tempfile.mkdtemp(prefix="job-", dir=self.temporary)) / "job.toml"
        place.write_text(job_text(options), encoding="utf-8")
        return place

    def command(self, *arguments: str) -> Run:
        """Start a command that spends nothing."""
        return Run(arguments)

    def start(self, options: dict[str, Any]) -> None:
        """Start the run of a job; one at a time."""
        if self.run is not None and self.run.running:
            raise InputError("a run must end before the next one starts, got one that is going on; wait or cancel it")
        self.name, self._dataset = Path(options["out"]).name, options.get("dataset") or ""
        self._entries = len(Chain(self.ledger).read()) if self._dataset else 0
        self.run = Run(["complete", "--config", str(self.job_file(options)), "--json"])

    def outcome(self) -> Outcome:
        """How the last run ended, and what it spent."""
        run = self.run
        if run is None or run.status is None:
            raise InputError("a run must have ended to have an outcome, got none; wait for it")
        if run.status == 0:
            return Outcome(True, "Done", f"The release is in {self.folder / self.name}. {self._spent(run)}")
        if run.cancelled:
            return Outcome(False, "Cancelled", f"No release was written. {self._spent(run)}")
        title = {LEDGER_REFUSED: "Refused by the ledger", FAILED_AFTER_SPENDING: "Failed after the budget was reserved"}
        return Outcome(False, title.get(run.status, "Not possible"), f"{run.error}\n{self._spent(run)}")

    def _spent(self, run: Run) -> str:
        """What the ledger says about the budget of a run that has ended."""
        if not self._dataset:
            return (
                "No ledger pays for this run; keep account of its epsilon yourself."
                if run.status == 0
                else ("No ledger was charged.")
            )
        try:
            entries = Chain(self.ledger).read()
        except TensorveilError as error:
            return f"The ledger cannot be read: {error}"
        account = accounts_of(entries)[self._dataset]
        mine = [entry.number for entry in entries[self._entries :] if entry.body["process"] == run.process_id]
        told = [
            f"reservation {number} of data set {self._dataset!r} (epsilon {account.reserved[number]['epsilon']:g}) "
            "counts as spent"
            for number in mine
            if account.states.get(number, VOID) != VOID
        ]
        return f"The ledger says: {'; '.join(told)}." if told else "Nothing was spent: the ledger is as it was."

    def stamps(self) -> list[tuple[str, int]]:
        """Names of all releases in the folder and the times of their certificates, the latest first."""
        found = []
        for path in self.folder.glob("[!.]*"):  # a name with a dot is a folder that is being written
            with suppress(OSError):  # no release, or one that was removed just now
                found.append((path.name, (path / CERTIFICATE).stat().st_mtime_ns))
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def releases(self) -> list[Past]:
        """All releases in the folder, the latest first."""
        return [_past(self.folder / name) for name, _ in self.stamps()]

    def released_file(self, name: str, file: str) -> Path | None:
        """A file of a release in the folder, by names that a browser sent; None if there is no such file."""
        if file not in FILES or name not in {path.name for path in self.folder.iterdir()}:
            return None
        place = self.folder / name / file
        return place if place.is_file() and not place.is_symlink() and not place.parent.is_symlink() else None

    def budgets(self) -> dict[str, dict[str, Any]]:
        """Data set -> its unit, budget, and what is spent and remains; empty where there is no ledger yet."""
        if not self.ledger.exists():
            return {}
        found: dict[str, dict[str, Any]] = Ledger(self.ledger).export()["datasets"]
        return found


def _remove_leftovers() -> None:
    """Delete the uploads of apps that were killed: their folders are locked by no process any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / LOCK).open("r") as lock:  # another user's folder cannot be opened
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _past(path: Path) -> Past:
    try:
        return Past(path.name, Certificate.from_json((path / CERTIFICATE).read_bytes()))
    except (TensorveilError, OSError) as error:
        return Past(path.name, None, str(error))
