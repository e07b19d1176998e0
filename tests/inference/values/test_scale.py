"""The latent scale: levels, link, cuts and atoms from released marginals of many kinds of values."""

import numpy as np
import pytest
from scipy.stats import norm

from histograms import kinds, released, steps_of
from tensorveil.inference.values.marginal import Marginal, marginal_of
from tensorveil.inference.values.scale import scale_of
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds

CONTINUOUS = ["normal", "normal, wide", "normal, very wide", "lognormal", "skewed to the left", "uniform"]
NAMES = list(kinds(np.random.default_rng(0), 10))


def made(name, n=35_000, epsilon=0.1, seed=0, levels=32):
    rng = np.random.default_rng(seed)
    values, bounds = kinds(rng, n)[name]
    steps = steps_of(values, bounds)
    marginal = marginal_of(released(steps, epsilon, rng), bounds)
    return values, Bounds(*bounds), steps, scale_of(marginal, levels, bounds)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name, atoms",
    [
        ("stars", np.arange(1.0, 6.0)),
        ("half stars", np.arange(1, 9) / 2),
        ("half stars, wide", np.arange(1, 9) / 2),
        ("two values", [0.0, 1.0]),
    ],
)
def test_atoms_are_exact_and_cuts_are_normal_scores(name, atoms, seed):
    values, bounds, steps, scale = made(name, seed=seed)
    assert scale.free
    assert (scale.low == scale.high).all()
    seen = scale.masses > 0.01
    np.testing.assert_allclose(bounds.uncentred(scale.low)[seen], atoms, atol=1e-6 * bounds.width)
    levels = np.searchsorted(scale.edges, steps, side="right")
    np.testing.assert_allclose(bounds.uncentred(scale.low)[levels], values, atol=1e-6 * bounds.width)
    assert scale.masses[~seen].sum() < 0.01
    share = np.array([(levels <= level).mean() for level in range(len(scale.cuts))])
    np.testing.assert_allclose(norm.cdf(scale.cuts), share, atol=0.015)


def test_noise_between_two_atoms_does_not_move_them():
    """Values at both bounds, and a hundredth of the mass that is noise, spread evenly over the cells between them."""
    edges = np.linspace(-VALUE_STEPS, VALUE_STEPS, 257).astype(np.int64)
    edges[-1] += 1
    masses = np.full(256, 0.01 / 254)
    masses[[0, -1]] = 0.495
    scale = scale_of(Marginal(edges[:-1], edges[1:], masses, 1000.0, 0.02), 32, (1.0, 2.0))
    np.testing.assert_allclose(scale.low, [-1.0, 1.0], atol=1e-6)
    np.testing.assert_array_equal(scale.low, scale.high)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_values_have_no_atoms(name, epsilon):
    scale = made(name, epsilon=epsilon)[3]
    assert not scale.free
    assert (scale.low < scale.high).all()


@pytest.mark.parametrize("name", ["counts with zeros", "amounts with zeros"])
def test_an_inflated_zero_has_a_level_of_its_own(name):
    values, _, steps, scale = made(name, epsilon=0.3)
    assert scale.free == (name == "counts with zeros")
    assert scale.low[0] == scale.high[0] == -1.0
    np.testing.assert_array_equal(np.searchsorted(scale.edges, steps, side="right") == 0, values == 0)
    assert norm.cdf(scale.cuts[0]) == pytest.approx((values == 0).mean(), abs=0.03)


@pytest.mark.parametrize("name", CONTINUOUS[:2] + CONTINUOUS[3:])
def test_levels_lose_little_and_scores_have_the_unit_law(name):
    _, _, steps, scale = made(name, epsilon=1.0)
    centred = steps / VALUE_STEPS
    scores = scale.scores(steps)
    assert np.sqrt(np.mean((scale.value(scores) - centred) ** 2)) < 0.3 * centred.std()
    assert abs(scores.mean()) < 0.1
    assert 0.85 < scores.std() < 1.15
    levels = np.searchsorted(scale.edges, steps, side="right")
    np.testing.assert_allclose(np.bincount(levels, minlength=32) / len(steps), scale.masses, atol=0.02)


def test_the_link_of_counts_is_near_the_root_and_of_normal_values_the_identity():
    """On the root's scale equal steps of the latent number are equal steps of the root of the value."""
    _, bounds, _, scale = made("skewed to the left", epsilon=1.0)
    ends = 100 - bounds.uncentred(scale.value(np.array([-2.0, 0.0, 2.0])))
    assert ends[0] - ends[1] > 1.7 * (ends[1] - ends[2])
    _, bounds, _, scale = made("normal", epsilon=1.0)
    ends = bounds.uncentred(scale.value(np.array([-2.0, 0.0, 2.0])))
    np.testing.assert_allclose(ends, [-2, 0, 2], atol=0.15)


