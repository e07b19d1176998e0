"""A release as one person, or several, see it: their own rows, by their own labels, in the place of a mode's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tensorveil.data import tables
from tensorveil.data.observations import Observations
from tensorveil.data.readers.text import shown_names
from tensorveil.errors import InputError
from tensorveil.release.cells.labels import indices_of
from tensorveil.release.people.newcomers import newcomers, personal_model

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.release.release import Release

YOU = "you"  # the label of somebody whose file does not say who it is


@final
@dataclass(frozen=True)
class View:
    """A release with personal rows, which must not be published, and whom they are for.

    Attributes
    ----------
    release : it predicts for the people only
    mode : the number of the mode of people
    people : their labels
    """

    release: Release
    mode: int
    people: Sequence[Any]

    def completed(self, table: pa.Table) -> pa.Table:
        """A table of cells with the person filled in where it does not say; an error if it names anybody else."""
        import pyarrow as pa

        name = self.release.mode_names[self.mode]
        if name in table.column_names:
            index, owner = indices_of(self.release, self.mode, table.column(name)), self.release.model.owned_index
            if ((index < 0) if owner is None else (index != owner)).any():
                raise InputError(
                    f"COORDS must contain only the {name} of the own rows, got others; each owner can predict only for "
                    "itself"
                )
            return table
        if len(self.people) != 1:
            raise InputError(f"cells must have a column {name!r}, as the own rows are of {len(self.people)}; add it")
        return table.append_column(name, pa.array([self.people[0]] * table.num_rows))

    def marked(self, predicted: pa.Table) -> tuple[pa.Table, str]:
        """A table of predictions with a column that says whom each one is for, and the same in words for all."""
        import pyarrow as pa

        name, people = self.release.mode_names[self.mode], self.people
        told = [_alone(name, label) for label in predicted.column(name).to_pylist()]
        whom = _alone(name, people[0]) if len(people) == 1 else f"each of {len(people):,} {name}s alone"
        return predicted.append_column("for_whom", pa.array(told, pa.string())), (
            f"for {whom}, not part of the public release"
        )


def _alone(mode: str, label: Any) -> str:
    return f"{YOU} alone" if label == YOU else f"{mode} {label} alone"


def view_of(release: Release, own: Any, cells: Sequence[str], person: str | None, value: str | None = None) -> View:
    """The view of whoever the own rows belong to.

    Parameters
    ----------
    own : table of own rows: labels and values. Rows whose other labels the release does not know tell nothing
    cells : names of the columns of the cells to predict; a mode that is a column of neither table is the person's
    person : the name of the mode of people, if neither a joint release nor the columns say which one it is
    """
    columns = tables.arrow_table(own)
    mode = _mode(release, columns.column_names, cells, person)
    where, values = _own_rows(release, columns, mode, value)
    name = release.mode_names[mode]
    labels, codes = [YOU], np.zeros(len(values), dtype=np.int64)
    if name in columns.column_names:
        found, distinct = tables.distinct(columns.column(name))
        if (found < 0).any():
            raise InputError(f"own rows must have a label in column {name!r}, got empty cells; leave those rows out")
        codes, labels = found, distinct.to_pylist()
    known = (np.delete(where, mode, axis=1) >= 0).all(axis=1)
    if not known.any():
        raise InputError("own rows must have at least one row whose labels the release knows, got none")
    where[:, mode] = codes
    joint = release.withheld_mode is not None
    if joint and len(labels) != 1:
        raise InputError(f"the own file must have rows of one {name} only, got {len(labels)}; keep only your own rows")
    shape = tuple(len(labels) if place == mode else size for place, size in enumerate(release.shape))
    at_home = indices_of(release, mode, columns.column(name))[0] if joint and name in columns.column_names else -1
    if at_home >= 0:  # an owner whom a joint release knows keeps its index
        where[:, mode], shape = at_home, release.shape
    mine = Observations(where[known], values[known], shape, mode_names=release.mode_names, duplicates="keep")
    if at_home >= 0:
        return View(replace(release, model=personal_model(release, mine, mode)), mode, labels)
    model = newcomers(release, mine, mode)
    model = replace(model, owned_index=0) if len(labels) == 1 else model
    padded = [*labels, *(f"nobody {place}" for place in range(len(labels), model.shape[mode]))]
    texts = np.array(padded if len({type(label) for label in padded}) == 1 else list(map(str, padded)), dtype=object)
    parts = [texts if place == mode else part for place, part in enumerate(release.labels)]
    bins = [None if place == mode else part for place, part in enumerate(release.bins)]
    view = replace(release, model=model, labels=tuple(parts), bins=tuple(bins), certificate=None)
    return View(view, mode, [texts[place] for place in range(len(labels))])


def _mode(release: Release, own: Sequence[str], cells: Sequence[str], person: str | None) -> int:
    if person is not None:
        return release.mode_number(person)
    if release.withheld_mode is not None:
        return release.withheld_mode
    missing = [name for name in release.mode_names if name not in own and name not in cells]
    if len(missing) != 1:
        raise InputError(
            f"person must name the mode that the own rows belong to, one of {list(release.mode_names)}, got none; "
            "leave its column out of both files, or name it"
        )
    return release.mode_names.index(missing[0])


def _own_rows(release: Release, columns: pa.Table, mode: int, value: str | None) -> tuple[Any, Any]:
    """Indices of the other modes, -1 where unknown, and values."""
    name = release.value_name if value is None else value
    for wanted in (*(one for place, one in enumerate(release.mode_names) if place != mode), name):
        if wanted not in columns.column_names:
            told = shown_names(columns.column_names)
            raise InputError(f"own rows must have a column {wanted!r}, got {told}; rename or add it")
    where = np.zeros((columns.num_rows, len(release.shape)), dtype=np.int64)
    for place, one in enumerate(release.mode_names):
        if place != mode:
            where[:, place] = indices_of(release, place, columns.column(one))
    values = tables.numbers_of(columns.column(name), name)
    if not np.isfinite(values).all():
        raise InputError(f"the column {name!r} of own rows must hold finite numbers, got others; correct them")
    return where, values
