"""Random words for a client at the source: straight from the operating system, with NumPy alone."""

import os

import numpy as np
from numpy.typing import NDArray


def system_words(count: int) -> NDArray[np.uint64]:
    """So many words of 64 random bits, none of which was or will be used by anything else."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
