"""Factors from given columns: features of one mode, and the effects of another mode on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorveil.models.factor_model import FactorModel

Floats = NDArray[np.float64]


def linked_factors(
    model: FactorModel, mode: int, columns: Floats, partner: int, rows: Floats | None = None
) -> FactorModel:
    """A model that predicts columns[i] @ rows[j] for index i of `mode` and j of `partner`, for any other indices.

    Columns beyond the ranks of the model are dropped. Without `rows`, the rows of the partner mode are zero, and its
    owners compute their own.
    """
    width = min(model.ranks[mode], model.ranks[partner], columns.shape[1])
    blocks: list[Any] = [np.zeros_like(factor) for factor in model.factors]
    blocks[mode][:, :width] = columns[:, :width]
    if rows is not None:
        blocks[partner][:, :width] = rows[:, :width]
    for other in range(model.order):
        if other not in (mode, partner):
            blocks[other][:, : width if model.core is None else 1] = 1.0
    if model.core is not None:
        core = np.zeros_like(model.core)
        for place in range(width):
            core[tuple(place if one in (mode, partner) else 0 for one in range(model.order))] = 1.0
        blocks.append(core)
    return model.family.model(blocks)


def item_columns(offsets: Floats, counts: Floats, given: Floats | None) -> Floats:
    """Features of the indices of a mode, most informative first: offset, log count, directions of given features.

    Zero on average over counts; each of the three has mean square one, all its columns together.

    Parameters
    ----------
    counts : of every index, not negative
    """
    shares = counts / max(float(counts.sum()), 1e-300)
    made = [offsets[:, None], np.log(np.maximum(counts, 1e-3 * float(counts.mean()) + 1e-9))[:, None]]
    if given is not None:
        left, singular, _ = np.linalg.svd(given, full_matrices=False)
        made.append(left * singular)
    return np.column_stack([_even(columns - shares @ columns) for columns in made])


def _even(columns: Floats) -> Floats:
    """Columns scaled to mean square one; none if they are nearly zero."""
    size = float(np.sqrt(np.square(columns).sum(axis=1).mean()))
    return np.asarray(columns / size) if size > 1e-9 else np.empty((len(columns), 0))
