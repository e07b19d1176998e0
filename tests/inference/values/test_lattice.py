"""Round lattices in released histograms: their spacing, where there is none, and the masses of rare points."""

import numpy as np
import pytest

from histograms import kinds, released, steps_of
from tensorveil.inference.values.lattice import likeliest_lattice, merged_points
from tensorveil.inference.values.marginal import marginal_of
from tensorveil.privacy.bounds import VALUE_STEPS

SHARES = 0.93 * 0.07 ** np.arange(6)  # of the values 1, 2, ...


def counts(rng, n):
    """Mostly ones, some twos, few threes."""
    return rng.choice(np.arange(1.0, 7.0), n, p=SHARES / SHARES.sum())


def marginal(values, bounds, epsilon, seed, total=None):
    rng = np.random.default_rng(seed)
    return marginal_of(released(steps_of(values, bounds), epsilon, rng), bounds, total)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "name, spacing",
    [("stars", 1.0), ("half stars", 0.5), ("half stars, wide", 0.5), ("counts with zeros", 1.0)],
)
def test_the_spacing_is_the_widest_that_has_all_values(name, spacing, seed):
    values, (low, high) = kinds(np.random.default_rng(seed), 30_000)[name]
    found = marginal(values, (low, high), 0.3, seed)
    places = (found.places / VALUE_STEPS + 1) / 2 * (high - low) + low
    np.testing.assert_allclose(places, np.arange(np.ceil(low / spacing), high / spacing + 1e-9) * spacing, atol=1e-6)
    assert found.mean() == pytest.approx(np.mean((values - low) / (high - low) * 2 - 1), abs=0.02)
    assert found.masses[np.abs(places[:, None] - values[:50]).argmin(axis=0)].min() > 0


@pytest.mark.parametrize("epsilon", [0.02, 0.3, 10.0])
@pytest.mark.parametrize("n", [300, 30_000])
@pytest.mark.parametrize("name", ["amounts with zeros", "normal", "normal, wide", "lognormal", "uniform"])
def test_continuous_values_have_no_lattice(name, n, epsilon):
    for seed in range(3):
        values, bounds = kinds(np.random.default_rng(seed), n)[name]
        assert marginal(values, bounds, epsilon, seed).places is None


@pytest.mark.parametrize("width", [20, 200])
@pytest.mark.parametrize("epsilon", [0.2, 0.75])
def test_points_too_rare_to_show_have_about_their_mass(epsilon, width):
    values = counts(np.random.default_rng(0), 6000)
    missed = []
    for seed in range(20):
        found = marginal(values, (0, width), epsilon, seed, total=6000.0)
        rare = found.masses[found.places / VALUE_STEPS > 2 * 2.5 / width - 1].sum()
        missed.append(rare / np.mean(values > 2.5))
        assert (np.diff(found.masses[found.masses.argmax() :]) <= 1e-12).all()
    assert 0.3 < np.median(missed) < 3


def test_a_public_total_makes_masses_better():
    values = counts(np.random.default_rng(0), 2000)
    exact = np.mean(values == 1)
    errors = []
    for total in (None, 2000.0):
        found = [marginal(values, (0, 20), 0.5, seed, total) for seed in range(30)]
        errors.append(np.mean([(one.masses[1] - exact) ** 2 for one in found]))
    assert errors[1] < errors[0]


def test_noise_and_single_atoms_that_are_on_every_lattice_tell_of_none():
    rng = np.random.default_rng(3)
    for values in (np.zeros(0), np.zeros(5000), np.full(5000, 10.0), rng.choice([0.0, 10.0], 5000)):
        assert likeliest_lattice(released(steps_of(values, (0, 10)), 1.0, rng), (0, 10)) is None


def test_merging_is_by_ward_and_keeps_clear_points():
    masses = np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.01, 0.006, 0.002, 0.001, 0.0005, 0.0005])
    places = np.arange(11.0)
    assert merged_points(places, masses, 1e-9, 11).tolist() == list(range(11))
    starts = merged_points(places, masses, 0.02, 7)
    assert starts.tolist()[:6] == [0, 1, 2, 3, 4, 5]
    assert len(starts) == 7
    assert len(merged_points(places, masses, 1e-9, 3)) == 3
