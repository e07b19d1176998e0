"""Gibbs sampling: right where the answer is known, calibrated, repeatable, the same for any number of threads."""

import numpy as np
import pytest

from oracles import nearest_level
from tensorveil.data.datasets.synthetic import cp_tensor, observe, tucker_tensor
from tensorveil.errors import InputError
from tensorveil.inference.posterior import chain as gibbs
from tensorveil.inference.posterior import sampler as posterior
from tensorveil.inference.posterior.laws import NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.kernels import dispatch
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.solvers.als import ALS


def centred(data):
    """The observations of a synthetic tensor in [0, 1], on the scale where -0.5 and 1.5 are -1 and 1."""
    return data.train.coordinates, data.train.values - 0.5, data.truth_at(data.test.coordinates) - 0.5


def errors_and_cover(run, data, truth):
    where = data.test.coordinates
    low, high = run.draws.interval(where, run.offsets, 0.9, "mean")
    error = np.sqrt(np.mean((run.draws.predict(where, run.offsets) - truth) ** 2)) / data.truth.std()
    return error, np.mean((low <= truth) & (truth <= high))


@pytest.mark.parametrize(
    "family, tensor", [(CP(3), cp_tensor), (Tucker((3, 3, 3)), tucker_tensor)], ids=["cp", "tucker"]
)
def test_it_is_as_accurate_as_als_and_its_intervals_cover(family, tensor):
    data = observe(tensor((15, 14, 13), 3, seed=0), snr_kind="variances", seed=1)
    where, values, truth = centred(data)
    run = Posterior().solve(where, NoisyNumbers(values), family, data.truth.shape)
    error, cover = errors_and_cover(run, data, truth)
    ridge = ALS().solve(data.train, family).predict(data.test.coordinates) - 0.5
    assert error < 1.12 * np.sqrt(np.mean((ridge - truth) ** 2)) / data.truth.std()
    assert 0.8 < cover < 0.98
    assert np.median(run.draws.sigmas) == pytest.approx(data.noise_std, rel=0.15)
    assert run.rhat < 1.3
    assert run.effective > 10


def test_the_start_of_large_data_leads_to_the_same_answer(monkeypatch):
    data = observe(cp_tensor((15, 14, 13), 3, seed=0), snr_kind="variances", seed=1)
    where, values, truth = centred(data)
    found = []
    for large in (gibbs.LARGE, 1):
        monkeypatch.setattr(gibbs, "LARGE", large)
        run = Posterior().solve(where, NoisyNumbers(values), CP(3), data.truth.shape)
        found.append((errors_and_cover(run, data, truth)[0], np.median(run.draws.sigmas)))
    np.testing.assert_allclose(found[1], found[0], rtol=0.1)


def noisy(values, law, generator):
    if law == "gaussian":
        return NoisyNumbers(values + 0.1 * generator.standard_normal(len(values)), noise_std=0.1)
    if law == "laplace":
        return NoisyNumbers(values + generator.laplace(scale=0.07, size=len(values)), laplace_scale=0.07)
    channel = design_channel(tuple(np.linspace(-1, 1, 10)), 5.0)
    symbols = NoiseSource(3).channel(nearest_level(np.clip(3 * values, -1, 1), channel.levels), channel.table)
    return Symbols(symbols, channel.chances, channel.levels, ordered=False)


@pytest.mark.parametrize("law", ["gaussian", "laplace", "channel"])
def test_it_sees_through_noise_of_a_known_law(law):
    data = observe(cp_tensor((15, 14, 13), 2, seed=2), snr_kind="variances", snr=4.0, seed=3, missing_ratio=0.2)
    where, values, truth = centred(data)
    scale = 3.0 if law == "channel" else 1.0
    run = Posterior().solve(where, noisy(values, law, np.random.default_rng(4)), CP(2), data.truth.shape)
    predicted = run.draws.predict(data.test.coordinates, run.offsets) / scale
    assert np.sqrt(np.mean((predicted - truth) ** 2)) < 0.6 * data.truth.std()
    assert np.median(run.draws.sigmas) / scale == pytest.approx(data.noise_std, rel=0.35)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_any_order(order):
    shape = {2: (30, 25), 4: (8, 7, 6, 5), 6: (4, 4, 3, 3, 3, 3)}[order]
    data = observe(cp_tensor(shape, 1, seed=order), snr_kind="variances", snr=20.0, seed=1, missing_ratio=0.2)
    where, values, truth = centred(data)
    run = Posterior(sweeps=80).solve(where, NoisyNumbers(values), CP(1), shape)
    assert errors_and_cover(run, data, truth)[0] < 0.5


