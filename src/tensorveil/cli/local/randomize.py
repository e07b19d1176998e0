"""`tensorveil randomize`: at the source, from a file of values to a file of answers; without Typer, to start fast."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from tensorveil.errors import InputError
from tensorveil.privacy.local import client

METADATA = b"tensorveil.protocol"  # key of the protocol's hash in a Parquet file
PARQUET = (".parquet", ".pq")


def main(arguments: Sequence[str]) -> None:
    """Run the client with NumPy, and with Parquet files where they are asked for."""
    from tensorveil.privacy.local.randomizing import drawn_symbols

    client.main(arguments, _read, _write, drawn_symbols, "tensorveil randomize")


def _read(
    path: Path, kind: str, modes: Sequence[str], value: str, columns: Sequence[str] | None
) -> tuple[list[client.Cell], list[float]]:
    """Cells and values; no other column is read."""
    if kind in client.DELIMITERS:
        return client.read_rows(path, kind, modes, value, columns)
    if kind not in ("parquet", "pq"):
        raise InputError(f"--format must be csv, tsv or parquet, got {kind or path.name!r}; name one")
    from pyarrow import ArrowException, parquet

    from tensorveil.data.tables import numbers_of

    try:
        table = parquet.read_table(path, columns=[*modes, value])
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path.name} must be a Parquet file with the modes and the value, got {error}") from error
    if sorted(table.column_names) != sorted([*modes, value]):
        raise InputError(f"{path.name} must have the columns {[*modes, value]}, got {table.column_names}; correct them")
    labels = [table.column(name).to_pylist() for name in modes]
    if any(label is None for part in labels for label in part):
        raise InputError(f"{path.name} must have a label of every mode in every row, got empty ones; leave them out")
    for name, part in zip(modes, labels, strict=True):
        if str(table.schema.field(name).type) == "float" and max(map(abs, part), default=0) >= 2**24:
            raise InputError(
                f"labels must be texts or exact numbers, got {name!r} in single precision; make them texts"
            )
    cells = list(zip(*(map(_text, part) for part in labels), strict=True))
    return cells, numbers_of(table.column(value), value).tolist()


def _text(label: Any) -> str:
    """A label as text files mostly have it; the memory knows it in other spellings as well (`client.label_key`)."""
    if not isinstance(label, (str, int, float, Decimal, date)) or label != label:
        raise InputError(
            f"labels must be texts, numbers, truth values, dates or times, got {label!r}; make them texts, always alike"
        )
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label).strip().removesuffix(" 00:00:00")


def _write(
    path: Path, modes: Sequence[str], value: str, answers: Sequence[tuple[client.Cell, int]], protocol: str
) -> None:
    """Answers as CSV or as Parquet, which has labels as numbers where all of a mode are, and names the protocol."""
    if path.suffix.lower() not in PARQUET:
        client.write_rows(path, modes, value, answers, protocol)
        return
    import pyarrow as pa
    from pyarrow import parquet

    labels = list(zip(*(cell for cell, _ in answers), strict=True)) or [()] * len(modes)
    arrays = [*map(_labels, labels), _numbers([symbol for _, symbol in answers])]
    fields = [(name, array.type) for name, array in zip([*modes, value + client.SUFFIX], arrays, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={METADATA: protocol.encode()}))
    client.write_aside(path, lambda file: parquet.write_table(table, file.buffer))


def _numbers(numbers: Sequence[int]) -> Any:
    """Whole numbers as Arrow, made of a buffer: `pa.array` would import pandas wherever it is installed."""
    import numpy as np
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.array(numbers, np.int64))])


def _labels(labels: Sequence[str]) -> Any:
    """Labels as whole numbers if each is one in its plainest form (7, not 007), else as texts."""
    import numpy as np
    import pyarrow as pa

    try:
        if all(str(int(label)) == label for label in labels):
            return _numbers(list(map(int, labels)))
    except (ValueError, OverflowError):
        pass
    texts = [label.encode() for label in labels]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return pa.Array.from_buffers(
        pa.large_string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    )


def answers_column(path: Path, format: str | None, columns: Sequence[str] | None, protocol: str) -> str:
    """The name of the column of answers in a file; an error if the file states another protocol."""
    kind = format or path.suffix.lower().lstrip(".")
    if columns is not None:
        names = list(columns)
    elif kind in client.DELIMITERS:
        import csv

        with path.open(newline="", encoding="utf-8-sig") as file:
            names = next(csv.reader(file, delimiter=client.DELIMITERS[kind]), [])
    else:
        from pyarrow import ArrowException, dataset

        try:
            schema = dataset.dataset(str(path), format="parquet").schema
        except (ArrowException, OSError, ValueError) as error:
            raise InputError(f"{path.name} must be a Parquet file of answers, got something else ({error})") from error
        names, stated = schema.names, (schema.metadata or {}).get(METADATA)
        if stated is not None and stated.decode() != protocol:
            raise InputError(
                f"{path.name} must hold answers by this protocol, got those by another ({stated.decode()[:16]}...); "
                "use the protocol that the clients used"
            )
    found = [name for name in names if name.endswith(client.SUFFIX)]
    if len(found) != 1:
        raise InputError(
            f"{path.name} must have one column whose name ends in {client.SUFFIX}, got {names}; give --value"
        )
    return found[0]
