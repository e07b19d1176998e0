"""How many observations one index has, where the coordinates are public: what a whole person costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorveil.arrays import Integers


def contributions_of(names: Iterable[str], counts: Iterable[Integers]) -> tuple[dict[str, Any], ...]:
    """For every mode the largest and the median number of observations of an index that has any.

    Examples
    --------
    >>> contributions_of(["user"], [np.array([0, 3, 1, 2])])
    ({'mode': 'user', 'largest': 3, 'median': 2.0},)
    """
    return tuple(
        {"mode": name, "largest": int(each.max()), "median": float(np.median(each[each > 0]))}
        for name, each in zip(names, counts, strict=True)
    )
