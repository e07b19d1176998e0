"""Text files with one entry per line, CSV, TSV and .tns: Arrow reads them, Python finds the lines of bad rows."""

from __future__ import annotations

import csv
import io
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import pyarrow as pa
from pyarrow import csv as arrow_csv

from tensorveil import checks
from tensorveil.arrays import Integers
from tensorveil.errors import InputError

BLOCK_BYTES = 2**23
LINES_SHOWN = 5
LONGEST_FIRST_LINE = 2**20  # bytes; a longer one is no line of names, or the file has no lines at all
MOST_COLUMNS = 10_000
UNICODE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")  # UTF-16 and UTF-32
TNS_BLANKS = re.compile(rb"[ \t]+")
TNS_COMMENTS = re.compile(rb"^[ ]?#[^\r\n]*", re.MULTILINE)
TNS_MARGINS = re.compile(rb"^ | (?=[\r\n]|\Z)", re.MULTILINE)


@final
@dataclass(frozen=True)
class TextFile:
    """A text file of rows of fields, and the names of its columns.

    Attributes
    ----------
    path : the file
    delimiter : the character between fields
    names : names of the columns
    skipped : number of lines before the first row
    quotes : whether fields may be quoted
    content : bytes to read instead of the file, with the same line numbers
    """

    path: Path
    delimiter: str
    names: tuple[str, ...]
    skipped: int = 0
    quotes: bool = True
    content: bytes | None = None

    def table(self, kinds: Mapping[str, pa.DataType | None]) -> pa.Table:
        """Columns of these names and types (None: inferred); all as texts if a cell does not have its column's type."""
        try:
            found = self._parse(kinds)
        except pa.ArrowInvalid:
            self._check_encoding()
            self._check_fields()
            try:
                found = self._parse(dict.fromkeys(kinds, pa.string()))
            except pa.ArrowInvalid as error:
                # Arrow's own message would quote the line
                raise InputError(
                    f"{self.path.name} must hold rows of {len(self.names)} fields, got something else; "
                    "look for a quote that is never closed, or an extremely long line"
                ) from error
        if found.num_rows == 0:
            raise self._empty()
        for name in found.column_names:
            if pa.types.is_binary(found.column(name).type):  # the type that Arrow gives to texts that are not UTF-8
                self._check_encoding()
        return found

    def lines(self, rows: Integers) -> list[int]:
        """The line numbers, counted from 1, of the first few of these rows (sorted, counted from 0)."""
        wanted = iter(rows[:LINES_SHOWN].tolist())
        found: list[int] = []
        row = next(wanted, None)
        for number, (line, _) in enumerate(self._records()):
            if row is None:
                break
            if number == row:
                found.append(line)
                row = next(wanted, None)
        return found

    def _parse(self, kinds: Mapping[str, pa.DataType | None]) -> pa.Table:
        source = pa.BufferReader(self.content) if self.content is not None else pa.OSFile(str(self.path))
        with source:
            if source.size() == 0:
                return pa.table({name: pa.array([], pa.string()) for name in kinds})
            try:
                return arrow_csv.read_csv(
                    source,
                    read_options=arrow_csv.ReadOptions(
                        column_names=list(self.names), skip_rows=self.skipped, block_size=BLOCK_BYTES
                    ),
                    parse_options=arrow_csv.ParseOptions(
                        delimiter=self.delimiter,
                        quote_char='"' if self.quotes else False,
                        newlines_in_values=self.quotes and self._has_quotes(),
                    ),
                    convert_options=arrow_csv.ConvertOptions(
                        include_columns=list(kinds),
                        column_types={name: kind for name, kind in kinds.items() if kind is not None},
                    ),
                )
            except pa.ArrowInvalid as error:
                if "Empty CSV file" in str(error):
                    return pa.table({name: pa.array([], pa.string()) for name in kinds})
                raise

    def _has_quotes(self) -> bool:
        """Whether the file has any quote: without one, Arrow may cut the text at every line end, which is faster."""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b'"') >= 0

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Rows with the number of their first line, without empty lines; ends early if Python's reader fails."""
        raw = io.BytesIO(self.content) if self.content is not None else self.path.open("rb")
        with raw, io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            reader = csv.reader(
                stream, delimiter=self.delimiter, quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
            )
            before = 0
            try:
                for fields in reader:
                    if fields and before >= self.skipped:
                        yield before + 1, fields
                    before = reader.line_num
            except csv.Error:  # a field too long for Python's reader
                return

    def _check_fields(self) -> None:
        """Refuse rows with another number of fields than there are columns."""
        count = total = 0
        lines: list[int] = []
        for line, fields in self._records():
            total += 1
            if len(fields) != len(self.names):
                count += 1
                if len(lines) < LINES_SHOWN:
                    lines.append(line)
        if not total:
            raise self._empty()
        if count:
            raise InputError(
                f"{_rows(count)} must have {len(self.names)} fields, one per column, got more or fewer in "
                f"{places('line', lines, count)}; correct or remove them, or name other columns"
            )

    def _empty(self) -> InputError:
        return InputError(f"{self.path.name} must have at least one row of data, got none; check the source")

    def _check_encoding(self) -> None:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise _not_unicode(self.path, number) from error


