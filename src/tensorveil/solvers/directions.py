"""Leading directions of a wide sparse matrix from products with it alone, by block Lanczos.

For S = [S_1 S_2 ...], one sparse part per other mode, these are the leading eigenvectors of S S^T, or of S S^T less a
diagonal matrix. The square is never formed: a Krylov basis grows by BLOCK columns at a time, and the small projected
matrix is solved. The start is random with a fixed seed. Directions with a gap to the others converge to full precision;
among directions that chance made, which lie close together, the result is some of the leading ones.

Bounds: with a basis of D vectors (SPACE unless said), 2 D multiplications per stored number of S, about 4 size D^2 for
the basis, and 4 size D bytes of memory besides S (1.3 KB per index). If the size is at most D, the basis is complete
and the result exact, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.cores import available_cores
from tensorveil.solvers.layouts.strata import run_parts

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]

BLOCK = 16
SPACE = 320  # basis vectors; 100 directions of ML-100K then explain 0.99999 of what exact ones do
NUDGE = 1e-4  # relative noise in new basis vectors, which keeps them new when all directions are found
FEWEST_SHARED = 2**16  # stored numbers of all parts; with fewer, threads would wait for each other
PRECISION = 1e-6  # of single precision, relative to the largest eigenvalue: smaller ones are rounding


def pair_counts(coordinates: Coordinates, mode: int, other: int, shape: tuple[int, ...]) -> csr_matrix:
    """How often each index of a mode was observed with each index of another mode; row order does not matter."""
    from scipy.sparse import csr_matrix

    rows, columns = coordinates[:, mode], coordinates[:, other]
    counts = csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(shape[mode], shape[other]))
    counts.sum_duplicates()  # exact: whole numbers below 2^24
    return counts


def leading_directions(
    parts: Sequence[csr_matrix], most: int, less: Floats | None = None, space: int = SPACE
) -> tuple[Floats, Floats]:
    """The largest eigenvalues of S S^T, ascending and none below zero, and their eigenvectors, one per column.

    less : a diagonal matrix to subtract from S S^T
    space : number of basis vectors
    """
    size = parts[0].shape[0]
    dimensions = max(space, 3 * most // BLOCK * BLOCK)
    dtype = np.float64 if dimensions >= size else np.float32
    parts = [part.astype(dtype, copy=False) for part in parts]
    diagonal: NDArray[np.floating] = np.zeros((size, 1)) if less is None else np.negative(less)[:, None]
    diagonal = diagonal.astype(dtype)
    threads = min(available_cores(), BLOCK) if sum(part.nnz for part in parts) >= FEWEST_SHARED else 1

    def multiply(block: NDArray[np.floating]) -> NDArray[np.floating]:
        columns = np.array_split(block, threads, axis=1)  # the bits of a column do not depend on the others
        return np.concatenate(run_parts(lambda share: multiply_columns(columns[share]), threads, threads), axis=1)

    def multiply_columns(block: NDArray[np.floating]) -> NDArray[np.floating]:
        return sum((part @ (part.T @ block) for part in parts), start=diagonal * block)

    if dimensions >= size:
        identity = np.eye(size)
        blocks = [multiply(identity[:, begin : begin + BLOCK]) for begin in range(0, size, BLOCK)]
        values, vectors = np.linalg.eigh(np.column_stack(blocks))
        return np.maximum(values[-most:], 0.0), vectors[:, -most:]
    basis = np.empty((size, dimensions), dtype)
    projected = np.empty((dimensions, dimensions))
    generator = np.random.default_rng(0)
    block = multiply(generator.standard_normal((size, BLOCK), dtype))
    for begin in range(0, dimensions, BLOCK):
        before, until = basis[:, :begin], begin + BLOCK
        block = np.linalg.qr(block)[0] + NUDGE / math.sqrt(size) * generator.standard_normal((size, BLOCK), dtype)
        for _ in range(2):  # the second time removes what rounding left
            block = np.linalg.qr(block - before @ (before.T @ block))[0]
        basis[:, begin:until] = block
        block = multiply(block)
        projected[:until, begin:until] = basis[:, :until].T @ block
    values, vectors = np.linalg.eigh(projected, UPLO="U")
    values = np.where(values > PRECISION * values[-1], values, 0.0)[-most:]
    return values, np.asarray(basis @ vectors[:, -most:].astype(dtype), dtype=np.float64)
