"""The statistics of alternating least squares against a slow oracle, and the length of single contributions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.inference.rows import posterior_rows
from tensorveil.kernels.reference.least_squares import feature_norms
from tensorveil.kernels.reference.statistics import (
    SMALLEST_LIMIT,
    STATISTIC_STEPS,
    block_features,
    right_sides,
    row_matrices,
    square_matrices,
)
from tensorveil.models.cp import CPModel
from tensorveil.models.tucker import TuckerModel
from tensorveil.solvers.layouts.sorted_entries import SortedEntries

SHAPE = (4, 3, 5)
RNG = np.random.default_rng(7)
CP = CPModel([RNG.normal(size=(size, 2)) for size in SHAPE])
TUCKER = TuckerModel(
    RNG.normal(size=(2, 3, 2)), [RNG.normal(size=(4, 2)), RNG.normal(size=(3, 3)), RNG.normal(size=(5, 2))]
)
WHERE = np.argwhere(RNG.random(SHAPE) < 0.6).astype(np.uint32)
BLOCKS = [(CP, 0), (CP, 2), (TUCKER, 1), (TUCKER, 3)]


def statistics(model, where, block, residuals, weights, limits):
    width = int(model.block_widths[block])
    g = np.zeros((len(limits), width), dtype=np.int64)
    H = np.zeros((len(limits), width * (width + 1) // 2), dtype=np.int64)
    blocks = (model.numbers, where, block)
    right_sides(*blocks, residuals, weights, limits, g)
    row_matrices(*blocks, weights, limits, H)
    return g, H


def size_of(model, block):
    return 1 if block == model.order else model.shape[block]


def slow_features(model, block):
    return np.array([np.ravel(model.features(cell)[block]) for cell in WHERE])


@pytest.mark.parametrize("model, block", BLOCKS)
def test_features_are_the_derivatives_of_the_prediction(model, block):
    table = np.empty((len(WHERE), int(model.block_widths[block])))
    block_features(model.numbers, WHERE, block, table)
    step = 1e-6
    blocks = [*model.factors, *([] if model.core is None else [model.core])]
    for place in range(table.shape[1]):
        moved = [np.array(part) for part in blocks]
        if block == model.order:
            moved[block].flat[place] += step
        else:
            moved[block][:, place] += step
        slope = (model.family.model(moved).predict(WHERE) - model.predict(WHERE)) / step
        np.testing.assert_allclose(table[:, place], slope, atol=1e-7)


@pytest.mark.parametrize("model, block", BLOCKS)
def test_norms_are_the_largest_of_each_row(model, block):
    largest = np.zeros(size_of(model, block))
    feature_norms(model.numbers, WHERE, block, largest)
    lengths = np.sqrt((slow_features(model, block) ** 2).sum(axis=1))
    rows = np.zeros(len(WHERE), dtype=int) if block == model.order else WHERE[:, block]
    for row in range(len(largest)):
        assert largest[row] == pytest.approx(lengths[rows == row].max(initial=SMALLEST_LIMIT), rel=1e-12)


@pytest.mark.parametrize("model, block", BLOCKS)
def test_sums_agree_with_a_slow_oracle(model, block):
    rng = np.random.default_rng(1)
    residuals, weights = rng.normal(0, 1, len(WHERE)), rng.uniform(0, 1, len(WHERE))
    limits = rng.uniform(0.1, 3, size_of(model, block))
    g, H = statistics(model, WHERE, block, residuals, weights, limits)
    rows = np.zeros(len(WHERE), dtype=int) if block == model.order else WHERE[:, block].astype(int)
    right, matrices = np.zeros(g.shape), np.zeros((len(g), g.shape[1], g.shape[1]))
    for row, phi, residual, weight in zip(rows, slow_features(model, block), residuals, weights, strict=True):
        psi = phi / max(np.linalg.norm(phi), limits[row])
        right[row] += weight * np.clip(residual, -1, 1) * psi
        matrices[row] += weight * np.outer(psi, psi)
    np.testing.assert_allclose(g / STATISTIC_STEPS, right, atol=1e-7)
    norms = np.sqrt((matrices**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(np.linalg.norm(H / STATISTIC_STEPS, axis=1), norms, atol=1e-7)
    first, second = np.triu_indices(g.shape[1])
    stretch = np.where(first == second, 1.0, np.sqrt(2.0))
    np.testing.assert_allclose(H / STATISTIC_STEPS / stretch, matrices[:, first, second], atol=1e-7)


def test_the_order_of_observations_does_not_show_in_a_single_bit():
    rng = np.random.default_rng(2)
    residuals, weights, limits = rng.normal(size=len(WHERE)), rng.uniform(0, 1, len(WHERE)), np.ones(5)
    mixed = rng.permutation(len(WHERE))
    one = statistics(CP, WHERE, 2, residuals, weights, limits)
    other = statistics(CP, np.ascontiguousarray(WHERE[mixed]), 2, residuals[mixed], weights[mixed], limits)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


NUMBERS = st.one_of(
    st.floats(-10, 10), st.sampled_from([0.0, 1.0, -1.0, 1e-300, 5e-324, -1e-160, 1e-8, 1e12, -1e80, 1e200, 2.0**-512])
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(NUMBERS, min_size=1, max_size=5),
    NUMBERS,
    st.sampled_from([1.0, 1 - 2.0**-40, 0.5, 1 / 3, 1e-3]),
    st.one_of(st.floats(1e-12, 1e6), st.sampled_from([0.0, -1.0, 1e-300, 1e-12, 1.0, np.inf, np.nan])),
    st.booleans(),
)
def test_a_single_contribution_is_never_longer_than_its_weight(phi, residual, weight, limit, at_length):
    """In whole numbers: no rounding, of roots, quotients or products, may lengthen a term by one step."""
    length = float(np.sqrt(np.sum(np.square(np.array(phi) / 1e100)))) * 1e100
    limits = np.array([length if at_length else limit])
    model = CPModel([np.ones((1, len(phi))), np.array([phi])])  # the features of mode 0 are the row of mode 1
    g, H = statistics(model, np.zeros((1, 2), np.uint32), 0, np.array([residual]), np.array([weight]), limits)
    squared = Fraction(weight * STATISTIC_STEPS) ** 2
    assert sum(int(number) ** 2 for number in g[0]) <= squared
    assert sum(int(number) ** 2 for number in H[0]) <= squared


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_full_length_contribution_nearly_reaches_its_weight(seed, width):
    phi = np.random.default_rng(seed).normal(size=width)
    model = CPModel([np.ones((1, width)), phi[None, :]])
    g, H = statistics(model, np.zeros((1, 2), np.uint32), 0, np.array([5.0]), np.ones(1), np.array([1e-12]))
    assert np.linalg.norm(g / STATISTIC_STEPS) > 1 - 1e-8
    assert np.linalg.norm(H / STATISTIC_STEPS) > 1 - 1e-8


@pytest.mark.parametrize("rank, shape", [(1, (30, 4)), (3, (20, 3, 5)), (10, (20, 3, 5)), (5, (6, 3, 5, 2))])
def test_vectorised_statistics_are_the_plain_ones(rank, shape):
    """g and limits bit for bit, H up to rounding; rows longer than what is kept, short rows, and empty ones."""
    generator = np.random.default_rng(rank)
    model = CPModel([generator.normal(size=(size, rank)) for size in shape])
    where = np.column_stack([generator.integers(0, size, 6000) for size in shape]).astype(np.uint32)
    where = np.ascontiguousarray(where[where[:, 0] != 2])
    residuals = generator.normal(size=len(where))
    entries = SortedEntries.of(where, residuals, shape, 2, np.float64)
    for mode, size in enumerate(shape):
        matrices = entries.row_matrices(model, mode)
        limits, g = matrices.limits, entries.right_sides(model, mode, matrices.limits)
        largest = np.zeros(size)
        feature_norms(model.numbers, where, mode, largest)
        np.testing.assert_array_equal(limits, largest)
        right, triangles = statistics(model, where, mode, residuals, np.ones(len(where)), limits)
        np.testing.assert_array_equal(g, right)
        H = square_matrices(triangles / STATISTIC_STEPS, rank)
        lower = np.tril(matrices.triangles.reshape(size, rank, -1)[:, :, :rank]) / limits[:, None, None] ** 2
        np.testing.assert_allclose(lower, np.tril(H), atol=1e-5)
        np.testing.assert_allclose(matrices.squares, (H**2).sum(), rtol=1e-6)
        np.testing.assert_allclose(matrices.trace, np.trace(H, axis1=1, axis2=2).sum(), rtol=1e-6)
        noisy = g / STATISTIC_STEPS + generator.normal(size=g.shape) * (triangles.any(axis=1))[:, None]
        slow = posterior_rows(noisy, H, 1.0, 0.0, 1 / 9, 1e-3, 1.0)
        np.testing.assert_allclose(matrices.posterior_rows(noisy, 1.0, 1 / 9, 1e-3, 1.0), slow, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS)
def test_a_vectorised_contribution_is_never_longer_than_one(phi, residual):
    model = CPModel([np.ones((1, 3)), np.array([phi])])
    entries = SortedEntries.of(np.zeros((1, 2), np.uint32), np.array([residual]), (1, 1), 1, np.float64)
    for limits in (entries.row_matrices(model, 0).limits, np.array([0.5]), np.zeros(1), np.array([np.inf])):
        g = entries.right_sides(model, 0, limits)
        if g is not None:
            assert sum(int(number) ** 2 for number in g[0]) <= int(STATISTIC_STEPS) ** 2


def test_vectorised_right_hand_sides_refuse_features_that_are_longer_than_their_limit():
    """One of the entries of a row, one row of several: a factor for the whole row does not fit it."""
    model = CPModel([np.ones((3, 2)), np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]])])
    where = np.array([[0, 0], [1, 1], [1, 2], [2, 0]], np.uint32)
    entries = SortedEntries.of(where, np.ones(4), (3, 3), 2, np.float64)
    assert entries.right_sides(model, 0, np.array([1.0, 4.99, 1.0])) is None
    assert entries.right_sides(model, 0, np.array([1.0, 5.0, 1.0])) is not None
