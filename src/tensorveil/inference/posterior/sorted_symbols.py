"""Released symbols of a CP model, sorted once by every mode, for the kernels that are made for its rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.fast.scored_rows import EXTRA
from tensorveil.kernels.vectors import Constants, aligned_zeros, padded
from tensorveil.solvers.layouts.sorted_entries import ModeList, SortedEntries

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Coordinates = NDArray[np.uint32]
Symbols = NDArray[np.uint8]


@final
@dataclass(frozen=True)
class SortedSymbols:
    """One list of entries per mode, with 4 N - 3 bytes per entry; all chains read them."""

    lists: list[ModeList]
    shape: tuple[int, ...]
    rank: int

    @classmethod
    def of(
        cls, coordinates: Coordinates, symbols: Symbols, shape: tuple[int, ...], rank: int, threads: int
    ) -> SortedSymbols:
        return cls(SortedEntries.of(coordinates, symbols, shape, threads, np.uint8).lists, shape, rank)

    @property
    def symbols(self) -> Symbols:
        """Symbols in the order of the first mode, which is that of predicted means."""
        first = self.lists[0]
        return first.values[: first.begins[-1]]

    def pack(self, parameters: Floats, offsets: Floats) -> Singles:
        """All rows, each with its offset and a one, padded to whole vectors."""
        packed = aligned_zeros(sum(self.shape) * padded(self.rank + EXTRA, np.float32), np.float32)
        rows = packed.reshape(sum(self.shape), -1)
        rows[:, : self.rank] = parameters.reshape(-1, self.rank)
        rows[:, self.rank] = offsets
        rows[:, self.rank + 1] = 1.0
        return packed

    def given(self, mode: int, packed: Singles) -> tuple[Any, ...]:
        """What kernels need to gather the features of the rows of a mode."""
        length = padded(self.rank + EXTRA, np.float32)
        starts = [int(start) * length for start in np.cumsum([0, *self.shape])[:-1]]
        others = tuple(start for number, start in enumerate(starts) if number != mode)
        constants = Constants(len(self.shape), self.rank, EXTRA)
        return constants, packed, others, self.lists[mode].others, self.lists[mode].begins
