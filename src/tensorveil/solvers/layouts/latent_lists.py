"""Entries sorted once by every mode for Gibbs draws of large CP models, with the state in rows of whole vectors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.fast import gibbs_rows
from tensorveil.kernels.vectors import AHEAD, Constants, aligned_zeros, padded
from tensorveil.solvers.layouts.sorted_entries import part_cuts

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]


@final
class LatentLists:
    """One list of entries per mode, with 4 N bytes per entry, and 16 bytes for its latent value and precision.

    Draws do not depend on the number of threads, nor on how rows are cut into parts.
    """

    def __init__(self, coordinates: Coordinates, begins: list[Integers], shape: tuple[int, ...], rank: int) -> None:
        count, N = coordinates.shape
        self.shape, self.rank, self.begins = shape, rank, begins
        self.length = padded(rank + 1, np.float64)
        self.rows = aligned_zeros(sum(shape) * self.length, np.float64)  # with offsets as the last numbers
        self.latent = aligned_zeros(2 * count, np.float64).reshape(count, 2)
        self.firsts = [int(first) for first in np.cumsum([0, *shape])[:-1]]
        self.lists = []
        self.parts = []
        for mode, size in enumerate(shape):
            entries = np.empty((count + AHEAD, N), dtype=np.uint32)
            gibbs_rows.sort_entries(coordinates, mode, begins[mode], entries)
            self.lists.append(entries)
            cuts = [int(cut) for cut in part_cuts(begins[mode], count, size)]
            self.parts.append([*pairwise(cuts)])

    def pack(self, parameters: Floats, offsets: Floats) -> None:
        """Take over the state."""
        rows = self.rows.reshape(-1, self.length)
        rows[:, : self.rank] = parameters.reshape(-1, self.rank)
        rows[:, self.rank] = offsets

    def unpack(self, mode: int, parameters: Floats, offsets: Floats) -> None:
        """Give back the rows and offsets of one mode."""
        own = slice(self.firsts[mode], self.firsts[mode] + self.shape[mode])
        rows = self.rows.reshape(-1, self.length)[own]
        parameters.reshape(-1, self.rank)[own] = rows[:, : self.rank]
        offsets[own] = rows[:, self.rank]

    def place(self, mode: int) -> tuple[Any, ...]:
        """The arguments by which kernels find the rows and entries of a mode."""
        starts = [first * self.length for first in self.firsts]
        others = tuple(start for number, start in enumerate(starts) if number != mode)
        constants = Constants(len(self.shape), self.rank, 1)
        return self.rows, others, starts[mode], self.lists[mode], self.begins[mode], constants, self.length
