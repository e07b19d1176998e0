"""Observations in parts: a folder of Parquet files, split by one mode, with a manifest that says what must be there.

All observations of one index of that mode lie in one part, so that any unit of privacy of that mode, and every cell,
is whole in its part. A part that is missing, doubled or changed is an error when it is opened or read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.data.modes import checked_names
from tensorveil.data.observations import Observations
from tensorveil.data.readers.files import FilePath, read
from tensorveil.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "manifest.json"
WHOLE = "all shards of the manifest were there, unchanged, and no others"  # in the certificate: how many is private
VERSION = 1
VALUE = "value"  # columns of a part: the names of the modes by number, and this
ROWS_PER_PART = 2_000_000  # about 40 MB in memory
ENDINGS = (".csv", ".tsv", ".parquet", ".pq")
MIXER = np.uint64(0x9E3779B97F4A7C15)  # spreads neighbouring indices over the parts


@final
@dataclass(frozen=True)
class Part:
    """One file of a folder of shards, and what it must hold; small, so that it can travel to a worker."""

    path: str
    number: int
    parts: int
    rows: int
    sha256: str
    by: int
    shape: tuple[int, ...]
    mode_names: tuple[str, ...]
    duplicates: str

    def read(self) -> Observations:
        """Its observations; an error, for the data holder, where the file is not the one that was written."""
        from pyarrow import BufferReader, parquet

        name = Path(self.path).name
        try:
            raw = Path(self.path).read_bytes()
        except OSError as error:
            raise InputError(
                f"the part {name} must be readable where the work runs, got {error.strerror}; "
                "put the folder where every worker finds it under the same path"
            ) from error
        if hashlib.sha256(raw).hexdigest() != self.sha256:
            raise InputError(f"the part {name} must be as it was written, got a changed file; shard the data again")
        table = parquet.read_table(BufferReader(raw))
        columns = [table.column(str(mode)).to_numpy() for mode in range(len(self.shape))]
        if table.num_rows != self.rows or (part_of(columns[self.by], self.parts) != self.number).any():
            raise InputError(f"the part {name} must hold its own rows, got others; shard the data again")
        where = np.column_stack(columns)
        values = table.column(VALUE).to_numpy()
        return Observations(where, values, self.shape, mode_names=self.mode_names, duplicates=self.duplicates)


@final
@dataclass(frozen=True, eq=False)
class Sharded:
    """A folder of shards as its manifest describes it: what stands where `Observations` would; no value is read yet.

    Attributes
    ----------
    by : the number of the mode whose indices are whole in their parts
    files : the parts
    """

    folder: Path
    by: int
    shape: tuple[int, ...]
    mode_names: tuple[str, ...]
    value_name: str
    duplicates: str
    files: tuple[Part, ...] = field(repr=False)
    labels: tuple[NDArray[Any] | None, ...] = field(repr=False)
    bins: tuple[str | None, ...] = field(repr=False)
    inferred_modes: tuple[str, ...] = ()
    stated_modes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what in ("number", "path", "sha256"):
            if len({getattr(part, what) for part in self.files}) != len(self.files):
                raise InputError(f"every part must be listed once, got one twice by its {what}; shard the data again")
        common = {(part.parts, part.by, part.shape) for part in self.files}
        if len(common) != 1 or next(iter(common))[1:] != (self.by, self.shape):  # else a slice may be in two parts
            raise InputError("parts must be of one folder, split by the mode that it states, got others; shard again")

    def __len__(self) -> int:
        return sum(part.rows for part in self.files)

    @property
    def largest_part(self) -> int:
        """The rows of the largest part."""
        return max(part.rows for part in self.files)


def part_of(indices: NDArray[Any], parts: int) -> NDArray[np.int64]:
    """The part of each index of the mode that data are split by: a hash, the same everywhere."""
    mixed = np.asarray(indices).astype(np.uint64) * MIXER
    return ((mixed >> np.uint64(32)) % np.uint64(parts)).astype(np.int64)


def is_sharded(path: FilePath) -> bool:
    """Whether a path is a folder that `write_shards` has written."""
    return (Path(path) / MANIFEST).is_file()


def open_shards(path: FilePath) -> Sharded:
    """The shards of a folder; an error where a part is missing, doubled or not of the manifest.

    Files are compared with the manifest by name here, and by content when they are read.
    """
    folder = Path(path)
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"a folder of shards must have a readable {MANIFEST}, got none in {folder.name!r}; "
            "write it with tensorveil shard"
        ) from error
    try:
        if told["version"] != VERSION:
            raise InputError(f"{MANIFEST} must have the version {VERSION}, got {told['version']!r}; shard again")
        shape, names = checks.shape(told["shape"]), checked_names(told["modes"], len(told["shape"]))
        common = (int(told["by"]), shape, names, checks.choice("duplicates", told["duplicates"], ("error", "keep")))
        parts = tuple(
            Part(str(folder.resolve() / one["file"]), one["number"], told["parts"], one["rows"], one["sha256"], *common)
            for one in told["files"]
        )
        labels = tuple(None if file is None else _read_labels(folder / file["file"], file) for file in told["labels"])
        described = [tuple(told[name]) for name in ("bins", "inferred_modes", "stated_modes")]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{MANIFEST} must be as it was written, got another ({error}); shard again") from error
    found = {file.name for file in folder.iterdir() if file.suffix.lower() in ENDINGS}
    wanted = {Path(part.path).name for part in parts} | {file["file"] for file in told["labels"] if file is not None}
    if found != wanted or not parts or sum(part.rows for part in parts) != told["rows"]:
        raise InputError(
            f"the folder must hold the {len(parts):,} parts of its manifest and no others, got "
            f"{len(wanted - found):,} missing and {len(found - wanted):,} more; shard the data again"
        )
    by, shape, names, duplicates = common
    return Sharded(folder, by, shape, names, told["value"], duplicates, parts, labels, *described)


def write_shards(
    source: FilePath,
    by: str,
    out: FilePath,
    modes: Sequence[str] | None = None,
    value: str | None = None,
    *,
    rows_per_part: int = ROWS_PER_PART,
    labels: Mapping[str, Any] | None = None,
    shape: Sequence[int | None] | None = None,
    duplicates: str = "error",
    **reading: Any,
) -> Sharded:
    """Split the observations in a file, or in the files of a folder, by the indices of one mode, and write them.

    With a shape or labels for every mode, the files of a folder are read one after the other, so that they need not fit
    in memory together; otherwise all of them are read at once, because labels are found in all of them.

    Parameters
    ----------
    source : a file that `read` reads, or a folder of CSV, TSV or Parquet files
    by : the mode whose indices stay whole
    out : the folder to create
    rows_per_part : about how many rows a part gets
    modes, value, labels, shape, duplicates, reading : as for `read`; duplicates must be "error" or "keep"
    """
    checks.choice("duplicates", duplicates, ("error", "keep"))
    checks.positive_integer("rows_per_part", rows_per_part)
    target = Path(out)
    if target.exists():
        raise InputError(f"out must be a new folder, got {target}, which exists; choose another or remove it")
    named = {**reading, "labels": labels, "shape": shape, "duplicates": "keep"}
    files, rows = _sources(Path(source), modes, labels, shape), 0
    for file in files if len(files) > 1 else []:
        rows += len(read(file, modes, value, **named))
    first = read(files[0], modes, value, **named)
    if by not in first.mode_names:
        raise InputError(f"by must be one of the modes {list(first.mode_names)}, got {by!r}; correct it")
    mode = first.mode_names.index(by)
    parts = -(-max(rows, len(first)) // rows_per_part)
    temporary = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that did not end
    temporary.mkdir(parents=True)
    _write_parts(temporary, parts, mode, _each(first, files[1:], modes, value, named))
    _write_manifest(temporary, first, mode, parts, duplicates)
    if duplicates == "error":
        for part in open_shards(temporary).files:
            part.read()  # an error where a cell occurs twice
    temporary.rename(target)
    return open_shards(target)


def _each(first: Observations, files: list[Path], modes: Any, value: Any, named: Any) -> Iterator[Observations]:
    yield first
    for file in files:
        yield read(file, modes, value, **named)


def _sources(source: Path, modes: Any, labels: Any, shape: Any) -> list[Path]:
    """The files to read one by one."""
    if not source.is_dir():
        return [source]
    files = sorted(file for file in source.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
    sized = [size is not None for size in shape or [None] * len(modes or ())]
    stated = bool(sized) and all(has or name in (labels or {}) for has, name in zip(sized, modes or (), strict=False))
    return files if stated and files else [source]


def _write_parts(folder: Path, parts: int, mode: int, observed: Iterator[Observations]) -> None:
    from pyarrow import parquet

    writers: dict[int, Any] = {}
    with ExitStack() as open_files:
        for observations in observed:
            numbers = part_of(observations.coordinates[:, mode], parts)
            order = np.argsort(numbers, kind="stable")
            ends = np.searchsorted(numbers[order], np.arange(parts + 1))
            for number in np.flatnonzero(np.diff(ends)).tolist():
                rows = order[ends[number] : ends[number + 1]]
                table = _table(observations, rows)
                if number not in writers:
                    path = str(folder / f"part-{number:05d}.parquet")
                    writers[number] = open_files.enter_context(parquet.ParquetWriter(path, table.schema))
                writers[number].write_table(table)


def _table(observations: Observations, rows: NDArray[np.int64]) -> pa.Table:
    import pyarrow as pa

    where = observations.coordinates[rows]
    columns = {str(mode): np.ascontiguousarray(where[:, mode]) for mode in range(where.shape[1])}
    return pa.table({**columns, VALUE: observations.values[rows]})


def _write_manifest(folder: Path, observations: Observations, by: int, parts: int, duplicates: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    files = []
    for path in sorted(folder.glob("part-*.parquet")):
        rows = parquet.ParquetFile(path).metadata.num_rows
        files.append({"file": path.name, "number": int(path.stem[5:]), "rows": rows, "sha256": _hash(path)})
    labels: list[dict[str, str] | None] = []
    for mode, known in enumerate(observations.labels):
        path = folder / f"labels-{mode}.parquet"
        if known is not None:
            parquet.write_table(pa.table({"label": pa.array(known)}), path)
        labels.append(None if known is None else {"file": path.name, "sha256": _hash(path)})
    told = {
        "version": VERSION,
        "by": by,
        "modes": observations.mode_names,
        "value": observations.value_name,
        "shape": observations.shape,
        "duplicates": duplicates,
        "bins": observations.bins,
        "inferred_modes": observations.inferred_modes,
        "stated_modes": observations.stated_modes,
        "labels": labels,
        "parts": parts,
        "rows": sum(int(str(file["rows"])) for file in files),
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(told, indent=1), encoding="utf-8")


def _read_labels(path: Path, told: Mapping[str, str]) -> NDArray[Any]:
    from pyarrow import parquet

    if not path.is_file() or _hash(path) != told["sha256"]:
        raise InputError(f"the labels in {path.name} must be as they were written, got others; shard the data again")
    return np.asarray(parquet.read_table(path).column("label").to_numpy())


def _hash(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


Data = Observations | Sharded


def opened(observations: Any, modes: Any = None, value: str | None = None, **reading: Any) -> Data:
    """Observations from what a caller has: a table in memory, a file that is read whole, or a folder of shards.

    `modes`, `value` and the rest are the arguments of `Observations.from_table` and `read`.
    """
    if isinstance(observations, Data):
        if modes is not None or value is not None or reading:
            told = ", ".join(["modes, value", *reading])
            raise InputError(f"{told} must be for a path or a table, got them with observations; leave them out")
        return observations
    if not isinstance(observations, str | os.PathLike):
        if modes is None or value is None:
            raise InputError(
                "observations must be Observations, a path, or a table with modes and value, "
                f"got {type(observations).__name__} without them; name the columns: modes=[...], value=..."
            )
        return Observations.from_table(observations, modes, value, **reading)
    if not is_sharded(observations):
        return read(observations, modes, value, **reading)
    shards = open_shards(observations)
    written = {"modes": shards.mode_names, "value": shards.value_name, "shape": shards.shape}
    for name, given in {"modes": modes, "value": value, **reading}.items():
        if given is None:
            continue
        if name not in written:
            raise InputError(f"{name} must be left out for a folder of shards, got one; the manifest states it")
        if (given if isinstance(given, str) else tuple(given)) != written[name]:
            raise InputError(f"{name} must be those of the shards, {written[name]}, got {given}; leave them out")
    return shards
