"""Laws of noise: what they start from, what they find out about sigma and cuts, wrong use."""

import math

import numpy as np
import pytest
from scipy import stats

from oracles import nearest_level
from tensorveil.errors import InputError
from tensorveil.inference.posterior.laws import NoisyNumbers, Symbols
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.privacy.noise.source import NoiseSource

LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)
COUNT = 8000


def alone(kernel, *arguments):
    """All entries in one part."""
    return [kernel(*arguments, 0, COUNT)]


def settle(law, means, sweeps=250):
    """Average sigma and cuts with the means held fixed, and the last draw's numbers and precisions."""
    law.begin()
    generator = np.random.default_rng(0)
    values, precisions = np.empty(COUNT), np.empty(COUNT)
    sigmas, cuts = [], []
    for sweep in range(sweeps):
        key = np.uint64(generator.integers(2**63))
        law.draw(means, key, generator, alone, sweep % 25 == 0, values, precisions)
        sigmas.append(law.sigma)
        cuts.append(law.cuts.copy())
    return np.mean(sigmas[sweeps // 2 :]), np.mean(cuts[sweeps // 2 :], axis=0), values, precisions


def truth(sigma, seed=0):
    generator = np.random.default_rng(seed)
    means = generator.normal(0.1, 0.3, COUNT)
    return means, means + sigma * generator.standard_normal(COUNT), generator


@pytest.mark.parametrize("epsilon", [3.0, 10.0])
def test_symbols_tell_sigma_and_the_cuts(epsilon):
    means, behind, _ = truth(0.35)
    cuts = np.array([-0.75, -0.4, 0.35, 0.75])
    channel = design_channel(LEVELS, epsilon)
    symbols = NoiseSource(1).channel(np.searchsorted(cuts, behind), channel.table)
    sigma, found, values, precisions = settle(Symbols(symbols, channel.chances, LEVELS, ordered=True), means)
    assert sigma == pytest.approx(0.35, rel=0.12)
    np.testing.assert_allclose(found[1:-1], cuts, atol=0.08)
    assert np.corrcoef(values - means, behind - means)[0, 1] > 0.2
    assert precisions[0] == pytest.approx(sigma**-2, rel=0.2)


def test_bins_of_continuous_values_keep_their_cuts():
    means, behind, _ = truth(0.2)
    levels = np.linspace(-1, 1, 12)
    channel = design_channel(tuple(levels), 6.0)
    symbols = NoiseSource(1).channel(nearest_level(np.clip(behind, -1, 1), channel.levels), channel.table)
    law = Symbols(symbols, channel.chances, levels, ordered=False)
    sigma, found, _, _ = settle(law, means)
    assert sigma == pytest.approx(0.2, rel=0.1)
    np.testing.assert_allclose(found[1:-1], (levels[1:] + levels[:-1]) / 2)
    assert law.levels.size == 0


@pytest.mark.parametrize("epsilon", [5.0, 10.0])  # with as many symbols as levels
def test_what_stands_for_symbols_is_right_on_average(epsilon):
    _, behind, _ = truth(0.35)
    channel = design_channel(LEVELS, epsilon)
    indices = nearest_level(np.clip(behind, -1, 1), LEVELS)
    symbols = NoiseSource(2).channel(indices, channel.table)
    stands, noise, mean = Symbols(symbols, channel.chances, LEVELS, ordered=True).begin()
    values = np.asarray(LEVELS)[indices]
    unsure = math.sqrt((noise + 0.3) / COUNT)
    assert mean == pytest.approx(values.mean(), abs=5 * unsure)
    slope = np.cov(stands, values)[0, 1] / values.var()
    assert slope == pytest.approx(1.0, abs=0.25)
    assert np.var(stands - values) == pytest.approx(noise, rel=0.4)


@pytest.mark.parametrize(
    "options, rough",
    [({}, 0.05), ({"noise_std": 0.5}, 0.15), ({"laplace_scale": 0.1}, 0.1), ({"laplace_scale": 0.5}, 0.2)],
)
def test_numbers_tell_sigma_beside_noise_of_a_known_law(options, rough):
    means, behind, generator = truth(0.35)
    noisy = behind + generator.normal(0, options.get("noise_std", 0.0), COUNT)
    noisy = noisy + options.get("laplace_scale", 0.0) * generator.laplace(size=COUNT)
    sigma, _, values, precisions = settle(NoisyNumbers(noisy, **options), means)
    assert sigma == pytest.approx(0.35, rel=rough)
    # what is handed on is N(mean, 1 / precision)
    standard = (values - means) * np.sqrt(precisions)
    assert standard.std() == pytest.approx(1.0, abs=0.06)
    assert abs(standard.mean()) < 0.06


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: Symbols([0, 5], np.eye(5), LEVELS, ordered=True), "symbols must be from 0 to 4"),
        (lambda: Symbols([0], np.eye(4), LEVELS, ordered=True), "one row per level"),
        (lambda: NoisyNumbers([0.0], noise_std=-1.0), "noise_std"),
        (lambda: NoisyNumbers([0.0], noise_std=1.0, laplace_scale=1.0), "not both"),
    ],
)
def test_wrong_use_is_an_error(make, match):
    with pytest.raises(InputError, match=match):
        make()


def test_scores_are_slopes_of_the_likelihood_and_precisions_its_expected_curvature():
    means, behind, _ = truth(0.3)
    levels = np.linspace(-1, 1, 12)
    channel = design_channel(tuple(levels), 1.0)
    symbols = NoiseSource(1).channel(nearest_level(np.clip(behind, -1, 1), channel.levels), channel.table)
    law = Symbols(symbols, channel.chances, levels, ordered=False, around=(0.1, 0.42), scored=True)
    _, _, values, precisions = settle(law, means, 2)
    assert not law.fixed
    cuts = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])

    def chances(mean):
        return np.diff(stats.norm.cdf(cuts, mean, law.sigma)) @ channel.chances

    for place in (0, 5, 17):
        mean, step = means[place], 1e-4
        slopes = (np.log(chances(mean + step)) - np.log(chances(mean - step))) / (2 * step)
        information = chances(mean) @ slopes**2
        assert precisions[place] == pytest.approx(information, rel=0.03)
        assert values[place] == pytest.approx(mean + slopes[symbols[place]] / information, rel=0.03)


def test_a_known_spread_of_all_values_tells_sigma_where_symbols_do_not():
    means, behind, generator = truth(0.3)
    spread = float(behind.std())
    levels = np.linspace(-1, 1, 12)
    channel = design_channel(tuple(levels), 0.5)
    assert channel.chances.shape[1] == 2
    symbols = NoiseSource(1).channel(nearest_level(np.clip(behind, -1, 1), channel.levels), channel.table)
    law = Symbols(symbols, channel.chances, levels, ordered=False, around=(0.1, spread))
    assert settle(law, means, 20)[0] == pytest.approx(0.3, rel=0.03)
    noisy = NoisyNumbers(behind + 5 * generator.standard_normal(COUNT), noise_std=5.0, spread=spread)
    assert settle(noisy, means, 20)[0] == pytest.approx(0.3, rel=0.03)
    assert settle(noisy, 5 * means, 20)[0] == pytest.approx(0.3 * spread)  # means that explain more than there is
