"""SiLRTC: unfoldings of low nuclear norm that need not agree, and the tensor in their middle.

Liu, Musialski, Wonka and Ye, "Tensor completion for estimating missing values in visual data", IEEE Transactions on
Pattern Analysis and Machine Intelligence 35 (2013), section 3: block coordinate descent on

    min sum_n weight |M_n|_* + penalty / 2 |X_(n) - M_n|^2   such that   X = observed values in observed cells.

The larger the penalty, the closer the unfoldings M_n are to each other, and the slower the descent. The paper leaves it
open. Here the threshold, weight / penalty, falls from a tenth of the largest singular value to a thousandth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from peers.cells import Floats, checked, dense, folded, largest_singular_value, unfolded
from peers.halrtc import shrunk

FIRST_THRESHOLD, LAST_THRESHOLD = 0.1, 0.001  # of the largest singular value of any unfolding
DECAY = 0.99  # of the threshold, per pass: slow enough to stay near the minimum of every threshold
MOST_PASSES, TOLERANCE = 1_000, 1e-5  # relative change of the tensor in a pass at which it ends


def complete(coordinates: Any, values: Any, shape: Sequence[int], asked: Any, seed: int = 0) -> Floats:
    """Predictions of asked cells; see `peers`. Nothing is random."""
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    tensor, mask = dense("SiLRTC", where, numbers, shape)
    observed = tensor[mask]
    largest = largest_singular_value(tensor)
    share = FIRST_THRESHOLD
    for _ in range(MOST_PASSES):
        copies = [
            folded(shrunk(unfolded(tensor, mode), share * largest), mode, tensor.shape) for mode in range(len(shape))
        ]
        before, tensor = tensor, np.mean(copies, axis=0)
        tensor[mask] = observed
        if share == LAST_THRESHOLD and np.linalg.norm(tensor - before) <= TOLERANCE * np.linalg.norm(before):
            break
        share = max(share * DECAY, LAST_THRESHOLD)
    return np.asarray(tensor[tuple(wanted.T)])
