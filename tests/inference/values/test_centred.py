"""Symbols on a released range: what is believed of a model that they tell, and that it is never worse than the mean."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from oracles import all_coordinates
from tensorveil.data.datasets.synthetic import cp_tensor
from tensorveil.inference.posterior.laws import NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.centred import SHARES, Released, believed, explained_ratio
from tensorveil.inference.values.noisy import Target, sample_values
from tensorveil.inference.values.private_range import PrivateRange
from tensorveil.mechanisms.planning.private_range import centred_channel
from tensorveil.models.cp import CP
from tensorveil.privacy.noise.channels import quantize
from tensorveil.privacy.noise.source import NoiseSource

SHAPE = (12, 12, 12)
QUICK = Posterior(sweeps=40, threads=1)
TARGET = Target(CP(1), SHAPE, -1.1, 1.0)
RANGE = PrivateRange(-1.0, 1.0, 0.05, 0.01, 0.38)


def silent(*_):
    """No progress."""


def released(values, epsilon=4.0, seed=0):
    channel = centred_channel(epsilon, 0.0, 0.38)
    return Released(RANGE, channel, NoiseSource(seed).channel(quantize(values, channel.levels), channel))


def signal(share, seed=0):
    """Values of variance 0.38^2, a share of it that of a CP tensor."""
    truth = cp_tensor(SHAPE, 1, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(truth.size)
    values = math.sqrt(share) * truth.ravel() / truth.std() + math.sqrt(1 - share) * noise
    return 0.05 + 0.38 * values


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
    share, _ = believed(released(signal(0.0, seed), seed=seed), all_coordinates(SHAPE), TARGET, QUICK, silent)
    assert share == 0.0


def test_a_fit_to_a_signal_is_believed():
    share, explained = believed(released(signal(0.5)), all_coordinates(SHAPE), TARGET, QUICK, silent)
    assert share > 0.9
    assert explained == pytest.approx(0.5 * 0.38**2, rel=0.35)


def test_a_shrunken_model_predicts_a_share_of_its_deviations_and_no_less_sure_intervals():
    found = released(signal(0.5))
    where = all_coordinates(SHAPE)
    model = sample_values(QUICK, found.law(np.arange(len(where)), 10.0), where, TARGET, silent)
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


def test_symbols_that_keep_all_tell_the_mean_better_than_a_noisy_one():
    values = np.random.default_rng(0).normal(0.3, 0.2, 5000)
    noisy = PrivateRange(-1.0, 1.0, 0.5, 0.1, 0.2)
    assert noisy.told_by(values, 0.99).mean == pytest.approx(0.3, abs=0.01)
    assert noisy.told_by(values, 0.99).mean_std < 0.01
    sure = PrivateRange(-1.0, 1.0, 0.3, 1e-4, 0.2)
    drowned = values + 5 * np.random.default_rng(1).standard_normal(5000)
    assert sure.told_by(drowned + 0.1, 0.01).mean == pytest.approx(0.3, abs=1e-3)
