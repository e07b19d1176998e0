"""HaLRTC: the tensor with the least weighted sum of nuclear norms of its unfoldings that agrees with what was observed.

Liu, Musialski, Wonka and Ye, "Tensor completion for estimating missing values in visual data", IEEE Transactions on
Pattern Analysis and Machine Intelligence 35 (2013), section 5: the alternating direction method of multipliers on

    min sum_n weight_n |X_(n)|_*   such that   X = observed values in observed cells.

Every mode has a copy M_n of the tensor and a multiplier Y_n. The weights are equal, as in the paper's experiments. The
paper leaves the penalty open. Here its threshold is a tenth of the largest singular value, so that the result does not
depend on the unit of the values. It does not grow, although the paper allows that: on a train half of Birmingham's car
parks a growth of 5 % per pass ended far from the minimum (error 292 instead of 255).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from peers.cells import Floats, checked, dense, folded, gram, largest_singular_value, unfolded

THRESHOLD = 0.1  # of the largest singular value of any unfolding
MOST_PASSES, TOLERANCE = 500, 1e-5  # relative change of the tensor in a pass at which it ends


def complete(coordinates: Any, values: Any, shape: Sequence[int], asked: Any, seed: int = 0) -> Floats:
    """Predictions of asked cells; see `peers`. Nothing is random."""
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    tensor, mask = dense("HaLRTC", where, numbers, shape)
    observed = tensor[mask]
    weight = 1 / len(shape)
    largest = largest_singular_value(tensor)
    if not largest:
        return np.zeros(len(wanted))
    penalty = weight / (THRESHOLD * largest)
    multipliers = [np.zeros(tensor.shape) for _ in shape]
    for _ in range(MOST_PASSES):
        copies = [
            folded(shrunk(unfolded(tensor + one / penalty, mode), weight / penalty), mode, tensor.shape)
            for mode, one in enumerate(multipliers)
        ]
        before, tensor = (
            tensor,
            sum(copy - one / penalty for copy, one in zip(copies, multipliers, strict=True)) * weight,
        )
        tensor[mask] = observed
        for copy, one in zip(copies, multipliers, strict=True):
            one -= penalty * (copy - tensor)
        if np.linalg.norm(tensor - before) <= TOLERANCE * np.linalg.norm(before):
            break
    return np.asarray(tensor[tuple(wanted.T)])


def shrunk(matrix: Floats, threshold: float) -> Floats:
    """The proximal step of the nuclear norm: singular values lowered by the threshold, those below it removed.

    Eigenvectors of the smaller Gram matrix give it without the long singular vectors. They lose singular values below
    1e-8 of the largest, which is far below every threshold that is used here.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return shrunk(matrix.T, threshold).T
    squares, vectors = np.linalg.eigh(gram(matrix))
    kept = squares > threshold**2
    scales = 1 - threshold / np.sqrt(squares[kept])
    basis = vectors[:, kept]
    return np.asarray((basis * scales) @ (basis.T @ matrix))
