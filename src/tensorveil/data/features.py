"""Public features of the indices of a mode: a matrix, a table matched by labels, or waves along a smooth mode."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data import tables
from tensorveil.data.observations import Observations
from tensorveil.data.readers.files import read_table
from tensorveil.data.readers.labels import coordinates_of
from tensorveil.data.readers.time_bins import CYCLES, label_numbers
from tensorveil.data.shards import Sharded
from tensorveil.errors import InputError

MOST_CATEGORIES = 100  # of one column; more are names rather than kinds
MOST_COLUMNS = 1000
MATRIX = "a matrix"
TABLE = "a table"
SHOWN = 3
Smooth = Sequence[str] | Mapping[str, str | None]  # smooth modes, or mode -> its kind
KINDS = ORDERED, PERIODIC = "ordered", "periodic"  # of smooth modes
SMOOTH = "smooth"  # how the name of the waves of such a mode begins
MOST_WAVES = 1000  # of one mode


@final
@dataclass(frozen=True)
class PublicInput:
    """What a certificate says about features: their mode, their source, their columns and the SHA-256 of the source."""

    mode: str
    name: str
    columns: tuple[str, ...]
    sha256: str

    def __str__(self) -> str:
        return self.name if len(self.columns) == 1 else f"{self.name}, {len(self.columns)} columns"


@final
@dataclass(frozen=True, eq=False)
class Features:
    """Numbers for every index of a mode, and where they came from.

    Attributes
    ----------
    matrix : array (indices of the mode, columns)
    columns : what each number is; `genre=drama` is 1 where the column `genre` says drama, else 0
    name : the name of the file, or "a table", "a matrix"
    sha256 : of the file's bytes, or of the matrix as little-endian floats, row by row
    """

    matrix: Floats
    columns: tuple[str, ...]
    name: str
    sha256: str

    @classmethod
    def of_matrix(cls, given: ArrayLike, mode: str) -> Features:
        """Features from a matrix with one row per index, or from a vector."""
        try:
            matrix = np.array(given, dtype=np.float64, order="C")
        except (TypeError, ValueError) as error:
            raise InputError(f"features of {mode!r} must be numbers, got something else; encode them") from error
        matrix = matrix[:, None] if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or not np.isfinite(matrix).all():
            raise InputError(
                f"features of {mode!r} must be a finite matrix with one row per index, got shape {matrix.shape}"
                + ("" if matrix.ndim != 2 else " with numbers that are not finite")
                + "; give one finite row per index"
            )
        if matrix.shape[1] > MOST_COLUMNS:
            raise InputError(
                f"features of {mode!r} must have at most {MOST_COLUMNS:,} columns, got {matrix.shape[1]:,}; "
                "leave some out"
            )
        matrix.setflags(write=False)
        columns = tuple(f"column {number}" for number in range(matrix.shape[1]))
        return cls(matrix, columns, MATRIX, hashlib.sha256(matrix.astype("<f8").tobytes()).hexdigest())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.matrix, dtype=dtype) if copy else np.asarray(self.matrix, dtype=dtype)


def public_inputs(
    features: Mapping[str, ArrayLike] | None, smooth: Mapping[str, Features] | None = None
) -> tuple[PublicInput, ...]:
    """Features and smooth modes as a certificate names them."""
    made = [(mode, _features(given, mode)) for mode, given in (*(features or {}).items(), *(smooth or {}).items())]
    return tuple(PublicInput(mode, one.name, one.columns, one.sha256) for mode, one in made)


def features_for(observations: Observations | Sharded, features: Mapping[str, Any]) -> dict[str, Features]:
    """Features of modes, with one row per index of these observations.

    Parameters
    ----------
    features : mode -> a matrix with one row per index; or a table (Arrow, pandas, polars, a dict of columns) or a file
        (CSV, TSV, Parquet) with one row per label. Labels are in the column that has the name of the mode, or else in
        the first column. Every other column holds numbers, or texts, and each distinct text becomes one column of zeros
        and ones. Every label of the observations needs a row; rows with other labels are ignored.

    Examples
    --------
    >>> from tensorveil.data.observations import Observations
    >>> rated = Observations([[0, 0], [1, 1]], [4.0, 2.0], (2, 2), mode_names=["user", "film"],
    ...                      labels=[None, ["Alien", "Big"]])
    >>> films = {"film": ["Big", "Casino", "Alien"], "year": [1988, 1995, 1979], "genre": ["comedy", "crime", "horror"]}
    >>> found = features_for(rated, {"film": films})["film"]
    >>> found.columns
    ('year', 'genre=comedy', 'genre=horror')
    >>> found.matrix.tolist()
    [[1979.0, 0.0, 1.0], [1988.0, 1.0, 0.0]]
    """
    if not isinstance(features, Mapping):
        raise InputError(f"features must map names of modes, got {type(features).__name__}; write {{mode: matrix}}")
    names = observations.mode_names
    return {mode: _features_of(given, observations, _number(mode, names)) for mode, given in features.items()}


def standardised(
    features: Mapping[str, ArrayLike] | None, mode_names: Sequence[str], shape: tuple[int, ...]
) -> dict[int, Floats]:
    """Features by mode number, centred and scaled: the squares of one index's numbers add up to 1 on average."""
    found: dict[int, Floats] = {}
    for name, given in dict(features or {}).items():
        mode = _number(name, mode_names)
        matrix = _features(given, name, shape[mode]).matrix
        spread = matrix.std(axis=0)
        varying = spread > 1e-12 * np.maximum(1.0, np.abs(matrix).max(axis=0, initial=0.0))
        if varying.any():
            columns = (matrix[:, varying] - matrix[:, varying].mean(axis=0)) / spread[varying]
            found[mode] = columns / math.sqrt(columns.shape[1])
    return found