def open_text(path: Path, delimiter: str, columns: Sequence[str] | None) -> TextFile:
    """A CSV or TSV file; the names of its columns are those given, or else its first row."""
    _check_beginning(path)
    if columns is not None:
        return TextFile(path, delimiter, tuple(columns))
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter)
        try:
            names = next((fields for fields in reader if fields), None)
        except csv.Error as error:
            raise InputError(
                f"the first line of {path.name} must hold the names of the columns, got something else ({error}); "
                "give columns"
            ) from error
        if names is None:
            raise InputError(f"{path.name} must hold rows, got an empty file; check the source")
        if any("\udc80" <= letter <= "\udcff" for name in names for letter in name):  # bytes that are not UTF-8
            raise _not_unicode(path, reader.line_num)
        if len(names) > MOST_COLUMNS:
            raise InputError(
                f"{path.name} must have at most {MOST_COLUMNS:,} columns, got {len(names):,}; write one row per "
                "observation, with one column per mode and one for the values, not one column per index"
            )
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        if repeated:
            raise InputError(
                f"the columns of {path.name} must have different names, got {shown_names(repeated)} more than once; "
                "rename them, or give columns if the first line is data"
            )
        return TextFile(path, delimiter, tuple(names), skipped=reader.line_num)


def open_tns(path: Path, modes: Sequence[str] | None, value: str) -> TextFile:
    """A .tns file: coordinates counted from 1, then the value, separated by blanks; # begins a comment line."""
    _check_beginning(path)
    skipped, first = 0, b""
    with path.open("rb") as file:
        while line := file.readline(BLOCK_BYTES):
            if line.strip() and not line.lstrip().startswith(b"#"):
                first = line
                break
            skipped += 1
    fields = len(first.split())
    if not checks.MIN_ORDER < fields <= checks.MAX_ORDER + 1:
        raise InputError(
            f"the first line of entries of {path.name} must have {checks.MIN_ORDER} to {checks.MAX_ORDER} coordinates "
            f"and a value, got {fields} fields; remove header lines that do not begin with #"
        )
    names = [f"mode_{number}" for number in range(fields - 1)] if modes is None else list(modes)
    if len(names) != fields - 1:
        raise InputError(
            f"modes must be {fields - 1} names, one per coordinate of {path.name}, got {names}; give one each"
        )
    if value in names:
        raise InputError(f"value must not be one of the modes, got {value!r} as both; name another")
    return TextFile(path, " ", (*names, value), skipped, quotes=False)


def tns_table(file: TextFile) -> tuple[pa.Table, TextFile]:
    """The columns of a .tns file, and the text they were read from: the file, or a copy without its comments."""
    kinds = {**dict.fromkeys(file.names[:-1], pa.int64()), file.names[-1]: pa.float64()}
    try:
        table = file._parse(kinds)
        if table.num_rows and not any(column.null_count for column in table.columns):
            return table, file
    except pa.ArrowInvalid:
        pass
    # comments, tabs, or several blanks in a row: removed line by line, so that line numbers stay the same
    content = TNS_BLANKS.sub(b" ", file.path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    clean = replace(file, content=TNS_MARGINS.sub(b"", TNS_COMMENTS.sub(b"", content)))
    return clean.table(kinds), clean


def refuse_rows(problems: Sequence[tuple[Integers, str]], word: str, find: Callable[[Any], list[int]]) -> None:
    """Raise one error for all bad rows: how many they are, which rule they break and where the first ones are.

    The message never says what the rows contain.

    Parameters
    ----------
    problems : sorted row numbers, and the rule that these rows break
    word : what the places are called, "line" or "row"
    find : gives the places of row numbers
    """
    told = [
        f"{_rows(len(rows))} must {rule} in {places(word, find(rows[:LINES_SHOWN]), len(rows))}"
        for rows, rule in problems
        if len(rows)
    ]
    if told:
        raise InputError("; ".join(told) + "; correct or remove them")


def places(word: str, numbers: Sequence[int], count: int) -> str:
    """The places of `count` rows, given the first few: "lines 3, 5, 8, 9, 12 and 4 more"."""
    if not numbers:
        return f"{word}s unknown"
    more = f" and {count - len(numbers):,} more" if count > len(numbers) else ""
    return f"{word}{'s' if count > 1 else ''} {', '.join(map(str, numbers))}{more}"


def shown_names(names: Sequence[str]) -> str:
    """Names of columns for a message, unless some are numbers: then they may be the first row of the data."""
    if look_like_data(names):
        return "[names that look like numbers: if the file has no header, give columns]"
    return str(list(names)[:50])


def look_like_data(names: Sequence[str]) -> bool:
    """Whether some names are numbers, as in a first row of data that was taken for a header."""
    return any(re.search(r"(^|[\s,;|])[+-]?\d+(\.\d*)?([\s,;|]|$)", name) for name in names)


def _rows(count: int) -> str:
    return f"{count:,} row{'s' if count > 1 else ''}"


def _check_beginning(path: Path) -> None:
    with path.open("rb") as file:
        beginning = file.readline(LONGEST_FIRST_LINE + 1)
    if len(beginning) > LONGEST_FIRST_LINE and b"\r" not in beginning:
        raise InputError(
            f"the first line of {path.name} must have at most {LONGEST_FIRST_LINE:,} bytes, got more; write one row "
            "per observation, with one column per mode and one for the values"
        )
    if not beginning:
        raise InputError(f"{path.name} must hold rows, got an empty file; check the source")
    if beginning.startswith(UNICODE_MARKS):
        raise _not_unicode(path, 1)


def _not_unicode(path: Path, line: int) -> InputError:
    return InputError(
        f"{path.name} must be a text in UTF-8, got other bytes in line {line}; "
        "convert it, e.g. with: iconv -f latin1 -t utf-8 (or -f utf-16)"
    )
