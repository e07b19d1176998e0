"""CP: xhat_w = sum_r prod_n a^(n)[i_n, r]."""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled


@compiled
def features(parameters: NDArray[np.float64], rows: NDArray[np.int64], R: int, phi: NDArray[np.float64]) -> float:
    """phi of mode n = Hadamard product of the rows of all other modes; returns xhat.

    Products from the left and from the right meet, so no division is needed (rows may hold zeros).
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