def smooth_features(observations: Observations | Sharded, smooth: Smooth | None) -> dict[str, Features]:
    """Waves along the smooth modes: numbers of neighbouring indices are alike, and so is what is linear in them.

    Parameters
    ----------
    smooth : mode -> "ordered" or "periodic" (the last index is a neighbour of the first one), or a list of modes, which
        are ordered unless their bin comes again (hour_of_day, weekday, month_of_year). None: all modes of binned times

    Examples
    --------
    >>> from tensorveil.data.observations import Observations
    >>> counted = Observations([[0, 0], [1, 1]], [4.0, 2.0], (2, 24), mode_names=["street", "hour"])
    >>> waves = smooth_features(counted, {"hour": "periodic"})["hour"]
    >>> waves.name, waves.matrix.shape
    ('smooth, periodic', (24, 12))
    """
    names, bins = observations.mode_names, observations.bins
    if smooth is None:
        smooth = [name for name, kind in zip(names, bins, strict=True) if kind is not None]
    if isinstance(smooth, str) or not isinstance(smooth, Mapping | Sequence):
        raise InputError(f"smooth must be a list of modes, or a dictionary, got {smooth!r}; write e.g. [{names[0]!r}]")
    found = {}
    for name in smooth:
        if name not in names:
            raise InputError(f"smooth must be of modes {list(names)}, got {name!r}; correct the name")
        mode = names.index(name)
        usual = PERIODIC if bins[mode] in CYCLES else ORDERED
        given = smooth[name] if isinstance(smooth, Mapping) else None
        kind = usual if given is None else checks.choice(f"smooth of {name!r}", given, KINDS)
        places, period = _places(observations, mode, kind)
        matrix = _waves(places, period)
        matrix.setflags(write=False)
        digest = hashlib.sha256(places.astype("<i8").tobytes()).hexdigest()
        found[name] = Features(matrix, ("position",), f"{SMOOTH}, {kind}", digest)
    return found


def waves_by_mode(smooth: Mapping[str, Features] | None, mode_names: Sequence[str]) -> list[Floats | None]:
    """The waves of every mode, or None for a mode that is not smooth."""
    return [smooth[name].matrix if smooth and name in smooth else None for name in mode_names]


