"""Side information from the pattern of observations: groups are found, the prior is the kernel of the pattern."""

import numpy as np
import pytest

from tensorveil.errors import InputError
from tensorveil.inference.posterior import pattern as source
from tensorveil.inference.posterior.pattern import Links, given_features, pattern_features

SHAPE = (40, 30, 5)


def two_groups(count=1200):
    """Even users see the first half of the films, odd ones the second."""
    generator = np.random.default_rng(0)
    users = generator.integers(0, SHAPE[0], count)
    films = generator.integers(0, SHAPE[1] // 2, count) + (users % 2) * (SHAPE[1] // 2)
    return np.column_stack([users, films, generator.integers(0, SHAPE[2], count)]).astype(np.uint32)


def test_groups_that_the_pattern_shows_are_found():
    found = pattern_features(two_groups(), SHAPE)
    assert [len(part) for part in found] == list(SHAPE)
    links = Links([found[0]], SHAPE[0])
    group = np.where(np.arange(SHAPE[0]) % 2 == 0, 1.0, -1.0)
    heavy = links.features[:, 1:][:, links.weights[1:] > 0.1]  # log counts, which are chance here, and the groups
    assert heavy.shape[1] == 2
    assert np.abs(heavy.T @ group).max() / SHAPE[0] > 0.95


def test_the_prior_of_rows_is_the_kernel_of_the_centred_pattern(monkeypatch):
    monkeypatch.setattr(source, "ROWS_PER_FEATURE", 1)
    where = two_groups()[:, :2]
    pattern = np.zeros(SHAPE[:2])
    pattern[tuple(where.T)] = 1.0
    pattern /= np.linalg.norm(pattern, axis=1, keepdims=True)
    logs = np.log1p(np.bincount(where[:, 0], minlength=SHAPE[0]))
    raw = np.column_stack([(logs - logs.mean()) / logs.std(), pattern])
    raw -= raw.mean(axis=0)
    links = Links([pattern_features(where, SHAPE[:2])[0]], SHAPE[0])
    features = links.features[:, 1:]
    np.testing.assert_allclose(features * links.weights[1:] @ features.T, raw @ raw.T, atol=1e-3)
    np.testing.assert_allclose(links.features.T @ links.features, SHAPE[0] * np.eye(links.size + 1), atol=1e-8)


def test_a_group_counts_by_what_the_groups_before_it_leave():
    generator = np.random.default_rng(3)
    first, more = generator.normal(size=(50, 3)), generator.normal(size=(50, 2))
    links = Links([first, np.column_stack([first @ generator.normal(size=(3, 4)), more])], 50)
    assert [part.stop - part.start for part in links.groups] == [3, 2]
    np.testing.assert_allclose(links.features.T @ links.features, 50 * np.eye(6), atol=1e-8)
    known = np.column_stack([np.ones(50), first])
    rest = more - known @ np.linalg.lstsq(known, more, rcond=None)[0]
    second = links.features[:, links.groups[1]]
    np.testing.assert_allclose(second * links.weights[links.groups[1]] @ second.T, rest @ rest.T, atol=1e-8)


def test_a_full_pattern_tells_nothing():
    where = np.argwhere(np.ones((12, 10, 8))).astype(np.uint32)
    for part, size in zip(pattern_features(where, (12, 10, 8)), (12, 10, 8), strict=True):
        assert Links([part, np.empty((size, 0))], size).size == 0


@pytest.mark.parametrize("size", [600])
def test_large_modes_get_the_same_directions(size, monkeypatch):
    generator = np.random.default_rng(1)
    groups = generator.integers(0, 4, size)
    where = np.column_stack([np.repeat(np.arange(size), 12), np.zeros(12 * size)]).astype(np.uint32)
    where[:, 1] = 10 * np.repeat(groups, 12) + generator.integers(0, 10, 12 * size)
    monkeypatch.setattr(source, "MOST_FEATURES", 4)
    sparse = pattern_features(where, (size, 40))[0][:, 1:]
    pattern = np.zeros((size, 40))
    pattern[tuple(where.T)] = 1.0
    left, singular, _ = np.linalg.svd(pattern / np.linalg.norm(pattern, axis=1, keepdims=True), full_matrices=False)
    dense = left[:, :4] * singular[:4]
    np.testing.assert_allclose(sparse @ sparse.T, dense @ dense.T, atol=1e-4)


def test_given_features_are_brought_to_one_scale_or_refused():
    made = given_features([None, [[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]]], (2, 3))
    assert made[0].shape == (2, 0)
    np.testing.assert_allclose(made[1], np.array([[-1.0], [0.0], [1.0]]) * np.sqrt(1.5))  # a constant column is dropped
    with pytest.raises(InputError, match=r"features\[1\] must be finite"):
        given_features([None, [[1.0]]], (2, 3))
    with pytest.raises(InputError, match="one matrix or None per mode"):
        given_features([None], (2, 3))
