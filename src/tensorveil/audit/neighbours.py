"""Worst-case neighbouring data sets, by brute force over the changes that one unit can make."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.units import Unit

Pair = tuple[Observations, Observations]

FEW_CELLS = 256  # up to this many cells every single one is tried, beyond only those chosen to hurt
TRIED_CELLS = 32


def neighbours(
    observations: Observations, unit: str | Unit, bounds: Bounds, limit: int | None = None
) -> Iterator[Pair]:
    """Pairs of neighbouring data sets close to the observations, in the order of their expected effect.

    - ``value``: each value at the low and at the high bound.
    - ``slice_values``: each slice's values all low and all high, and with signs that alternate, one way and the other.
    - ``entry``: each observation removed, and one added at free cells, empty rows first, at either bound.
    - ``slice``: each slice removed, and each empty slice filled, as the most active one is and with a single value.

    Rarest rows and most active slices come first.

    Parameters
    ----------
    observations : data to start from
    unit : what one change is
    bounds : the public range of values, whose ends are tried
    limit : how many pairs to give; None: all
    """
    kind = Unit.of(unit).resolved(observations.mode_names)
    if limit is not None:
        checks.positive_integer("limit", limit)
    mode = kind.mode_number if kind.whole_slices else 0
    pairs = {
        "value": lambda: _values(observations, bounds),
        "slice_values": lambda: _slice_values(observations, mode, bounds),
        "entry": lambda: _in_turn(_without_entry(observations, bounds), _with_entry(observations, bounds)),
        "slice": lambda: _in_turn(_without_slice(observations, mode, bounds), _with_slice(observations, mode, bounds)),
    }[kind.kind]()
    return itertools.islice(pairs, limit)


def _values(observations: Observations, bounds: Bounds) -> Iterator[Pair]:
    for place in _rarest_first(observations):
        low, high = observations.values.copy(), observations.values.copy()
        low[place], high[place] = bounds.low, bounds.high
        yield observations.with_values(low), observations.with_values(high)


def _slice_values(observations: Observations, mode: int, bounds: Bounds) -> Iterator[Pair]:
    for index in _active_first(observations, mode):
        place = np.flatnonzero(observations.coordinates[:, mode] == index)
        even = np.arange(len(place)) % 2 == 0
        low, high = np.full(len(place), bounds.low), np.full(len(place), bounds.high)
        one_way, other_way = np.where(even, low, high), np.where(even, high, low)
        for one, other in ((low, high), (one_way, other_way), (low, one_way))[: 3 if len(place) > 1 else 1]:
            first, second = observations.values.copy(), observations.values.copy()
            first[place], second[place] = one, other
            yield observations.with_values(first), observations.with_values(second)


def _without_entry(observations: Observations, bounds: Bounds) -> Iterator[Pair]:
    if len(observations) == 1:
        return
    for place in _rarest_first(observations):
        rest = np.flatnonzero(np.arange(len(observations)) != place)
        less = observations.take(rest)
        for value in dict.fromkeys((bounds.high, float(observations.values[place]), bounds.low)):
            yield _joined(less, observations.coordinates[[place]], np.array([value])), less


def _with_entry(observations: Observations, bounds: Bounds) -> Iterator[Pair]:
    for cell in _free_cells(observations):
        for value in (bounds.low, bounds.high):
            yield observations, _joined(observations, cell[None, :], np.array([value]))


def _without_slice(observations: Observations, mode: int, bounds: Bounds) -> Iterator[Pair]:
    for index in _active_first(observations, mode):
        inside = observations.coordinates[:, mode] == index
        if inside.all():
            continue
        less, own = observations.take(~inside), observations.coordinates[inside]
        for values in (np.full(len(own), bounds.high), observations.values[inside]):
            yield _joined(less, own, values), less


def _with_slice(observations: Observations, mode: int, bounds: Bounds) -> Iterator[Pair]:
    counts = _counts(observations, mode)
    busiest = observations.coordinates[observations.coordinates[:, mode] == counts.argmax()]
    for index in np.flatnonzero(counts == 0)[:TRIED_CELLS]:
        whole = busiest.copy()
        whole[:, mode] = index
        yield observations, _joined(observations, whole, np.full(len(whole), bounds.low))
        yield observations, _joined(observations, whole[:1], np.array([bounds.high]))


def _free_cells(observations: Observations) -> NDArray[np.uint32]:
    """Cells where an observation may be added: in empty rows first, and all of them where there are few."""
    shape = observations.shape
    counts = [_counts(observations, mode) for mode in range(len(shape))]
    if math.prod(shape) <= FEW_CELLS:
        cells = np.indices(shape).reshape(len(shape), -1).T
    else:
        ends = [sorted({int(one.argmin()), int(one.argmax()), 0, len(one) - 1}) for one in counts]
        cells = np.array(list(itertools.islice(itertools.product(*ends), TRIED_CELLS)))
    if observations.duplicates != "keep":  # there, a cell is observed once at most
        taken = {tuple(cell) for cell in observations.coordinates.tolist()}
        cells = np.array([cell for cell in cells.tolist() if tuple(cell) not in taken], dtype=np.int64)
        cells = cells.reshape(-1, len(shape))
    empty = np.array([[counts[mode][index] > 0 for mode, index in enumerate(cell)] for cell in cells.tolist()])
    order = np.argsort(empty.reshape(len(cells), -1).sum(axis=1), kind="stable")
    return cells[order].astype(np.uint32)


def _rarest_first(observations: Observations) -> list[int]:
    """Row numbers of the observations, those first that are nearly alone in one of their rows."""
    alone = [_counts(observations, mode)[observations.coordinates[:, mode]] for mode in range(observations.order)]
    return [int(place) for place in np.argsort(np.min(alone, axis=0), kind="stable")]


def _active_first(observations: Observations, mode: int) -> list[int]:
    """Indices of a mode that have data, the most active and the least active first."""
    counts = _counts(observations, mode)
    order = [int(index) for index in np.argsort(-counts, kind="stable") if counts[index] > 0]
    return list(dict.fromkeys(itertools.chain.from_iterable(zip(order, reversed(order), strict=True))))


def _counts(observations: Observations, mode: int) -> Integers:
    return np.bincount(observations.coordinates[:, mode], minlength=observations.shape[mode]).astype(np.int64)


def _joined(observations: Observations, coordinates: NDArray[np.uint32], values: Floats) -> Observations:
    """The observations with more of them at the end."""
    return Observations(
        np.concatenate([observations.coordinates, coordinates]),
        np.concatenate([observations.values, values]),
        observations.shape,
        mode_names=observations.mode_names,
        labels=observations.labels,
        duplicates=observations.duplicates,
    )


def _in_turn(*pairs: Iterator[Pair]) -> Iterator[Pair]:
    """One from each in turn, until all are used up."""
    for found in itertools.zip_longest(*pairs):
        yield from (pair for pair in found if pair is not None)
