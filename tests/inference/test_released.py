"""Tables, cuts and their equations against the definition; shares against the channel's inverse."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

from tensorveil.errors import InputError
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.values.scale import Scale
from tensorveil.kernels.reference import scored_rows

SHARES = np.array([0.1, 0.3, 0.4, 0.2])


def scale(free):
    cuts = norm.ppf(np.cumsum(SHARES)[:-1])
    low = np.array([-1.0, -0.5, 0.0, 0.5])
    high = low if free else low + 0.5
    return Scale(2**20, np.array([-(2**19), 0, 2**19]), cuts, low, high, np.array([-2.5, 2.5]), SHARES, free, 0.01)


def channel(levels, truth):
    """Randomised response."""
    return np.full((levels, levels), (1 - truth) / (levels - 1)) + (truth - (1 - truth) / (levels - 1)) * np.eye(levels)


def released(free, truth=0.7, error=0.05, count=400):
    generator = np.random.default_rng(0)
    level = np.searchsorted(norm.ppf(np.cumsum(SHARES)[:-1]), generator.standard_normal(count))
    chances = channel(4, truth)
    symbols = (generator.random(count)[:, None] > np.cumsum(chances, axis=1)[level]).sum(axis=1)
    return Released(symbols, chances, scale(free), error)


def spread_out(law, means):
    reach = float(np.abs(means).max()) + 0.1
    places = law.places(reach)
    weights = np.zeros((4, len(places), 2))
    scored_rows.spread_means(law.symbols, means, reach, weights, 0, len(means))
    return places, weights


@pytest.mark.parametrize("free", [True, False])
def test_a_table_holds_what_the_definition_gives(free):
    law = released(free)
    coordinates = law.start() + 0.1
    table = law.table(coordinates, 4.0)
    places = np.linspace(-4, 4, table.values.shape[1])

    def logs(m):
        below = norm.cdf(np.concatenate([[-np.inf], law.cuts(coordinates), [np.inf]])[:, None] - m)
        return np.log(law.chances.T @ np.diff(below, axis=0))

    np.testing.assert_allclose(table.values[:, :, 0], logs(places), rtol=1e-8, atol=1e-10)
    slopes = (logs(places + 1e-5) - logs(places - 1e-5)) / 2e-5
    np.testing.assert_allclose(table.values[:, :, 1], slopes, atol=1e-6)
    inside = np.abs(places) < 2
    expected = (np.exp(logs(places)) * slopes**2).sum(axis=0)
    np.testing.assert_allclose(table.information[inside], expected[inside], rtol=1e-5)


@pytest.mark.parametrize("free", [True, False])
def test_equations_of_the_cuts_are_derivatives_of_their_likelihood(free):
    law = released(free)
    means = np.random.default_rng(1).normal(0, 1, len(law))
    places, weights = spread_out(law, means)
    coordinates = law.start() + 0.05 * np.arange(len(law.start()))
    chosen = np.arange(len(coordinates))
    value, g, H = law.equations(coordinates, places, weights, chosen)
    assert value == law.log_likelihood(coordinates, places, weights)[0]
    slopes = approx_fprime(coordinates, lambda x: law.log_likelihood(x, places, weights)[0], 1e-6)
    slopes += approx_fprime(coordinates, law._log_unit, 1e-6)
    np.testing.assert_allclose(g, slopes, rtol=0.02, atol=0.02 * np.abs(slopes).max())
    assert (np.linalg.eigvalsh(H) > 0).all()
    some = law.equations(coordinates, places, weights, chosen[1:])
    np.testing.assert_allclose(some[1], g[1:])
    np.testing.assert_allclose(some[2], H[1:, 1:])


def test_the_information_of_the_cuts_is_the_mean_square_of_their_score():
    law = released(free=False)
    law.worth = 0.0  # without what the marginal tells
    generator = np.random.default_rng(2)
    means = generator.normal(0, 1, len(law))
    coordinates, chosen = law.start(), np.arange(2)
    scores = []
    for _ in range(400):
        latent = means + generator.standard_normal(len(law))
        level = np.searchsorted(law.cuts(coordinates), latent)
        law.symbols = (
            (generator.random(len(law))[:, None] > np.cumsum(law.chances, axis=1)[level]).sum(axis=1).astype(np.uint8)
        )
        _, g, H = law.equations(coordinates, *spread_out(law, means), chosen)
        scores.append(g)
    root = np.linalg.cholesky(H)
    standard = np.linalg.solve(root, np.array(scores).T)
    np.testing.assert_allclose(np.cov(standard), np.eye(2), atol=0.3)
    assert np.abs(standard.mean(axis=1)).max() < 5 / np.sqrt(400)


def test_the_likelihood_at_weights_is_that_of_all_entries():
    law = released(free=False)
    law.worth = 0.0  # without what the marginal tells
    means = np.random.default_rng(1).normal(0, 1, len(law))
    below = norm.cdf(np.concatenate([[-np.inf], law.cuts(law.start()), [np.inf]])[:, None] - means)
    direct = np.log((np.diff(below, axis=0).T @ law.chances)[np.arange(len(law)), law.symbols]).sum()
    found = law.log_likelihood(law.start(), *spread_out(law, means))[0] + law._log_unit(law.start())
    assert found == pytest.approx(direct, abs=1e-3)


def test_first_cuts_give_the_levels_their_shares():
    free = released(True, error=0.01)
    np.testing.assert_allclose(np.diff(norm.cdf(free.start()), prepend=0.0, append=1.0), free.shares, atol=1e-6)
    linked = released(False, error=1e-4)
    np.testing.assert_allclose(linked.cuts(linked.start()), linked.scale.cuts, atol=0.25)


def test_shares_are_those_of_the_symbols_where_the_marginal_tells_nothing():
    law = released(True, error=10.0, count=20000)
    seen = np.bincount(law.symbols, minlength=4) / len(law)
    np.testing.assert_allclose(law.shares, np.linalg.solve(law.chances.T, seen), atol=2e-3)
    np.testing.assert_allclose(released(True, error=1e-6, count=100).shares, SHARES, atol=1e-3)


@pytest.mark.parametrize("free", [True, False])
def test_cuts_are_moved_and_stretched(free):
    law = released(free)
    coordinates = law.start()
    moved, volume = law.moved(coordinates, 0.3, 1.5, -0.2)
    np.testing.assert_allclose(law.cuts(moved), 0.3 + 1.5 * (law.cuts(coordinates) - 0.3) - 0.2)
    step = 1e-6
    jacobian = [(law.moved(coordinates + step * one, 0.3, 1.5, -0.2)[0] - moved) / step for one in np.eye(len(moved))]
    assert volume == pytest.approx(np.log(np.linalg.det(jacobian)), abs=1e-5)


def test_wrong_use_is_an_error():
    with pytest.raises(InputError, match="one row per level"):
        Released([0, 1], np.eye(3), scale(True), 0.1)
    with pytest.raises(InputError, match="symbols must be from 0 to 3"):
        Released([0, 4], np.eye(4), scale(True), 0.1)
