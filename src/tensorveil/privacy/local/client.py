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
import secrets
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


FORMAT = "tensorveil local protocol"
VERSION = 1
BITS = 62  # each row of counts adds up to 2^BITS
MOST_LEVELS, MOST_SYMBOLS = 64, 256
FIELDS = ("bits", "counts", "edges", "epsilon", "format", "high", "levels", "low", "version")
SUFFIX = "_symbol"  # of the column of answers, after the name of the column of values
FORMATS = ("csv", "tsv", "parquet")
DELIMITERS = {"csv": ",", "tsv": "\t"}
PRECISION = 256  # bits after the point, in which e^epsilon is computed

DESCRIPTION = """Randomize values at their source, so that the server that gets the answers need not be trusted. The
client checks for itself that no answer is more than e^epsilon times likelier for one value than for another, and draws
from the operating system's randomness. The output has the modes and one symbol per value, sorted by cell, and nothing
else. A cell that was answered before gets its first answer again, which costs nothing more. Exit status: 0, done; 2,
invalid input, nothing was answered."""

Cell = tuple[str, ...]
Drawn = Callable[[Sequence[float], "LocalProtocol"], Sequence[int]]


@dataclass(frozen=True)
class LocalProtocol:
    """What a client and the server agree on; made by `tensorveil protocol`, checked whenever it is made or read.

    Attributes
    ----------
    epsilon : what each answer costs at most
    low, high : public bounds of the values
    levels : the public values that are told apart, or None if the bounds are cut into cells
    edges : where levels meet; the level of a value is the number of edges at or below it
    counts : one row per level, one column per symbol; Q(symbol | level) = counts / 2^62
    """

    epsilon: float
    low: float
    high: float
    levels: tuple[float, ...] | None
    edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]

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
    def load(cls, path: str | os.PathLike[str]) -> LocalProtocol:
        """A protocol from its file."""
        try:
            return cls.from_json(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"protocol must be a file that can be read, got {path} ({error.strerror})") from error

    def save(self, path: str | os.PathLike[str]) -> Path:
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
    """Refuse a table whose largest log ratio might be above epsilon; exact, in whole numbers.

    The sum of the first terms of the series of e^epsilon, each rounded down, is at most e^epsilon [L1]. So a table is
    refused if in doubt, and accepted only if it keeps its promise.
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
            raise InputError(
                f"counts must keep within epsilon = {epsilon!r}, got a symbol that is more than e^epsilon times "
                "likelier under one level than under another; do not answer, and tell whoever made the protocol"
            )


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

    It holds cells, their labels joined by tabs, and symbols, all of which the server has as well, and no value. It
    belongs to one protocol and to the columns that were asked about.
    """

    def __init__(
        self, protocol: LocalProtocol, path: str | os.PathLike[str] | None = None, columns: Sequence[str] = ()
    ) -> None:
        self.path = None if path is None else Path(path)
        self.protocol, self.columns = protocol.sha256, list(columns)
        self.symbols, self.answers = range(len(protocol.counts[0])), dict[str, int]()
        self._read()

    def _read(self) -> None:
        path = self.path
        if path is None or not path.exists():
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            answers = {str(cell): _number(symbol, int) for cell, symbol in found["answers"].items()}
            if not all(symbol in self.symbols for symbol in answers.values()):
                raise ValueError("another symbol than the protocol has")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"memory must be a file of earlier answers, got {path.name} ({error})") from error
        if found["protocol"] != self.protocol or found.get("columns") != self.columns:
            raise InputError(
                "memory must be of the same protocol, modes and value, got that of others; new answers about the same "
                "values cost their epsilon once more: if that is meant, name another memory"
            )
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


def draw(values: Iterable[float], protocol: LocalProtocol) -> list[int]:
    """One symbol per value, each by 62 random bits of its own from the operating system."""
    return [protocol.symbol(protocol.level(value), secrets.randbits(BITS)) for value in values]


def answer(
    cells: Sequence[Cell], values: Sequence[float], protocol: LocalProtocol, memory: Memory | None, drawn: Drawn = draw
) -> tuple[list[tuple[Cell, int]], int]:
    """Cells and symbols in the order of the cells, and how many were drawn anew.

    The order of the rows may tell values, so it is forgotten: answers are sorted by cell, and then by symbol [L3]. With
    a memory, a cell must occur once, and a cell that was answered before gets its first answer, whatever its value is
    now [L4].
    """
    if len(cells) != len(values):
        raise InputError(f"there must be one cell per value, got {len(cells)} and {len(values)}")
    if memory is None:
        return sorted(zip(cells, map(int, drawn(values, protocol)), strict=True)), len(cells)
    keys = ["\t".join(cell) for cell in cells]
    if len(set(keys)) != len(keys):
        raise InputError(
            f"every cell must occur once for its answer to be remembered, got {len(keys) - len(set(keys)):,} again; "
            "name the mode that tells them apart, e.g. a time, or answer without a memory"
        )
    if any(key.count("\t") != len(cell) - 1 for key, cell in zip(keys, cells, strict=True)):
        raise InputError("labels must not contain tabs, got some that do; replace them")
    with memory.held() as given:
        new = [place for place, key in enumerate(keys) if key not in given]
        symbols = drawn([values[place] for place in new], protocol)
        given |= {keys[place]: int(symbol) for place, symbol in zip(new, symbols, strict=True)}
    return sorted(zip(cells, (given[key] for key in keys), strict=True)), len(new)


def read_rows(
    path: Path, kind: str, modes: Sequence[str], value: str, columns: Sequence[str] | None = None
) -> tuple[list[Cell], list[float]]:
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
        cells: list[Cell] = []
        values: list[float] = []
        for row in lines:
            if not row:
                continue
            try:
                number = float(row[last])
                cells.append(tuple(row[place].strip() for place in places))
            except (ValueError, IndexError):
                number = math.nan
            if not math.isfinite(number) or not all(cells[-1]):
                raise InputError(f"line {lines.line_num} of {path.name} must have labels and a number, got others")
            values.append(number)
    return cells, values


def write_rows(
    path: Path, modes: Sequence[str], value: str, answers: Sequence[tuple[Cell, int]], protocol: str = ""
) -> None:
    """Answers as CSV; the hash of the protocol has no place in it."""
    if path.suffix.lower() != ".csv":
        raise InputError(f"--out must end in .csv for this client, got {path.name}; rename it")

    def write(file: Any) -> None:
        header = [*modes, value + SUFFIX]
        csv.writer(file, lineterminator="\n").writerows([header, *([*cell, str(symbol)] for cell, symbol in answers)])

    write_aside(path, write)


def write_aside(path: str | os.PathLike[str], write: Callable[[Any], object]) -> Path:
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
    found = dict(pairs)
    if len(found) != len(pairs):
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
    return (
        f"wrote {len(answers):,} answers to {asked.out}, {new:,} of them new\n"
        f"each new answer costs epsilon {protocol.epsilon:g}; a person who gave m answers has spent m times that{kept}"
    )


def main(
    arguments: Any = None, read: Any = read_rows, write: Any = write_rows, drawn: Drawn = draw, program: str = ""
) -> None:
    """The client as a program."""
    try:
        print(run(parser(program).parse_args(arguments), read, write, drawn))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
