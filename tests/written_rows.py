"""Rows that tests of files write, and how they are written and read back."""

import numpy as np

DAY = 86_400
ROWS = [("ann", 7, 4.0, 0), ("bob", 9, 2.5, DAY + 5), ("ann", 9, 1.0, DAY), ("cy", 11, 3.0, -1)]
NAMES = ["user", "film", "stars", "time"]
MODES = ["user", "film"]


def text(rows, delimiter=",", header=NAMES, end="\n") -> str:
    lines = ([header] if header else []) + [list(map(str, row)) for row in rows]
    return "".join(delimiter.join(line) + end for line in lines)


def entries(observations) -> set[tuple]:
    """Entries as (label, ..., value)."""
    labels = [
        np.arange(size) if found is None else found
        for found, size in zip(observations.labels, observations.shape, strict=True)
    ]
    return {
        (*(mode[index] for mode, index in zip(labels, where, strict=True)), value)
        for where, value in zip(observations.coordinates.tolist(), observations.values.tolist(), strict=True)
    }
