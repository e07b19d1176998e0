"""Leading directions of sparse patterns: the same as from a dense singular value decomposition, in linear memory."""

import tracemalloc

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tensorveil.solvers import directions as source
from tensorveil.solvers.directions import leading_directions, pair_counts


def tastes(size, width, seed=0, kinds=40, count=30):
    """Coordinates of three modes: every index of the first prefers some of `kinds` groups of the second."""
    generator = np.random.default_rng(seed)
    liked = np.cumsum(generator.dirichlet(np.full(kinds, 0.1), size), axis=1)[:, :-1]
    groups = np.column_stack([(generator.random((size, 1)) > liked).sum(axis=1) for _ in range(count)])
    other = groups * (width // kinds) + (generator.beta(1, 3, groups.shape) * (width // kinds)).astype(np.int64)
    rows = np.repeat(np.arange(size), count)
    return np.column_stack([rows, other.ravel(), generator.integers(0, 12, len(rows))]).astype(np.uint32)


def parts_of(where, mode, shape):
    return [pair_counts(where, mode, other, shape) for other in range(len(shape)) if other != mode]


def dense(parts):
    return np.hstack([part.toarray().astype(np.float64) for part in parts])


@pytest.mark.parametrize("size", [60, 320, 900])
def test_the_directions_are_those_of_a_dense_decomposition(size):
    shape = (size, 400, 12)
    parts = parts_of(tastes(size, 400), 0, shape)
    most = min(size // 4, 100)
    values, vectors = leading_directions(parts, most)
    left, singular, _ = np.linalg.svd(dense(parts), full_matrices=False)
    np.testing.assert_allclose(values[::-1][:40], singular[: min(40, most)] ** 2, rtol=1e-4)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(most), atol=1e-4)
    kernel, true = (vectors * values) @ vectors.T, (left[:, :most] * singular[:most] ** 2) @ left[:, :most].T
    assert np.linalg.norm(kernel - true) < 2e-3 * np.linalg.norm(true)
    own = 1 + int(np.argmax(singular[5 : most - 1] / singular[6:most])) + 5  # the widest gap: a subspace of its own
    cosines = np.linalg.svd(left[:, :own].T @ vectors[:, -own:], compute_uv=False)
    assert cosines.min() > 1 - 1e-5


def test_where_the_pattern_is_chance_the_directions_still_explain_as_much():
    generator = np.random.default_rng(1)
    shape = (1500, 700)
    where = np.column_stack([generator.integers(0, size, 60_000) for size in shape]).astype(np.uint32)
    parts = parts_of(where, 0, shape)
    values, vectors = leading_directions(parts, 100)
    matrix = dense(parts)
    explained = np.square(vectors.T @ matrix).sum()
    assert explained == pytest.approx(values.sum(), rel=1e-4)
    best = np.square(np.linalg.svd(matrix, compute_uv=False)[:100])
    assert explained - best[0] > 0.98 * (best.sum() - best[0])


def test_a_pattern_of_low_rank_has_no_directions_of_rounding():
    where = np.argwhere(np.ones((800, 6))).astype(np.uint32)
    where = where[(where[:, 0] + where[:, 1]) % 3 > 0]  # three kinds of rows
    parts = parts_of(where, 0, (800, 6))
    values, vectors = leading_directions(parts, 100)
    rank = np.linalg.matrix_rank(dense(parts))
    assert np.count_nonzero(values) == rank < 6
    kernel = (vectors * values) @ vectors.T
    np.testing.assert_allclose(kernel, dense(parts) @ dense(parts).T, atol=source.PRECISION * values.max())


def test_a_diagonal_matrix_can_be_subtracted_first():
    generator = np.random.default_rng(3)
    signal = generator.standard_normal((900, 4)) @ generator.standard_normal((4, 300))
    matrix = (signal + generator.standard_normal((900, 300))) * (generator.random((900, 300)) < 0.2)
    own = np.square(matrix).sum(axis=1)
    values, vectors = leading_directions([csr_matrix(matrix)], 4, own, space=96)
    true, left = np.linalg.eigh(matrix @ matrix.T - np.diag(own))
    np.testing.assert_allclose(values, true[-4:], rtol=1e-4)
    assert np.linalg.svd(left[:, -4:].T @ vectors, compute_uv=False).min() > 1 - 1e-4


def test_parts_for_threads_do_not_change_a_bit(monkeypatch):
    parts = parts_of(tastes(700, 400), 0, (700, 400, 12))
    monkeypatch.setattr(source, "FEWEST_SHARED", 1)
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(source, "available_cores", lambda cores=cores: cores)
        found.append(leading_directions(parts, 100))
    for values, vectors in found[1:]:
        np.testing.assert_array_equal(values, found[0][0])
        np.testing.assert_array_equal(vectors, found[0][1])


def test_the_result_does_not_depend_on_the_order_of_rows():
    where = tastes(700, 400)
    shuffled = np.random.default_rng(2).permutation(where)
    results = [leading_directions(parts_of(order, 0, (700, 400, 12)), 100) for order in (where, shuffled)]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_memory_grows_with_entries_and_indices_not_with_their_square():
    leading_directions(parts_of(tastes(700, 400), 0, (700, 400, 12)), 100)  # what it imports does not count
    peaks = []
    for size in (6_000, 12_000):
        where = tastes(size, 4_000)
        tracemalloc.start()
        leading_directions(parts_of(where, 0, (size, 4_000, 12)), 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert peaks[-1] < 1.5 * (4 * size * source.SPACE + 2 * 16 * len(where))
    assert peaks[1] < 2.2 * peaks[0]
