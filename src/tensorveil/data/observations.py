"""Observed entries of a tensor: coordinates, values, shape, and the names and labels of the modes; immutable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Coordinates, Floats, Labels
from tensorveil.data import merging, tables
from tensorveil.data import modes as tensor_modes
from tensorveil.errors import InputError


@final
class Observations:
    """The known entries of a partly observed tensor of 2 to 6 modes.

    Parameters
    ----------
    coordinates : array of whole numbers, one row per entry and one column per mode
    values : array of finite numbers, one per entry
    shape : sizes of the modes; taken as public, so do not compute them from the coordinates
    mode_names : names of the modes, default mode_0, mode_1, ...
    labels : for each mode the labels of its indices, taken as public, or None if the mode has none
    duplicates : what to do when a cell occurs more than once: "error", "keep" all, or take the "mean"

    Examples
    --------
    >>> ratings = Observations([[0, 0], [0, 2], [1, 1]], [5.0, 3.0, 4.0], shape=(2, 3), mode_names=("user", "film"))
    >>> ratings
    Observations(3 values in 2 x 3 (user x film), 50 % observed)
    >>> ratings.to_dense()
    array([[ 5., nan,  3.],
           [nan,  4., nan]])
    """

    __slots__ = (
        "_bins",
        "_coordinates",
        "_duplicates",
        "_inferred_modes",
        "_labels",
        "_mode_names",
        "_shape",
        "_stated_modes",
        "_value_name",
        "_values",
    )

    def __init__(
        self,
        coordinates: ArrayLike,
        values: ArrayLike,
        shape: Sequence[int],
        *,
        mode_names: Sequence[str] | None = None,
        labels: Sequence[ArrayLike | None] | None = None,
        duplicates: str = "error",
    ) -> None:
        self._shape = checks.shape(shape)
        self._mode_names = tensor_modes.checked_names(mode_names, len(self._shape))
        self._labels = tensor_modes.checked_labels(labels, self._shape)
        self._duplicates = checks.choice("duplicates", duplicates, merging.DUPLICATES)
        self._inferred_modes: tuple[str, ...] = ()
        self._stated_modes: tuple[str, ...] = ()
        self._bins: tuple[str | None, ...] = (None,) * len(self._shape)
        self._value_name = "value"
        where = checks.coordinates(coordinates, self._shape)
        numbers = _check_values(values)
        if len(where) != len(numbers):
            raise InputError(
                f"coordinates and values must have the same length, got {len(where)} rows and {len(numbers)} values; "
                "give one value per row"
            )
        if len(numbers) == 0:
            raise InputError("observations must hold at least one entry, got none; check the source")
        if duplicates != "keep":
            where, numbers = merging.merge_cells(where, numbers, self._shape, duplicates)
        self._coordinates = _frozen(where, coordinates)
        self._values = _frozen(numbers, values)

    @classmethod
    def from_dense(
        cls,
        tensor: ArrayLike,
        *,
        mode_names: Sequence[str] | None = None,
        labels: Sequence[ArrayLike | None] | None = None,
    ) -> Observations:
        """From a dense array in which NaN marks the missing cells."""
        if isinstance(tensor, np.ma.MaskedArray):
            tensor = np.ma.filled(tensor.astype(np.float64), math.nan)
        try:
            array = np.asarray(tensor, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"tensor must be an array of numbers, got something else ({error}); convert it") from error
        checks.order(array.ndim)
        known = ~np.isnan(array)
        return cls(np.argwhere(known), array[known], array.shape, mode_names=mode_names, labels=labels)

    @classmethod
    def from_table(
        cls,
        table: Any,
        modes: Sequence[str] | Mapping[str, str],
        value: str,
        *,
        bins: Mapping[str, str] | None = None,
        labels: Mapping[str, ArrayLike] | None = None,
        shape: Sequence[int | None] | None = None,
        first_index: int = 0,
        public_labels: Sequence[str] = (),
        duplicates: str = "error",
    ) -> Observations:
        """From an Arrow table or a pandas or polars data frame with one column of labels per mode and a value column.

        Labels may be strings, whole numbers, dates or timestamps. A mode's labels are those given in `labels`, in that
        order (the way to state a public shape), or else the distinct labels of its column, sorted. Under units that
        keep private who is in the data, labels read off the data are refused later, unless `public_labels` names the
        mode: then the caller states that its labels are public anyway. All arguments are those of `read`: `modes` may
        be {mode: column}, `bins` groups times, and with `shape` the columns hold indices from `first_index`.

        Examples
        --------
        >>> import pyarrow as pa
        >>> table = pa.table({"user": ["ann", "bob", "ann"], "film": [7, 7, 9], "stars": [4, 2, 5]})
        >>> observations = Observations.from_table(table, modes=["user", "film"], value="stars")
        >>> observations.labels[0], observations.labels[1]
        (array(['ann', 'bob'], dtype=object), array([7, 9]))
        """
        if bins or shape is not None or isinstance(modes, Mapping):
            from tensorveil.data.readers.columns import Layout, observations_of
            from tensorveil.data.readers.sources import table_reading

            layout = Layout.checked(modes, value, bins, labels, shape, first_index, public_labels, duplicates)
            return observations_of(table_reading(table, layout.wanted_columns, value), layout, cls)
        columns, names, given = tables.chosen_columns(table, modes, value, labels)
        stated = tensor_modes.checked_public(public_labels, names)
        numbers = tables.value_column(columns.column(value), value)
        encoded = [tables.encode(columns.column(name), name, given.get(name)) for name in names]
        found = cls(
            np.column_stack([indices for indices, _ in encoded]),
            numbers,
            tuple(len(mode_labels) for _, mode_labels in encoded),
            mode_names=names,
            labels=[mode_labels for _, mode_labels in encoded],
            duplicates=duplicates,
        )
        return found._described(
            inferred_modes=[name for name in names if name not in given], public=stated, value=value
        )

    @property
    def coordinates(self) -> Coordinates:
        """Indices, one row per entry; read-only."""
        return self._coordinates

    @property
    def values(self) -> Floats:
        """Observed values; read-only."""
        return self._values

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the modes."""
        return self._shape

    @property
    def order(self) -> int:
        """Number of modes."""
        return len(self._shape)

    @property
    def mode_names(self) -> tuple[str, ...]:
        """Names of the modes."""
        return self._mode_names

    @property
    def labels(self) -> tuple[Labels | None, ...]:
        """Labels of each mode's indices, or None."""
        return self._labels

    @property
    def duplicates(self) -> str:
        """How cells that occur more than once were treated: "error" (there were none), "keep" or "mean"."""
        return self._duplicates

    @property
    def inferred_modes(self) -> tuple[str, ...]:
        """Modes whose labels, and so whose sizes, were read off the data.

        They tell who is in the data, so units that keep this private refuse them. No method removes a mode from here.
        """
        return self._inferred_modes

    @property
    def stated_modes(self) -> tuple[str, ...]:
        """Modes whose labels were read off the data and which the caller has stated to be public."""
        return self._stated_modes

    @property
    def bins(self) -> tuple[str | None, ...]:
        """For each mode how its times were binned ("day", ...), or None if they were not."""
        return self._bins

    @property
    def value_name(self) -> str:
        """Name of the value column."""
        return self._value_name

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        sizes, names = " x ".join(map(str, self._shape)), " x ".join(self._mode_names)
        share = len(self) / math.prod(self._shape)
        return f"Observations({len(self):,} values in {sizes} ({names}), {100 * share:.4g} % observed)"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Observations)
            and self._shape == other._shape
            and self._mode_names == other._mode_names
            and self._duplicates == other._duplicates
            and np.array_equal(self._coordinates, other._coordinates)
            and np.array_equal(self._values, other._values)
            and all(
                (mine is None) == (theirs is None) and (mine is None or theirs is None or np.array_equal(mine, theirs))
                for mine, theirs in zip(self._labels, other._labels, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, and large

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        # pickle and copy give writeable arrays
        for name, part in state[1].items():
            setattr(self, name, part)
        for array in (self._coordinates, self._values, *self._labels):
            if array is not None:
                array.setflags(write=False)

    def take(self, rows: ArrayLike) -> Observations:
        """The observations at these row numbers, or where a boolean mask holds."""
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_ and chosen.shape == (len(self),):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or (chosen.size and not np.issubdtype(chosen.dtype, np.integer)):
            raise InputError(
                f"rows must be a list of row numbers or a mask of {len(self)}, got dtype {chosen.dtype} and shape "
                f"{chosen.shape}; use numpy.flatnonzero of a condition"
            )
        chosen = chosen.astype(np.int64)
        if chosen.size and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise InputError(f"rows must be from 0 to {len(self) - 1}, got others; choose existing rows")
        if self._duplicates != "keep" and len(np.unique(chosen % len(self))) != len(chosen):
            raise InputError("rows must name every row once, got some twice; duplicates need duplicates='keep'")
        return self._replace(self._coordinates[chosen], self._values[chosen])

    def with_values(self, values: ArrayLike) -> Observations:
        """The same entries with other values."""
        numbers = _check_values(values)
        if len(numbers) != len(self):
            raise InputError(f"values must be {len(self)}, one per entry, got {len(numbers)}; give one per row")
        return self._replace(self._coordinates, _frozen(numbers, values))

    def split(
        self, fraction: float = 0.8, *, by: int | str | None = None, seed: int | None = None
    ) -> tuple[Observations, Observations]:
        """Split at random into about a share `fraction` and the rest, e.g. for training and testing.

        The side of an observation follows from the seed and its own cell, or from its own index of the mode `by`:
        each is on the first side with probability `fraction`, so that sizes vary a little. All observations of one
        cell, or of one index of `by`, are on the same side. Values, other observations and the order of rows have no
        say, so an observation or a slice that is added or removed moves nothing else: neighbours of the whole data are
        neighbours, or equal, on each side, and the guarantee of a release of one side holds for the whole data. Choose
        the seed without looking at the data.

        Examples
        --------
        >>> data = Observations(np.argwhere(np.ones((50, 8))), np.ones(400), (50, 8), mode_names=("user", "film"))
        >>> known, new = data.split(0.9, by="user", seed=1)
        >>> np.intersect1d(known.coordinates[:, 0], new.coordinates[:, 0]).size  # no user is on both sides
        0
        """
        share = checks.fraction("fraction", fraction)
        names = range(self.order) if by is None else [tensor_modes.checked_mode(by, self._mode_names)]
        first = _uniform([self._coordinates[:, mode] for mode in names], checks.seed(seed)) < share
        if first.all() or not first.any():
            raise InputError(
                f"both sides of a split must hold an observation, got {len(self)} split at {fraction} with one side "
                "empty; use more data, another fraction or another seed"
            )
        return self.take(first), self.take(~first)

    def to_dense(self, missing: float = math.nan, *, max_cells: int = checks.MAX_DENSE_CELLS) -> Floats:
        """A dense array with `missing` in the unobserved cells."""
        checks.dense_size(self._shape, max_cells, "keep it sparse")
        if self._duplicates == "keep":
            merging.merge_cells(self._coordinates, self._values, self._shape, "error")
        dense = np.full(self._shape, missing)
        dense[tuple(self._coordinates.T)] = self._values
        return dense

    def sampled(self, tensor: ArrayLike) -> Floats:
        """P_Omega of a dense tensor (the paper's sampling operator): its observed cells, zero elsewhere."""
        array = np.asarray(tensor, dtype=np.float64)
        if array.shape != self._shape:
            raise InputError(f"tensor must have the shape {self._shape} of the observations, got {array.shape}")
        where = tuple(self._coordinates.T)
        result = np.zeros(self._shape)
        result[where] = array[where]
        return result

    def _described(
        self,
        *,
        inferred_modes: Sequence[str] = (),
        public: Sequence[str] = (),
        bins: Sequence[str | None] | None = None,
        value: str = "value",
    ) -> Observations:
        """The same entries with what a reader knows about them; modes can be marked as inferred, never unmarked."""
        other = self._replace(self._coordinates, self._values)
        new = [name for name in inferred_modes if name not in self._inferred_modes + self._stated_modes]
        other._inferred_modes += tuple(name for name in new if name not in public)
        other._stated_modes += tuple(name for name in new if name in public)
        other._bins = self._bins if bins is None else tuple(bins)
        other._value_name = value
        return other

    def _replace(self, coordinates: Coordinates, values: Floats) -> Observations:
        """A copy with other entries, which have been checked before."""
        if len(values) == 0:
            raise InputError("observations must hold at least one entry, got none; choose at least one row")
        other = object.__new__(Observations)
        other._shape, other._mode_names, other._labels = self._shape, self._mode_names, self._labels
        other._duplicates, other._inferred_modes = self._duplicates, self._inferred_modes
        other._stated_modes, other._bins, other._value_name = self._stated_modes, self._bins, self._value_name
        other._coordinates, other._values = _frozen(coordinates, None), _frozen(values, None)
        return other


def _frozen(array: NDArray[Any], source: object) -> NDArray[Any]:
    """The array, read-only; if it is the caller's own it is copied first, so that nobody can change it later."""
    if source is not None and np.may_share_memory(array, np.asarray(source)):
        array = array.copy()  # also of a read-only view: its owner may still write
    array.setflags(write=False)
    return array


def _uniform(columns: Sequence[NDArray[Any]], seed: int | None) -> Floats:
    """One number in [0, 1) per row: a hash of the row alone, keyed by the seed."""
    key = np.random.SeedSequence(seed).generate_state(len(columns) + 1, np.uint64)
    state = np.full(len(columns[0]), key[0])
    for column, word in zip(columns, key[1:], strict=True):
        state ^= column.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the mixing of SplitMix64
            state ^= state >> np.uint64(shift)
            state *= np.uint64(factor)
        state ^= (state >> np.uint64(31)) ^ word
    return np.asarray((state >> np.uint64(11)) * 2.0**-53)


def _check_values(values: ArrayLike) -> Floats:
    array = np.asarray(values)
    if array.dtype == np.bool_ or not (
        np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    ):
        raise InputError(f"values must be numbers, got dtype {array.dtype}; convert them to float")
    if array.ndim != 1:
        raise InputError(f"values must be a list, one per entry, got an array of shape {array.shape}; flatten it")
    numbers = np.ascontiguousarray(array, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        raise InputError(
            f"values must be finite, got {wrong.size} NaN or infinite, the first in row {wrong[0]}; "
            "leave missing entries out"
        )
    return numbers
