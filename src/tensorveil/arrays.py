"""Names for the kinds of arrays that the package passes around."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]
Flags = NDArray[np.bool_]
Labels = NDArray[Any]  # of the indices of a mode: texts, whole numbers or dates
