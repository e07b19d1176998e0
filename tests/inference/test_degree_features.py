"""Features from where values were observed."""

import numpy as np
import pytest

from tensorveil.inference.degree_features import degree_features


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
