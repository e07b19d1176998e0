"""Sums of clipped gradients: the same bits by both kernels and any threads, no term longer than its clip norm."""

import numpy as np
import pytest

from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers import gradient_sums
from tensorveil.solvers.gradient_sums import joint_sums, local_order

SHAPES = {2: (9, 7), 3: (6, 5, 4), 4: (5, 4, 3, 2), 6: (3, 2, 3, 2, 2, 2)}
GRID = 2.0**-30


def setting(order, rank, count=300, seed=0):
    generator = np.random.default_rng(seed)
    model = CP(rank).model([generator.normal(0.3, 0.7, (size, rank)) for size in SHAPES[order]])
    where = np.column_stack([generator.integers(0, size, count) for size in SHAPES[order]]).astype(np.uint32)
    return model, where, generator.normal(size=count)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("order, rank", [(2, 1), (3, 3), (3, 10), (4, 16), (6, 2)])
def test_sums_are_those_of_whole_gradients_whatever_the_threads(order, rank, threads):
    model, where, values = setting(order, rank)
    m = 3.0
    expected = np.zeros(model.parameters.size)
    for at, value in zip(where, values, strict=True):
        parts = [-part for part in model.gradient(at, value)]
        norm = np.sqrt(sum((part**2).sum() for part in parts))
        for n, part in enumerate(parts):
            begin = int(model.block_starts[n]) + int(at[n]) * rank
            expected[begin : begin + rank] += part * min(1.0, m / norm)
    found = joint_sums(model, where, values, m, GRID, fast=True, threads=threads)
    np.testing.assert_allclose(found * GRID, expected, atol=1e-5)
    np.testing.assert_array_equal(found, joint_sums(model, where, values, m, GRID, fast=True, threads=1))


@pytest.mark.parametrize("count", [2**14 - 1, 2**14, 2**14 + 1])
@pytest.mark.parametrize("fast", [False, True])
def test_one_more_entry_adds_its_own_steps_at_any_count(count, fast):
    """No number of entries, private under some units, is one at which the arithmetic changes."""
    model, where, values = setting(3, 10, count)
    grid = 2.0**-38  # so fine that single bits of the terms show
    parts = [
        joint_sums(model, where[part], values[part], 3.0, grid, fast=False)
        for part in (slice(count - 1), slice(count - 1, count))
    ]
    np.testing.assert_array_equal(joint_sums(model, where, values, 3.0, grid, fast=fast), sum(parts))


def test_no_entry_is_longer_than_its_clip_norm_after_rounding():
    steps = 10**7  # squares stay exact in Python's whole numbers
    for rank in (1, 3, 10):
        model, where, values = setting(3, rank, count=100)
        for w in range(100):
            mine = (where[w : w + 1], values[w : w + 1])
            one = joint_sums(model, *mine, steps * GRID, GRID, fast=True)
            assert sum(int(number) ** 2 for number in one) <= steps**2


def test_the_order_of_the_entries_does_not_show():
    model, where, values = setting(3, 3, count=2000)
    for order in (local_order(where, model), np.random.default_rng(1).permutation(2000)):
        assert sorted(order) == [*range(2000)]
        shuffled = joint_sums(model, where[order], values[order], 1.0, GRID, fast=True)
        np.testing.assert_array_equal(shuffled, joint_sums(model, where, values, 1.0, GRID, fast=True))


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1.0, 1e60, 1e200])
def test_extreme_models_stay_within_the_clip_norm(scale):
    model, where, values = setting(3, 3, count=1)
    extreme = CP(3).model([scale * factor for factor in model.factors])
    found = joint_sums(extreme, where, values, 1.0, GRID, fast=True)
    assert sum(int(number) ** 2 for number in found) <= 2**60


def test_other_models_take_the_plain_kernel():
    model = Tucker((2, 2, 2)).model([np.ones((4, 2))] * 3 + [np.ones((2, 2, 2))])
    where, values = np.zeros((2, 3), np.uint32), np.array([1.0, 2.0])
    assert joint_sums(model, where, values, 1.0, GRID, fast=True).any()


def test_sums_are_moved_to_integers_before_doubles_could_round(monkeypatch):
    model, where, values = setting(3, 3, count=500)
    whole = joint_sums(model, where, values, 1.0, GRID, fast=True)
    monkeypatch.setattr(gradient_sums, "EXACT", 7.0 / GRID)  # seven entries at a time
    np.testing.assert_array_equal(joint_sums(model, where, values, 1.0, GRID, fast=True, threads=2), whole)


def test_sums_beyond_what_doubles_hold_are_exact():
    count, grid = 2**16 + 1, 2.0**-39
    model = CP(1).model([np.full((2, 1), 0.5)] * 3)
    where = np.zeros((count, 3), dtype=np.uint32)
    one = joint_sums(model, where[:1], np.full(1, 1e6), 1.0, grid, fast=True)
    many = joint_sums(model, where, np.full(count, 1e6), 1.0, grid, fast=True)
    assert count * int(one.max()) > 2**53
    np.testing.assert_array_equal(many, count * one)
