"""The sampler: right where the answer is known, calibrated, repeatable, the same for any number of threads."""

import numpy as np
import pytest
from scipy.special import ndtr

from tensorveil.data.datasets.synthetic import cp_tensor, observe, tucker_tensor
from tensorveil.errors import InputError
from tensorveil.inference.posterior import chain as chain_module
from tensorveil.inference.posterior import sampler as sampler_module
from tensorveil.inference.posterior.chain import Chain, Start
from tensorveil.inference.posterior.core import tucker_blocks
from tensorveil.inference.posterior.pattern import Links
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import ENOUGH_DRAWS, MOST_RHAT, MOST_SWEEPS, Posterior, _regroup
from tensorveil.inference.posterior.sorted_symbols import SortedSymbols
from tensorveil.inference.values.noisy import Noisy, Target, released_numbers, sample_values
from tensorveil.inference.values.public_scales import UNKNOWN, even_scale, public_scale
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers.als import ALS
from tensorveil.solvers.block_updates import Entries

STEPS = 2**20


def centred(data):
    """The observations of a synthetic tensor in [0, 1], on the scale where -0.5 and 1.5 are -1 and 1."""
    return data.train.coordinates, data.train.values - 0.5, data.truth_at(data.test.coordinates) - 0.5


def plain(values, levels=64):
    """Values without noise: the cells that they lie in."""
    scale = even_scale(levels, STEPS)
    return Released(np.searchsorted(scale.cuts, values, side="right"), np.eye(levels), scale, UNKNOWN)


def stars(values, truth, generator, levels=5):
    """Rounded values through randomised response."""
    level = np.clip(np.round((values + 1) / 2 * (levels - 1)), 0, levels - 1).astype(int)
    lied = generator.random(len(level)) > truth
    symbols = np.where(lied, (level + generator.integers(1, levels, len(level))) % levels, level)
    chances = np.where(np.eye(levels) > 0, truth, (1 - truth) / (levels - 1))
    return Released(symbols, chances, public_scale(np.linspace(-1, 1, levels), STEPS), UNKNOWN)


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
    run = Posterior(sweeps=150).solve(where, plain(values), family, data.truth.shape)
    error, cover = errors_and_cover(run, data, truth)
    ridge = ALS().solve(data.train, family).predict(data.test.coordinates) - 0.5
    assert error < 1.12 * np.sqrt(np.mean((ridge - truth) ** 2)) / data.truth.std()
    assert 0.8 < cover < 0.98
    knots = run.draws.knots[:, [1, -2]]
    spread = np.median(np.ptp(even_scale(64, STEPS).cuts) / np.ptp(knots, axis=1))  # of residuals, in units of values
    assert spread == pytest.approx(data.noise_std, rel=0.15)
    assert run.draws.mixing[2] < 1.3
    assert run.draws.mixing[3] > 10


@pytest.mark.parametrize("law", ["gaussian", "laplace", "stars"])
def test_it_sees_through_noise_of_a_known_law(law):
    data = observe(cp_tensor((15, 14, 13), 2, seed=2), snr_kind="variances", snr=4.0, seed=3, missing_ratio=0.2)
    where, values, truth = centred(data)
    generator = np.random.default_rng(4)
    scale = 1.0
    if law == "gaussian":
        released = released_numbers(Noisy(values + 0.1 * generator.standard_normal(len(values)), 0.01), False, STEPS)
    elif law == "laplace":
        released = released_numbers(Noisy(values + generator.laplace(0, 0.07, len(values)), 2 * 0.07**2), True, STEPS)
    else:
        scale = 3.0
        released = stars(np.clip(scale * values, -1, 1), 0.9, generator, 10)
    run = Posterior(sweeps=160).solve(where, released, CP(2), data.truth.shape)
    predicted = run.draws.predict(data.test.coordinates, run.offsets) / scale
    assert np.sqrt(np.mean((predicted - truth) ** 2)) < 0.75 * data.truth.std()


BATCHES = 18


def moves(*left_out):
    """A chain of a small model without some of its moves; all of them leave the same law as it is."""

    class Fewer(Chain):
        pass

    for name in left_out:
        setattr(Fewer, name, lambda self, *arguments: 1.0)
    return Fewer


