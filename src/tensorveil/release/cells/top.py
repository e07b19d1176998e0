"""The cells with the highest predictions for given labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data import tables
from tensorveil.errors import InputError
from tensorveil.release.cells.labels import fixed_indices, indices_of, labelled, refuse_unknown
from tensorveil.release.cells.open_modes import OpenModes, open_modes

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.release.release import Release

BLOCK_CELLS = 2**20  # predicted at a time


def top_table(
    release: Release,
    known: Any,
    k: int,
    *,
    distinct: int | str | None = None,
    averaged: Mapping[str, ArrayLike | None] | None = None,
    exclude: Any = None,
) -> pa.Table:
    """For each row of `known`, the k cells with the highest predictions, by rank; ties go to the smaller index.

    The column `tied` says how many cells of the row, listed or not, have the same prediction as the cell.

    Parameters
    ----------
    known : table with columns of labels for some of the modes; all labels of the other modes are tried
    k : number of cells per row
    distinct : a mode whose indices are listed at most once per row, each with its best cell
    averaged : modes to average over instead of trying their labels: mode name -> weights, or None for equal ones
    exclude : table of cells that are left out, e.g. those that are known already: columns of labels for the modes of
        `known` and of the cells that are listed, as far as it has them
    """
    import pyarrow as pa

    most = checks.positive_integer("k", k)
    columns = tables.arrow_table(known)
    means = [release.mode_number(name) for name in averaged or ()]
    free = [mode for mode in open_modes(release, columns.column_names) if mode not in means]
    only = None if distinct is None else release.mode_number(distinct)
    if not free:
        raise InputError(
            f"the table must leave out one of the modes {list(release.mode_names)}, got all; drop a column"
        )
    if only is not None and only not in free:
        raise InputError(
            f"the table must not have a column of the ranked mode, got {release.mode_names[only]!r}; drop it"
        )
    for mode in means:
        if release.mode_names[mode] in columns.column_names:
            raise InputError(f"modes to average over must not be columns, got {release.mode_names[mode]!r}; drop it")
    fixed = fixed_indices(release, columns, [*free, *means])
    refuse_unknown(release, fixed)
    weights = {name: part for name, part in (averaged or {}).items() if part is not None}
    cells = OpenModes.of(release, means, weights) if means else None
    sizes = [release.shape[mode] for mode in free]
    checks.dense_size(sizes, checks.MAX_DENSE_CELLS, "name more modes in the table")
    grid = np.indices(sizes, dtype=np.int64).reshape(len(sizes), -1).T
    hidden = None if exclude is None else _Excluded(release, exclude, means)
    rows, values, ties = [], [], []
    for start in fixed:
        where = np.tile(start, (len(grid), 1))
        where[:, free] = grid
        if hidden is not None:
            where = where[~hidden.among(where)]
        found = _predicted(release, where, cells)
        order = np.argsort(-found, kind="stable")
        if only is not None:
            order = order[np.sort(np.unique(where[order, only], return_index=True)[1])]
        listed = order[:most]
        same = np.searchsorted(np.sort(found[order]), found[listed], side="right")
        ties.append(same - np.searchsorted(np.sort(found[order]), found[listed], side="left"))
        rows.append(where[listed])
        values.append(found[listed])
    if not rows:
        rows, values, ties = [np.empty((0, len(release.shape)), np.int64)], [np.empty(0)], [np.empty(0, np.int64)]
    ranks = np.concatenate([np.arange(1, len(part) + 1) for part in values])
    table = labelled(release, np.concatenate(rows).astype(np.uint32), np.concatenate(values))
    table = table.drop_columns([release.mode_names[mode] for mode in means])
    return table.append_column("rank", pa.array(ranks)).append_column("tied", pa.array(np.concatenate(ties)))


def _predicted(release: Release, where: Integers, cells: OpenModes | None) -> Floats:
    if cells is not None:
        return cells.predict(release.model, where)
    parts = [release.model.predict(where[at : at + BLOCK_CELLS]) for at in range(0, len(where), BLOCK_CELLS)]
    return np.concatenate(parts) if parts else np.empty(0)


class _Excluded:
    """Cells that are left out, by the modes that their table has a column for."""

    def __init__(self, release: Release, table: Any, means: list[int]) -> None:
        columns = tables.arrow_table(table)
        self.modes = [
            mode for mode, name in enumerate(release.mode_names) if name in columns.column_names and mode not in means
        ]
        if not self.modes:
            raise InputError(
                f"cells to exclude must have columns of modes, of {list(release.mode_names)}, got "
                f"{columns.column_names}; rename them"
            )
        names = [release.mode_names[mode] for mode in self.modes]
        parts = [indices_of(release, mode, columns.column(name)) for mode, name in zip(self.modes, names, strict=True)]
        where = np.column_stack(parts)
        self.cells = {tuple(cell) for cell in where[(where >= 0).all(axis=1)].tolist()}  # others are never listed

    def among(self, where: Integers) -> Any:
        """Which cells are left out."""
        found = (tuple(cell) in self.cells for cell in where[:, self.modes].tolist())
        return np.fromiter(found, np.bool_, len(where))
