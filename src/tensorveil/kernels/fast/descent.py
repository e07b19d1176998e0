"""Stochastic gradient descent on CP models at full speed: compact entries, rows as vectors, threads without races.

An entry is one row of 32-bit words: its N coordinates, then its value (one word of single, two of double precision).
Entries lie in blocks: every mode is cut into T parts (T the number of threads), and blocks whose parts differ in every
mode share no row of any factor matrix. A pass is T^(N-1) rounds; in round s thread t visits the block of parts

    (t, t + s_1, t + s_2, ...) modulo T,    s_1, s_2, ... the digits of s,

so that no two threads ever write to the same row, and the result depends on the seed and on T alone. Large blocks are
cut once more, into tiles whose rows fit a core's cache; entries are shuffled inside a tile.
"""

import os
from typing import Any

import numpy as np
from numba.core import types
from numpy.typing import NDArray

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.vectors import (
    AHEAD,
    DOUBLE,
    SINGLE,
    Code,
    Constants,
    Row,
    Value,
    add_release,
    emits,
    load_acquire,
)

Words = NDArray[np.uint32]

LONG = 8  # pieces of a row: longer rows are read twice rather than kept
PATIENCE = 2000  # looks at the gate before a waiting thread lets another program have its core
let_others_run = types.ExternalFunction("SwitchToThread" if os.name == "nt" else "sched_yield", types.int32())
STOP = 1  # place of the flag by which one thread tells the others to give up


@emits
def cp_step(
    c: Code,
    parameters: Row,
    starts: list[Value],
    words: Row,
    w: Value,
    step: Value,
    shrink: Value,
    constants: tuple[int, ...],
) -> Value:
    """One step on entry w, all rows from the same old values; returns its residual e before the step.

    row_n = shrink row_n + step e phi_n,    step = 2 eta,    shrink = 1 - 2 eta lambda
    """
    N, R = constants
    length, size = c.padded(R), N + c.bytes // 4
    entry = words.at(w * size)
    for row in c.rows(parameters, starts, entry.at(AHEAD * size), N, length):
        c.prefetch(row, length, write=True)
    rows = c.rows(parameters, starts, entry, N, length)
    kept = [[row.vector(begin) for row in rows] for begin in c.pieces(length)]
    sums: list[Value] = []  # two chains of sums, so that one need not wait for the other
    for place, values in enumerate(kept):
        first = c.product(values[:-1])
        if place < 2:
            sums.append(first * values[-1])
        else:
            sums[place % 2] = c.fma(first, values[-1], sums[place % 2])
    e = entry.at(N).of(c.number)[0] - c.sum(sums)
    move = step * e
    for begin, values in zip(c.pieces(length), kept, strict=True):
        if len(kept) > LONG:
            values = [row.vector(begin) for row in rows]
        for row, value, phi in zip(rows, values, c.others(values), strict=True):
            row.store(c.fma(move, phi, value * shrink), begin)
    return e


@emits
def store_value(c: Code, words: Row, place: Value, value: Value, size: tuple[int, ...]) -> None:
    """Write a value over the words from `place` on: single precision over one, double over two."""
    if size[0] == 1:
        words.at(place).of(SINGLE)[0] = value.converted(SINGLE)
    else:
        words.at(place).of(DOUBLE)[0] = value


@compiled
def visit(
    parameters: Any,
    starts: Any,
    words: Words,
    begins: Integers,
    rounds: Integers,
    tiles: Integers,
    steps: Any,
    shrinks: Any,
    constants: Constants,
    thread: int,
    threads: int,
    gate: Integers,
    losses: Floats,
) -> None:
    """One thread's part of some passes over all entries.

    begins[tile] : where a tile's entries begin; the tiles of a block follow each other
    rounds[pass, round, thread] : the block that the thread visits in the round
    tiles[pass, place] : the order of the tiles inside a block
    steps[pass], shrinks[pass] : 2 eta and 1 - 2 eta lambda
    gate : counts arrivals of all threads at the end of each round; gate[STOP] not 0: give up
    losses[pass, thread] : sum of squared residuals, each taken before its step
    """
    passes = rounds.shape[0]
    arrivals = 0
    in_block = tiles.shape[1]
    for number in range(passes):
        loss = 0.0
        for turn in range(rounds.shape[1]):
            block = rounds[number, turn, thread]
            for place in range(in_block):
                tile = block * in_block + tiles[number, place]
                for w in range(begins[tile], begins[tile + 1]):
                    e = np.float64(cp_step(parameters, starts, words, w, steps[number], shrinks[number], constants))
                    loss += e * e
            if threads > 1:
                arrivals += threads
                add_release(gate, 0, 1)
                tries = 0
                while load_acquire(gate, 0) < arrivals:
                    if load_acquire(gate, STOP) != 0:
                        return
                    tries += 1
                    if tries > PATIENCE:
                        let_others_run()
        losses[number, thread] = loss


@compiled
def count_tiles(coordinates: Coordinates, places: Integers, firsts: Integers, begins: Integers) -> None:
    """begins[tile + 1] = entries of a tile; places[firsts[n] + i] = what index i of mode n adds to a tile's number."""
    begins[:] = 0
    for w in range(coordinates.shape[0]):
        tile = 0
        for n in range(coordinates.shape[1]):
            tile += places[firsts[n] + np.int64(coordinates[w, n])]
        begins[tile + 1] += 1
    for tile in range(begins.size - 1):
        begins[tile + 1] += begins[tile]


@compiled
def arrange(
    coordinates: Coordinates,
    values: Any,
    places: Integers,
    firsts: Integers,
    begins: Integers,
    key: np.uint64,
    scale: float,
    shift: float,
    words: Words,
    value_words: Constants,
) -> None:
    """Put entries into their tiles, in random order there, with scale x_w + shift as their value.

    An entry goes to a random place among those that its tile has taken so far, and what was there goes to the end:
    every order of a tile's entries is equally likely.
    """
    N = coordinates.shape[1]
    size = words.shape[1]
    filled = begins[:-1].copy()
    for w in range(coordinates.shape[0]):
        tile = 0
        for n in range(N):
            tile += places[firsts[n] + np.int64(coordinates[w, n])]
        end = filled[tile]
        filled[tile] += 1
        state = normals.mixed(key + np.uint64(w + 1) * normals.STEP) >> np.uint64(32)
        there = begins[tile] + np.int64((state * np.uint64(end - begins[tile] + 1)) >> np.uint64(32))
        if there < end:
            for word in range(size):
                words[end, word] = words[there, word]
        for n in range(N):
            words[there, n] = coordinates[w, n]
        store_value(words, there * size + N, scale * values[w] + shift, value_words)
    for w in range(coordinates.shape[0], words.shape[0]):  # the spare entries name rows that exist
        for word in range(size):
            words[w, word] = 0