@pytest.mark.parametrize("left_out", ["_draw_scale", "_draw_level"])
@pytest.mark.parametrize("kind", ["plain", pytest.param("stars", marks=pytest.mark.slow)])  # stars mix slowly
def test_moves_of_scale_and_level_do_not_change_the_law(left_out, kind):
    generator = np.random.default_rng(0)
    shape = (8, 30)
    where = np.argwhere(np.ones(shape)).astype(np.uint32)
    values = np.linspace(-0.5, 0.5, 8)[where[:, 0]] + 0.4 * generator.standard_normal(len(where))
    released = plain(values, 16) if kind == "plain" else stars(values, 0.9, generator, 3)
    data = Entries.of(where, np.empty(0), shape)
    links = [Links([], size) for size in shape]
    found = []
    for kind_of_chain in (Chain, moves(left_out)):
        chain = kind_of_chain(data, released, CP(1), shape, links, 5, 1)
        seen = []
        for sweep in range(2000 if kind == "plain" else 20000):
            chain.sweep(sweep, tune=sweep < 200)
            if sweep >= 200:
                share = chain.means.var() / (1 + chain.means.var())
                seen.append([share, *((chain.means - chain.means.mean()) / np.sqrt(1 + chain.means.var()))[::29]])
        found.append(np.array(seen))
    for one, other in zip(found[0].T, found[1].T, strict=True):
        batches = [part.reshape(BATCHES, -1).mean(axis=1) for part in (one, other)]
        error = np.sqrt(sum(part.var(ddof=1) / BATCHES for part in batches))
        assert abs(one.mean() - other.mean()) < 4.5 * error


def test_scales_without_data_have_their_half_cauchy_law():
    where = np.zeros((1, 2), dtype=np.uint32)
    chain = Chain(
        Entries.of(where, np.empty(0), (6, 5)), plain(np.zeros(1), 4), CP(1), (6, 5), [Links([], 6), Links([], 5)], 1, 1
    )
    squares, below = np.array([1.0]), []
    precision = np.array([1.0])
    for _ in range(20000):  # Gibbs: one normal number, its spread
        precision = chain.precisions(squares, 1, precision, np.array([4.0]))
        squares = chain.generator.standard_normal(1) ** 2 / precision
        below.append(precision[0] ** -0.5 < 0.5)
    assert np.mean(below) == pytest.approx(0.5, abs=0.04)  # a half-Cauchy law with scale 1/2 has this median


def test_chains_left_behind_go_on_from_the_best():
    where = np.argwhere(np.ones((6, 5))).astype(np.uint32)
    values = np.linspace(-1, 1, 30)
    chains = [
        Chain(
            Entries.of(where, np.empty(0), (6, 5)), plain(values, 8), CP(2), (6, 5), [Links([], 6), Links([], 5)], n, 1
        )
        for n in range(3)
    ]
    for chain, fit in zip(chains, (-100.0, -10.0, -11.0), strict=True):
        chain.sweep(0, True)
        chain.fit = fit
    kept = chains[2].parameters.copy()
    _regroup(chains)
    np.testing.assert_array_equal(chains[0].parameters, chains[1].parameters)
    np.testing.assert_array_equal(chains[0].cuts, chains[1].cuts)
    np.testing.assert_array_equal(chains[2].parameters, kept)
    chains[0].sweep(1, True)
    chains[1].sweep(1, True)
    assert (chains[0].parameters != chains[1].parameters).any()


@pytest.mark.parametrize("order", [2, 4, 6])
def test_any_order(order):
    shape = {2: (30, 25), 4: (8, 7, 6, 5), 6: (4, 4, 3, 3, 3, 3)}[order]
    data = observe(cp_tensor(shape, 1, seed=order), snr_kind="variances", snr=20.0, seed=1, missing_ratio=0.2)
    where, values, truth = centred(data)
    run = Posterior(sweeps=80).solve(where, plain(values), CP(1), shape)
    assert errors_and_cover(run, data, truth)[0] < 0.5


