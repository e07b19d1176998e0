"""Vectorised steps of descent against dense einsum steps, and the layout that keeps threads apart."""

import numpy as np
import pytest

from tensorveil.kernels.fast import descent
from tensorveil.kernels.vectors import Constants, padded
from tensorveil.models.cp import CP
from tensorveil.solvers.layouts.strata import Strata, padded_parameters, unpadded

SHAPES = {2: (7, 5), 3: (6, 5, 4), 4: (5, 4, 3, 3), 5: (4, 3, 3, 2, 3), 6: (3, 3, 2, 3, 2, 2)}
CASES = [(2, 1), (2, 7), (3, 3), (3, 10), (3, 16), (3, 128), (4, 9), (5, 4), (6, 33)]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-10}


def setting(order, rank, count=60, seed=0):
    generator = np.random.default_rng(seed)
    shape = SHAPES[order]
    model = CP(rank).model([generator.normal(0.7, 0.3, (size, rank)) / rank ** (1 / order) for size in shape])
    where = np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
    return model, where, generator.normal(1, 1, count)


def slow_pass(model, words, order, eta, penalty):
    """The steps in the order of the words, each with einsum over all rows but one."""
    letters = "abcdef"[: model.order]
    factors = [factor.copy() for factor in model.factors]
    loss = 0.0
    for index, value in order:
        rows = [factor[i].copy() for factor, i in zip(factors, index, strict=True)]
        e = value - np.einsum(",".join("r" * len(letters)) + "->", *rows)
        loss += e * e
        for n in range(len(rows)):
            others = [row for m, row in enumerate(rows) if m != n]
            phi = np.einsum(",".join("r" * len(others)) + "->r", *others)
            factors[n][index[n]] -= eta * (-2 * e * phi + 2 * penalty * rows[n])
    return np.concatenate([factor.ravel() for factor in factors]), loss


def entries_of(strata, order, dtype):
    """(index, value) of the laid out entries, in the order in which one thread visits them."""
    words = strata.words[: strata.entries]
    values = np.ascontiguousarray(words[:, order:]).view(dtype).ravel()
    return [(tuple(int(i) for i in row[:order]), float(value)) for row, value in zip(words, values, strict=True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order, rank", CASES)
def test_a_pass_is_the_slow_pass(order, rank, dtype):
    model, where, values = setting(order, rank)
    generator = np.random.default_rng(1)
    strata = Strata.of(where, values, model, 1, dtype, generator)
    parameters = padded_parameters(model, dtype)
    losses = strata.visit(parameters, model, np.array([0.02]), 0.05, generator)
    expected, loss = slow_pass(model, strata.words, entries_of(strata, order, dtype), 0.02, 0.05)
    assert np.abs(unpadded(parameters, model, dtype) - expected).max() < TOLERANCE[dtype]
    assert np.abs(expected - model.parameters).max() > 1e-3
    assert losses[0] == pytest.approx(loss, rel=TOLERANCE[dtype])
    rows = parameters.reshape(sum(model.shape), -1)
    assert not rows[:, rank:].any()  # what fills rows up stays zero


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_all_entries_are_there_once_and_blocks_of_a_round_share_no_row(order, threads):
    model, where, values = setting(order, 2, count=300)
    strata = Strata.of(where, values, model, threads, np.float64, np.random.default_rng(0), 2.0, -1.0)
    found = sorted(entries_of(strata, order, np.float64))
    wanted = sorted((tuple(int(i) for i in row), 2.0 * value - 1.0) for row, value in zip(where, values, strict=True))
    assert found == wanted
    visited = []
    listed = entries_of(strata, order, np.float64)
    for blocks in strata.blocks:
        visited += [*blocks]
        parts = [
            listed[strata.begins[block * strata.tiles] : strata.begins[(block + 1) * strata.tiles]] for block in blocks
        ]
        for mode in range(order):
            rows = [{index[mode] for index, _ in part} for part in parts]
            assert sum(map(len, rows)) == len(set().union(*rows))
    assert sorted(visited) == [*range(threads**order)]


def test_every_order_inside_a_tile_is_equally_likely():
    where, values = np.zeros((3, 2), np.uint32), np.arange(3.0)
    model = CP(1).model([np.ones((1, 1)), np.ones((1, 1))])
    generator = np.random.default_rng(0)
    counts: dict[tuple[float, ...], int] = {}
    for _ in range(1200):
        strata = Strata.of(where, values, model, 1, np.float64, generator)
        seen = tuple(value for _, value in entries_of(strata, 2, np.float64))
        counts[seen] = counts.get(seen, 0) + 1
    assert len(counts) == 6
    assert max(counts.values()) < 270  # 200 expected, five standard deviations
    assert min(counts.values()) > 130


def test_nothing_outside_the_parameters_is_written():
    model, where, values = setting(3, 3, count=40)
    strata = Strata.of(where, values, model, 1, np.float32, np.random.default_rng(0))
    size = padded_parameters(model, np.float32).size
    room = np.full(size + 64, 7.25, dtype=np.float32)
    room[32 : 32 + size] = padded_parameters(model, np.float32)
    strata.visit(room[32 : 32 + size], model, np.array([0.02]), 0.0, np.random.default_rng(0))
    assert (room[:32] == 7.25).all()
    assert (room[32 + size :] == 7.25).all()


def test_a_waiting_thread_gives_up_when_told_to():
    model, where, values = setting(2, 2)
    strata = Strata.of(where, values, model, 2, np.float64, np.random.default_rng(0))
    gate = np.zeros(2, np.int64)
    gate[descent.STOP] = 1
    losses = np.full((1, 2), np.nan)
    descent.visit(
        padded_parameters(model, np.float64),
        (0, 7 * padded(2, np.float64)),
        strata.words,
        strata.begins,
        strata.blocks[None],
        np.zeros((1, 1), np.int64),
        np.array([0.02]),
        np.array([1.0]),
        Constants(2, 2),
        0,
        2,
        gate,
        losses,
    )
    assert np.isnan(losses).all()
