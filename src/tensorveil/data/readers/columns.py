"""From the columns of a table to observations: labels, bins of times or indices, one rule per mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Integers
from tensorveil.data import tables
from tensorveil.data.merging import DUPLICATES, RepeatedCellsError
from tensorveil.data.modes import checked_public
from tensorveil.data.readers import text as text_files
from tensorveil.data.readers import time_bins
from tensorveil.data.readers.labels import binned_positions, index_numbers, label_list, positions
from tensorveil.data.readers.sources import Reading
from tensorveil.errors import InputError, SizeError

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations

MOST_NUMBERED_LABELS = 10**8

Modes = Sequence[str] | Mapping[str, str]


@final
@dataclass(frozen=True)
class Layout:
    """How the caller wants columns to be read: the arguments that `read` and `Observations.from_table` share.

    Attributes
    ----------
    columns : mode -> the column that holds it; None: the modes of a file that has no columns
    bins, labels : mode -> how its times are grouped; mode -> its labels
    """

    columns: dict[str, str] | None
    bins: dict[str, str]
    labels: dict[str, Any]
    shape: Any
    first_index: int
    public_labels: Sequence[str]
    duplicates: str

    @classmethod
    def checked(
        cls, modes: Any, value: Any, bins: Any, labels: Any, shape: Any, first: Any, public: Any, duplicates: Any
    ) -> Layout:
        """The arguments, each of which keeps its rule."""
        checks.choice("duplicates", duplicates, DUPLICATES)
        if isinstance(first, bool) or not isinstance(first, Integral) or abs(int(first)) > 2**40:
            raise InputError(f"first_index must be a whole number, got {first!r}; use 0 or 1")
        columns = _columns_by_mode(modes)
        if value is not None and not isinstance(value, str):
            raise InputError(f"value must be the name of a column, got {value!r}; give its name")
        columns, binned = split_bins(columns, bins)
        given = {name: label_list(found, name) for name, found in _by_mode("labels", labels, "{mode: list}").items()}
        if value is not None and value in (columns or {}).values():
            raise InputError(f"value must not be one of the modes, got {value!r} as both; name another column")
        return cls(columns, binned, given, shape, int(first), public, duplicates)

    @property
    def binned_columns(self) -> tuple[str, ...]:
        """The columns of binned modes."""
        return tuple((self.columns or {}).get(name, name) for name in self.bins)

    @property
    def labelled_columns(self) -> tuple[str, ...]:
        """The columns of modes whose labels were given."""
        return tuple((self.columns or {}).get(name, name) for name in self.labels)

    @property
    def wanted_columns(self) -> tuple[str, ...] | None:
        """The columns of the modes, in their order; None if the file names none."""
        return None if self.columns is None else tuple(self.columns.values())


def observations_of(source: Reading, layout: Layout, kind: type[Observations]) -> Observations:
    """The observations in the columns of a file or of a table; one error names all bad rows.

    `kind` is the class Observations, which reads tables by this function and so cannot be imported here.
    """
    names = source.modes if layout.columns is None else tuple(layout.columns)
    if source.indexed and names != source.modes:
        raise InputError(
            f"modes must be a list of names for a file without columns, got {dict(layout.columns or {})}; "
            f"write {list(names)}"
        )
    for told, found in (("bins", layout.bins), ("labels", layout.labels)):
        for name in found:
            if name not in names:
                raise InputError(f"{told} must be for modes, got {name!r}; the modes are {list(names)}")
    public = checked_public(layout.public_labels, names)
    sizes = _sizes(layout.shape, names, source.shape, layout.labels)
    first = source.first_index if source.first_index is not None else layout.first_index
    problems: list[tuple[Integers, str]] = []
    encoded = []
    for name, column, size in zip(names, source.modes, sizes, strict=True):
        mode = _mode(source, column, size, layout.labels.get(name), layout.bins.get(name), first)
        problems.append((np.flatnonzero(mode.codes < 0), mode.rule))
        encoded.append(mode)
    numbers = tables.numbers_of(source.table.column(source.value), source.value)
    bad_values = np.flatnonzero(~np.isfinite(numbers))
    problems.append((bad_values, f"have a finite number in column {source.value!r}, got none"))
    text_files.refuse_rows(problems, source.word, source.lines)
    coordinates = np.empty((len(numbers), len(encoded)), np.uint32)
    for number, mode in enumerate(encoded):
        coordinates[:, number] = mode.codes
    try:
        observations = kind(
            coordinates,
            numbers,
            tuple(mode.size for mode in encoded),
            mode_names=names,
            labels=[mode.labels for mode in encoded],
            duplicates=layout.duplicates,
        )
    except RepeatedCellsError as error:
        where = text_files.places(source.word, source.lines(error.rows), len(error.rows))
        raise InputError(
            f"every cell must occur once, got {len(error.rows):,} again in {where}; correct them, or pass "
            'duplicates="keep" to keep all or duplicates="mean" to average them'
        ) from None
    return observations._described(
        inferred_modes=[name for name, mode in zip(names, encoded, strict=True) if mode.inferred],
        public=public,
        bins=[layout.bins.get(name) for name in names],
        value=source.value,
    )


def split_bins(columns: dict[str, str] | None, bins: Any) -> tuple[dict[str, str] | None, dict[str, str]]:
    """Columns and bins by mode, where a mode such as time=day+hour has become one mode per part of its bin."""
    bins = _by_mode("bins", bins, "{mode: 'day'}")
    parts = {name: time_bins.bin_parts(kind, name) for name, kind in bins.items()}
    kinds: dict[str, str] = {}
    for name, part in parts.items():
        others = {*(columns or {}), *kinds} - {name}
        if len(part) > 1 and (columns is None or name not in columns or not others.isdisjoint(part)):
            raise InputError(
                f"bins of {name!r} that make several modes must be of a column, and {', '.join(part)} must be "
                f"names of no other modes, got {bins[name]!r} with the modes {sorted(others)}; rename those, or write "
                "modes={mode: column} with one mode per bin"
            )
        kinds |= part
    if columns is None:
        return None, kinds
    named = {mode: column for name, column in columns.items() for mode in parts.get(name, (name,))}
    return named, kinds


def _columns_by_mode(modes: Any) -> dict[str, str] | None:
    """Mode -> column, of a list of columns or of such a dictionary."""
    if not isinstance(modes, Mapping):
        names = checked_list("modes", modes)
        return None if names is None else dict(zip(names, names, strict=True))
    if not modes or not all(isinstance(name, str) and name for pair in modes.items() for name in pair):
        raise InputError(f"modes must map names to columns, got {dict(modes)!r}; write e.g. {{'user': 'userId'}}")
    return {str(name): str(column) for name, column in modes.items()}


def checked_list(parameter: str, names: Any) -> tuple[str, ...] | None:
    """A tuple of different names, or None."""
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, (Sequence, np.ndarray)):
        raise InputError(f"{parameter} must be a list of names, got {names!r}; write e.g. ['user', 'film', 'day']")
    found = tuple(names)
    if not all(isinstance(name, str) and name for name in found) or len(set(found)) != len(found) or not found:
        raise InputError(f"{parameter} must be different, non-empty names, got {list(names)!r}; correct them")
    return tuple(str(name) for name in found)


def _by_mode(parameter: str, found: Any, example: str) -> dict[str, Any]:
    if found is not None and not (isinstance(found, Mapping) and all(isinstance(name, str) for name in found)):
        raise InputError(f"{parameter} must map names of modes, got {found!r}; write {example}")
    return dict(found or {})


@final
@dataclass(frozen=True)
class _Mode:
    """The indices in a mode's column, -1 for rows that break the rule."""

    codes: Integers
    size: int
    labels: NDArray[Any] | None
    rule: str
    inferred: bool = False


