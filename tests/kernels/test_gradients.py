"""Clipped, rounded sums of gradients against plain Python on the model's own gradient, and their invariances."""

import numpy as np
import pytest

from oracles import ORDERS, RANKS, SHAPES, random_blocks
from tensorveil.kernels.reference import gradients
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker

GRID = 2.0**-30


def setting(family, shape, seed=0, count=40):
    model = family.model(random_blocks(family.block_shapes(shape), seed))
    generator = np.random.default_rng(seed)
    where = np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
    return model, where, generator.uniform(-1, 1, count)


def minus_gradient(model, coordinate, value):
    """The whole gradient of one entry by all numbers of the model, from the model's own (tested) gradient."""
    whole = np.zeros(model.parameters.size)
    parts = model.gradient(coordinate, value)
    for b, part in enumerate(parts):
        row = int(coordinate[b]) if b < model.order else 0
        begin = int(model.block_starts[b] + row * model.block_widths[b])
        whole[begin : begin + part.size] -= part.ravel()
    return whole


def clipped(vector, m):
    norm = np.linalg.norm(vector)
    return vector * (m / norm) if norm > m else vector


def joint(model, where, values, m, grid=GRID):
    totals = np.zeros(model.parameters.size, dtype=np.int64)
    gradients.entry_sums(model.numbers, where, values, m, grid, totals)
    return totals


def by_slices(model, where, values, mode, m, grid=GRID):
    order = np.lexsort((values, *where.T, where[:, mode]))
    totals = np.zeros(model.parameters.size, dtype=np.int64)
    layout = (model.numbers,)
    slices = where[order, mode].astype(np.int64)
    gradients.slice_sums(*layout, where[order], values[order], slices, m, grid, totals)
    return totals


def families(order):
    return [CP(2), Tucker(RANKS[order])]


@pytest.mark.parametrize("order", ORDERS)
def test_joint_sums_are_those_of_clipped_whole_gradients(order):
    for family in families(order):
        model, where, values = setting(family, SHAPES[order])
        m = 2.0
        pairs = zip(where, values, strict=True)
        expected = sum(clipped(minus_gradient(model, c, v), m) for c, v in pairs)
        found = joint(model, where, values, m) * GRID
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_slice_sums_clip_the_sum_of_a_slice(order):
    for family in families(order):
        model, where, values = setting(family, SHAPES[order])
        mode, m = order - 1, 3.0
        expected = np.zeros(model.parameters.size)
        for index in range(SHAPES[order][mode]):
            mine = where[:, mode] == index
            whole = [minus_gradient(model, c, v) for c, v in zip(where[mine], values[mine], strict=True)]
            expected += clipped(np.sum(whole, axis=0), m) if whole else 0.0
        np.testing.assert_allclose(by_slices(model, where, values, mode, m) * GRID, expected, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_row_sums_clip_each_block_apart(order):
    for family in families(order):
        model, where, values = setting(family, SHAPES[order])
        B = len(model.block_starts)
        norms, grids = np.linspace(0.5, 2.0, B), np.full(B, GRID)
        totals = np.zeros(model.parameters.size, dtype=np.int64)
        layout = (model.numbers,)
        gradients.row_sums(*layout, where, values, norms, grids, totals)
        expected = np.zeros(model.parameters.size)
        ends = np.append(model.block_starts[1:], model.parameters.size)
        for coordinate, value in zip(where, values, strict=True):
            whole = minus_gradient(model, coordinate, value)
            for b, (start, end) in enumerate(zip(model.block_starts, ends, strict=True)):
                expected[start:end] += clipped(whole[start:end], norms[b])
        np.testing.assert_allclose(totals * GRID, expected, atol=1e-6)


@pytest.mark.parametrize("family", [CP(3), Tucker((2, 3, 2))])
def test_no_unit_is_longer_than_its_clip_norm_after_rounding(family):
    model, where, values = setting(family, (4, 3, 5), count=200)
    steps = 10**7  # m in grid steps: squares stay exact in Python's whole numbers
    for w in range(200):
        totals = joint(model, where[w : w + 1], values[w : w + 1], steps * GRID)
        assert sum(int(t) ** 2 for t in totals) <= steps**2
        mine = (where[w : w + 1].repeat(3, axis=0), values[w] + np.array([0.0, 1.0, -0.5]))
        totals = by_slices(model, *mine, 0, steps * GRID)
        assert sum(int(t) ** 2 for t in totals) <= steps**2


@pytest.mark.parametrize("family", [CP(3), Tucker((2, 3, 2))])
def test_the_order_of_observations_does_not_matter(family):
    model, where, values = setting(family, (4, 3, 5), count=500)
    shuffled = np.random.default_rng(1).permutation(500)
    a, b = joint(model, where, values, 1.0), joint(model, where[shuffled], values[shuffled], 1.0)
    np.testing.assert_array_equal(a, b)
    a = by_slices(model, where, values, 2, 1.0)
    b = by_slices(model, where[shuffled], values[shuffled], 2, 1.0)
    np.testing.assert_array_equal(a, b)


def test_a_slice_does_not_see_another_one():
    model, where, values = setting(CP(2), (4, 3, 5), count=60)
    first = where[:, 0] == 0
    alone = by_slices(model, where[first], values[first], 0, 1.0)
    others = by_slices(model, where[~first], values[~first], 0, 1.0)
    np.testing.assert_array_equal(by_slices(model, where, values, 0, 1.0), alone + others)


def test_an_infinite_clip_norm_clips_nothing():
    model, where, values = setting(CP(2), (4, 3, 5))
    np.testing.assert_array_equal(joint(model, where, values, np.inf), joint(model, where, values, 1e6))


def test_nothing_is_summed_of_no_observations():
    model, where, values = setting(CP(2), (4, 3, 5))
    assert not joint(model, where[:0], values[:0], 1.0).any()
    assert not by_slices(model, where[:0], values[:0], 0, 1.0).any()
