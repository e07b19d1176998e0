"""What the methods share: checks of observed cells, dense tensors, unfoldings, and a held-out part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Setting = TypeVar("Setting")

LARGEST_DENSE = 10**7  # cells of a tensor that is kept in memory as a whole
HELD_OUT = 0.1  # of the observed cells, where settings are compared


def checked(coordinates: Any, values: Any, shape: Sequence[int], asked: Any) -> tuple[Indices, Floats, Indices]:
    """Coordinates, values and asked cells as arrays, or one sentence that says what is wrong with them."""
    where, wanted = (np.asarray(cells).astype(np.int64) for cells in (coordinates, asked))
    numbers = np.asarray(values, dtype=np.float64)
    for name, cells in (("coordinates", where), ("asked", wanted)):
        if cells.ndim != 2 or cells.shape[1] != len(shape):
            raise ValueError(
                f"{name} must have one column per mode ({len(shape)}), got an array of shape {cells.shape}"
            )
        if len(cells) and ((cells < 0).any() or (cells >= np.asarray(shape)).any()):
            raise ValueError(f"{name} must lie within the shape {tuple(shape)}, got some outside; give a larger shape")
    if numbers.shape != (len(where),) or not len(where) or not np.isfinite(numbers).all():
        raise ValueError(f"values must be one finite number per row of coordinates, got shape {numbers.shape}")
    if len(np.unique(np.ravel_multi_index(tuple(where.T), shape))) < len(where):
        raise ValueError("every cell must be observed at most once, got some twice; merge them first")
    return where, numbers, wanted


def dense(method: str, where: Indices, numbers: Floats, shape: Sequence[int]) -> tuple[Floats, NDArray[np.bool_]]:
    """The tensor with the mean in cells that were not observed, and the mask of those that were."""
    if math.prod(shape) > LARGEST_DENSE:
        raise ValueError(
            f"{method} keeps the whole tensor in memory and takes at most {LARGEST_DENSE:,} cells, "
            f"got {math.prod(shape):,}; use a method of observed cells alone"
        )
    tensor, mask = np.full(tuple(shape), numbers.mean()), np.zeros(tuple(shape), dtype=bool)
    tensor[tuple(where.T)], mask[tuple(where.T)] = numbers, True
    return tensor, mask


def unfolded(tensor: Floats, mode: int) -> Floats:
    """The matrix whose rows are the slices of a mode."""
    return np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)


def folded(matrix: Floats, mode: int, shape: Sequence[int]) -> Floats:
    """The tensor whose unfolding this is."""
    sizes = (shape[mode], *(size for other, size in enumerate(shape) if other != mode))
    return np.moveaxis(matrix.reshape(sizes), 0, mode)


def largest_singular_value(tensor: Floats) -> float:
    """Of all unfoldings."""
    return max(float(np.linalg.norm(gram(unfolded(tensor, mode)), 2)) for mode in range(tensor.ndim)) ** 0.5


def gram(matrix: Floats) -> Floats:
    """The smaller one of the two Gram matrices."""
    return matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix


def chosen(
    settings: Sequence[Setting],
    predict: Callable[[Indices, Floats, Indices, Setting], Floats],
    where: Indices,
    numbers: Floats,
    seed: int,
) -> Setting:
    """The setting with the least squared error on a tenth of the observed cells, fitted to the others."""
    order = np.random.default_rng(seed).permutation(len(where))
    count = max(1, round(HELD_OUT * len(where)))
    held, kept = order[:count], order[count:]
    if not len(kept):
        return settings[0]
    errors = [
        float(np.mean((predict(where[kept], numbers[kept], where[held], one) - numbers[held]) ** 2)) for one in settings
    ]
    return settings[int(np.argmin(errors))]


def normal_equations(features: Floats, numbers: Floats, indices: Indices, size: int) -> tuple[Floats, Floats]:
    """Matrices and right-hand sides of the least squares of every row of a mode; cells are sorted by its index."""
    rank = features.shape[1]
    matrices, sides = np.empty((size, rank, rank)), np.empty((size, rank))
    for index, (begin, end) in enumerate(pairwise(np.searchsorted(indices, np.arange(size + 1)))):
        mine = features[begin:end]
        matrices[index], sides[index] = mine.T @ mine, mine.T @ numbers[begin:end]
    return matrices, sides


def product(factors: Sequence[Floats], cells: Indices, but: int | None = None) -> Floats:
    """Products of the rows of all modes but one, a row per cell: their sums over columns are a CP model."""
    result = np.ones((len(cells), factors[0].shape[1]))
    for mode, factor in enumerate(factors):
        if mode != but:
            result *= factor[cells[:, mode]]
    return result
