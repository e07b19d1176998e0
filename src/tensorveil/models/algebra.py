"""Products and unfoldings of dense tensors, in TensorLy's conventions (row-major unfolding, modes counted from 0)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError


def hadamard(first: ArrayLike, second: ArrayLike) -> Floats:
    """Elementwise product of two tensors of one size."""
    left, right = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if left.shape != right.shape:
        raise InputError(
            f"the Hadamard product needs tensors of one size, got {left.shape} and {right.shape}; "
            "multiply tensors of equal shape"
        )
    return left * right


def khatri_rao(matrices: Sequence[ArrayLike]) -> Floats:
    """Columnwise Kronecker product of matrices with one number of columns; the last matrix varies fastest."""
    parts = [np.asarray(matrix, dtype=np.float64) for matrix in matrices]
    if not parts or any(part.ndim != 2 or part.shape[1] != parts[0].shape[-1] for part in parts):
        raise InputError(
            "the Khatri-Rao product needs matrices with one common number of columns, "
            f"got shapes {[part.shape for part in parts]}; transpose or drop columns first"
        )
    product = parts[0]
    for part in parts[1:]:
        product = (product[:, None, :] * part[None, :, :]).reshape(-1, part.shape[1])
    return product


def unfold(tensor: ArrayLike, mode: int) -> Floats:
    """Matrix whose rows are the slices along `mode`, the other modes in their order, the last one fastest."""
    array = np.asarray(tensor, dtype=np.float64)
    number = checks.mode(mode, array.ndim)
    return np.moveaxis(array, number, 0).reshape(array.shape[number], -1)


def fold(matrix: ArrayLike, mode: int, shape: Sequence[int]) -> Floats:
    """The tensor of the given shape whose unfolding along `mode` is the matrix."""
    array = np.asarray(matrix, dtype=np.float64)
    number = checks.mode(mode, len(shape))
    moved = (shape[number], *shape[:number], *shape[number + 1 :])
    if array.shape != (moved[0], int(np.prod(moved[1:]))):
        raise InputError(
            f"folding into {tuple(shape)} along mode {number} needs a matrix of shape "
            f"{(moved[0], int(np.prod(moved[1:])))}, got {array.shape}; unfold with the same mode"
        )
    return np.moveaxis(array.reshape(moved), 0, number)


def mode_product(tensor: ArrayLike, matrix: ArrayLike, mode: int) -> Floats:
    """Mode-n product: the matrix (J x I_n) applied to every fibre along the mode (of length I_n)."""
    array, factor = np.asarray(tensor, dtype=np.float64), np.asarray(matrix, dtype=np.float64)
    number = checks.mode(mode, array.ndim)
    if factor.ndim != 2 or factor.shape[1] != array.shape[number]:
        raise InputError(
            f"the product along mode {number} needs a matrix with {array.shape[number]} columns, "
            f"got shape {factor.shape}; transpose it or choose another mode"
        )
    return np.moveaxis(np.tensordot(factor, array, axes=(1, number)), 0, number)
