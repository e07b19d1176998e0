"""Entries laid out for descent in several threads: blocks that share no row, and tiles that fit a cache."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats, Integers
from tensorveil.kernels.cores import available_cores
from tensorveil.kernels.fast import descent
from tensorveil.kernels.vectors import AHEAD, Constants, aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel

Result = TypeVar("Result")

MOST_THREADS = 8  # blocks are threads to the power of the number of modes
ENTRIES_PER_THREAD = 8192  # fewer, and waiting for each other costs more than it saves
TILE_BYTES = 2**17  # of rows of one mode: those of three fit a core's own cache
TILE_ENTRIES = 2048  # smaller tiles change rows more often than they save
AT_ONCE = 2**22  # entries visited between two looks at the loss
CHUNK = 2**20


def sensible_threads(threads: int | None, entries: int, order: int) -> int:
    """The number of threads asked for, or one per core as long as there are enough entries for all blocks.

    It may read a private number of entries if the result of the computation does not depend on the threads.
    """
    if threads is not None:
        return threads
    found = min(available_cores(), MOST_THREADS)
    while found > 1 and (entries < found * ENTRIES_PER_THREAD or found**order > 4096):
        found -= 1
    return found


def run_together(part: Callable[[int], None], threads: int, stop: Callable[[], None]) -> None:
    """Call part(0), ..., part(threads - 1) at once; `stop` frees those that wait if one cannot go on."""
    if threads == 1:
        part(0)
        return
    with ThreadPoolExecutor(threads - 1) as pool:  # of its own: parts that wait for each other must all run
        others = [pool.submit(part, thread) for thread in range(1, threads)]
        try:
            part(0)
        except BaseException:  # an interrupt too: the other threads would wait for ever
            stop()
            raise
        for other in others:
            other.result()


def run_apart(part: Callable[[int], None], threads: int) -> None:
    """Call part(0), ..., part(threads - 1), which do not wait for each other, on threads that are kept."""
    others = [_pool(os.getpid(), threads - 1).submit(part, thread) for thread in range(1, threads)]
    try:
        part(0)
    finally:
        for other in others:
            other.result()


def run_parts(function: Callable[[int], Result], parts: int, threads: int) -> list[Result]:
    """What a function gives for parts 0, ..., parts - 1, in order; a thread takes every `threads`-th of them."""
    found: dict[int, Result] = {}

    def work(thread: int) -> None:
        found.update((part, function(part)) for part in range(thread, parts, threads))

    run_apart(work, threads)
    return [found[part] for part in range(parts)]


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked process has none of its parent's threads."""
    return ThreadPoolExecutor(threads)


