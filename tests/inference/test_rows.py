"""Rows from noisy statistics against plain least squares and against conditioning of a joint Gaussian."""

import numpy as np
import pytest

from tensorveil.inference.rows import RidgeMatrices, posterior_rows
from tensorveil.kernels.reference.statistics import square_matrices


def random_matrices(count, width, rng):
    roots = rng.normal(size=(count, 3 * width, width))
    return np.einsum("kni,knj->kij", roots, roots)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_triangles_of_unit_length_become_matrices_of_unit_frobenius_norm(width):
    rng = np.random.default_rng(0)
    triangles = rng.normal(size=(6, width * (width + 1) // 2))
    matrices = square_matrices(triangles, width)
    np.testing.assert_array_equal(matrices, matrices.transpose(0, 2, 1))
    np.testing.assert_allclose(np.linalg.norm(matrices, axis=(1, 2)), np.linalg.norm(triangles, axis=1))


def test_triangles_and_matrices_keep_inner_products():
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, 1, 10))
    traces = np.trace(square_matrices(one, 4)[0] @ square_matrices(other, 4)[0])
    assert float((one * other).sum()) == pytest.approx(traces)


def test_without_noise_the_rows_are_those_of_least_squares():
    rng = np.random.default_rng(2)
    H, truth = random_matrices(5, 3, rng), rng.normal(size=(5, 3))
    g = np.einsum("kij,kj->ki", H, truth)
    rows = posterior_rows(g, H, 1e-12, 0.0, 1e-12, 0.0, 1e6)
    np.testing.assert_allclose(rows, truth, rtol=1e-5)


def test_the_posterior_mean_is_the_conditional_mean_of_a_joint_gaussian():
    rng = np.random.default_rng(3)
    H, prior, residual, noise = random_matrices(1, 3, rng)[0], 0.7, 0.3, 2.0
    g = rng.normal(size=(1, 3))
    covariance = prior * H @ H + residual * H + noise * np.eye(3)  # of g = H c + e + n
    expected = prior * H @ np.linalg.solve(covariance, g[0])
    rows = posterior_rows(g, H[None], noise, 0.0, residual, prior, prior)
    np.testing.assert_allclose(rows[0], expected)


def test_the_prior_is_found_by_moments():
    rng = np.random.default_rng(4)
    count, width, prior = 20_000, 2, 0.25
    H = np.broadcast_to(5.0 * np.eye(width), (count, width, width))
    truth = rng.normal(0, np.sqrt(prior), (count, width))
    g = 5.0 * truth + rng.normal(0, np.sqrt(0.5 * 5 + 3.0), (count, width))
    rows = posterior_rows(g, H, 3.0, 0.0, 0.5, 0.0, 10.0)
    best = g * prior * 5 / (prior * 25 + 0.5 * 5 + 3.0)
    np.testing.assert_allclose(rows, best, rtol=0.05, atol=1e-3)


def test_pure_noise_shrinks_to_next_to_nothing():
    rng = np.random.default_rng(5)
    g = rng.normal(0, 10, (2000, 2))
    rows = posterior_rows(g, np.broadcast_to(np.eye(2), (2000, 2, 2)), 100.0, 0.0, 0.1, 0.0, 1e6)
    assert np.abs(rows).mean() < 1


def test_directions_that_only_noise_holds_are_cut_off():
    noisy = np.diag([100.0, 0.5])[None]
    rows = posterior_rows(np.array([[50.0, 50.0]]), noisy, 0.01, 1.0, 0.01, 1.0, 1.0)
    assert rows[0, 0] == pytest.approx(0.5, rel=0.05)
    assert rows[0, 1] == 0.0


def test_negative_and_empty_matrices_give_finite_rows():
    H = np.stack([np.zeros((2, 2)), -np.eye(2), np.eye(2)])
    rows = posterior_rows(np.ones((3, 2)), H, 1.0, 0.1, 0.1, 0.0, 1.0)
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[:2], 0.0)


