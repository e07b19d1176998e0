"""The sampler of the posterior: right where the answer is known, calibrated, repeatable, the same for any threads."""

import numpy as np
import pytest

from tensorveil.data.datasets.synthetic import cp_tensor, observe, tucker_tensor
from tensorveil.errors import InputError
from tensorveil.inference.posterior import chain as chains
from tensorveil.inference.posterior import sampler
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import Noisy, released_numbers
from tensorveil.inference.values.public_scales import UNKNOWN, even_scale, public_scale
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.solvers.als import ALS

STEPS = 2**20


def centred(data):
    """The observations of a synthetic tensor in [0, 1], on the scale where -0.5 and 1.5 are -1 and 1."""
    return data.train.coordinates, data.train.values - 0.5, data.truth_at(data.test.coordinates) - 0.5


def exact(values, levels=200):
    """Values without noise, in fine cells of the bounds."""
    scale = even_scale(levels, STEPS)
    symbols = np.searchsorted(scale.edges, np.rint(np.clip(values, -1, 1) * STEPS), side="right")
    return Released(symbols, np.eye(levels), scale, UNKNOWN)


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
    run = Posterior().solve(where, exact(values), family, data.truth.shape)
    error, cover = errors_and_cover(run, data, truth)
    ridge = ALS().solve(data.train, family).predict(data.test.coordinates) - 0.5
    assert error < 1.12 * np.sqrt(np.mean((ridge - truth) ** 2)) / data.truth.std()
    assert 0.8 < cover < 0.98
    assert run.draws.mixing[2] < 1.3
    assert run.draws.mixing[3] > 10


def noisy(values, law, generator):
    if law == "gaussian":
        return released_numbers(Noisy(values + 0.1 * generator.standard_normal(len(values)), 0.01), False, STEPS)
    if law == "laplace":
        return released_numbers(Noisy(values + generator.laplace(scale=0.07, size=len(values)), 0.0098), True, STEPS)
    scale = even_scale(20, STEPS)
    channel = design_channel(scale, 6.0, 30.0)
    levels = np.searchsorted(scale.edges, np.rint(np.clip(values, -1, 1) * STEPS), side="right")
    return Released(NoiseSource(3).channel(levels, channel), channel.chances, scale, UNKNOWN)


@pytest.mark.parametrize("law", ["gaussian", "laplace", "channel"])
def test_it_sees_through_noise_of_a_known_law(law):
    data = observe(cp_tensor((15, 14, 13), 2, seed=2), snr_kind="variances", snr=4.0, seed=3, missing_ratio=0.2)
    where, values, truth = centred(data)
    run = Posterior().solve(where, noisy(values, law, np.random.default_rng(4)), CP(2), data.truth.shape)
    assert errors_and_cover(run, data, truth)[0] < 0.6


@pytest.mark.parametrize("order", [2, 4, 6])
def test_any_order(order):
    shape = {2: (30, 25), 4: (8, 7, 6, 5), 6: (4, 4, 3, 3, 3, 3)}[order]
    data = observe(cp_tensor(shape, 1, seed=order), snr_kind="variances", snr=20.0, seed=1, missing_ratio=0.2)
    where, values, truth = centred(data)
    run = Posterior(sweeps=80).solve(where, exact(values), CP(1), shape)
    assert errors_and_cover(run, data, truth)[0] < 0.5


def test_the_same_bits_for_any_number_of_threads_and_for_the_same_seed(monkeypatch):
    monkeypatch.setattr(chains, "PART", 100)
    data = observe(cp_tensor((12, 11, 10), 2, seed=0), seed=1)
    where, values, _ = centred(data)
    released = noisy(values, "channel", None)

    def sample(threads, seed=None):
        return Posterior(sweeps=12, threads=threads).solve(where, released, CP(2), (12, 11, 10), seed=seed)

    one, three = sample(1), sample(3)
    assert one.draws == three.draws
    assert one.offsets == three.offsets
    assert sample(1, seed=1).draws != one.draws


def test_a_core_that_is_drawn_in_blocks_is_one_that_is_drawn_whole(monkeypatch):
    data = observe(tucker_tensor((12, 11, 10), 2, seed=0), snr_kind="variances", snr=10.0, seed=1, missing_ratio=0.2)
    where, values, truth = centred(data)
    found = []
    for cells in (256, 3):
        monkeypatch.setattr(chains, "CORE_BLOCK", cells)
        run = Posterior(sweeps=120).solve(where, exact(values), Tucker((2, 2, 2)), data.truth.shape)
        found.append(errors_and_cover(run, data, truth))
    np.testing.assert_allclose(found[0], found[1], atol=0.1)
    assert max(error for error, _ in found) < 0.35


