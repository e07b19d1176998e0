"""The posterior given noisy sums, against dense linear algebra."""

import numpy as np
import pytest
from scipy import sparse
from tensorveil.inference.sums.mixed_model import Effect, SumsPosterior

from tensorveil.inference.sums.degree_features import degree_features


def problem(seed=0, sums=40, values=300, coefficients=12):
    rng = np.random.default_rng(seed)
    reading = sparse.csr_matrix((np.ones(values), (rng.integers(0, sums, values), np.arange(values))), (sums, values))
    design = rng.normal(size=(values, coefficients))
    kinds = sparse.csr_matrix((np.ones(values), (np.arange(values), rng.integers(0, 7, values))), (values, 7))
    return rng, reading, design, kinds


def test_it_is_the_mean_of_the_joint_normal_law():
    rng, reading, design, kinds = problem()
    noise = rng.uniform(0.5, 2.0, 40)
    released = rng.normal(size=40) * 5
    effects = {"dense": Effect(reading @ design, 0.3), "sparse": Effect((reading @ kinds).tocsr(), 0.7)}
    found = SumsPosterior(released, noise, (reading @ reading.T).tocsr(), 0.4, effects, rounds=0).coefficients
    # the other way: regression of all values at once, the sums seen through the noise
    X = np.hstack([design, kinds.toarray()])
    A = reading.toarray()
    prior = np.diag(np.r_[np.full(12, 0.3), np.full(7, 0.7)])
    seen = np.linalg.inv(0.4 * A @ A.T + np.diag(noise))
    precision = X.T @ A.T @ seen @ A @ X + np.linalg.inv(prior)
    expected = np.linalg.solve(precision, X.T @ A.T @ seen @ released)
    np.testing.assert_allclose(np.r_[found["dense"], found["sparse"]], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("true", [0.01, 1.0])
def test_variances_are_found_from_the_sums(true):
    rng, reading, _, _ = problem(sums=400, values=4000)
    counts = np.asarray(reading.sum(axis=1)).ravel()
    effect = Effect(sparse.diags(counts).tocsr(), 0.1)
    released = counts * rng.normal(0, np.sqrt(true), 400) + rng.normal(0, np.sqrt(counts * 0.2 + 1.0))
    fitted = SumsPosterior(released, np.ones(400), sparse.diags(counts).tocsr(), 0.2, {"b": effect}, rounds=30)
    assert true / 3 < fitted.variances["b"] < 3 * true
    fixed = SumsPosterior(
        released, np.ones(400), sparse.diags(counts).tocsr(), 0.2, {"b": Effect(effect.design, 0.1, fitted=False)}
    )
    assert fixed.variances["b"] == 0.1


def test_overwhelming_noise_leaves_the_prior():
    rng, reading, design, _ = problem()
    found = SumsPosterior(
        rng.normal(0, 1e6, 40),
        np.full(40, 1e12),
        (reading @ reading.T).tocsr(),
        0.4,
        {"x": Effect(reading @ design, 1.0)},
    )
    assert np.abs(found.coefficients["x"]).max() < 1e-3


@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_effects_of_a_group_stay_only_where_the_sums_show_them(scale):
    kept = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        counts = np.full(30, 50.0)
        released = counts * scale * rng.normal(0, 1, 30) + rng.laplace(0, 40.0, 30)
        effects = {"b": Effect(sparse.diags(counts).tocsr(), 1.0, group=0)}  # a prior that is far too wide for scale 0
        noise = np.full(30, 2 * 40.0**2)
        found = SumsPosterior(released, noise, sparse.diags(counts).tocsr(), 0.2, effects)
        kept += bool(found.coefficients["b"].any())
        open_gate = {"b": Effect(effects["b"].design, 1.0)}
        assert SumsPosterior(released, noise, sparse.diags(counts).tocsr(), 0.2, open_gate).coefficients["b"].any()
    assert kept <= 2 if scale == 0 else kept >= 30


def test_degree_features_tell_two_communities_apart_and_read_no_order():
    rng = np.random.default_rng(0)
    users, films = rng.integers(0, 2, 120), rng.integers(0, 2, 90)
    chance = np.where(users[:, None] == films[None, :], 0.4, 0.05)
    where = np.argwhere(rng.random((120, 90)) < chance).astype(np.uint32)
    groups = degree_features(where, (120, 90))
    for truth, group in zip((users, films), groups, strict=True):
        best = max(abs(np.corrcoef(column, truth)[0, 1]) for column in group["even directions"].T)
        assert best > 0.9
        for features in group.values():
            assert np.square(features).sum(axis=1).mean() == pytest.approx(1.0)
    np.testing.assert_allclose(degree_features(where[::-1].copy(), (120, 90))[0]["log counts"], groups[0]["log counts"])


def test_where_all_indices_are_alike_there_are_no_features():
    where = np.argwhere(np.ones((3, 2))).astype(np.uint32)
    assert degree_features(where, (3, 2)) == [{}, {}]
