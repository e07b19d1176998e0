"""Several observations of one cell: merged, or refused."""

from __future__ import annotations

import math

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.data import cells
from tensorveil.errors import InputError

DUPLICATES = ("error", "keep", "mean")


class RepeatedCellsError(InputError):
    """Cells occur more than once; `rows` are the numbers of the rows that repeat an earlier one."""

    def __init__(self, message: str, rows: Integers) -> None:
        super().__init__(message)
        self.rows = rows

    def __reduce__(self) -> tuple[type[RepeatedCellsError], tuple[str, Integers]]:
        return type(self), (str(self), self.rows)


def merge_cells(
    coordinates: Coordinates, values: Floats, shape: tuple[int, ...], duplicates: str
) -> tuple[Coordinates, Floats]:
    """Observations with every cell once: the mean of those that share a cell, or an error if any do.

    A mean depends on which values it is taken over and not on the order of the rows, down to the last bit: values are
    added in ascending order. It is finite because it lies between the smallest and the largest value of its cell.
    """
    columns = tuple(coordinates.T)
    if math.prod(shape) <= cells.KEY_LIMIT:
        (key,) = cells.keys(columns, shape, cells.KEY_LIMIT)
        key.sort()  # several times as fast as finding an order, and most data repeat no cell
        if not (key[1:] == key[:-1]).any():
            return coordinates, values
    order = cells.stable_order(columns, shape, np.argsort(values) if duplicates == "mean" else None)
    starts = cells.cell_starts(coordinates.take(order, axis=0))
    if len(starts) == len(values):
        return coordinates, values
    if duplicates == "error":
        rows = np.sort(np.delete(order, starts))  # the order is stable: each cell's first row starts its run
        raise RepeatedCellsError(
            f"every cell must occur once, got {len(rows)} repeated, the first in row {rows[0]}; "
            'pass duplicates="keep" to keep all, or duplicates="mean" to average them',
            rows,
        )
    values = values[order]
    counts = np.diff(starts, append=len(values))
    lasts = starts + counts - 1
    # a power of two scales each cell to below 1, so that no sum overflows and no other bit changes
    exponents = np.frexp(np.maximum(-values[starts], values[lasts]))[1]
    scaled = np.ldexp(values, -np.repeat(exponents, counts))
    means = np.clip(np.add.reduceat(scaled, starts) / counts, scaled[starts], scaled[lasts])
    return coordinates[order[starts]], np.ldexp(means, exponents)
