"""Observations by cell: sorted, and where each cell begins."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Integers
from tensorveil.errors import SizeError

KEY_LIMIT = 2**63  # a key counts from 0 to below this, so that it fits int64


def cell_starts(coordinates: NDArray[Any]) -> Integers:
    """Where each cell's run of observations begins, for coordinates in which equal rows are neighbours.

    Examples
    --------
    >>> cell_starts(np.array([[0, 1], [1, 0], [1, 0], [2, 0]]))
    array([0, 1, 3])
    """
    new = np.ones(len(coordinates), dtype=np.bool_)
    new[1:] = (coordinates[1:] != coordinates[:-1]).any(axis=1)
    return np.flatnonzero(new)


def places_in_cells(coordinates: NDArray[Any]) -> Integers:
    """Each row's place among the equal rows, which are neighbours: 0 for the first of them."""
    starts = cell_starts(coordinates)
    return np.arange(len(coordinates)) - np.repeat(starts, np.diff(starts, append=len(coordinates)))


def stable_order(columns: Sequence[NDArray[Any]], sizes: Sequence[int], order: Integers | None = None) -> Integers:
    """Row numbers that sort rows by their columns in turn; rows that are equal keep their place in `order`.

    A column holds numbers from 0 to below its size. Sorted by all its columns, a table forgets the order of its rows.
    This is a radix sort, least significant key first. Each key shares its int64 with the row's place, so that plain
    sorting, several times as fast as argsort, gives the order and is stable.
    """
    rows = len(columns[0])
    bits = rows.bit_length()
    if KEY_LIMIT >> bits <= checks.MAX_MODE_SIZE:
        raise SizeError(f"observations must be fewer than 2^31 to be sorted, got {rows:,}; use a part of the tensor")
    places = np.arange(rows)
    if order is None and _ascending(columns):
        return places
    for key in keys(columns, sizes, KEY_LIMIT >> bits):
        packed = key if order is None else key[order]
        packed <<= bits
        packed |= places
        packed.sort()
        packed &= (1 << bits) - 1
        order = packed if order is None else order[packed]
    return places if order is None else order


def keys(columns: Sequence[NDArray[Any]], sizes: Sequence[int], limit: int) -> Iterator[Integers]:
    """Columns folded into few keys, each from 0 to below `limit`, the least significant first."""
    key, scale = columns[-1].astype(np.int64), sizes[-1]
    for column, size in zip(columns[-2::-1], sizes[-2::-1], strict=True):
        if scale * size <= limit:
            key += column * np.int64(scale)
            scale *= size
        else:
            yield key
            key, scale = column.astype(np.int64), size
    yield key


def _ascending(columns: Sequence[NDArray[Any]]) -> bool:
    """Whether rows are sorted by their columns in turn already."""
    settled = np.zeros(max(len(columns[0]) - 1, 0), dtype=np.bool_)
    for column in columns:
        if (~settled & (column[1:] < column[:-1])).any():
            return False
        settled |= column[1:] > column[:-1]
    return True
