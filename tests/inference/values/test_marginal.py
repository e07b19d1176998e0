"""The marginal from released histograms, against the values themselves."""

import numpy as np
import pytest

from histograms import kinds, released, steps_of
from tensorveil.inference.values.marginal import Counted, marginal_of, refined
from tensorveil.privacy.bounds import VALUE_STEPS

NAMES = list(kinds(np.random.default_rng(0), 10))


def test_without_noise_cells_hold_their_share_and_moments_are_those_of_the_values():
    rng = np.random.default_rng(1)
    steps = np.clip(np.rint(rng.normal(-0.2, 0.15, 100_000) * VALUE_STEPS), -VALUE_STEPS, VALUE_STEPS).astype(np.int64)
    marginal = marginal_of(released(steps, 1e6, rng))
    share = [((steps >= a) & (steps < b)).mean() for a, b in zip(marginal.first, marginal.last, strict=True)]
    np.testing.assert_allclose(marginal.masses, share, atol=1e-4)
    assert marginal.mean() == pytest.approx(steps.mean() / VALUE_STEPS, abs=1e-4)
    assert marginal.std() == pytest.approx(steps.std() / VALUE_STEPS, rel=1e-3)
    assert marginal.total == pytest.approx(100_000, rel=1e-3)
    shares = np.array([0.01, 0.3, 0.5, 0.99])
    np.testing.assert_allclose(marginal.quantile(shares), np.quantile(steps, shares) / VALUE_STEPS, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon, close", [(0.1, 0.35), (1.0, 0.12)])
def test_quantiles_are_close_in_units_of_the_spread(name, epsilon, close):
    rng = np.random.default_rng(NAMES.index(name))
    values, bounds = kinds(rng, 35_000)[name]
    steps = steps_of(values, bounds)
    marginal = marginal_of(released(steps, epsilon, rng))
    shares = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    cell = 2 / 4096  # the finest that is counted
    away = np.abs(marginal.quantile(shares) - np.quantile(steps, shares) / VALUE_STEPS)
    jumps = np.abs(marginal.quantile(shares - 0.01) - np.quantile(steps, shares) / VALUE_STEPS)
    jumps = np.minimum(jumps, np.abs(marginal.quantile(shares + 0.01) - np.quantile(steps, shares) / VALUE_STEPS))
    assert (np.minimum(away, jumps) <= close * steps.std() / VALUE_STEPS + cell).all()


def test_masses_are_a_law_on_contiguous_cells_whatever_was_released():
    rng = np.random.default_rng(3)
    for epsilon in (1e-4, 0.01, 0.3):
        for n in (0, 1, 30, 2000):
            for values, bounds in kinds(rng, n).values():
                marginal = marginal_of(released(steps_of(values, bounds), epsilon, rng))
                assert (marginal.first[1:] == marginal.last[:-1]).all()
                assert (marginal.first[0], marginal.last[-1]) == (-VALUE_STEPS, VALUE_STEPS + 1)
                assert (marginal.masses >= 0).all()
                assert marginal.masses.sum() == pytest.approx(1)
                assert marginal.total >= 1
                assert 0 < marginal.error <= 1


@pytest.mark.parametrize("width", [10, 1000])
def test_noise_in_empty_cells_of_wide_bounds_adds_no_tails(width):
    rng = np.random.default_rng(5)
    spreads = []
    for _ in range(40):
        steps = steps_of(rng.normal(0.5, 1, 20_000), (-3 * width, 3 * width))
        marginal = marginal_of(released(steps, 0.1, rng))
        spreads.append(marginal.std() * 3 * width)
    assert np.median(spreads) < 1.6  # the finest cells are 1.5 wide in the widest bounds
    assert np.mean(np.array(spreads) > 2) <= 0.05


def test_pure_noise_is_an_even_law_over_the_bounds():
    rng = np.random.default_rng(7)
    marginal = marginal_of(released(np.zeros(20, dtype=np.int64), 0.01, rng))
    assert abs(marginal.mean()) < 0.05
    assert marginal.std() == pytest.approx(1 / np.sqrt(3), rel=0.05)
    assert marginal.error > 0.1


def test_an_unseen_tail_follows_the_shape_of_what_is_seen():
    rng = np.random.default_rng(9)
    steps = steps_of(rng.exponential(600, 3500), (0, 5000))
    ends = [marginal_of(released(steps, 0.15, rng)).quantile(0.98) for _ in range(10)]
    assert np.median(ends) == pytest.approx(np.quantile(steps, 0.98) / VALUE_STEPS, abs=0.25)


def test_only_clear_cells_are_split_and_parts_cover_them():
    counts = np.array([0.0, 500.0, -700.0, 20.0])
    first = np.array([-64, -32, 0, 32])
    last = np.array([-32, 0, 32, 65])
    starts, ends = refined([Counted(first, last, counts, 200.0)], 16)
    assert starts.tolist() == list(range(-32, 0, 2))
    assert ends.tolist() == list(range(-30, 2, 2))
    starts, ends = refined([Counted(first, last, np.array([0.0, 0.0, 0.0, 500.0]), 200.0)], 16)
    assert starts[0] == 32
    assert ends[-1] == 65
    assert (starts[1:] == ends[:-1]).all()
    assert len(starts) == 16
    assert refined([Counted(np.array([5]), np.array([6]), np.array([1e6]), 1.0)], 16)[0].size == 0


def test_noise_alone_is_seldom_split():
    rng = np.random.default_rng(11)
    cells = np.arange(256)
    split = [
        refined([Counted(cells * 4, cells * 4 + 4, rng.laplace(0, 3.0, 256), 18.0)], 4)[0].size > 0 for _ in range(400)
    ]
    assert np.mean(split) < 0.09  # one in twenty is meant


def test_stages_are_combined_by_their_precision():
    """A split cell's count and the sum of its parts, against least squares with a design matrix."""
    rng = np.random.default_rng(13)
    top = Counted(np.array([-64, 0]), np.array([0, 65]), np.array([900.0, 1100.0]), 50.0)
    parts = Counted(np.arange(-64, 0, 16), np.arange(-48, 16, 16), rng.normal(230.0, 4.0, 4), 20.0)
    design = np.vstack([np.ones((1, 4)), np.eye(4)])
    weights = 1 / np.array([50.0, 20.0, 20.0, 20.0, 20.0])
    seen = np.append(900.0, parts.counts)
    best = np.linalg.solve(design.T @ (weights[:, None] * design), design.T @ (weights * seen))
    marginal = marginal_of([top, parts])
    assert marginal.total == pytest.approx(best.sum() + 1100.0)
