"""Released symbols, sorted once by every mode, for the kernels that are made for the ranks of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.dispatch import FEWEST_FAST
from tensorveil.kernels.fast.scored_rows import EXTRA
from tensorveil.kernels.vectors import Constants, aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel
from tensorveil.solvers.layouts.sorted_entries import ModeList, SortedEntries

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Coordinates = NDArray[np.uint32]
Symbols = NDArray[np.uint8]

FEWEST_TUCKER = 2**11  # entries; the reference takes forty times as long per sweep, so compiling pays earlier
MOST_TERMS = 64  # products per feature of a Tucker model, each written out in the kernel


@final
@dataclass(frozen=True)
class SortedSymbols:
    """One list of entries per mode, with 4 N - 3 bytes per entry; all chains read them."""

    lists: list[ModeList]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(
        cls, coordinates: Coordinates, symbols: Symbols, shape: tuple[int, ...], ranks: tuple[int, ...], threads: int
    ) -> SortedSymbols:
        return cls(SortedEntries.of(coordinates, symbols, shape, threads, np.uint8).lists, shape, ranks)

    @staticmethod
    def worth_sorting(count: int, model: FactorModel) -> bool:
        """Whether kernels for the ranks are worth compiling, and not too long."""
        if model.core is None:
            return count >= FEWEST_FAST
        return count >= FEWEST_TUCKER and math.prod(sorted(model.ranks)[2:]) <= MOST_TERMS

    @property
    def symbols(self) -> Symbols:
        """Symbols in the order of the first mode, which is that of predicted means."""
        first = self.lists[0]
        return first.values[: first.begins[-1]]

    @property
    def coordinates(self) -> Coordinates:
        """Coordinates in the order of the first mode."""
        first = self.lists[0]
        own = np.repeat(np.arange(self.shape[0], dtype=np.uint32), np.diff(first.begins))
        return np.column_stack([own, first.others[: len(own)]])

    def pack(self, parameters: Floats, offsets: Floats) -> Singles:
        """Packed rows of all modes, one mode after the other."""
        packed = aligned_zeros(self._starts[-1], np.float32)
        first, offset = 0, 0
        for size, rank, rows in zip(self.shape, self.ranks, self._rows(packed), strict=True):
            own = parameters[first : first + size * rank].reshape(size, rank)
            fill_rows(rows, own, offsets[offset : offset + size])
            first, offset = first + size * rank, offset + size
        return packed

    def given(self, mode: int, packed: Singles, core: Floats | None = None) -> tuple[Any, ...]:
        """What kernels need to gather the features of the rows of a mode.

        For Tucker, the core is that of the model, or another one whose rank in this mode differs.
        """
        order = len(self.shape)
        others = [number for number in range(order) if number != mode]
        mine = self.lists[mode]
        entries = packed, tuple(self._starts[number] for number in others), mine.others, mine.begins
        if core is None:
            return Constants(order, self.ranks[mode], EXTRA), None, None, *entries
        place = min(range(len(others)), key=lambda number: self.shape[others[number]])  # of the smallest mode
        chosen = others[place]
        rest = [number for number in others if number != chosen]
        own, rank = core.shape[mode], core.shape[chosen]
        unfolded = core.transpose(chosen, *rest, mode).reshape(rank, -1).astype(np.float32)
        product = (self._rows(packed)[chosen][:, :rank] @ unfolded).reshape(self.shape[chosen], -1, own)
        length = padded(own + EXTRA, np.float32)
        matrices = aligned_zeros(self.shape[chosen] * product.shape[1] * length, np.float32)
        matrices.reshape(*product.shape[:2], length)[:, :, :own] = product
        ranks = Constants(place, *(self.ranks[number] for number in others))
        return Constants(order, own, EXTRA), ranks, matrices, *entries

    @property
    def _starts(self) -> list[int]:
        """Where the packed rows of each mode begin, and where the last ones end."""
        sizes = [size * padded(rank + EXTRA, np.float32) for size, rank in zip(self.shape, self.ranks, strict=True)]
        return [0, *(int(end) for end in np.cumsum(sizes))]

    def _rows(self, packed: Singles) -> list[Singles]:
        """The packed rows of each mode as a matrix."""
        ends = pairwise(self._starts)
        return [packed[first:last].reshape(size, -1) for size, (first, last) in zip(self.shape, ends, strict=True)]


def fill_rows(packed: Singles, rows: Floats, offsets: Floats) -> None:
    """Pack rows: each with its offset and a one, and zeros up to a whole number of vectors."""
    rank = rows.shape[1]
    packed[:, :rank] = rows
    packed[:, rank] = offsets
    packed[:, rank + 1] = 1.0
