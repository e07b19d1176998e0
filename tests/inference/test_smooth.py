"""Smooth modes: waves against a random walk, their draw against a dense Gaussian law, and what they do to errors."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.data.features import smooth_features
from tensorveil.inference.posterior.chain import Chain
from tensorveil.inference.posterior.pattern import Links
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.models.cp import CP
from tensorveil.solvers.block_updates import Entries

NAMES = ["street", "day"]


def tensor(shape, names=None, **options):
    """One value; the shape and the names are what matters."""
    return tv.Observations(np.zeros((1, len(shape)), dtype=int), [0.0], shape, mode_names=names or NAMES, **options)


def waves(size, kind):
    return smooth_features(tensor((2, size)), {"day": kind})["day"].matrix


@pytest.mark.parametrize("kind", ["ordered", "periodic"])
def test_waves_have_the_covariance_of_a_random_walk(kind):
    """A centred walk along the days, or around the year: the inverse of its differences, by a dense matrix."""
    size = 40
    differences = np.eye(size) - np.roll(np.eye(size), 1, axis=0)
    if kind == "ordered":
        differences = differences[1:]
    walk = np.linalg.pinv(differences.T @ differences)
    found = waves(size, kind)
    found = found @ found.T
    expected = walk * np.trace(found) / np.trace(walk)
    assert np.linalg.norm(found - expected) < 0.08 * np.linalg.norm(expected)  # half of the frequencies are left out


def test_a_periodic_mode_joins_its_ends_and_an_ordered_one_does_not():
    for kind, joined in (("periodic", True), ("ordered", False)):
        found = waves(24, kind)
        lengths = np.linalg.norm(found, axis=1)
        alike = (found @ found.T) / np.outer(lengths, lengths)
        inside = np.diag(alike, 1).min()
        assert inside > 0.8
        assert (alike[0, -1] > inside - 0.05) == joined


def test_days_that_are_missing_are_far_apart():
    rows = {"street": ["a"] * 4, "time": ["2024-03-01", "2024-03-02", "2024-03-20", "2024-03-21"], "cars": [1.0] * 4}
    data = tv.Observations.from_table(rows, ["street", "time"], "cars", bins={"time": "day"})
    found = smooth_features(data, None)["time"].matrix
    steps = np.linalg.norm(np.diff(found, axis=0), axis=1)
    assert steps[1] > 3 * max(steps[0], steps[2])


@pytest.mark.parametrize("kind", ["ordered", "periodic"])
def test_the_smooth_part_of_a_column_has_its_dense_gaussian_law(kind):
    """Given the rows and all scales, the drawn part is normal: mean and covariance from the dense matrices."""
    shape = (12, 3)
    scale = public_scale([-0.5, 0.5], 1 << 20)
    released = Released(np.zeros(1, dtype=np.int64), np.eye(2), scale, 0.0)
    where = np.zeros((1, 2), dtype=np.uint32)
    groups = waves(shape[0], kind)
    data = Entries.of(where, np.empty(0), shape)
    chain = Chain(data, released, CP(1), shape, [Links([], shape[0], groups), Links([], 3)], 5, 1)
    chain.parameters[: shape[0]] = np.sin(np.arange(shape[0]) / 2) + 0.3 * chain.generator.standard_normal(shape[0])
    rows, own, kappa = chain.parameters[: shape[0]].copy(), 4.0, 0.3
    mean_kappa = chain.link_precisions[0][0, 0]
    drawn = []
    for _ in range(20_000):
        chain.row_precisions[0][:], chain.link_precisions[0][1:] = own, kappa
        chain.link_precisions[0][0] = mean_kappa
        chain._draw_prior(0, held=True)
        drawn.append(chain.prior_means[0][:, 0])
    prior = np.ones((12, 12)) / (mean_kappa * own) + groups @ groups.T / (kappa * own)
    gain = prior @ np.linalg.inv(prior + np.eye(12) / own)
    covariance = prior - gain @ prior
    found = np.array(drawn)
    np.testing.assert_allclose(found.mean(axis=0), gain @ rows, atol=5 * np.sqrt(covariance.max() / len(found)))
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.06 * covariance.max())


def made_up(smooth, seed, shape=(25, 60), share=0.3):
    """Values of streets and days with noise, whose days are smooth or in no order, and the truth of all cells."""
    rng = np.random.default_rng(seed)
    days = np.arange(shape[1])
    columns = np.column_stack([np.sin(days / 8), np.cos(days / 13), days / shape[1] - 0.5])
    columns = columns if smooth else rng.permutation(columns)
    truth = columns @ rng.normal(0, 1, (3, shape[0])) + 2 * columns[:, :1]
    where = np.argwhere(rng.random(shape) < share)
    values = truth.T[tuple(where.T)] + rng.normal(0, 1.0, len(where))
    return tv.Observations(where, values, shape, mode_names=NAMES), truth.T


def error(smooth, declared, epsilon, seed, mechanism="auto"):
    data, truth = made_up(smooth, seed, *([(80, 60), 0.5] if mechanism == "sums" else []))
    found = tv.complete(data, "cp", (-8, 8), "value", epsilon, smooth=declared, seed=seed, mechanism=mechanism)
    cells = np.indices(data.shape).reshape(2, -1).T
    return float(np.sqrt(np.mean((found.predict(cells) - truth[tuple(cells.T)]) ** 2)))


@pytest.mark.parametrize(
    ("epsilon", "mechanism", "gain"),
    [
        pytest.param(np.inf, "auto", 0.85, marks=pytest.mark.slow),
        pytest.param(4.0, "input", 0.9, marks=pytest.mark.slow),
        (3.0, "sums", 0.97),
    ],
)
def test_smooth_modes_help_where_neighbours_are_alike(epsilon, mechanism, gain):
    free, smooth = (
        np.mean([error(True, declared, epsilon, seed, mechanism=mechanism) for seed in range(3)])
        for declared in ([], ["day"])
    )
    assert smooth < gain * free


@pytest.mark.parametrize(
    ("epsilon", "mechanism"),
    [
        pytest.param(np.inf, "auto", marks=pytest.mark.slow),
        pytest.param(4.0, "input", marks=pytest.mark.slow),
        (3.0, "sums"),
    ],
)
def test_smooth_modes_are_harmless_where_neighbours_are_not_alike(epsilon, mechanism):
    free, smooth = (
        np.mean([error(False, declared, epsilon, seed, mechanism=mechanism) for seed in range(3)])
        for declared in ([], ["day"])
    )
    assert smooth < 1.05 * free


def test_the_order_of_the_rows_does_not_matter():
    data, _ = made_up(True, 0, (8, 12), 0.6)
    moved = data.take(np.random.default_rng(1).permutation(len(data)))
    cells = np.indices(data.shape).reshape(2, -1).T
    found = [
        tv.complete(one, tv.CP(2), (-8, 8), "value", 3.0, mechanism="input", smooth=["day"], seed=3).predict(cells)
        for one in (data, data, moved)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