@pytest.mark.parametrize("fewest_fast", [1, 10**6])
def test_the_same_bits_for_any_number_of_threads_and_for_the_same_seed(monkeypatch, fewest_fast):
    for module in (gibbs, posterior):
        monkeypatch.setattr(module, "PART", 100)
    monkeypatch.setattr(dispatch, "FEWEST_FAST", fewest_fast)
    data = observe(cp_tensor((12, 11, 10), 2, seed=0), seed=1)
    where, values, _ = centred(data)
    channel = design_channel(tuple(np.linspace(-1, 1, 5)), 3.0)
    symbols = NoiseSource(3).channel(nearest_level(np.clip(values, -1, 1), channel.levels), channel.table)

    def sample(threads, seed=None):
        law = Symbols(symbols, channel.chances, channel.levels, ordered=True)
        return Posterior(sweeps=12, threads=threads).solve(where, law, CP(2), (12, 11, 10), seed=seed)

    one, three = sample(1), sample(3)
    assert one.draws == three.draws
    assert one.offsets == three.offsets
    assert sample(1, seed=1).draws != one.draws


def test_a_large_core_by_conjugate_gradients_is_a_small_one(monkeypatch):
    data = observe(tucker_tensor((12, 11, 10), 2, seed=0), snr_kind="variances", snr=10.0, seed=1, missing_ratio=0.2)
    where, values, truth = centred(data)
    found = []
    for most in (64, 1):
        monkeypatch.setattr(gibbs, "SMALL_CORE", most)
        run = Posterior(sweeps=120).solve(where, NoisyNumbers(values), Tucker((2, 2, 2)), data.truth.shape)
        found.append((*errors_and_cover(run, data, truth), np.median(run.draws.sigmas)))
    np.testing.assert_allclose(found[0], found[1], atol=0.1)
    assert max(error for error, _, _ in found) < 0.35


def test_public_features_help_rows_with_few_observations():
    generator = np.random.default_rng(0)
    shape = (200, 40)
    features = generator.standard_normal((200, 2))
    signal = features @ generator.standard_normal((2, 40)) * 0.15 + 0.1 * features[:, :1]
    where = np.column_stack([np.repeat(np.arange(200), 4), generator.integers(0, 40, 800)]).astype(np.uint32)
    values = signal[tuple(where.T)] + 0.2 * generator.standard_normal(800)
    errors = []
    for given in (None, [features, None]):
        run = Posterior(sweeps=150, pattern=False, features=given).solve(where, NoisyNumbers(values), CP(2), shape)
        cells = np.argwhere(np.ones(shape)).astype(np.uint32)
        errors.append(np.sqrt(np.mean((run.draws.predict(cells, run.offsets) - signal.ravel()) ** 2)))
    assert errors[1] < 0.75 * errors[0]


def test_pure_noise_is_predicted_by_its_mean():
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones((15, 15, 15))).astype(np.uint32)
    values = 0.1 + 3.0 * generator.standard_normal(len(where))
    run = Posterior().solve(where, NoisyNumbers(values, noise_std=3.0), CP(3), (15, 15, 15))
    predicted = run.draws.predict(where, run.offsets)
    assert predicted.std() < 0.25
    assert abs(predicted.mean() - 0.1) < 0.2


def test_fewer_sweeps_for_small_data_and_progress_is_told():
    assert Posterior().planned_sweeps(100) == posterior.FEWEST_SWEEPS
    assert Posterior().planned_sweeps(10**6) == posterior.MOST_SWEEPS
    assert Posterior(sweeps=7).planned_sweeps(10**6) == 7
    assert Posterior().planned_sweeps(10**6, slowness=1.5) == 1.5 * posterior.MOST_SWEEPS
    assert Posterior().planned_sweeps(10**6, slowness=9.0) == posterior.MOST_SLOWNESS * posterior.MOST_SWEEPS
    calls = []
    where = np.argwhere(np.ones((4, 3))).astype(np.uint32)
    run = Posterior(sweeps=9).solve(
        where, NoisyNumbers(np.linspace(-1, 1, 12)), CP(1), (4, 3), progress=lambda *call: calls.append(call)
    )
    assert calls == [(sweep, 9) for sweep in range(1, 10)]
    assert run.sweeps == 9
    assert 0 < len(run.draws) <= 9


def test_wrong_use_is_an_error():
    where = np.zeros((2, 2), dtype=np.uint32)
    with pytest.raises(InputError, match="one value per row of coordinates"):
        Posterior().solve(where, NoisyNumbers([1.0]), CP(1), (4, 3))
    with pytest.raises(InputError, match="sweeps"):
        Posterior(sweeps=0)
    with pytest.raises(InputError, match="draws"):
        Posterior(draws=0)
    with pytest.raises(InputError, match=r"features\[0\]"):
        Posterior(features=[np.ones((3, 1)), None]).solve(where, NoisyNumbers([1.0, 2.0]), CP(1), (4, 3))