def ridge_case(seed=6, size=4, width=3, count=30, ridge=0.4):
    rng = np.random.default_rng(seed)
    rows, features = rng.integers(0, size - 1, count), rng.normal(size=(count, width))  # the last row has no entries
    H = [features[rows == row].T @ features[rows == row] + ridge * np.eye(width) for row in range(size)]
    return rng, rows, features, np.array(H), RidgeMatrices.of(rows, features, size, ridge)


def test_roots_are_those_of_the_ridge_matrices():
    from scipy.linalg import sqrtm

    _, _, _, H, matrices = ridge_case()
    for row, whole in enumerate(H):
        np.testing.assert_allclose(matrices.roots[row], sqrtm(whole), atol=1e-10)
        np.testing.assert_allclose(matrices.inverse_roots[row], np.linalg.inv(sqrtm(whole)), atol=1e-10)


def test_without_noise_shrunk_solutions_are_those_of_ridge_regression():
    rng, rows, features, _, matrices = ridge_case()
    values, g = rng.normal(size=len(rows)), np.zeros((4, 3))
    np.add.at(g, rows, features * values[:, None])
    known = np.arange(4) < 3
    solved = matrices.shrunk_solutions(g, known, np.zeros((4, 1)), 1e-12)
    for row in range(3):
        own = rows == row
        stacked = np.vstack([features[own], np.sqrt(0.4) * np.eye(3)])
        best = np.linalg.lstsq(stacked, np.append(values[own], np.zeros(3)), rcond=None)[0]
        np.testing.assert_allclose(solved[row], best, rtol=1e-6)
    np.testing.assert_array_equal(solved[3], 0.0)


def test_noise_alone_shrinks_solutions_to_next_to_nothing():
    rng, size = np.random.default_rng(7), 3000
    rows, features = np.repeat(np.arange(size), 4), rng.normal(size=(4 * size, 2))
    matrices = RidgeMatrices.of(rows, features, size, 0.1)
    g = np.einsum("kij,kj->ki", matrices.roots, rng.normal(0, np.sqrt(0.5 + 2.0), (size, 2)))
    plain = np.linalg.solve(np.einsum("kij,kjl->kil", matrices.roots, matrices.roots), g[..., None])[..., 0]
    shrunk = matrices.shrunk_solutions(g, np.ones(size, dtype=bool), np.full((size, 1), 2.0), 0.5)
    assert np.abs(shrunk).mean() < 0.1 * np.abs(plain).mean()


def test_rows_are_shrunk_as_the_shape_of_their_noise_asks_for():
    """Equal noise on every number of g, as for a perturbed objective: near the conditional mean of a joint Gaussian."""
    rng, size, prior, residual, noise = np.random.default_rng(8), 4000, 0.25, 0.05, 3.0
    roots = rng.normal(size=(6, 2)) * [3.0, 0.5]  # badly conditioned
    rows, features = np.repeat(np.arange(size), 6), np.tile(roots, (size, 1))
    matrices, H = RidgeMatrices.of(rows, features, size, 1e-9), roots.T @ roots
    truth = rng.normal(0, np.sqrt(prior), (size, 2))
    g = truth @ H + rng.normal(0, np.sqrt(residual), (size, 6)) @ roots + rng.normal(0, np.sqrt(noise), (size, 2))
    shrunk = matrices.shrunk_solutions(g, np.ones(size, dtype=bool), noise / matrices.values, residual)
    best = prior * g @ np.linalg.solve(prior * H @ H + residual * H + noise * np.eye(2), H)
    np.testing.assert_allclose(np.mean((shrunk - truth) ** 2, axis=0), np.mean((best - truth) ** 2, axis=0), rtol=0.02)
    np.testing.assert_allclose(shrunk, best, atol=0.05)


def test_plain_solutions_are_those_of_ridge_regression():
    rng, _, _, H, matrices = ridge_case()
    g = rng.normal(size=(4, 3))
    solved = matrices.solutions(g, np.array([True, True, False, True]))
    np.testing.assert_allclose(solved[[0, 1, 3]], np.linalg.solve(H, g[..., None])[[0, 1, 3], :, 0])
    np.testing.assert_array_equal(solved[2], 0.0)
