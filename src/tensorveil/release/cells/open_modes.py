"""Cells with modes left open: predictions and intervals averaged over all indices of these modes, by weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.data import tables
from tensorveil.errors import InputError, SizeError
from tensorveil.models.completion import Completion
from tensorveil.release.cells.labels import indices_of

if TYPE_CHECKING:
    from tensorveil.release.release import Release

Weights = Mapping[str, ArrayLike]

WEIGHT = "weight"  # the column of weights in a file
MOST_CELLS = 10**8  # that are predicted for the rows of a table
BLOCK_CELLS = 2**20


@final
@dataclass(frozen=True, eq=False)
class OpenModes:
    """The modes that are averaged over, all their cells, and the weight of each cell.

    Attributes
    ----------
    modes : numbers of the open modes
    grid : array (cells, open modes), those with positive weight
    weights : array (cells), which adds up to one
    """

    modes: tuple[int, ...]
    grid: Coordinates
    weights: Floats

    @classmethod
    def of(cls, release: Release, modes: Sequence[int], weights: Weights | None = None) -> OpenModes:
        """The open modes with weights by mode name, one number per index; uniform for modes that have none."""
        given = dict(weights or {})
        unused = sorted(set(given) - {release.mode_names[mode] for mode in modes})
        if unused:
            raise InputError(f"weights must be of modes that are left open, got some of {unused}; leave them out")
        if len(modes) == len(release.shape):
            raise InputError(
                f"the table must have a column of at least one of the modes {list(release.mode_names)}, got none; "
                "rename its columns, or say which column is which mode"
            )
        parts = [_shares(given.get(release.mode_names[mode]), release.shape[mode]) for mode in modes]
        checks.dense_size([len(part) for part in parts], BLOCK_CELLS, "leave fewer modes open")
        total = np.ones(1)
        for part in parts:
            total = np.multiply.outer(total, part).ravel()
        places = np.indices([len(part) for part in parts], dtype=np.uint32).reshape(len(parts), -1).T
        used = total > 0
        return cls(tuple(modes), places[used], total[used])

    def told(self, release: Release) -> str:
        """What is averaged over, in words."""
        names = ", ".join(f"{release.mode_names[mode]} ({release.shape[mode]:,})" for mode in self.modes)
        even = np.ptp(self.weights) <= 1e-12
        return f"averaged over {names} with {'equal weights' if even else 'the given weights'}"

    def predict(self, model: Completion, where: Integers) -> Floats:
        """Averages of the predictions of all cells of each row; the open modes' columns of `where` are not read."""
        return self._by_blocks(where, lambda cells: model.predict(cells).reshape(-1, len(self.weights)) @ self.weights)

    def interval(self, model: Completion, where: Integers, share: float) -> tuple[Floats, Floats]:
        """Ends between which the value of a cell of each row lies with this probability, the cell drawn by weight."""
        pairs = self._by_blocks(where, lambda cells: np.array(model.interval(cells, share, weights=self.weights)))
        return pairs[0], pairs[1]

    def _by_blocks(self, where: Integers, of: Callable[[Coordinates], Floats]) -> Floats:
        count = len(self.weights)
        if len(where) * count > MOST_CELLS:
            raise SizeError(
                f"open modes must give at most {MOST_CELLS:,} cells, got {len(where):,} rows of {count:,}; predict "
                "fewer rows at a time"
            )
        size = max(1, BLOCK_CELLS // count)
        parts = [of(self.cells(where[first : first + size])) for first in range(0, len(where), size)]
        return np.concatenate(parts, axis=-1) if parts else np.empty((2, 0))

    def cells(self, where: Integers) -> Coordinates:
        """All cells of the rows, those of a row beside each other."""
        found = np.repeat(where, len(self.weights), axis=0)
        found[:, list(self.modes)] = np.tile(self.grid, (len(where), 1))
        return found.astype(np.uint32)


def _shares(given: ArrayLike | None, size: int) -> Floats:
    weights = np.ones(size) if given is None else np.asarray(given, dtype=np.float64)
    total = float(weights.sum()) if weights.shape == (size,) else np.nan
    if not (np.isfinite(total) and (weights >= 0).all() and total > 0):
        raise InputError(
            f"weights must be {size:,} finite numbers of at least 0, not all 0, one per index, got others; correct them"
        )
    return np.asarray(weights / total)


def weights_of(release: Release, mode: int, table: Any) -> Floats:
    """Weights of the indices of a mode by a table of labels and weights; a label that is not in it weighs nothing."""
    columns, name = tables.arrow_table(table), release.mode_names[mode]
    if not {name, WEIGHT} <= set(columns.column_names):
        raise InputError(
            f"a file of weights must have the columns {name} and {WEIGHT}, got {columns.column_names}; rename them"
        )
    where = indices_of(release, mode, columns.column(name))
    numbers = tables.numbers_of(columns.column(WEIGHT), WEIGHT)
    if (where < 0).any() or len(np.unique(where)) != len(where):
        raise InputError(f"a file of weights must list labels of {name} that the release knows, once each, got others")
    found = np.zeros(release.shape[mode])
    found[where] = numbers
    _shares(found, len(found))
    return found


def open_modes(release: Release, names: Sequence[str]) -> list[int]:
    """Numbers of the modes that have no column."""
    return [mode for mode, name in enumerate(release.mode_names) if name not in names]
