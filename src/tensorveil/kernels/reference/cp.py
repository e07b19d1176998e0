"""CP: xhat_w = sum_r prod_n a^(n)[i_n, r]."""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled


@compiled
def features(parameters: NDArray[np.float64], rows: NDArray[np.int64], R: int, phi: NDArray[np.float64]) -> float:
    """phi of mode n = Hadamard product of the rows of all other modes; returns xhat.

    Each is the product of the rows to the left times the product of the rows to the right: no division is needed, so
    rows may hold zeros.
    """
    N = rows.size
    xhat = 0.0
    for r in range(R):
        left = 1.0
        for n in range(N):
            phi[n * R + r] = left
            left *= parameters[rows[n] + r]
        xhat += left
        right = 1.0
        for n in range(N - 1, -1, -1):
            phi[n * R + r] *= right
            right *= parameters[rows[n] + r]
    return xhat


@compiled
def block_features(
    parameters: NDArray[np.float64], rows: NDArray[np.int64], R: int, mode: int, phi: NDArray[np.float64]
) -> None:
    """phi of one mode = Hadamard product of the rows of all other modes, from the first mode to the last.

    For four and more modes this order of products is not that of `features`; it is that of the fast kernels that read
    entries sorted by one mode (fast/ridge.py), and both must round alike.
    """
    for r in range(R):
        product = 1.0
        for n in range(rows.size):
            if n != mode:
                product *= parameters[rows[n] + r]
        phi[r] = product