@pytest.mark.parametrize(
    "family, fast",
    [(CP(2), False), (CP(2), True), (Tucker((2, 2, 2)), False), (Tucker((2, 2, 2)), True)],
    ids=["cp", "cp fast", "tucker", "tucker fast"],
)
def test_the_same_bits_for_any_number_of_threads_and_for_the_same_seed(monkeypatch, family, fast):
    monkeypatch.setattr(chain_module, "PART", 25 if fast else 100)
    monkeypatch.setattr(SortedSymbols, "worth_sorting", lambda *size: fast)
    data = observe(cp_tensor((12, 11, 10), 2, seed=0), seed=1)
    where, values, _ = centred(data)
    released = stars(np.clip(values, -1, 1), 0.8, np.random.default_rng(0))

    def sample(threads, seed=None):
        return Posterior(sweeps=12, threads=threads).solve(where, released, family, (12, 11, 10), seed=seed)

    one, three = sample(1), sample(9)
    assert one.draws == three.draws
    assert one.offsets == three.offsets
    assert sample(1, seed=1).draws != one.draws


def test_public_features_help_rows_with_few_observations():
    generator = np.random.default_rng(0)
    shape = (200, 40)
    features = generator.standard_normal((200, 2))
    signal = features @ generator.standard_normal((2, 40)) * 0.15 + 0.1 * features[:, :1]
    where = np.column_stack([np.repeat(np.arange(200), 4), generator.integers(0, 40, 800)]).astype(np.uint32)
    values = np.clip(signal[tuple(where.T)] + 0.2 * generator.standard_normal(800), -1, 1)
    errors = []
    for given in (None, [features, None]):
        run = Posterior(sweeps=150, pattern=False, features=given).solve(where, plain(values), CP(2), shape)
        cells = np.argwhere(np.ones(shape)).astype(np.uint32)
        errors.append(np.sqrt(np.mean((run.draws.predict(cells, run.offsets) - signal.ravel()) ** 2)))
    assert errors[1] < 0.8 * errors[0]


def test_pure_noise_is_predicted_by_its_mean():
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones((15, 15, 15))).astype(np.uint32)
    values = np.clip(0.1 + 0.2 * generator.standard_normal(len(where)), -1, 1)
    run = Posterior(sweeps=60).solve(where, stars(values, 0.4, generator), CP(3), (15, 15, 15))
    predicted = run.draws.predict(where, run.offsets)
    assert predicted.std() < 0.06
    assert abs(predicted.mean() - 0.1) < 0.05


def test_a_level_that_no_value_has_is_not_predicted():
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones((20, 15))).astype(np.uint32)
    released = Released(
        generator.integers(1, 4, len(where)), np.eye(5), public_scale(np.linspace(-1, 1, 5), STEPS), UNKNOWN
    )
    run = Posterior(sweeps=60).solve(where, released, CP(2), (20, 15))
    assert np.abs(run.draws.knots).max() < 50
    assert np.abs(run.draws.predict(where, run.offsets)).max() < 0.5


def test_fewer_sweeps_for_large_data_and_progress_is_told():
    assert Posterior().planned_sweeps(20000, 2) == MOST_SWEEPS
    assert Posterior().planned_sweeps(10**6, 3) < Posterior().planned_sweeps(10**5, 3)
    assert Posterior(sweeps=7).planned_sweeps(10**6, 2) == 7
    calls = []
    where = np.argwhere(np.ones((4, 3))).astype(np.uint32)
    run = Posterior(sweeps=9).solve(
        where, plain(np.linspace(-1, 0.99, 12)), CP(1), (4, 3), progress=lambda *call: calls.append(call)
    )
    assert calls == [(sweep, 9) for sweep in range(1, 10)]
    assert run.draws.mixing[0] == 9
    assert len(run.draws) == 4 * 7


def test_kernels_made_for_the_rank_sample_the_same_posterior(monkeypatch):
    data = observe(cp_tensor((15, 14, 13), 2, seed=0), snr_kind="variances", snr=4.0, seed=1)
    where, values, truth = centred(data)
    found = []
    for fast in (False, True):
        monkeypatch.setattr(SortedSymbols, "worth_sorting", lambda *size, fast=fast: fast)
        run = Posterior(sweeps=80).solve(where, plain(values), CP(2), data.truth.shape)
        found.append(run.draws.predict(data.test.coordinates, run.offsets))
    apart = np.sqrt(np.mean((found[0] - found[1]) ** 2))
    assert apart < 0.3 * min(np.sqrt(np.mean((one - truth) ** 2)) for one in found)


