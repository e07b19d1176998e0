"""Entries of a CP model, sorted once by every mode, and sweeps of ridge regressions over them in threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.fast import ridge, statistics
from tensorveil.kernels.vectors import AHEAD, NEAR, Constants, aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel
from tensorveil.solvers.layouts.strata import CHUNK, index_counts, run_parts, sensible_threads

FEWEST_PARTS, MOST_PARTS = 2, 16  # of the rows of a mode; float sums are by parts, whatever the number of threads
ENTRIES_PER_PART = 2**16
NO_OFFSET = 1e30  # a penalty that leaves nothing of an offset


@final
@dataclass(frozen=True)
class ModeList:
    """Entries in the order of one mode: their coordinates in the other modes, and their values."""

    others: Coordinates
    values: NDArray[Any]
    begins: Integers
    cuts: Integers  # ends of the parts that threads take, in rows

    @cached_property
    def rows(self) -> Integers:
        """Rows that have entries."""
        return np.flatnonzero(np.diff(self.begins))


@final
@dataclass(frozen=True)
class SortedEntries:
    """One list of entries per mode, with 4 N + 4 or 4 N + 8 bytes per entry; there is no other copy."""

    lists: list[ModeList]
    shape: tuple[int, ...]
    threads: int
    dtype: Any

    @classmethod
    def of(
        cls, coordinates: Coordinates, values: NDArray[Any], shape: tuple[int, ...], threads: int, dtype: Any
    ) -> SortedEntries:
        """Sort the entries by every mode, several modes at once if there are threads."""
        lists = run_parts(lambda n: _sorted(coordinates, values, n, shape[n], dtype), len(shape), threads)
        return cls(lists, shape, threads, dtype)

    def __len__(self) -> int:
        return int(self.lists[0].begins[-1])

    def pack(self, model: FactorModel, parameters: Floats, offsets: list[Floats]) -> NDArray[Any]:
        """All factors, with rows padded to whole vectors and offsets (if any) as the last number of each row."""
        R = model.ranks[0]
        length = padded(R + bool(offsets), self.dtype)
        packed = aligned_zeros(sum(self.shape) * length, self.dtype)
        rows = packed.reshape(-1, length)
        rows[:, :R] = parameters.reshape(-1, R)
        if offsets:
            rows[:, R] = np.concatenate(offsets)
        return packed

    def unpack(self, packed: NDArray[Any], model: FactorModel, offsets: list[Floats]) -> tuple[Floats, list[Floats]]:
        """Parameters of the model, and offsets, from packed rows."""
        R = model.ranks[0]
        rows = packed.reshape(sum(self.shape), -1)
        parameters = np.ascontiguousarray(rows[:, :R], dtype=np.float64).ravel()
        if not offsets:
            return parameters, []
        return parameters, np.split(rows[:, R].astype(np.float64), np.cumsum(self.shape)[:-1])

    def sweep(self, packed: NDArray[Any], R: int, mean: float, penalty: float, offset_penalties: list[float]) -> float:
        """Solve the rows of all modes in turn, each with its offset; returns the effective number of parameters."""
        effective = 0.0
        for mode in range(len(self.shape)):
            ridges = np.full(R + bool(offset_penalties), penalty, dtype=self.dtype)
            if offset_penalties:
                ridges[R] = min(offset_penalties[mode], NO_OFFSET)
            found = self._by_parts(ridge.solve_rows, mode, packed, R, mean, len(ridges), ridges)
            effective += float(np.sum(found))
        return effective

    def residuals(self, packed: NDArray[Any], R: int, mean: float, with_offsets: bool) -> tuple[float, float]:
        """Sum and sum of squares of all residuals."""
        found = self._by_parts(ridge.sum_residuals, 0, packed, R, mean, R + with_offsets)
        total, squares = np.sum(np.array(found), axis=0)
        return float(total), float(squares)

    def row_matrices(self, model: FactorModel, mode: int) -> RowMatrices:
        """Limits and matrices of private least squares, for public coordinates; double precision only."""
        R, size = model.ranks[0], self.shape[mode]
        packed = self.pack(model, model.parameters, [])
        limits, moments = np.empty(size), np.empty((size, 2))
        H = np.zeros((size, R * padded(R, np.float64)))
        self._by_parts(statistics.row_matrices, mode, packed, R, 0.0, R, limits, H, moments)
        trace, squares = moments.sum(axis=0)
        return RowMatrices(H, limits, R, float(trace), float(squares), self.lists[mode], self.threads)

    def right_sides(self, model: FactorModel, mode: int, limits: Floats) -> Integers | None:
        """Right-hand sides of private least squares in whole grid steps; the values of these entries are residuals.

        None where features are longer than the limits.
        """
        R = model.ranks[0]
        packed = self.pack(model, model.parameters, [])
        g = np.zeros((self.shape[mode], padded(R, np.float64)), dtype=np.int64)
        fits = self._by_parts(statistics.right_sides, mode, packed, R, 0.0, R, limits, g)
        return np.ascontiguousarray(g[:, :R]) if all(fits) else None

    def _by_parts(
        self, kernel: Any, mode: int, packed: NDArray[Any], R: int, mean: float, D: int, *more: Any
    ) -> list[Any]:
        """What a kernel returns for each part of the rows of a mode."""
        mine = self.lists[mode]
        length = padded(D, self.dtype)
        starts = [int(start) * length for start in np.cumsum([0, *self.shape])[:-1]]
        others = tuple(start for number, start in enumerate(starts) if number != mode)
        constants = Constants(len(self.shape), R, D - R, packed.nbytes > NEAR)
        entries = (packed, others, starts[mode], mine.others, mine.values, self.dtype(mean), mine.begins)
        rows = ridge.ModeRows(*entries, length, D)
        cuts = mine.cuts.tolist()

        def work(part: int) -> Any:
            return kernel(rows, constants, cuts[part], cuts[part + 1], *more)

        return run_parts(work, len(cuts) - 1, self.threads)


@final
@dataclass(frozen=True)
class RowMatrices:
    """Matrices H of the rows of a mode, as lower triangles in rows padded to whole vectors, and their limits."""

    triangles: Floats
    limits: Floats
    rank: int
    trace: float  # of all of them
    squares: float  # of all their numbers
    mine: ModeList
    threads: int

    def posterior_rows(
        self, g: Floats, noise_variance: float, residual_variance: float, smallest_prior: float, largest_prior: float
    ) -> Floats:
        """`inference.rows.posterior_rows` for matrices without noise, by Cholesky factors instead of eigenvectors.

        A row of k entries is assumed to have min(k, R) positive eigenvalues.
        """
        R, length = self.rank, self.triangles.shape[1] // self.rank
        counts = np.minimum(np.diff(self.mine.begins), R)
        weight = self.squares
        surplus = float((g**2).sum()) - residual_variance * self.trace - noise_variance * float(counts.sum())
        prior = min(max(surplus, smallest_prior * weight), largest_prior * weight) / weight if weight > 0 else 0.0
        rows = np.zeros_like(g)
        cuts, variances = self.mine.cuts.tolist(), (prior, residual_variance, noise_variance)

        def solve(part: int) -> None:
            ends = cuts[part], cuts[part + 1]
            statistics.spectral_solutions(self.triangles, self.limits, length, g, *variances, *ends, rows)

        run_parts(solve, len(cuts) - 1, self.threads)
        return rows


def kept_entries(shard: Any, key: Any, values: Callable[[Any], Floats]) -> SortedEntries:
    """Entries of a shard in the order of every mode, kept in its layouts from one call with this key to the next."""
    kept = shard.layouts.get("sorted entries")
    if kept is None or kept[0] != key:
        threads = sensible_threads(None, len(shard), len(shard.shape))
        entries = SortedEntries.of(shard.coordinates, values(shard), shard.shape, threads, np.float64)
        kept = shard.layouts["sorted entries"] = (key, entries)
    found: SortedEntries = kept[1]
    return found


def mode_variances(
    coordinates: Coordinates, values: Floats, shape: tuple[int, ...]
) -> tuple[float, float, list[tuple[Floats, Integers]]]:
    """Mean and variance of the values and, for every mode, the sum about the mean and the count of each index."""
    mean = float(values.mean())
    variance = sum(float(((values[a : a + CHUNK] - mean) ** 2).sum()) for a in range(0, len(values), CHUNK))
    firsts = np.cumsum([0, *shape])[:-1]
    sums, counts = np.zeros(sum(shape)), np.zeros(sum(shape), dtype=np.int64)
    ridge.mode_sums(coordinates, values, mean, firsts, sums, counts)
    parts = zip(np.split(sums, firsts[1:]), np.split(counts, firsts[1:]), strict=True)
    return mean, variance / len(values), [*parts]


def _sorted(coordinates: Coordinates, values: NDArray[Any], mode: int, size: int, dtype: Any) -> ModeList:
    begins = np.concatenate([[0], np.cumsum(index_counts(coordinates, mode, size))])
    others = np.empty((len(values) + AHEAD, coordinates.shape[1] - 1), dtype=np.uint32)
    sorted_values = np.zeros(len(values) + AHEAD, dtype=dtype)
    ridge.sort_by_mode(coordinates, values, mode, begins, others, sorted_values)
    return ModeList(others, sorted_values, begins, part_cuts(begins, len(values), size))


def part_cuts(begins: Integers, count: int, size: int) -> Integers:
    """Ends of the parts of the rows of a mode, with about the same number of entries in each."""
    parts = min(max(count // ENTRIES_PER_PART, FEWEST_PARTS), MOST_PARTS)
    cuts = np.searchsorted(begins, np.linspace(0, count, parts + 1)[1:-1])
    return np.concatenate([[0], np.minimum(cuts, size), [size]])
