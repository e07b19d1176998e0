"""A file of entries that can only grow: SQLite, every entry hashed over the one before it.

Many processes may read and append at the same time. Each call opens the file, works inside one transaction and closes
it, so nothing is shared across a fork, and a process that dies leaves the file as it was before or after its entry.
"""

import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from tensorveil.errors import BudgetError, InputError

START = "0" * 64  # what the first entry is hashed over
PATIENCE = 120.0  # seconds to wait for other processes
SILENCE = 2.0  # of these, before a line says what is waited for
NO_LEDGER = "ledger must be a file made by tensorveil ledger create (Ledger.create)"
MARK = 0x74766C31  # SQLite's application_id: "tvl1"
SCHEMA = {
    "entries": "CREATE TABLE entries (number INTEGER PRIMARY KEY, previous TEXT NOT NULL, body TEXT NOT NULL, "
    "hash TEXT NOT NULL)",
    "entries_are_not_changed": "CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
    "entries_are_not_deleted": "CREATE TRIGGER entries_are_not_deleted BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
    # also keeps INSERT OR REPLACE, which fires no trigger of DELETE, from replacing an entry
    "entries_follow_each_other": "CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries "
    "WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM entries) OR NEW.previous IS NOT "
    f"coalesce((SELECT hash FROM entries ORDER BY number DESC LIMIT 1), '{START}') "
    "BEGIN SELECT RAISE(ABORT, 'an entry must follow the last one'); END",
}

# SQLite keeps its locks in the process: a fork inside another thread's call would copy them as if they were held
_gate = threading.Lock()
os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_gate.release)


@final
@dataclass(frozen=True)
class Entry:
    """One entry: what it says, and the hash that ties it to all before."""

    number: int
    previous: str
    text: str
    hash: str

    @property
    def body(self) -> dict[str, Any]:
        """What the entry says."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values; `text` is what was hashed, byte by byte."""
        return {"number": self.number, "previous": self.previous, "hash": self.hash, "text": self.text}


def canonical(body: Mapping[str, Any]) -> str:
    """JSON in one form only: sorted keys, no spaces, ASCII, no infinities."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def hash_of(previous: str, text: str) -> str:
    """SHA-256 of an entry's text after the hash of the entry before."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def first_fault(entries: Sequence[Entry]) -> str | None:
    """A description of the first damaged entry, or None."""
    previous = START
    for place, entry in enumerate(entries, start=1):
        if entry.number != place:
            return f"entry {place}, which is missing or renumbered"
        if entry.previous != previous:
            return f"entry {place}, which does not follow the entry before it"
        if entry.hash != hash_of(previous, entry.text):
            return f"entry {place}, whose text or hash was changed"
        try:
            body = json.loads(entry.text)
        except ValueError:
            body = None
        if not isinstance(body, dict) or body.get("number") != place:
            return f"entry {place}, whose text is not that of an entry"
        previous = entry.hash
    return None


