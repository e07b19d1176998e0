"""Sums of clipped gradients over all entries: vectorised and in threads where a CP model has many entries.

Terms are whole numbers, so neither the order of the entries nor the number of threads shows in a single bit.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.reference import gradients
from tensorveil.kernels.vectors import Constants, aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel
from tensorveil.solvers.layouts.sorted_entries import FEWEST_FAST
from tensorveil.solvers.layouts.strata import padded_parameters, run_apart, sensible_threads, tile_order

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

MOST_STEPS = 2.0**40  # grid steps in a clip norm: more than any plan asks for
NEAR = 2**20  # bytes: what fits a core's own cache, more or less, needs no asking ahead
EXACT = 2.0**53  # up to here doubles are exact whole numbers


def local_order(coordinates: Coordinates, model: FactorModel) -> Integers:
    """An order of the entries that suits caches, from coordinates alone: sums of whole numbers know no order."""
    return tile_order(coordinates, model.shape, 16 * max(model.ranks))


def joint_sums(
    model: FactorModel,
    coordinates: Coordinates,
    values: Floats,
    chosen: NDArray[np.bool_],
    m: float,
    grid: float,
    threads: int | None = None,
) -> Integers:
    """Sum over the chosen entries of minus their joint gradients, each clipped to norm m, in grid steps.

    Guarantee: every entry's part in the sum is at most m / grid long (docs/proofs/gradient_perturbation.md, Lemma 1).
    """
    if model.core is not None or len(values) < FEWEST_FAST or not m < MOST_STEPS * grid:
        totals = np.zeros(model.parameters.size, dtype=np.int64)
        layout = (model.parameters, model.block_starts, model.block_widths, coordinates, values)
        gradients.entry_sums(*layout, chosen, m, grid, totals)
        return totals
    if not chosen.all():
        coordinates, values = coordinates[chosen], values[chosen]
    workers = sensible_threads(threads, len(values), model.order)
    R, length = model.ranks[0], padded(model.ranks[0], np.float64)
    parameters = padded_parameters(model, np.float64)
    starts = tuple(int(start) for start in np.cumsum([0, *model.shape])[:-1] * length)
    constants = Constants(model.order, R, 2 * parameters.nbytes > NEAR)
    at_once = int(EXACT * grid / m)  # entries whose sum is surely exact in doubles; at least 2^13
    cuts = np.linspace(0, len(values), workers + 1).astype(np.int64)
    totals = np.zeros(model.parameters.size, dtype=np.int64)
    alone = Lock()

    def work(thread: int) -> None:
        sums = aligned_zeros(parameters.size, np.float64)
        for first in range(int(cuts[thread]), int(cuts[thread + 1]), at_once):
            last = min(first + at_once, int(cuts[thread + 1]))
            layout = (parameters, starts, coordinates, values)
            gradients.cp_entry_sums(*layout, m, grid, sums, constants, length, first, last)
            with alone:
                gradients.move_whole(sums, length, R, totals)

    run_apart(work, workers)
    return totals
