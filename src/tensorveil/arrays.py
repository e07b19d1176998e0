"""Names for the kinds of arrays that the package passes around."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]
Flags = NDArray[np.bool_]
