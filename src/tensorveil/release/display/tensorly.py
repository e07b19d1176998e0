"""A release as a tensor of TensorLy: exact where offsets and factors predict, else by least squares, with its error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Coordinates, Floats
from tensorveil.data.observations import Observations
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily, import_tensorly
from tensorveil.models.offsets import Offsets
from tensorveil.release.predictions import offset_predictions
from tensorveil.solvers.als import ALS

if TYPE_CHECKING:
    from tensorveil.release.release import Release

MOST_CELLS = 200_000  # that least squares read; of a larger tensor, so many at random
SWEEPS, TOLERANCE = 100, 1e-6
PENALTY = 1e-6  # on the scale where predictions have variance one: only to keep every system solvable
SEED = 0  # of these cells, so that the result can be repeated


def tensorly_of(release: Release, rank: int | None = None) -> Any:
    """See `Release.to_tensorly`."""
    import_tensorly()
    model = release.model
    if model.draws is None and model.withheld_mode is None and rank is None:
        exact = model.factors.to_tensorly() if not model.clipped else _folded(model)
        exact.relative_error, exact.rmse = 0.0, 0.0
        return exact
    family = release.factors.family if rank is None else CP(checks.positive_integer("rank", rank))
    where, judged = _cells(release.shape)
    nearest = _nearest(where, _predictions(release, where), family, release.shape)
    values = _predictions(release, judged)
    errors = nearest.low + (1 + nearest.centred(judged)) - values
    tensor = _folded(nearest)
    tensor.rmse = math.sqrt(float(np.mean(errors**2)))
    tensor.relative_error = tensor.rmse / max(math.sqrt(float(np.mean(values**2))), 1e-300)
    return tensor


def _cells(shape: tuple[int, ...]) -> tuple[Coordinates, Coordinates]:
    """Cells to fit and cells to judge the fit by: all of them, or two samples of a large tensor."""
    if math.prod(shape) <= MOST_CELLS:
        whole = np.indices(shape, dtype=np.uint32).reshape(len(shape), -1).T
        return whole, whole
    generator = np.random.default_rng(SEED)
    count = max(MOST_CELLS, 20 * max(shape))
    every = [generator.permutation(np.arange(count) % size) for size in shape]  # each index occurs as often as others
    other = [generator.integers(0, size, MOST_CELLS // 4) for size in shape]
    return np.unique(np.column_stack(every), axis=0).astype(np.uint32), np.column_stack(other).astype(np.uint32)


def _predictions(release: Release, where: Coordinates) -> Floats:
    """What the release predicts; under joint privacy, for somebody about whom nothing is known."""
    if release.withheld_mode is not None:
        return offset_predictions(release.model, where.astype(np.int64))
    return release.predict(where)


def _nearest(where: Coordinates, values: Floats, family: ModelFamily, shape: tuple[int, ...]) -> Completion:
    """Offsets and factors whose sum, plus one, above `low` is nearest to the values by least squares."""
    mean, spread = float(values.mean()), float(values.std()) or 1.0
    data = Observations(where, (values - mean) / spread, shape)
    run = ALS(SWEEPS, regularization=PENALTY, tolerance=TOLERANCE).solve(data, family)
    first = np.arange(run.model.parameters.size) < run.model.factors[0].size  # one block carries the scale
    factors = run.model.replace_parameters(np.where(first, spread, 1.0) * run.model.parameters)
    parts = [None if part is None else spread * part for part in run.offsets.modes]
    return Completion(Offsets(spread * run.offsets.mean, parts), factors, mean - 1, mean + 1)


def _folded(model: Completion) -> Any:
    """Mean, offsets and factors of a model as one tensor."""
    half = (model.high - model.low) / 2
    constant = model.low + half * (1 + model.offsets.mean)
    folded = _with_offset_columns(model)
    if model.factors.core is None:
        from tensorly.cp_tensor import CPTensor

        parts = sum(part is not None for part in model.offsets.modes)
        weights = np.concatenate([[constant], np.full(parts + model.factors.ranks[0], half)])
        return CPTensor((weights, folded))
    from tensorly.tucker_tensor import TuckerTensor

    order = len(model.shape)
    core = np.zeros([rank + 2 for rank in model.factors.ranks])
    core[(slice(2, None),) * order] = half * model.factors.core
    core[(0,) * order] = constant
    for mode in range(order):
        core[tuple(int(place == mode) for place in range(order))] = half
    return TuckerTensor((core, folded))


def _with_offset_columns(model: Completion) -> list[Floats]:
    """Factor matrices with further columns first: for CP ones and offsets by component, for Tucker ones and offsets."""
    parts = model.offsets.modes
    matrices = []
    for mode, factor in enumerate(model.factors.factors):
        ones, own = np.ones(len(factor)), parts[mode]
        if model.factors.core is not None:
            columns = [ones, np.zeros(len(factor)) if own is None else own]
        else:
            named = [place for place, part in enumerate(parts) if part is not None]
            columns = [ones, *(own if place == mode and own is not None else ones for place in named)]
        matrices.append(np.column_stack([*columns, factor]))
    return matrices
