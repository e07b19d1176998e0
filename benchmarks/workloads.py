"""The workloads of speed.py: planted CP tensors of three modes, factors N(1, 1), noise of half the signal's spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 10**6
NOISE = 0.5 / np.sqrt(1.25)  # of values brought to standard deviation 1
HELD_OUT = 100_000


@dataclass
class Workload:
    """Observed entries, values of standard deviation 1, and entries held out to measure errors on."""

    name: str
    shape: tuple[int, int, int]
    rank: int
    coordinates: NDArray[np.uint32]
    values: NDArray[np.float64]
    test_coordinates: NDArray[np.uint32]
    test_values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)


SIZES: dict[str, tuple[tuple[int, int, int], int, int]] = {
    "W1": ((20, 20, 20), 4_000, 3),
    "W2": ((943, 1682, 212), 90_570, 10),
    "W3": ((50_000, 20_000, 500), 10_000_000, 16),
    "1e8": ((500_000, 200_000, 1_000), 100_000_000, 16),
}


def workload(name: str, count: int | None = None) -> Workload:
    """One of SIZES, perhaps with another number of entries; W2 has popular and rare indices, the others have not."""
    shape, entries, rank = SIZES[name]
    count = count or entries
    held = min(HELD_OUT, count // 10)
    generator = np.random.default_rng(1)
    factors = [generator.normal(1, 1, (size, rank)).astype(np.float32) for size in shape]
    where = np.empty((count + held, 3), dtype=np.uint32)
    for mode, size in enumerate(shape):
        if name == "W2":
            popularity = 1 / np.arange(1, size + 1) ** 0.8
            drawn = generator.choice(size, count + held, p=popularity / popularity.sum())
            where[:, mode] = generator.permutation(size)[drawn]
        else:
            for begin in range(0, count + held, CHUNK):
                part = where[begin : begin + CHUNK, mode]
                part[:] = generator.integers(0, size, len(part), dtype=np.uint32)
    values = np.empty(count + held)
    for begin in range(0, count + held, CHUNK):
        part = where[begin : begin + CHUNK]
        rows = factors[0][part[:, 0]]
        rows *= factors[1][part[:, 1]]
        rows *= factors[2][part[:, 2]]
        values[begin : begin + CHUNK] = rows.sum(axis=1)
    spread = float(values[:CHUNK].std())
    for begin in range(0, count + held, CHUNK):
        part = values[begin : begin + CHUNK]
        part += 0.5 * spread * generator.standard_normal(len(part))
        part /= spread * np.sqrt(1.25)
    return Workload(name, shape, rank, where[:count], values[:count], where[count:].copy(), values[count:].copy())
