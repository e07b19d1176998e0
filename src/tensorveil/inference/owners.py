"""Joint privacy, on the side of the owners: offset and row of each owner, from the release and the owner's own data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensorveil.models.block_features import block_features, largest_feature, typical_feature
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws

Floats = NDArray[np.float64]

OWNER_LIMIT = 4.0  # the most that a row may add to a prediction, on the centred scale, whose range is 2
LATENT_LIMIT = 6.0  # the same on the latent scale, whose spread is 1
OFFSET_RIDGE = 4.0  # variance of residuals over that of offsets
ROW_RIDGE = 5.0  # for the row, in units of the features' own size: features explain a fifth of the residuals


def with_owners(released: Completion, coordinates: NDArray[np.uint32], centred: Floats, mode: int) -> Completion:
    """The release with the offset and the row of every owner, each from the owner's own observations.

    An owner's offset and row together are one ridge regression; those of owners without observations are zero. If the
    release has posterior draws, values are read as latent scores, and every draw has a draw of offset and row.

    Parameters
    ----------
    coordinates, centred : where the owners' values were observed, and the values on the centred scale
    released : the public release
    mode : the mode whose indices are the owners
    """
    model, draws = released.factors, released.draws
    design = np.column_stack([np.ones(len(centred)), block_features(model, coordinates, mode)])
    ridge = np.full(design.shape[1], max(ROW_RIDGE * typical_feature(model, mode) ** 2, 1e-9))
    ridge[0] = OFFSET_RIDGE
    values = centred if draws is None else draws.scores(centred)
    residuals = values - released.offsets.at(coordinates)
    solved = np.zeros((released.shape[mode], design.shape[1]))
    roots = np.zeros((*solved.shape, solved.shape[1])) if draws is not None else None
    order = np.argsort(coordinates[:, mode], kind="stable")
    owners, starts = np.unique(coordinates[order, mode], return_index=True)
    for owner, mine in zip(owners, np.split(order, starts[1:]), strict=True):
        X = design[mine]
        matrix = X.T @ X + np.diag(ridge)
        solved[owner] = np.linalg.solve(matrix, X.T @ residuals[mine])
        if roots is not None:
            roots[owner] = np.linalg.inv(np.linalg.cholesky(matrix)).T
    limit = OWNER_LIMIT if draws is None else LATENT_LIMIT
    lengths = np.linalg.norm(solved[:, 1:], axis=1, keepdims=True)
    solved[:, 1:] /= np.maximum(1.0, lengths * largest_feature(model, mode) / limit)
    solved[:, 0] = np.clip(solved[:, 0], -limit / 2, limit / 2)
    with_rows = model.with_block(mode, solved[:, 1:])
    if draws is not None and roots is not None:
        draws = _drawn(draws, model.block_starts[mode], solved, roots, mode)
    return replace(released, offsets=released.offsets.with_mode(mode, solved[:, 0]), factors=with_rows, draws=draws)


def _drawn(draws: PosteriorDraws, start: int, solved: Floats, roots: Floats, mode: int) -> PosteriorDraws:
    """Draws with a draw of every owner's offset and row around the solved ones."""
    size, width = solved.shape
    noise = np.random.default_rng(0).standard_normal((len(draws), size, width)) * draws.sigmas[:, None, None]
    drawn = solved + np.einsum("oij,doj->doi", roots, noise)
    parameters, offsets = np.array(draws.parameters), np.array(draws.offsets)
    parameters[:, start : start + size * (width - 1)] = drawn[:, :, 1:].reshape(len(draws), -1)
    first = 1 + sum(draws.shape[:mode])
    offsets[:, first : first + size] = drawn[:, :, 0] - solved[:, 0]
    return replace(draws, parameters=parameters, offsets=offsets)
