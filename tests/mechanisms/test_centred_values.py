"""Symbols on a released range: what is believed of a model that they tell, and that it is never worse than the mean."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from oracles import all_coordinates
from tensorveil.data.datasets.synthetic import cp_tensor, observe
from tensorveil.data.observations import Observations
from tensorveil.inference.posterior.laws import NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms import centred_values
from tensorveil.mechanisms.centred_values import SHARES, Released, believed, explained_ratio
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.private_range import PrivateRange, centred_channel
from tensorveil.models.cp import CP
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.noise.channels import quantize
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.release.fitting import fit

SHAPE = (12, 12, 12)
QUICK = Posterior(sweeps=40, threads=1)
RANGE = PrivateRange(-VALUE_STEPS, VALUE_STEPS, 0.05, 0.01, 0.38)


def released(values, epsilon=4.0, seed=0):
    channel = centred_channel(epsilon, 0.0, 0.38)
    return Released(RANGE, channel, NoiseSource(seed).channel(quantize(values, channel.levels), channel))


def signal(share, seed=0):
    """Values of variance 0.38^2, a share of it that of a CP tensor."""
    truth = cp_tensor(SHAPE, 1, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(truth.size)
    values = math.sqrt(share) * truth.ravel() / truth.std() + math.sqrt(1 - share) * noise
    return 0.05 + 0.38 * values


def plan(solver=QUICK, epsilon=4.0):
    return InputPerturbation(solver=solver).plan(CP(1), Bounds(-1.1, 1), "value", epsilon, shape=SHAPE)


def test_the_chance_of_a_symbol_is_that_of_a_normal_value_through_the_table():
    found = released(signal(0.5))
    chosen, deviations = np.array([3, 700]), np.array([0.4, -0.2])
    cuts = (np.asarray(found.channel.levels)[1:] + np.asarray(found.channel.levels)[:-1]) / 2
    for place, share in ((0, 0.0), (10, 0.5), (20, 1.0)):
        assert SHARES[place] == pytest.approx(share)
        spread = math.sqrt(0.3**2 + (1 - share**2) * 0.1)
        expected = 0.0
        for one, deviation in zip(chosen, deviations, strict=True):
            law = stats.norm(0.05 + share * deviation, spread)
            table = found.channel.chances[:, found.symbols[one]]
            total, _ = integrate.quad(
                lambda y, law=law, table=table: law.pdf(y) * table[np.searchsorted(cuts, y)],
                -4,
                4,
                points=cuts,
                limit=500,
            )
            expected += math.log(total)
        assert found.chance_of_shares(chosen, deviations, 0.3)[place] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_to_noise_is_not_believed(seed):
    share, _ = believed(released(signal(0.0, seed), seed=seed), all_coordinates(SHAPE), plan(), QUICK)
    assert share == 0.0


def test_a_fit_to_a_signal_is_believed():
    share, explained = believed(released(signal(0.5)), all_coordinates(SHAPE), plan(), QUICK)
    assert share > 0.9
    assert explained == pytest.approx(0.5 * 0.38**2, rel=0.35)


def test_what_explains_much_needs_no_second_chain_and_what_explains_little_does(monkeypatch):
    asked = []
    sound = centred_values.believed
    monkeypatch.setattr(centred_values, "believed", lambda *given: asked.append(given) or sound(*given))
    for share, wanted in ((0.7, 0), (0.0, 1)):
        asked.clear()
        release = fit(Observations(all_coordinates(SHAPE), signal(share), SHAPE), plan(epsilon=12.0), seed=0)
        assert len(asked) == wanted
        assert (np.ptp(release.predict(all_coordinates(SHAPE))) == 0) == (share == 0)


def test_a_shrunken_model_predicts_a_share_of_its_deviations_and_no_less_sure_intervals():
    found = released(signal(0.5))
    where = all_coordinates(SHAPE)
    model = centred_values.sample_values(QUICK, found.law(np.arange(len(where)), 10.0), where, plan(), lambda *_: None)
    shrunk = RANGE.shrunk(model, 0.25, 0.07)
    np.testing.assert_allclose(
        shrunk.centred(where) - RANGE.mean, 0.25 * (model.centred(where) - RANGE.mean), atol=1e-6
    )
    low, high = shrunk.draws.interval(where, shrunk.offsets, 0.9)
    before = model.draws.interval(where, model.offsets, 0.9)
    assert np.mean(high - low) > np.mean(before[1] - before[0])
    assert explained_ratio(shrunk, where, RANGE) < explained_ratio(model, where, RANGE) / 10


def test_symbols_that_tell_little_are_taken_for_noisy_numbers_with_the_known_mean():
    found = released(signal(0.5), epsilon=0.3)
    law = found.law(np.arange(500), 1.0)
    assert isinstance(law, NoisyNumbers)
    assert found.stands.mean() == pytest.approx(RANGE.mean)
    assert law.level == RANGE.level
    assert isinstance(released(signal(0.5)).law(np.arange(500), 10.0), Symbols)


def relative_errors(data, epsilon, bounds, seeds, solver=None):
    """RMSE over the truth's standard deviation, of predictions at hidden cells."""
    where = data.test.coordinates
    made = InputPerturbation(solver=solver).plan(CP(3), bounds, "value", epsilon, shape=data.truth.shape)
    predicted = [fit(data.train, made, seed=seed).predict(where) for seed in seeds]
    return [np.sqrt(np.mean((one - data.truth_at(where)) ** 2)) / data.truth.std() for one in predicted]


def mean_error(data):
    return np.sqrt(np.mean((data.train.values.mean() - data.truth_at(data.test.coordinates)) ** 2)) / data.truth.std()


def test_wide_bounds_cost_little():
    data = observe(cp_tensor((20, 20, 20), seed=0), snr_kind="variances", seed=1)
    solver = Posterior(sweeps=120, threads=1)
    assert relative_errors(data, 5.0, Bounds(-20.5, 21), [0], solver)[0] < 0.45
    assert relative_errors(data, 5.0, Bounds(-0.5, 1.5), [0], solver)[0] < 0.4


@pytest.mark.parametrize("epsilon", [0.1, 2.0])
@pytest.mark.parametrize("kind", ["variances", "norms"])
def test_it_is_not_worse_than_the_mean(kind, epsilon):
    data = observe(cp_tensor((20, 20, 20), seed=3), snr_kind=kind, seed=4)
    errors = relative_errors(data, epsilon, Bounds(-2.25, 3.25), range(3), QUICK)
    assert np.mean(errors) < (1.05 if epsilon > 1 else 1.3) * mean_error(data)  # at 0.1 the mean itself is noisy


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 5.0, 10.0])
@pytest.mark.parametrize("kind", ["variances", "norms"])
def test_it_is_never_worse_than_the_mean(kind, epsilon):
    ratios = []
    for seed in range(4):
        data = observe(cp_tensor((20, 20, 20), seed=seed), snr_kind=kind, seed=100 + seed)
        ratios.append(relative_errors(data, epsilon, Bounds(-2.25, 3.25), [seed])[0] / mean_error(data))
    assert np.mean(ratios) < 1.04
