"""A client of the local protocol in one file of plain Python: copy it to where the values arise.

It needs the standard library only, reads CSV, and is written to be translated: docs/local_privacy.md explains the
protocol and has test vectors. Inside tensorveil, `tensorveil randomize` and `tv.randomize` read protocols with it and
draw with NumPy.

    python client.py ratings.csv --modes user,film --value rating --protocol protocol.json --out answers.csv

A value never leaves this program. What leaves it is a symbol, drawn from a table of whole numbers in which no symbol is
more than e^epsilon times likelier under one level than under another; the client checks that for itself.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import re
import secrets
import struct
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: do not run two clients with one memory at once there
    fcntl = None  # type: ignore[assignment]
try:
    from tensorveil.errors import InputError
except ImportError:  # copied out of the library

    class InputError(ValueError):  # type: ignore[no-redef]
        """An argument or a file breaks a rule; nothing was drawn or written."""


FORMAT, VERSION = "tensorveil local protocol", 1
BITS, PRECISION = 62, 256  # rows of counts add up to 2^BITS; e^epsilon has PRECISION bits after the point
MOST_LEVELS, MOST_SYMBOLS = 64, 256
FIELDS = ("bits", "counts", "edges", "epsilon", "format", "high", "levels", "low", "version")
SUFFIX = "_symbol"  # of the column of answers, after the name of the column of values
FORMATS = ("csv", "tsv", "parquet")
DELIMITERS = {"csv": ",", "tsv": "\t"}
DATED = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)")  # how a day or a time of a day begins

DESCRIPTION = """Randomize values at their source, so that the server that gets the answers need not be trusted. The
client checks for itself that no answer is more than e^epsilon times likelier for one value than for another, and draws
from the operating system's randomness. The output has the modes and one symbol per value, sorted by cell, and nothing
else. A cell that was answered before gets its first answer again, which costs nothing more. Exit status: 0, done; 2,
invalid input, nothing was answered."""

Cell = tuple[str, ...]
Names = Sequence[str]
Rows = tuple[list[Cell], list[float]]
Place = str | os.PathLike[str]
Drawn = Callable[[Sequence[float], "LocalProtocol"], Sequence[int]]


@dataclass(frozen=True)
class LocalProtocol:
    """What a client and the server agree on; made by `tensorveil protocol`, checked whenever it is made or read."""

    epsilon: float  # what each answer costs at most
    low: float
    high: float  # public bounds of the values
    levels: tuple[float, ...] | None  # the public values that are told apart; None: the bounds are cut into cells
    edges: tuple[float, ...]  # where levels meet; the level of a value is the number of edges at or below it
    counts: tuple[tuple[int, ...], ...]  # a row per level, a column per symbol: Q(symbol | level) = counts / 2^62

    def __post_init__(self) -> None:
        _check_numbers(self)
        check_table(self.counts, self.epsilon)

    def facts(self) -> dict[str, Any]:
        """All fields but the hash, as JSON has them."""
        levels = None if self.levels is None else list(self.levels)
        told = (BITS, [list(row) for row in self.counts], list(self.edges), self.epsilon, FORMAT)
        return dict(zip(FIELDS, (*told, self.high, levels, self.low, VERSION), strict=True))

    @property
    def sha256(self) -> str:
        """SHA-256 of the canonical JSON (sorted keys, no spaces) of all fields but the hash: the protocol's name."""
        return hashlib.sha256(json.dumps(self.facts(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> str:
        """The protocol as JSON, one row of the table per line."""
        facts = {**self.facts(), "sha256": self.sha256}
        lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in facts.items() if name != "counts"]
        rows = ",\n  ".join(json.dumps(row) for row in facts["counts"])
        return "{\n" + ",\n".join([*lines, f' "counts": [\n  {rows}\n ]']) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> LocalProtocol:
        """A protocol from its JSON; a wrong table, a wrong hash or anything that is not known is refused."""
        try:
            found = json.loads(text, object_pairs_hook=_no_key_twice)
        except (ValueError, RecursionError) as error:
            raise InputError(f"a protocol must be valid JSON, got an error: {error}; ask for the file again") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
            raise InputError(f'a protocol must be a "{FORMAT}" of version {VERSION}, got another file; check the path')
        if sorted(found) != sorted((*FIELDS, "sha256")) or found["bits"] != BITS:
            raise InputError(f"a protocol must have {', '.join(FIELDS)} and sha256, with {BITS} bits, got others")
        try:
            levels = None if found["levels"] is None else tuple(map(_number, found["levels"]))
            counts = tuple(tuple(_number(count, int) for count in row) for row in found["counts"])
            epsilon, low, high = (_number(found[name]) for name in ("epsilon", "low", "high"))
            protocol = cls(epsilon, low, high, levels, tuple(map(_number, found["edges"])), counts)
        except (TypeError, OverflowError) as error:
            raise InputError(f"the fields of a protocol must be numbers, got others ({error})") from error
        if found["sha256"] != protocol.sha256:
            raise InputError("a protocol must have the sha256 that it states, got another; the file was changed")
        return protocol

    @classmethod
    def load(cls, path: Place) -> LocalProtocol:
        """A protocol from its file."""
        try:
            return cls.from_json(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"protocol must be a file that can be read, got {path} ({error.strerror})") from error

    def save(self, path: Place) -> Path:
        """Write the protocol to a file."""
        return write_aside(path, lambda file: file.write(self.to_json()))

    def level(self, value: float) -> int:
        """The number of edges at or below a value; values beyond the bounds belong to the outer levels."""
        if not math.isfinite(value):
            raise InputError(f"values must be finite, got {value!r}; leave it out")
        return bisect_right(self.edges, value)

    def symbol(self, level: int, word: int) -> int:
        """The symbol that a random word of 62 bits chooses: the number of sums of counts at or below the word."""
        return bisect_right(list(accumulate(self.counts[level])), word)  # [L2] the last sum is above every word


def check_table(counts: Sequence[Sequence[int]], epsilon: float) -> None:
    """Refuse a table whose largest log ratio might be above epsilon; exact, in whole numbers, and refused if in doubt.

    The sum of the first terms of the series of e^epsilon, each rounded down, is at most e^epsilon [L1].
    """
    if not 2 <= len(counts) <= MOST_LEVELS or not 1 <= len(counts[0]) <= MOST_SYMBOLS:
        raise InputError(f"counts must have 2 to {MOST_LEVELS} rows, to {MOST_SYMBOLS} columns, got {len(counts)} rows")
    if any(len(row) != len(counts[0]) or min(row) < 0 or sum(row) != 1 << BITS for row in counts):
        raise InputError(f"counts must be at least 0 and add up to 2^{BITS} in every row, got others; do not answer")
    top, bottom = min(epsilon, 62.0).as_integer_ratio()  # two positive counts have a ratio below e^43
    term = limit = 1 << PRECISION
    place = 0
    while term:
        place += 1
        term = term * top // (bottom * place)  # [L1]
        limit += term
    for column in zip(*counts, strict=True):
        if max(column) << PRECISION > min(column) * limit:
            told = "more than e^epsilon times likelier under one level than another; do not answer, and tell its maker"
            raise InputError(f"counts must keep within epsilon = {epsilon!r}, got a symbol that is {told}")


def _check_numbers(protocol: LocalProtocol) -> None:
    """Bounds, levels and edges: a matter of accuracy alone, as the table protects every level."""
    low, high, edges = protocol.low, protocol.high, protocol.edges
    if not (protocol.epsilon > 0 and all(map(math.isfinite, (protocol.epsilon, low, high))) and low < high):
        raise InputError(f"epsilon must be above 0, bounds in order, got {protocol.epsilon}, {low}, {high}; correct")
    if len(edges) != len(protocol.counts) - 1 or not all(one < two for one, two in pairwise((low, *edges, high))):
        raise InputError(f"edges must increase between the bounds, one less than rows of counts, got {list(edges)}")
    levels = protocol.levels
    if levels is not None:
        ends = zip((low, *edges), levels, (*edges, high), strict=False)
        if len(levels) != len(edges) + 1 or not all(a <= x <= b for a, x, b in ends):
            raise InputError(f"levels must lie between their edges, one per row of counts, got {list(levels)}")


class Memory:
    """The answers that were given, so that a question asked again gets its first answer and costs nothing more.

    It holds keys of cells and symbols, no value; the server has both. It is of one protocol and its columns alone.
    """

    def __init__(self, protocol: LocalProtocol, path: Place | None = None, columns: Names = ()) -> None:
        self.path = None if path is None else Path(os.path.realpath(path))  # a link and its file are one
        self.protocol, self.columns = protocol.sha256, list(columns)
        self.symbols, self.answers = range(len(protocol.counts[0])), dict[str, int]()
        self._read()

    def _read(self) -> None:
        path = self.path
        if path is None or not path.exists():
            return
        try:
            if path.stat().st_nlink > 1:  # it is replaced, so that its other names would keep what is in it now
                raise ValueError("a file that has several names, by hard links; remove all but one")
            found = json.loads(path.read_text(encoding="utf-8"))
            answers = dict[str, int]()
            for cell, symbol in found["answers"].items():  # of two answers that earlier versions gave, the first
                answers.setdefault(cell_key(cell.split("\t")), _number(symbol, int))
            if not all(symbol in self.symbols for symbol in answers.values()):
                raise ValueError("another symbol than the protocol has")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"memory must be a file of earlier answers, got {path.name} ({error})") from error
        if found["protocol"] != self.protocol or found.get("columns") != self.columns:
            told = "new answers about the same values cost epsilon once more: if that is meant, name another memory"
            raise InputError(f"memory must be of the same protocol, modes and value, got that of others; {told}")
        self.answers = answers

    @contextmanager
    def held(self) -> Iterator[dict[str, int]]:
        """The answers so far, to be added to; saved before any is handed out, while no other client can answer [L6]."""
        folder = None if self.path is None or fcntl is None else os.open(self.path.parent, os.O_RDONLY)
        try:
            if folder is not None:
                fcntl.flock(folder, fcntl.LOCK_EX)  # waits for another client; ends with the process
            self._read()
            yield (given := dict(self.answers))
            if self.path is not None and len(given) > len(self.answers):
                kept = {"protocol": self.protocol, "columns": self.columns, "answers": given}
                write_aside(self.path, lambda file: json.dump(kept, file))
            self.answers = given
        finally:
            if folder is not None:
                os.close(folder)


def label_key(label: str) -> str:
    """What the memory knows a label by: one text for all spellings in which programs write one number, time or truth.

    It only compares, and in doubt finds one key: labels that programs may confuse (7 and 007, whole numbers that are
    one float) get the answer of one of them, which costs nothing more; nothing is renamed.
    """
    text = unicodedata.normalize("NFKC", label).strip()
    try:
        if DATED.match(text):
            moment = datetime.fromisoformat(text.removesuffix(" UTC"))
            plain = moment.replace(tzinfo=None) - (moment.utcoffset() or timedelta())
            return str(plain).removesuffix(" 00:00:00")
        number = float(text)
        if abs(number) < 2**24 and not number.is_integer():  # 0.1 may have been 0.10000000149011612
            number = struct.unpack("f", struct.pack("f", number))[0]
        return str(int(number)) if number.is_integer() else repr(number)
    except (ValueError, OverflowError):
        return text.lower() if text.lower() in ("true", "false") else text


def cell_key(cell: Iterable[str]) -> str:
    """What the memory knows a cell by: the keys of its labels, joined by tabs."""
    return "\t".join(map(label_key, cell))


def draw(values: Iterable[float], protocol: LocalProtocol) -> list[int]:
    """One symbol per value, each by 62 random bits of its own from the operating system."""
    return [protocol.symbol(protocol.level(value), secrets.randbits(BITS)) for value in values]


def answer(
    cells: Sequence[Cell], values: Sequence[float], protocol: LocalProtocol, memory: Memory | None, drawn: Drawn = draw
) -> tuple[list[tuple[Cell, int]], int]:
    """Cells and symbols in the order of the cells, and how many were drawn anew.

    The order of the rows may tell values, so it is forgotten: answers are sorted by cell, and then by symbol [L3]. With
    a memory, a cell must occur once, and a cell whose key was answered before gets that answer, whatever its value is
    now [L4].
    """
    if len(cells) != len(values):
        raise InputError(f"there must be one cell per value, got {len(cells)} and {len(values)}")
    if memory is None:
        return sorted(zip(cells, map(int, drawn(values, protocol)), strict=True)), len(cells)
    if again := len(cells) - len(set(cells)):
        told = "name the mode that tells them apart, e.g. a time, or answer without a memory"
        raise InputError(f"every cell must occur once for its answer to be remembered, got {again:,} again; {told}")
    if any("\t" in label for cell in cells for label in cell):
        raise InputError("labels must not contain tabs, got some that do; replace them")
    asked = sorted(zip(cells, map(cell_key, cells), values, strict=True))  # cells differ, so values have no say
    with memory.held() as given:
        new = {key: value for _, key, value in reversed(asked) if key not in given}  # of one key, the first cell's
        given |= dict(zip(new, map(int, drawn(list(new.values()), protocol)), strict=True))
    return [(cell, given[key]) for cell, key, _ in asked], len(new)


def read_rows(path: Path, kind: str, modes: Names, value: str, columns: Names | None = None) -> Rows:
    """Cells and values of a text file; no other column is read."""
    if kind not in DELIMITERS:
        raise InputError(f"format must be csv or tsv for this client, got {kind or path.name!r}; name one")
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter=DELIMITERS[kind])
        names = list(columns) if columns is not None else next(lines, [])
        missing = [name for name in (*modes, value) if names.count(name) != 1]
        if missing:
            raise InputError(f"{path.name} must have one column {missing[0]!r}, got {names}; correct modes or value")
        places, last = [names.index(name) for name in modes], names.index(value)
        cells, values = list[Cell](), list[float]()
        for row in filter(None, lines):
            try:
                number = float(row[last])
                cells.append(tuple(row[place].strip() for place in places))
            except (ValueError, IndexError):
                number = math.nan
            if not math.isfinite(number) or not all(cells[-1]):
                raise InputError(f"line {lines.line_num} of {path.name} must have labels and a number, got others")
            values.append(number)
    return cells, values