def test_public_features_help_rows_with_few_observations():
    generator = np.random.default_rng(0)
    shape = (200, 40)
    features = generator.standard_normal((200, 2))
    signal = features @ generator.standard_normal((2, 40)) * 0.15 + 0.1 * features[:, :1]
    where = np.column_stack([np.repeat(np.arange(200), 4), generator.integers(0, 40, 800)]).astype(np.uint32)
    values = signal[tuple(where.T)] + 0.2 * generator.standard_normal(800)
    errors = []
    for given in (None, [features, None]):
        run = Posterior(sweeps=150, pattern=False, features=given).solve(where, exact(values), CP(2), shape)
        cells = np.argwhere(np.ones(shape)).astype(np.uint32)
        errors.append(np.sqrt(np.mean((run.draws.predict(cells, run.offsets) - signal.ravel()) ** 2)))
    assert errors[1] < 0.75 * errors[0]


def test_pure_noise_is_predicted_by_its_mean():
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones((15, 15, 15))).astype(np.uint32)
    scale = public_scale(np.linspace(-1, 1, 5), STEPS)
    channel = design_channel(scale, 1.0, 30.0)
    symbols = NoiseSource(3).channel(generator.integers(0, 5, len(where)), channel)
    run = Posterior().solve(where, Released(symbols, channel.chances, scale, UNKNOWN), CP(3), (15, 15, 15))
    predicted = run.draws.predict(where, run.offsets)
    assert predicted.std() < 0.15  # the values' is 0.71
    assert abs(predicted.mean()) < 0.15


def test_a_rank_that_is_too_large_costs_little():
    data = observe(cp_tensor((20, 18, 16), 2, seed=5), snr_kind="variances", snr=4.0, seed=3, missing_ratio=0.2)
    where, values, truth = centred(data)
    errors = [
        errors_and_cover(Posterior().solve(where, exact(values), CP(rank), data.truth.shape), data, truth)[0]
        for rank in (2, 10)
    ]
    assert errors[1] < 1.1 * errors[0]


def test_fewer_sweeps_for_tiny_and_for_large_data_and_progress_is_told():
    assert Posterior().planned_sweeps(100, 3) == sampler.FEWEST_SWEEPS
    assert Posterior().planned_sweeps(5000, 3) == sampler.MOST_SWEEPS
    assert Posterior().planned_sweeps(10**8, 2) == sampler.FEWEST_SWEEPS
    assert Posterior(sweeps=7).planned_sweeps(10**6, 2) == 7
    calls = []
    where = np.argwhere(np.ones((4, 3))).astype(np.uint32)
    solver, released = Posterior(sweeps=9, chains=2), exact(np.linspace(-1, 1, 12))
    run = solver.solve(where, released, CP(1), (4, 3), progress=lambda *call: calls.append(call))
    assert calls == [(sweep, 9) for sweep in range(1, 10)]
    assert run.draws.mixing[:2].tolist() == [9, 2]
    assert 0 < len(run.draws) <= 18


def test_wrong_use_is_an_error():
    where = np.zeros((2, 2), dtype=np.uint32)
    with pytest.raises(InputError, match="one symbol per row of coordinates"):
        Posterior().solve(where, exact(np.zeros(1)), CP(1), (4, 3))
    with pytest.raises(InputError, match="sweeps"):
        Posterior(sweeps=0)
    with pytest.raises(InputError, match="chains"):
        Posterior(chains=0)
    with pytest.raises(InputError, match="draws"):
        Posterior(draws=0)
    with pytest.raises(InputError, match=r"features\[0\]"):
        Posterior(features=[np.ones((3, 1)), None]).solve(where, exact(np.zeros(2)), CP(1), (4, 3))
    with pytest.raises(InputError, match="one row per level"):
        Released([0], np.eye(3), even_scale(4, STEPS), UNKNOWN)
    with pytest.raises(InputError, match="symbols must be from 0 to 3"):
        Released([4], np.eye(4), even_scale(4, STEPS), UNKNOWN)