def _mode(source: Reading, name: str, size: int | None, given: Any, kind: str | None, first: int) -> _Mode:
    column = source.table.column(name)
    if kind is not None and (source.indexed or (size is not None and given is None)):
        raise InputError(
            f"a binned mode must hold times and have no size, got a size or indices for {name!r}; give labels instead"
        )
    if source.indexed or (size is not None and given is None):
        codes = index_numbers(column, name, first, size)
        found = max(int(codes.max(initial=0)) + 1, 1) if size is None else size
        upper = f"to {first + found - 1}" if size is not None else "on"
        numbered = given if given is not None else _numbers(first, found, name)
        return _Mode(
            codes,
            found,
            numbered,
            f"have a whole number from {first} {upper} in column {name!r}, got another or none",
            inferred=size is None,
        )
    if kind is not None:
        if given is not None:
            texts = time_bins.bin_labels(given, kind, name)
            rule = f"have a time of the {len(texts):,} given labels of column {name!r}, got another or none"
            return _Mode(binned_positions(column, kind, name, texts), len(texts), texts, rule)
        if kind in time_bins.CYCLES:
            return _mode(source, name, None, np.array(time_bins.CYCLES[kind]), kind, first)
        numbers, known = time_bins.bin_numbers(column, kind, name)
        codes, found_bins = tables.distinct(pa.array(numbers[known]))
        codes, bins = tables.sorted_labels(codes, found_bins)
        everywhere = np.full(len(known), -1)
        everywhere[known] = codes
        rule = f"have a time of the years 1 to 9999 in column {name!r}, got none"
        return _Mode(everywhere, max(len(bins), 1), time_bins.bin_texts(bins, kind), rule, inferred=True)
    tables.check_label_kind(column, name, numbers=given is not None)
    codes, cells = tables.distinct(column)
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        codes, cells = without_empty(codes, cells)
    if given is not None:
        rule = f"have one of the {len(given):,} given labels in column {name!r}, got another or none"
        return _Mode(np.append(positions(cells, given), -1)[codes], len(given), given, rule)
    codes, labels = tables.sorted_labels(codes, tables.typed_labels(cells) if source.texts else cells)
    return _Mode(codes, max(len(labels), 1), labels, f"have a label in column {name!r}, got none", inferred=True)


