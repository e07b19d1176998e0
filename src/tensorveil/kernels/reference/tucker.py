"""Tucker: xhat_w = sum over core cells of g * prod_n a^(n)[i_n, r_n]."""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled


@compiled
def work_size(widths: NDArray[np.int64]) -> int:
    """Scratch for the partly contracted cores: |G| + |G|/r_1 + ... + 1, and as much again for the products."""
    total = np.int64(1)
    size = widths[-1]
    for n in range(widths.size - 1):
        total += size
        size //= widths[n]
    return int(2 * total)


@compiled
def features(
    parameters: NDArray[np.float64],
    rows: NDArray[np.int64],
    widths: NDArray[np.int64],
    phi: NDArray[np.float64],
    work: NDArray[np.float64],
) -> float:
    """phi of mode n = core contracted with the rows of all other modes, phi of the core = their Kronecker product.

    Forwards, P_n is the core contracted with the first n rows (P_0 the core, P_N = xhat, the last mode varies fastest).
    Backwards, D_n is the Kronecker product of the rows after the first n (D_N = 1, D_0 the core's features). Then

        phi_n[r] = sum over rest of P_(n-1)[r, rest] D_n[rest].
    """
    N = widths.size - 1
    core_size = widths[N]
    for cell in range(core_size):
        work[cell] = parameters[rows[N] + cell]
    begin = np.int64(0)  # of P_n in work
    size = core_size
    for n in range(N):
        rest = size // widths[n]
        following = begin + size
        for cell in range(rest):
            work[following + cell] = 0.0
        for r in range(widths[n]):
            a = parameters[rows[n] + r]
            for cell in range(rest):
                work[following + cell] += a * work[begin + r * rest + cell]
        begin = following
        size = rest
    xhat = work[begin]

    product = begin + 1  # of D_n in work
    work[product] = 1.0
    position = np.int64(0)  # of phi_n, from the last mode to the first
    for n in range(N):
        position += widths[n]
    for n in range(N - 1, -1, -1):
        begin -= widths[n] * size  # of P_n, the core before this mode was contracted
        position -= widths[n]
        following = product + size
        for r in range(widths[n]):
            a = parameters[rows[n] + r]
            total = 0.0
            for cell in range(size):
                total += work[begin + r * size + cell] * work[product + cell]
                work[following + r * size + cell] = a * work[product + cell]
            phi[position + r] = total
        product = following
        size *= widths[n]
    position = np.int64(0)
    for n in range(N):
        position += widths[n]
    for cell in range(core_size):
        phi[position + cell] = work[product + cell]
    return float(xhat)