def _places(observations: Observations | Sharded, mode: int, kind: str) -> tuple[Integers, int | None]:
    """Where the indices of a smooth mode lie, and after how many steps it begins again: by their times, or in order."""
    name, size = observations.mode_names[mode], observations.shape[mode]
    labels, bins = observations.labels[mode], observations.bins[mode]
    if labels is not None and bins is not None:
        period = None if kind == ORDERED else len(CYCLES[bins]) if bins in CYCLES else size
        numbers = label_numbers(labels, bins)
        return (np.arange(size) if kind == PERIODIC and bins not in CYCLES else numbers), period
    if labels is not None and labels.dtype.kind in "OU" and name in observations.inferred_modes:
        raise InputError(
            f"the indices of a smooth mode must have an order, got texts that were read off the data for {name!r}, "
            "in the order of the alphabet; give its labels in their order, or bin its times"
        )
    return np.arange(size), size if kind == PERIODIC else None


def _waves(places: Integers, period: int | None) -> Floats:
    """Cosines along places, or cosines and sines around a circle; the squares of one index add up to 1 on average.

    Equal priors of the coefficients give a random walk: the wave of frequency k has size 1 / k. The upper half of the
    frequencies is left to the independent part of the prior, which has nearly their spectrum.
    """
    size = len(places)
    if period is None:
        span = int(places.max() - places.min()) + 1
        k = np.arange(1, min(span // 2, MOST_WAVES) + 1)
        angles = np.pi * np.outer((places - places.min() + 0.5) / span, k)
        columns = np.cos(angles) / k
    else:
        k = np.arange(1, min((period + 1) // 4, MOST_WAVES // 2) + 1)
        angles = 2 * np.pi * np.outer(places / period, k)
        columns = np.stack([np.cos(angles) / k, np.sin(angles) / k], axis=2).reshape(size, -1)
    columns = columns - columns.mean(axis=0)
    most = (size + 1) // 2
    if columns.shape[1] > most:  # few places, far apart
        left, singular, _ = np.linalg.svd(columns, full_matrices=False)
        columns = (left * singular)[:, :most]
    length = math.sqrt(float(np.square(columns).sum()) / size)
    return np.asarray(columns / length) if length > 0 else np.empty((size, 0))


def _number(name: str, mode_names: Sequence[str]) -> int:
    """The number of a mode."""
    if name not in mode_names:
        raise InputError(f"features must be of modes {list(mode_names)}, got {name!r}; correct the name")
    return list(mode_names).index(name)


def _features(given: Any, name: str, rows: int | None = None) -> Features:
    """Features, or those of a matrix, with as many rows as the mode has indices, where that is known."""
    made = given if isinstance(given, Features) else Features.of_matrix(given, name)
    if rows is not None and len(made.matrix) != rows:
        raise InputError(
            f"features of {name!r} must be a matrix with {rows} rows, one per index, got shape {made.matrix.shape}; "
            "give one row per index"
        )
    return made


def _features_of(given: Any, observations: Observations | Sharded, mode: int) -> Features:
    name = observations.mode_names[mode]
    if isinstance(given, str | os.PathLike):
        return _from_file(Path(given), observations, mode)
    if not isinstance(given, Features) and (isinstance(given, Mapping) or hasattr(given, "__arrow_c_stream__")):
        matrix, columns = _matched(tables.arrow_table(given), observations, mode, TABLE)
        return Features(matrix, columns, TABLE, Features.of_matrix(matrix, name).sha256)
    return _features(given, name, observations.shape[mode])


def _from_file(path: Path, observations: Observations | Sharded, mode: int) -> Features:
    name = observations.mode_names[mode]
    if path.suffix.lower() not in (".csv", ".tsv", ".parquet", ".pq"):
        raise InputError(f"features of {name!r} must be in a .csv, .tsv or .parquet file, got {path.name}; convert it")
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"features of {name!r} must be in a file that can be read, got {os.fspath(path)!r} ({error.strerror}); "
            "correct the path"
        ) from error
    matrix, columns = _matched(read_table(path), observations, mode, path.name)
    return Features(matrix, columns, path.name, hashlib.sha256(contents).hexdigest())


def _matched(
    table: pa.Table, observations: Observations | Sharded, mode: int, source: str
) -> tuple[Floats, tuple[str, ...]]:
    """The rows of a table in the order of the mode's indices, encoded, and the names of the columns."""
    name, size = observations.mode_names[mode], observations.shape[mode]
    told = table.column_names
    if len(set(told)) != len(told) or len(told) < 2:
        raise InputError(
            f"features of {name!r} must be a table with a column of labels and other columns, with different names, "
            f"got {told} in {source}; correct its header"
        )
    key = name if name in told else told[0]
    labels = observations.labels[mode]
    where = coordinates_of({name: table.column(key)}, [name], [labels], [observations.bins[mode]])[:, 0]
    rows = np.flatnonzero((where >= 0) & (where < size))
    row_of = np.full(size, -1)
    row_of[where[rows]] = rows
    if len(rows) > np.count_nonzero(row_of >= 0):
        raise InputError(
            f"every label of {name!r} must have one row in {source}, got several for some; keep one of them"
        )
    missing = np.flatnonzero(row_of < 0)
    if len(missing):
        raise InputError(
            f"every label of {name!r} must have a row in column {key!r} of {source}, got none for {len(missing):,} of "
            f"{size:,}: {_shown(labels, missing)}; add rows for them"
        )
    parts, columns = [], []
    for column in told:
        if column != key:
            names, numbers = _encoded(table.column(column).take(row_of), column, source)
            parts.append(numbers)
            columns += names
    matrix = Features.of_matrix(np.column_stack(parts), name).matrix
    return matrix, tuple(columns)


def _encoded(column: Any, name: str, source: str) -> tuple[list[str], Floats]:
    """Names and numbers of the columns: numbers as they are, and one column of zeros and ones per distinct text."""
    cells = tables.plain_column(column)
    kind = cells.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    codes, found = tables.distinct(cells) if texts else (np.empty(0, np.int64), pa.array([], pa.string()))
    categories = found.to_pylist()
    if cells.null_count or "" in categories:
        raise InputError(
            f"the column {name!r} of {source} must have no empty cells for the labels of the data, got some; "
            "fill them or leave the column out"
        )
    if pa.types.is_boolean(kind):
        return [name], cells.cast(pa.int8()).to_numpy().astype(np.float64)[:, None]
    if not texts:
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise InputError(
                f"the column {name!r} of {source} must hold numbers or texts, got {kind}; convert it or leave it out"
            )
        numbers = tables.as_floats(cells)
        if not np.isfinite(numbers).all():
            raise InputError(f"the column {name!r} of {source} must hold finite numbers, got others; correct them")
        return [name], numbers[:, None]
    known = np.isfinite(tables.text_numbers(found))
    if known.any() and not known.all():
        odd = categories[int(np.flatnonzero(~known)[0])]
        raise InputError(
            f"the column {name!r} of {source} must hold numbers alone or names alone, got both, e.g. {odd!r}; "
            "correct it or leave it out"
        )
    if len(categories) > MOST_CATEGORIES:
        raise InputError(
            f"the column {name!r} of {source} must hold numbers, or at most {MOST_CATEGORIES} different texts, "
            f"got {len(categories):,}; leave it out"
        )
    order = np.argsort(np.array(categories, dtype=object))
    return [f"{name}={categories[place]}" for place in order], (codes[:, None] == order).astype(np.float64)


def _shown(labels: Any, missing: Integers) -> str:
    """The first few labels, or indices if the mode has no labels; they are public."""
    first = [str(number if labels is None else labels[number]) for number in missing[:SHOWN].tolist()]
    return ", ".join(first) + (", ..." if len(missing) > SHOWN else "")