@final
@dataclass(frozen=True)
class Strata:
    """Entries in blocks and tiles (kernels/fast/descent.py); made once, visited in every pass."""

    words: NDArray[np.uint32]
    begins: Integers
    blocks: Integers
    tiles: int
    threads: int
    dtype: Any

    @classmethod
    def of(
        cls,
        coordinates: NDArray[np.uint32],
        values: Floats,
        model: FactorModel,
        threads: int,
        dtype: Any,
        generator: np.random.Generator,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> Self:
        """Lay out the entries, with scale * value + shift as values."""
        shape, N = model.shape, model.order
        bytes_a_row = padded(model.ranks[0], dtype) * np.dtype(dtype).itemsize
        cuts = _tiles(shape, bytes_a_row, len(values), threads)
        tiles = int(np.prod(cuts))
        parts = []
        for n, size in enumerate(shape):
            counts = index_counts(coordinates, n, size)
            middle = np.cumsum(counts) - counts / 2
            cell = np.minimum(middle * (threads * cuts[n] / len(values)), threads * cuts[n] - 1).astype(np.int64)
            block, tile = np.divmod(cell, cuts[n])
            parts.append(block * threads ** (N - 1 - n) * tiles + tile * int(np.prod(cuts[n + 1 :])))
        firsts = np.cumsum([0, *shape])[:-1]
        begins = np.zeros(threads**N * tiles + 1, dtype=np.int64)
        places = np.concatenate(parts)
        descent.count_tiles(coordinates, places, firsts, begins)
        words = np.empty((len(values) + AHEAD, N + np.dtype(dtype).itemsize // 4), dtype=np.uint32)
        key = generator.integers(2**64, dtype=np.uint64)
        value_words = Constants(words.shape[1] - N)
        descent.arrange(coordinates, values, places, firsts, begins, key, scale, shift, words, value_words)
        shifts = np.array([*product(range(threads), repeat=N - 1)], dtype=np.int64).reshape(-1, N - 1)
        blocks = np.empty((len(shifts), threads), dtype=np.int64)
        for thread in range(threads):
            digits = np.column_stack([np.full(len(shifts), thread), (thread + shifts) % threads])
            blocks[:, thread] = digits @ threads ** np.arange(N - 1, -1, -1)
        return cls(words, begins, blocks, tiles, threads, dtype)

    @property
    def entries(self) -> int:
        """How many there are."""
        return int(self.begins[-1])

    def pack(self, model: FactorModel) -> NDArray[Any]:
        """The model's numbers as `visit` wants them."""
        return padded_parameters(model, self.dtype)

    @staticmethod
    def unpack(parameters: NDArray[Any], model: FactorModel) -> Floats:
        """The model's numbers as models want them."""
        return unpadded(parameters, model, parameters.dtype)

    def passes_at_once(self) -> int:
        """How many passes are made between two looks at the loss."""
        return max(1, AT_ONCE // self.entries)

    def visit(
        self,
        parameters: NDArray[Any],
        model: FactorModel,
        rates: Floats,
        penalty: float,
        generator: np.random.Generator,
    ) -> Floats:
        """One pass for each of the learning rates; returns the sums of squared residuals.

        `parameters` are rows padded with zeros, see `padded_parameters`.
        """
        constants = Constants(model.order, model.ranks[0])
        length = padded(model.ranks[0], self.dtype)
        starts = tuple(int(start) for start in np.cumsum([0, *model.shape])[:-1] * length)
        rounds = np.array([generator.permutation(self.blocks) for _ in rates])
        tiles = np.array([generator.permutation(self.tiles) for _ in rates])
        steps = (2 * rates).astype(self.dtype)
        shrinks = (1 - 2 * rates * penalty).astype(self.dtype)
        gate = np.zeros(2, dtype=np.int64)
        losses = np.zeros((len(rates), self.threads))

        def part(thread: int) -> None:
            entries, passes = (self.words, self.begins), (rounds, tiles, steps, shrinks)
            descent.visit(parameters, starts, *entries, *passes, constants, thread, self.threads, gate, losses)

        def stop() -> None:
            gate[descent.STOP] = 1

        run_together(part, self.threads, stop)
        return np.asarray(losses.sum(axis=1))


def padded_parameters(model: FactorModel, dtype: Any) -> NDArray[Any]:
    """All factors in one vector, with every row padded to whole vectors by zeros, which steps leave zero."""
    length = padded(model.ranks[0], dtype)
    found = aligned_zeros(sum(model.shape) * length, dtype)
    found.reshape(-1, length)[:, : model.ranks[0]] = model.parameters.reshape(-1, model.ranks[0])
    return found


def unpadded(parameters: NDArray[Any], model: FactorModel, dtype: Any) -> Floats:
    """The numbers of a model from `padded_parameters`."""
    rows = parameters.reshape(sum(model.shape), padded(model.ranks[0], dtype))
    return np.ascontiguousarray(rows[:, : model.ranks[0]], dtype=np.float64).ravel()


def _tiles(shape: tuple[int, ...], bytes_a_row: int, entries: int, threads: int) -> list[int]:
    """Into how many tiles each mode's part of a block is cut."""
    cuts = [max(1, -(-size * bytes_a_row // (threads * TILE_BYTES))) for size in shape]
    blocks = threads ** len(shape)
    while max(cuts) > 1 and entries < blocks * int(np.prod(cuts)) * TILE_ENTRIES:
        cuts[int(np.argmax(cuts))] -= 1
    return cuts


def tile_order(coordinates: NDArray[np.uint32], shape: tuple[int, ...], bytes_a_row: int) -> Integers:
    """An order of the entries that suits caches: tiles of all modes but the largest, sorted by the largest in a tile.

    It reads coordinates only.
    """
    entries, largest = len(coordinates), int(np.argmax(shape))
    key = np.zeros(entries, dtype=np.uint64)
    for n, size in enumerate(shape):
        if n != largest:
            cuts = max(1, -(-size * bytes_a_row // TILE_BYTES))
            key *= np.uint64(cuts)
            key += (np.arange(size) * cuts // size).astype(np.uint64)[coordinates[:, n]]
    key *= np.uint64(shape[largest])
    key += coordinates[:, largest]
    return np.argsort(key, kind="stable")


def index_counts(coordinates: NDArray[np.uint32], mode: int, size: int) -> Integers:
    """Entries of each index, without a copy of the column."""
    counts = np.zeros(size, dtype=np.int64)
    for begin in range(0, len(coordinates), CHUNK):
        counts += np.bincount(coordinates[begin : begin + CHUNK, mode], minlength=size)
    return counts
