"""The reference kernels and the fast ones give the same integers, bit for bit, whatever the numbers are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.kernels.fast import gradients as fast_gradients
from tensorveil.kernels.fast.ridge import BATCH
from tensorveil.kernels.reference.least_squares import feature_norms
from tensorveil.kernels.reference.statistics import SMALLEST_LIMIT, right_sides
from tensorveil.models.cp import CP
from tensorveil.solvers.gradient_sums import joint_sums
from tensorveil.solvers.layouts.sorted_entries import SortedEntries

MODELS = [(2, 1), (2, 33), (3, 4), (3, 10), (4, 3), (4, 18), (5, 7), (6, 2), (6, 13)]  # order and rank
SIZES = (1, 2, fast_gradients.BATCH - 1, fast_gradients.BATCH, BATCH - 1, BATCH + 1, 1024, 1025, 3000)


def setting(order, rank, count, scale, spread, seed):
    """A model whose blocks differ in size, and entries of it: long rows, short ones, and rows without entries."""
    generator = np.random.default_rng(seed)
    shape = tuple(int(size) for size in generator.integers(1, 7, order))
    sizes = 10.0 ** generator.uniform(-1, 1, order)
    model = CP(rank).model(
        [scale * size * generator.normal(size=(n, rank)) for n, size in zip(shape, sizes, strict=True)]
    )
    where = np.column_stack([np.minimum(generator.integers(0, 2 * n, count), n - 1) for n in shape]).astype(np.uint32)
    return model, where, spread * generator.normal(size=count), shape


ARGUMENTS = {
    "count": st.sampled_from(SIZES),
    "scale": st.sampled_from([1e-160, 1e-80, 1e-30, 1e-3, 0.3, 1.0, 1.0, 1.0, 30.0, 1e30, 1e50, 1e80, 1e160]),
    "spread": st.sampled_from([0.0, 1e-200, 1e-3, 1.0, 1.0, 100.0, 1e150, 1e300]),
    "threads": st.sampled_from([1, 2, 3]),
    "seed": st.integers(0, 2**32),
}


@pytest.mark.parametrize("order, rank", MODELS)
@settings(max_examples=40, deadline=None)
@given(m=st.sampled_from([1e-8, 0.1, 1.0, 50.0, 1e6]), bits=st.sampled_from([3, 20, 29, 38]), **ARGUMENTS)
def test_sums_of_gradients(order, rank, m, bits, count, scale, spread, threads, seed):
    model, where, values, _ = setting(order, rank, count, scale, spread, seed)
    grid = 2.0 ** (np.floor(np.log2(m)) - bits)
    plain = joint_sums(model, where, values, m, grid, fast=False)
    fast = joint_sums(model, where, values, m, grid, fast=True, threads=threads)
    np.testing.assert_array_equal(fast, plain)
    assert np.abs(plain).max(initial=0) <= count * m / grid


def test_sums_of_gradients_of_a_model_that_fits_no_cache():
    generator = np.random.default_rng(0)
    model = CP(10).model([generator.normal(size=(size, 10)) for size in (9000, 40, 30)])
    where = np.column_stack([generator.integers(0, size, 20_000) for size in model.shape]).astype(np.uint32)
    values = generator.normal(size=20_000)
    fast = joint_sums(model, where, values, 2.0, 2.0**-29, fast=True)
    np.testing.assert_array_equal(fast, joint_sums(model, where, values, 2.0, 2.0**-29, fast=False))


@pytest.mark.parametrize("order, rank", MODELS)
@settings(max_examples=40, deadline=None)
@given(**ARGUMENTS)
def test_statistics_of_rows(order, rank, count, scale, spread, threads, seed):
    model, where, residuals, shape = setting(order, rank, count, scale, spread, seed)
    entries = SortedEntries.of(where, residuals, shape, threads, np.float64)
    for mode, size in enumerate(shape):
        layout = (model.numbers, where, mode)
        limits, g = np.zeros(size), np.zeros((size, rank), dtype=np.int64)
        feature_norms(*layout, limits)
        right_sides(*layout, residuals, np.ones(count), limits, g)
        fast_limits = entries.row_matrices(model, mode).limits
        fast_g = entries.right_sides(model, mode, fast_limits)
        np.testing.assert_array_equal(fast_limits, limits)
        np.testing.assert_array_equal(fast_g, g)
        assert np.abs(g).max(initial=0) <= count * 2**32
        assert limits.min() >= SMALLEST_LIMIT


def products_of_others(model, where, mode):
    rows = [factor[where[:, n]] for n, factor in enumerate(model.factors) if n != mode]
    return np.prod(rows, axis=0)


@pytest.mark.parametrize("order, rank", MODELS)
def test_terms_on_the_edge_of_a_grid_step_are_rounded_alike(order, rank):
    """Values are chosen so that one number of each term is a whole number up to its last bits."""
    model, where, _, shape = setting(order, rank, 3000, 1.0, 1.0, seed=rank)
    generator, grid = np.random.default_rng(rank), 2.0**-20
    phi = products_of_others(model, where, 0)[:, 0]
    values = model.predict(where) + generator.integers(1, 1000, 3000) * grid / (2 * phi)
    m = 2.0**39 * grid  # hardly any entry is clipped
    plain = joint_sums(model, where, values, m, grid, fast=False)
    np.testing.assert_array_equal(joint_sums(model, where, values, m, grid, fast=True), plain)
    for mode, size in enumerate(shape):
        layout = (model.numbers, where, mode)
        limits, g = np.zeros(size), np.zeros((size, rank), dtype=np.int64)
        feature_norms(*layout, limits)
        largest = 2.0**32 * products_of_others(model, where, mode)[:, 0] / limits[where[:, mode]]
        residuals = np.trunc(largest * generator.uniform(-0.9, 0.9, 3000)) / (largest * (1 - 2.0**-40))
        right_sides(*layout, residuals, np.ones(3000), limits, g)
        entries = SortedEntries.of(where, residuals, shape, 1, np.float64)
        np.testing.assert_array_equal(entries.right_sides(model, mode, limits), g)


@pytest.mark.parametrize("large", [1e154, 1.2e154, 1e155])
def test_a_row_has_no_limit_if_the_square_of_a_feature_overflows(large):
    """Two squares may be finite while their sum over entries is not: that sum must not count."""
    model = CP(2).model([np.ones((2, 2)), np.array([[1.0, 2.0], [large, 0.0], [-large, 0.0]])])
    where = np.array([[0, 0], [0, 1], [0, 2], [1, 0]], np.uint32)
    residuals = np.full(4, 0.5)
    limits, g = np.zeros(2), np.zeros((2, 2), np.int64)
    layout = (model.numbers, where, 0)
    feature_norms(*layout, limits)
    right_sides(*layout, residuals, np.ones(4), limits, g)
    entries = SortedEntries.of(where, residuals, (2, 3), 1, np.float64)
    fast_limits = entries.row_matrices(model, 0).limits
    fast_g = entries.right_sides(model, 0, fast_limits)
    np.testing.assert_array_equal(fast_limits, limits)
    np.testing.assert_array_equal(fast_g, g)
    assert limits[0] == (large if large < 1.3e154 else np.inf)
    assert g[1].any()
    assert np.abs(g).max() <= 2**32
    for fast in (False, True):
        sums = joint_sums(model, where[:3], residuals[:3], 1.0, 2.0**-29, fast=fast)
        assert np.abs(sums).max() <= 3 * 2**29