def test_sampling_stops_once_there_are_enough_draws():
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones((40, 40))).astype(np.uint32)
    signal = np.linspace(-0.5, 0.5, 40)
    values = signal[where[:, 0]] + 0.2 * generator.standard_normal(len(where))
    planned = 2 * MOST_SWEEPS
    run = Posterior(sweeps=planned).solve(where, plain(np.clip(values, -1, 1), 16), CP(1), (40, 40))
    sweeps, _, rhat, effective = run.draws.mixing
    assert sweeps < planned
    assert rhat < MOST_RHAT
    assert effective >= ENOUGH_DRAWS
    assert 80 <= len(run.draws) <= 160  # as many as of a full run
    predicted = run.draws.predict(where, run.offsets).reshape(40, 40).mean(axis=1)
    assert np.abs(predicted - signal).max() < 0.15


@pytest.mark.parametrize("visits, determined, chains", [(10**4, True, 2), (10**4, False, 4), (10**9, True, 4)])
def test_large_data_that_determine_the_model_have_two_chains(monkeypatch, visits, determined, chains):
    monkeypatch.setattr(sampler_module, "VISITS", visits)
    monkeypatch.setattr(sampler_module, "FEWEST_OF_LARGE", 20)
    monkeypatch.setattr(sampler_module, "MOST_SWEEPS", 30)
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones((20, 20))).astype(np.uint32)
    factors = [generator.standard_normal((20, 1)) for _ in range(2)]
    values = (factors[0] @ factors[1].T).ravel() / 4
    start = Start(CP(1).model(factors), [np.zeros(20), np.zeros(20)], 1.0, determined)
    run = Posterior().solve(where, plain(np.clip(values, -1, 1), 16), CP(1), (20, 20), start=start)
    assert run.draws.mixing[1] == chains
    assert np.corrcoef(run.draws.predict(where, run.offsets), values)[0, 1] > 0.9


@pytest.mark.slow
def test_factors_are_found_where_values_have_no_offsets():
    """Stars of a matrix of rank 3, 30 % of their variance: chains from random starts lost all factors."""
    generator, shape, share = np.random.default_rng(0), (600, 800), 0.3
    factors = [generator.standard_normal((size, 3)) for size in shape]
    where, asked = (
        np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
        for count in (40_000, 5_000)
    )
    signals = [
        0.55 * np.sqrt(share / 3) * (factors[0][cells[:, 0]] * factors[1][cells[:, 1]]).sum(axis=1)
        for cells in (where, asked)
    ]
    values = signals[0] + 0.55 * np.sqrt(1 - share) * generator.standard_normal(len(where))
    released = stars(np.clip(values, -1, 1), 0.9, np.random.default_rng(1))
    found = sample_values(Posterior(), released, where, Target(CP(12), shape, -1.0, 1.0), lambda *told: None)
    assert np.sqrt(np.mean((found.predict(asked) - signals[1]) ** 2)) < 0.8 * signals[1].std()


@pytest.mark.slow
def test_a_tucker_model_is_found_where_values_have_no_offsets():
    """Stars of a tensor with a dense core: all chains from random starts have 0.57 of the truth's spread."""
    generator, shape = np.random.default_rng(0), (60, 50, 40)
    truth = Tucker((3, 3, 3)).model(
        [*(generator.standard_normal((size, 3)) for size in shape), generator.standard_normal((3, 3, 3))]
    )
    where, asked = (
        np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
        for count in (12_000, 5_000)
    )
    signals = [0.35 * truth.predict(cells) / truth.predict(where).std() for cells in (where, asked)]
    values = signals[0] + 0.35 * generator.standard_normal(len(where))
    released = stars(np.clip(values, -1, 1), 0.8, np.random.default_rng(1))
    target = Target(Tucker((4, 4, 4)), shape, -1.0, 1.0)
    found = sample_values(Posterior(sweeps=60), released, where, target, lambda *told: None)
    assert np.sqrt(np.mean((found.predict(asked) - signals[1]) ** 2)) < 0.52 * signals[1].std()


