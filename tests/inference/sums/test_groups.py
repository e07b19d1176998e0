"""Groups of like indices, and effects on them given noisy sums, against a plain regression."""

import numpy as np
import pytest

from tensorveil.inference.sums.groups import drawn_interactions, grouped


def test_groups_are_the_clusters_that_there_are():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 300)
    columns = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]])[kind] + rng.normal(0, 0.3, (300, 2))
    labels = grouped(columns, rng.uniform(0.5, 2.0, 300), 3)
    assert {len(set(labels[kind == one])) for one in range(3)} == {1}
    assert len(set(labels)) == 3


def test_weights_decide_where_groups_lie():
    columns = np.concatenate([np.linspace(0, 1, 50), np.linspace(10, 11, 50)])[:, None]
    weights = np.where(np.arange(100) < 50, 1e-9, 1.0)
    assert len(set(grouped(columns, weights, 2)[50:])) == 2  # the light half is left to itself
    assert len(set(grouped(columns, np.ones(100), 2)[50:])) == 1


@pytest.mark.parametrize("columns", [np.zeros((5, 2)), np.empty((5, 0)), np.ones((1, 3))])
def test_nothing_to_group_by_is_no_trouble(columns):
    labels = grouped(columns, np.ones(len(columns)), 3)
    assert labels.shape == (len(columns),)
    assert ((labels >= 0) & (labels < 3)).all()


def test_effects_are_nearer_to_the_truth_than_means_and_learn_what_groups_share():
    rng = np.random.default_rng(1)
    loadings = np.array([[1.0, 1.0, -1.0]])
    true = rng.normal(0, 0.3, (800, 1)) @ loadings  # one direction, far from the generic covariance
    counts = rng.integers(1, 30, (800, 3)).astype(float)
    sums = counts * true + rng.normal(0, np.sqrt(counts * 0.2)) + rng.normal(0, 2.0, (800, 3))
    found = drawn_interactions(sums, counts, 4.0 + 0.2 * counts, 64, rng).mean(axis=0)
    alone = (
        sums * counts * 0.09 / (counts**2 * 0.09 + counts * 0.2 + 4.0)
    )  # each group by itself, with the right variance
    assert np.square(found - true).mean() < 0.7 * np.square(alone - true).mean()


def test_with_many_values_and_no_noise_they_are_the_means():
    rng = np.random.default_rng(2)
    true = rng.normal(0, 0.3, (200, 2))
    counts = np.full((200, 2), 1e6)
    found = drawn_interactions(counts * true, counts, 0.2 * counts, 8, rng)
    np.testing.assert_allclose(found, np.broadcast_to(true, found.shape), atol=5e-3)


def test_draws_spread_as_far_as_means_are_from_the_truth():
    rng = np.random.default_rng(3)
    true = rng.normal(0, 0.2, (2000, 2))
    counts = rng.integers(1, 40, (2000, 2)).astype(float)
    sums = counts * true + rng.normal(0, np.sqrt(3.0 + 0.5 * counts))
    draws = drawn_interactions(sums, counts, 3.0 + 0.5 * counts, 100, rng)
    assert draws.var(axis=0).mean() == pytest.approx(np.square(draws.mean(axis=0) - true).mean(), rel=0.15)