def write_rows(path: Path, modes: Names, value: str, answers: Sequence[tuple[Cell, int]], protocol: str = "") -> None:
    """Answers as CSV; the hash of the protocol has no place in it."""
    if path.suffix.lower() != ".csv":
        raise InputError(f"--out must end in .csv for this client, got {path.name}; rename it")
    rows = [[*modes, value + SUFFIX], *([*cell, str(symbol)] for cell, symbol in answers)]
    write_aside(path, lambda file: csv.writer(file, lineterminator="\n").writerows(rows))


def write_aside(path: Place, write: Callable[[Any], object]) -> Path:
    """A text file, written beside its place and renamed, so that it is whole or not there."""
    target = Path(path)
    aside = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        with aside.open("w", encoding="utf-8", newline="") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        raise InputError(f"{target} must be a file that can be written, got {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
    return target


def _number(found: Any, kind: type = float) -> Any:
    if type(found) not in (int, kind):
        raise TypeError(f"{found!r} is no {kind.__name__}")
    return kind(found)


def _names(found: str) -> list[str]:
    return [name.strip() for name in found.split(",")]


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key twice")
    return found


def parser(program: str = "") -> argparse.ArgumentParser:
    """The options of the client; `tensorveil randomize` has the same."""
    found = argparse.ArgumentParser(program or None, description=DESCRIPTION)
    found.add_argument("input", type=Path, help="your own values: CSV, TSV or Parquet (this file alone: CSV, TSV)")
    found.add_argument("--modes", required=True, type=_names, help="columns that are the modes, e.g. user,film")
    found.add_argument("--value", required=True, help="column of the values")
    found.add_argument("--protocol", required=True, type=Path, help="the protocol (see tensorveil protocol)")
    found.add_argument("--out", required=True, type=Path, help="the answers to write: .csv or .parquet (alone: .csv)")
    found.add_argument("--memory", type=Path, help="file of earlier answers, to be repeated; default: OUT.memory.json")
    found.add_argument("--forget", action="store_true", help="no memory: each answer costs its epsilon each time")
    found.add_argument("--format", choices=FORMATS, help="of the input; default: taken from the file name")
    found.add_argument("--columns", type=_names, help="column names, for a file without a header")
    found.add_argument("--json", action="store_true", help="print only JSON on standard output")
    return found


def run(asked: argparse.Namespace, read: Callable[..., Any], write: Callable[..., None], drawn: Drawn) -> str:
    """Answer what was asked; returns what to print."""
    if asked.forget and asked.memory is not None:
        raise InputError("--memory and --forget must not be used together, got both; leave one out")
    protocol = LocalProtocol.load(asked.protocol)
    kind = asked.format or asked.input.suffix.lower().lstrip(".")
    cells, values = read(asked.input, kind, asked.modes, asked.value, asked.columns)
    path = asked.memory or asked.out.with_name(f"{asked.out.name}.memory.json")
    memory = None if asked.forget else Memory(protocol, path, [*asked.modes, asked.value])
    answers, new = answer(cells, values, protocol, memory, drawn)
    write(asked.out, asked.modes, asked.value, answers, protocol.sha256)
    if asked.json:
        told = (str(asked.out), len(answers), new, protocol.epsilon, protocol.sha256, memory and str(path))
        names = ("out", "answers", "new", "epsilon_per_answer", "protocol", "memory")
        return json.dumps(dict(zip(names, told, strict=True)), indent=1)
    kept = f"\nremembered in {path}: keep it, so that a question asked again costs nothing more" if memory else ""
    cost = f"each new answer costs epsilon {protocol.epsilon:g}; a person who gave m answers has spent m times that"
    return f"wrote {len(answers):,} answers to {asked.out}, {new:,} of them new\n{cost}{kept}"


def main(asked: Any = None, read: Any = read_rows, write: Any = write_rows, drawn: Any = draw, name: str = "") -> None:
    """The client as a program."""
    try:
        print(run(parser(name).parse_args(asked), read, write, drawn))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