def without_empty(codes: Integers, cells: pa.Array) -> tuple[Integers, pa.Array]:
    """Distinct cells without the empty text, whose rows get the code -1."""
    filled = tables.as_numpy(pc.binary_length(cells)) > 0
    if filled.all():
        return codes, cells
    numbers = np.append(np.where(filled, np.cumsum(filled) - 1, -1), -1)
    return numbers[codes], cells.filter(filled)


def _numbers(first: int, size: int, name: str) -> Integers | None:
    """Labels of a mode of indices: None if they count from 0, or else the numbers themselves."""
    if first == 0:
        return None
    if size > MOST_NUMBERED_LABELS:
        raise SizeError(
            f"a mode whose indices do not begin at 0 must have at most {MOST_NUMBERED_LABELS:,}, "
            f"got {size:,} for {name!r}; renumber them from 0"
        )
    return np.arange(first, first + size)


def _sizes(
    shape: Any, names: Sequence[str], stored: tuple[int, ...] | None, given: Mapping[str, Any]
) -> tuple[int | None, ...]:
    """The size of each mode as stated by the shape, the file or the labels, which must agree; None if unstated."""
    order = len(names)
    if shape is None:
        sizes: list[int | None] = [None] * order
    elif isinstance(shape, (str, bytes)) or not isinstance(shape, (Sequence, np.ndarray)) or len(shape) != order:
        raise InputError(f"shape must be {order} sizes, one per mode of {list(names)}, got {shape!r}; give one each")
    else:
        sizes = [None if size is None else checks.positive_integer("a size of shape", size) for size in shape]
    for mode, name in enumerate(names):
        stated = {
            "shape": sizes[mode],
            "the file": None if stored is None else stored[mode],
            "labels": len(given[name]) if name in given else None,
        }
        told = {word: size for word, size in stated.items() if size is not None}
        if len(set(told.values())) > 1:
            raise InputError(f"the size of {name!r} must be one number, got {told}; correct one of them")
        sizes[mode] = next(iter(told.values()), None)
    checks.shape([1 if size is None else size for size in sizes])
    return tuple(sizes)