@final
class Chain:
    """The entries of one file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self) -> None:
        """Make an empty file of entries where there is none; one that exists is left as it is.

        The file gets its name when it is whole, so that an empty file of this name is none of ours.
        """
        if not self.path.parent.is_dir():
            raise InputError(f"ledger must be a file that can be written, got {self.path}; check its folder")
        if not self.path.exists():
            aside = Chain(self.path.with_name(f".{self.path.name[:100]}.{os.getpid()}.{threading.get_ident()}.part"))
            try:
                with aside._transaction("rwc") as connection:
                    for statement in SCHEMA.values():
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {MARK}")
                with suppress(FileExistsError):  # another process was faster
                    os.link(aside.path, self.path)
            except OSError as error:
                raise InputError(
                    f"ledger must be on a disk that can be written and can link files, got {error.strerror}; "
                    f"choose another place than {self.path}"
                ) from error
            finally:
                for ending in ("", "-journal"):
                    aside.path.with_name(aside.path.name + ending).unlink(missing_ok=True)
        with self._transaction("rw", "BEGIN") as connection:
            self._check_form(connection)

    def read(self) -> tuple[Entry, ...]:
        """All entries, each verified; BudgetError names the first that is not as it was written."""
        entries = self.read_unverified()
        self._verify(entries)
        return entries

    def read_unverified(self) -> tuple[Entry, ...]:
        """All entries in the file, unverified."""
        with self._transaction("rw", "BEGIN") as connection:
            self._check_form(connection)
            return self._entries(connection)

    def append(self, decide: Callable[[tuple[Entry, ...]], Mapping[str, Any]]) -> Entry:
        """Add the entry that `decide` makes of all entries so far; nobody else adds one in between.

        Number, time and process are added here. Whatever `decide` raises leaves the file as it was.
        """
        with self._transaction("rw") as connection:
            self._check_form(connection)
            entries = self._entries(connection)
            self._verify(entries)
            number, previous = len(entries) + 1, entries[-1].hash if entries else START
            when = datetime.now(UTC).isoformat(timespec="microseconds")
            text = canonical({**decide(entries), "number": number, "time": when, "process": os.getpid()})
            entry = Entry(number, previous, text, hash_of(previous, text))
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (number, previous, text, entry.hash))
        return entry

    @contextmanager
    def _transaction(self, mode: str, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """A transaction, by default with the write lock from its start; committed on leaving, undone on an error."""
        if mode == "rw" and not self.path.is_file():
            raise InputError(
                f"ledger must be an existing file, got {self.path}; "
                "create it with tensorveil ledger create (Ledger.create)"
            )
        if mode == "rw" and self.path.stat().st_size == 0:
            raise BudgetError(
                f"the ledger must hold its entries, got an empty file, {self.path}; restore it from a backup, "
                "or remove it if it never was a ledger"
            )
        place = f"{self.path.absolute().as_uri()}?mode={mode}"
        with _gate:
            try:
                patience = min(SILENCE, PATIENCE)
                with closing(sqlite3.connect(place, timeout=patience, isolation_level=None, uri=True)) as connection:
                    self._begin(connection, begin)
                    try:
                        yield connection
                    except BaseException:
                        if connection.in_transaction:  # a full disk has undone it already
                            connection.execute("ROLLBACK")
                        raise
                    connection.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                raise _told(self.path, error) from error

    def _begin(self, connection: sqlite3.Connection, begin: str) -> None:
        """Begin a transaction; a line says what is waited for when another process has the file for long."""
        try:
            _locked(connection, begin)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        logging.getLogger("tensorveil").warning(
            "waiting for the ledger %s, which another process has locked; for %.0f s at most", self.path, PATIENCE
        )
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * PATIENCE)}")
        _locked(connection, begin)

    def _check_form(self, connection: sqlite3.Connection) -> None:
        found = dict(connection.execute("SELECT name, sql FROM sqlite_master"))
        if "entries" not in found or connection.execute("PRAGMA application_id").fetchone() != (MARK,):
            raise InputError(f"{NO_LEDGER}, got {self.path}; name another file")
        if found != SCHEMA:
            raise BudgetError(
                f"the ledger's rules must be as they were made, got others in {self.path}; "
                "somebody changed the file: do not release anything, restore it from a backup"
            )

    def _entries(self, connection: sqlite3.Connection) -> tuple[Entry, ...]:
        rows = connection.execute("SELECT number, previous, body, hash FROM entries ORDER BY number")
        return tuple(Entry(number, str(previous), str(text), str(found)) for number, previous, text, found in rows)

    def _verify(self, entries: Sequence[Entry]) -> None:
        fault = first_fault(entries)
        if fault is not None:
            raise BudgetError(
                f"the ledger's entries must be as they were written, got {fault}, in {self.path}; "
                "somebody changed the file: do not release anything, restore it from a backup"
            )


def _locked(connection: sqlite3.Connection, begin: str) -> None:
    """A transaction that has its lock: a plain BEGIN takes that of readers only with the first reading."""
    connection.execute("PRAGMA synchronous = EXTRA")  # committed means on the disk, name included
    connection.execute(begin)
    connection.execute("SELECT count(*) FROM sqlite_master")


def _told(path: Path, error: sqlite3.DatabaseError) -> BudgetError | InputError:
    """The tensorveil error for an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BudgetError(
            f"the ledger must become free within {PATIENCE:.0f} s, but {path} stayed locked; try again later"
        )
    if code is not None and code & 0xFF == sqlite3.SQLITE_NOTADB:
        return InputError(f"{NO_LEDGER}, got {path}; name another file")
    if code is not None and code & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return InputError(f"ledger must be a file that can be written, got {path} ({error}); check its folder")
    return BudgetError(f"the ledger must be readable and whole, got {error} in {path}; nothing was added")