def test_the_top_tail_is_not_clipped():
    rng = np.random.default_rng(2)
    values = rng.gamma(1.2, 550, 3500)
    steps = steps_of(values, (0, 5000))
    top = values > np.quantile(values, 0.9)
    short = []
    for _ in range(8):
        scale = scale_of(marginal_of(released(steps, 0.3, rng)), 32)
        short.append(np.mean((scale.value(scale.scores(steps)) * 2500 + 2500 - values)[top]))
    assert np.median(np.abs(short)) < 0.05 * values.std()


def test_no_marginal_makes_it_fail_and_everything_is_in_order():
    rng = np.random.default_rng(4)
    for n, epsilon in ((0, 0.1), (3, 1e-4), (50, 5.0), (1000, 0.05), (1000, 5.0)):
        for values, bounds in kinds(rng, n).values():
            marginal = marginal_of(released(steps_of(values, bounds), epsilon, rng), bounds)
            for most in (2, 32):
                scale = scale_of(marginal, most, bounds)
                assert 2 <= len(scale.masses) <= max(most, 5)
                assert (np.diff(scale.edges) > 0).all()
                assert (np.diff(scale.cuts) > 0).all()
                assert (scale.masses >= 0).all()
                assert scale.masses.sum() == pytest.approx(1)
                assert (scale.low <= scale.high).all()
                assert (scale.high[:-1] <= scale.low[1:] + 1e-12).all()
                assert scale.low[0] >= -1
                assert scale.high[-1] <= 1 + 1e-6
                grid = scale.value(np.linspace(-8, 8, 501))
                assert np.isfinite(grid).all()
                assert (np.diff(grid) >= 0).all()
                places = scale.scores(np.linspace(-VALUE_STEPS, VALUE_STEPS, 501).astype(np.int64))
                assert np.isfinite(places).all()
                assert (np.diff(places) >= 0).all()


def test_pure_noise_gives_a_wide_scale_with_few_levels_and_much_doubt():
    rng = np.random.default_rng(6)
    scale = scale_of(marginal_of(released(np.zeros(20, dtype=np.int64), 0.01, rng)), 32)
    assert 2 <= len(scale.masses) <= 8
    assert scale.low[0] == -1.0
    assert scale.high[-1] == pytest.approx(1.0, abs=1e-5)
    assert abs(scale.value(np.zeros(1))[0]) < 0.2
    assert scale.doubt > 0.5


def test_an_atom_inside_a_density_has_room_for_its_mass():
    first = np.concatenate([np.arange(-VALUE_STEPS, 0, 2**15), [0], np.arange(512, VALUE_STEPS, 2**15)])
    last = np.append(first[1:], VALUE_STEPS + 1)
    middles = (first + last) / 2 / VALUE_STEPS
    masses = norm.pdf(middles, 0, 0.3) * (last - first)
    masses = 0.8 * masses / masses.sum() + 0.2 * (first == 0)
    scale = scale_of(Marginal(first, last, masses / masses.sum(), 1e5, 1e-4), 32)
    (atom,) = np.flatnonzero(scale.low == scale.high)
    assert abs(scale.low[atom]) < 1e-3
    chances = np.diff(norm.cdf(scale.cuts), prepend=0, append=1)
    assert chances[atom] == pytest.approx(0.2, abs=0.05)
    np.testing.assert_allclose(chances, scale.masses, atol=0.05)


def test_empty_levels_reach_beyond_the_last_value_and_take_no_room_from_the_others():
    _, bounds, _, scale = made("normal, wide", epsilon=1.0)
    assert len(scale.masses) <= 32
    ends = bounds.uncentred(np.array([scale.low[0], scale.high[-1]]))
    assert ends[0] < -10
    assert ends[1] > 10
    latent = np.array([-8.0, -5.0, 5.0, 8.0])
    np.testing.assert_allclose(bounds.uncentred(scale.value(latent)), latent, rtol=0.1)


def test_merged_points_of_a_lattice_keep_what_is_clear_and_lose_little():
    rng = np.random.default_rng(1)
    values = rng.poisson(rng.gamma(2, 15, 20_000)).astype(float)
    steps = steps_of(values, (0, 1000))
    scale = scale_of(marginal_of(released(steps, 20.0, rng), (0, 1000)), 32, (0, 1000))
    assert scale.free
    assert len(scale.masses) == 32
    levels = np.searchsorted(scale.edges, steps, side="right")
    middles = ((scale.low + scale.high) / 2)[levels] * 500 + 500
    assert np.mean((middles - values) ** 2) < 0.02 * values.var()
    np.testing.assert_allclose(np.bincount(levels, minlength=32) / len(values), scale.masses, atol=0.01)
