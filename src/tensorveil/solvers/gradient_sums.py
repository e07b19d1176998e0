"""Sums of clipped gradients over all entries, by the reference kernel or by the vectorised one in threads.

Both give the same integers, bit for bit. Terms are whole numbers, so neither the order of the entries nor the number of
threads changes a bit.
"""

from threading import Lock

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.fast import gradients as vectorised
from tensorveil.kernels.reference import gradients
from tensorveil.kernels.vectors import NEAR, Constants, aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel
from tensorveil.solvers.layouts.strata import padded_parameters, run_apart, sensible_threads, tile_order

MOST_STEPS = 2.0**40  # grid steps in a clip norm: more than any plan asks for
EXACT = 2.0**53  # up to here doubles are exact whole numbers


def local_order(coordinates: Coordinates, model: FactorModel) -> Integers:
    """An order of the entries that suits caches. It reads coordinates only; sums of whole numbers have no order."""
    return tile_order(coordinates, model.shape, 16 * max(model.ranks))


def joint_sums(
    model: FactorModel,
    coordinates: Coordinates,
    values: Floats,
    m: float,
    grid: float,
    *,
    fast: bool,
    threads: int | None = None,
) -> Integers:
    """Sum over entries of their negative joint gradients, each clipped to norm m, in grid steps.

    Guarantee: the contribution of every entry is at most m / grid long (docs/proofs/gradients.md, Lemma 1).

    Parameters
    ----------
    model : where gradients are taken
    coordinates, values : the entries
    m, grid : clip norm, and grid step, a power of two
    fast : whether a CP model takes the vectorised kernel, which `kernels.dispatch.worth_compiling` decides by public
        sizes. The number of entries is private under some units, so nothing here chooses a kernel by it.
    threads : number of threads of the vectorised kernel. By default it depends on the number of cores and of entries.
    """
    if not (fast and model.core is None and m < MOST_STEPS * grid):
        totals = np.zeros(model.parameters.size, dtype=np.int64)
        gradients.entry_sums(model.numbers, coordinates, values, m, grid, totals)
        return totals
    workers = sensible_threads(threads, len(values), model.order)  # may read a private count: sums are exact
    R, length = model.ranks[0], padded(model.ranks[0], np.float64)
    parameters = padded_parameters(model, np.float64)
    starts = tuple(int(start) for start in np.cumsum([0, *model.shape])[:-1] * length)
    constants = Constants(model.order, R, 2 * parameters.nbytes > NEAR)
    at_once = int(EXACT * grid / m)  # entries whose sum is certainly exact in doubles; at least 2^13
    cuts = np.linspace(0, len(values), workers + 1).astype(np.int64)
    totals = np.zeros(model.parameters.size, dtype=np.int64)
    alone = Lock()

    def work(thread: int) -> None:
        sums = aligned_zeros(parameters.size, np.float64)
        for first in range(int(cuts[thread]), int(cuts[thread + 1]), at_once):
            last = min(first + at_once, int(cuts[thread + 1]))
            layout = (parameters, starts, coordinates, values)
            vectorised.entry_sums(*layout, m, grid, sums, constants, length, first, last)
            with alone:
                vectorised.move_whole(sums, length, R, totals)

    run_apart(work, workers)
    return totals