@pytest.mark.parametrize("shape", [(9, 8, 7), (9, 3, 8, 7), (20, 15)], ids=str)
def test_a_cp_model_becomes_the_tucker_model_of_the_same_predictions(shape):
    generator = np.random.default_rng(0)
    rank, ranks = 6, tuple(min(3, size) for size in shape)
    columns = [generator.standard_normal((size, 3)) @ generator.standard_normal((3, rank)) for size in shape]
    model = CP(rank).model(columns)  # of rank 6, but its factors span three dimensions
    factors, core = tucker_blocks(model, ranks)
    where = np.argwhere(np.ones(shape)).astype(np.uint32)
    np.testing.assert_allclose(Tucker(ranks).model([*factors, core]).predict(where), model.predict(where), rtol=1e-6)
    for factor in factors:
        np.testing.assert_allclose(factor.T @ factor / len(factor), np.eye(factor.shape[1]), atol=1e-9)


def test_a_tucker_model_of_lower_ranks_keeps_nearly_the_most_that_it_can():
    """Truncation in every mode is within the root of the order of the best approximation (De Lathauwer 2000)."""
    generator = np.random.default_rng(0)
    model = CP(5).model([generator.standard_normal((size, 5)) for size in (12, 11, 10)])
    where = np.argwhere(np.ones((12, 11, 10))).astype(np.uint32)
    dense = model.predict(where)
    factors, core = tucker_blocks(model, (2, 2, 2))
    lost = np.linalg.norm(Tucker((2, 2, 2)).model([*factors, core]).predict(where) - dense)
    unfolded = [
        np.moveaxis(dense.reshape(12, 11, 10), mode, 0).reshape(size, -1) for mode, size in enumerate((12, 11, 10))
    ]
    tails = [np.square(np.linalg.svd(matrix, compute_uv=False)[2:]).sum() for matrix in unfolded]
    assert max(tails) <= lost**2 * (1 + 1e-9)  # no model of these ranks loses less
    assert lost**2 <= sum(tails) * (1 + 1e-9)


def test_wrong_use_is_an_error():
    where = np.zeros((2, 2), dtype=np.uint32)
    with pytest.raises(InputError, match="one symbol per row of coordinates"):
        Posterior().solve(where, plain(np.zeros(1)), CP(1), (4, 3))
    with pytest.raises(InputError, match="sweeps"):
        Posterior(sweeps=0)
    with pytest.raises(InputError, match="draws"):
        Posterior(draws=0)
    with pytest.raises(InputError, match=r"features\[0\]"):
        Posterior(features=[np.ones((3, 1)), None]).solve(where, plain(np.zeros(2)), CP(1), (4, 3))


@pytest.mark.parametrize("first, second", [(1, 3), (3, 1)])
def test_of_several_families_the_one_that_fits_is_kept(first, second):
    data = observe(cp_tensor((15, 14, 13), 3, seed=0), snr_kind="variances", snr=4.0, seed=1)
    where, values, _ = centred(data)
    target = Target(CP(first), data.truth.shape, -0.5, 1.5)
    solver = Posterior(sweeps=60, families=(CP(second),))
    labels = set()
    kept = sample_values(solver, plain(values), where, target, lambda label, *_: labels.add(label))
    assert kept.factors.ranks == (3, 3, 3)
    assert labels == {"least squares", "sweeps, cp"}


def test_expected_fit_is_that_of_symbols_that_were_not_read():
    data = observe(cp_tensor((15, 14, 13), 2, seed=2), snr_kind="variances", snr=2.0, seed=3, missing_ratio=0.2)
    where, values, _ = centred(data)
    read = np.random.default_rng(0).random(len(where)) < 0.8
    symbols = plain(values, 16).symbols
    scale = even_scale(16, STEPS)
    seen, unseen = (Released(symbols[part], np.eye(16), scale, UNKNOWN) for part in (read, ~read))
    run = Posterior(sweeps=120).solve(where[read], seen, CP(3), data.truth.shape)
    means = run.draws.latent_means(where[~read], run.offsets)
    chances = [
        np.diff(ndtr(cuts[:, None] - row), axis=0, prepend=0, append=1)[unseen.symbols, np.arange(len(unseen))]
        for row, cuts in zip(means, run.draws.knots[:, 1:-1], strict=True)
    ]
    held_out = np.log(np.mean(chances, axis=0))
    error = held_out.std() / np.sqrt(len(held_out))
    assert abs(run.expected_fit(where[read], seen) - held_out.mean()) < 3 * error + 0.02
