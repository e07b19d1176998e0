"""Algorithms 1, 2 and 3 as printed: the laws of their noise, and where it goes."""

import math

import numpy as np
import pytest
from scipy import stats

import oracles
from oracles import WatchedSolver, model_blocks
from tensorveil.data.datasets import synthetic
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.published import PublishedGradient, PublishedInput, PublishedOutput
from tensorveil.solvers.sgd import SGD
from tensorveil.solvers.start import Start, UniformStart

FAMILIES = [CP(2), Tucker((2, 3, 2))]
TRAIN = synthetic.observe(synthetic.cp_tensor((6, 5, 7), 2, seed=0), seed=0).train
FEW = SGD(iterations=3)


def p_value(sample, law) -> float:
    return float(stats.kstest(np.ravel(sample), law.cdf).pvalue)


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [None, (-1.0, 3.0)])
@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_input_noise_is_laplace_of_range_over_epsilon(epsilon, bounds):
    data = synthetic.observe(synthetic.cp_tensor(seed=1), snr=100, missing_ratio=0.2, seed=1).train
    solver = WatchedSolver(SGD(iterations=1, learning_rate=1e-9))
    run = PublishedInput(bounds=bounds).run(data, CP(2), epsilon, solver, seed=2)
    noise = solver.observations[0].values - data.values
    width = max(data.values.tolist()) - min(data.values.tolist()) if bounds is None else 4.0
    assert p_value(noise, stats.laplace(scale=width / epsilon)) > 0.001
    assert run.notes["noise_scale"] == pytest.approx(width / epsilon)
    assert run.notes["bounds_from_data"] == (bounds is None)
    assert solver.observations[0].coordinates.tolist() == data.coordinates.tolist()


def test_values_beyond_public_bounds_are_brought_to_them():
    data = Observations([[0, 0], [0, 1], [1, 0]], [-5.0, 0.5, 9.0], (2, 2))
    solver = WatchedSolver(FEW)
    PublishedInput(bounds=(0, 1)).run(data, CP(1), 1e12, solver, seed=0)
    assert solver.observations[0].values == pytest.approx([0.0, 0.5, 1.0], abs=1e-9)


def test_clamping_bounds_the_noisy_values_and_nothing_else():
    free, clamped = WatchedSolver(FEW), WatchedSolver(FEW)
    PublishedInput().run(TRAIN, CP(2), 1.0, free, seed=5)
    PublishedInput(clamp=(0, 1)).run(TRAIN, CP(2), 1.0, clamped, seed=5)
    loose, tight = free.observations[0].values, clamped.observations[0].values
    assert (loose < 0).any()
    assert (loose > 1).any()
    assert tight.tolist() == [min(max(value, 0.0), 1.0) for value in loose.tolist()]


def test_the_zero_filled_form_makes_every_cell_an_observation():
    solver = WatchedSolver(FEW)
    run = PublishedInput(zero_filled=True).run(TRAIN, CP(2), 1e12, solver, seed=0)
    dense = solver.observations[0].to_dense()
    assert dense.shape == TRAIN.shape
    assert np.abs(dense - np.nan_to_num(TRAIN.to_dense())).max() < 1e-9
    assert run.model.shape == TRAIN.shape
    assert not any("observed" in reason for reason in run.guarantee.reasons)
    # zeros count for the range that is read off the data
    positive = TRAIN.with_values(np.linspace(2, 3, len(TRAIN)))
    assert PublishedInput(zero_filled=True).run(positive, CP(2), 1e9, FEW, seed=0).notes["bounds"] == (0.0, 3.0)


def test_the_cells_of_the_zero_filled_form_are_zeros_whatever_the_bounds():
    data = Observations([[0, 0], [1, 1]], [1.0, 5.0], (2, 2))
    solver = WatchedSolver(FEW)
    try:
        PublishedInput(bounds=(1, 5), zero_filled=True).run(data, CP(1), 1e12, solver, seed=0)
    except InputError:
        return  # refused, since zero lies outside the bounds: fine
    assert solver.observations[0].to_dense() == pytest.approx(np.diag([1.0, 5.0]), abs=1e-9)


def test_a_constant_has_no_range_to_read():
    data = Observations([[0, 0], [1, 1]], [2.0, 2.0], (2, 2))
    with pytest.raises(InputError, match="bounds"):
        PublishedInput().run(data, CP(1), 1.0, oracles.UncalledSolver())
    assert PublishedInput(bounds=(0, 3)).run(data, CP(1), 1e3, FEW, seed=0).notes["noise_scale"] == 3e-3


@pytest.mark.parametrize("pair", [(1, 0), (1, 1), (0, math.inf), (math.nan, 1), ("0", 1), (0,), (0, 1, 2)])
def test_bounds_and_clamps_are_pairs_in_order(pair):
    with pytest.raises(InputError, match="bounds"):
        PublishedInput(bounds=pair)
    with pytest.raises(InputError, match="clamp"):
        PublishedInput(clamp=pair)


# --- Algorithm 2 ----------------------------------------------------------------------------------------------------


def diagonal(number: int) -> Observations:
    """Entries that share no row: every row of every factor is visited once an iteration."""
    return Observations([[row] * 3 for row in range(number)], np.linspace(0, 1, number), (number,) * 3)


@pytest.mark.parametrize("mode", [0, 1, 2, -1])
def test_gradient_noise_goes_to_one_factor_with_scale_two_m_over_epsilon(mode):
    data, solver = diagonal(3000), SGD(iterations=1, learning_rate=0.01)
    noisy = PublishedGradient(0.2, mode).run(data, CP(3), 0.5, solver, seed=6)
    silent = PublishedGradient(0.2, mode).run(data, CP(3), 1e15, solver, seed=6)
    for number in range(3):
        change = noisy.model.factors[number] - silent.model.factors[number]
        if number == mode % 3:
            radius = np.linalg.norm(change, axis=1) / 0.01
            assert p_value(radius, stats.gamma(3, scale=2 * 0.2 / 0.5)) > 0.001
        else:
            assert np.abs(change).max() == 0.0
    assert noisy.notes["noise_scale"] == pytest.approx(0.8)
    assert noisy.notes["mode"] == mode % 3


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_only_the_noised_factors_gradient_is_clipped_and_noised(family):
    solver = WatchedSolver(FEW)
    PublishedGradient(0.07, 1).run(TRAIN, family, 1.0, solver, seed=1)
    number = len(family.block_shapes(TRAIN.shape))
    assert list(solver.arguments[0]["clip_norms"]) == [0.07 if block == 1 else math.inf for block in range(number)]
    assert solver.arguments[0]["noise"].block == 1


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_fresh_noise_is_added_at_every_step(family):
    steps = SGD(iterations=2)
    noise = []

    class Drawn(WatchedSolver):
        def solve(self, observations, family, **arguments):
            source = arguments["noise"]

            class Spy:
                block = source.block

                def draw(self, steps, width):
                    noise.append(source.draw(steps, width))
                    return noise[-1]

            return super().solve(observations, family, **{**arguments, "noise": Spy()})

    PublishedGradient(0.1).run(TRAIN, family, 2.0, Drawn(steps), seed=1)
    rows = np.concatenate(noise)
    assert rows.shape == (2 * len(TRAIN), 2)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert p_value(np.linalg.norm(rows, axis=1), stats.gamma(2, scale=0.1)) > 0.001


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_with_a_huge_budget_it_is_the_clipped_run(family):
    number = len(family.block_shapes(TRAIN.shape))
    clip_norms = [math.inf, math.inf, 0.05, math.inf][:number]
    clipped = FEW.solve(TRAIN, family, seed=8, clip_norms=clip_norms)
    run = PublishedGradient(0.05).run(TRAIN, family, 1e15, FEW, seed=8)
    assert np.abs(run.model.parameters - clipped.model.parameters).max() < 1e-10
    assert run.loss == pytest.approx(clipped.loss)
    assert np.abs(clipped.model.parameters - FEW.solve(TRAIN, family, seed=8).model.parameters).max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("mechanism", [PublishedGradient(1e6), PublishedOutput(1e6), PublishedInput()])
def test_with_a_huge_budget_and_no_clipping_it_is_plain_sgd(family, mechanism):
    plain = FEW.solve(TRAIN, family, seed=8)
    run = mechanism.run(TRAIN, family, 1e20, FEW, seed=8)
    assert np.abs(run.model.parameters - plain.model.parameters).max() < 1e-8
    assert run.loss == pytest.approx(plain.loss)


# --- Algorithm 3 ----------------------------------------------------------------------------------------------------


def many_rows() -> Observations:
    generator = np.random.default_rng(0)
    where = np.column_stack([generator.integers(0, 4, 3000), generator.integers(0, 5, 3000), np.arange(3000)])
    return Observations(where, generator.uniform(size=3000), (4, 5, 3000))


@pytest.mark.parametrize("family", [CP(3), Tucker((2, 2, 3))], ids=str)
def test_output_noise_is_gamma_of_scale_two_tau_l_eta_over_epsilon(family):
    solver = WatchedSolver(SGD(iterations=4, learning_rate=0.01))
    run = PublishedOutput(lipschitz=0.3).run(many_rows(), family, 0.7, solver, seed=9)
    before = solver.runs[0].model
    change = run.model.factors[2] - before.factors[2]
    expected = 2 * 4 * 0.3 * 0.01 / 0.7
    assert p_value(np.linalg.norm(change, axis=1), stats.gamma(3, scale=expected)) > 0.001
    assert run.notes["noise_scales"] == {2: pytest.approx(expected)}
    assert run.notes["sensitivities"] == {2: pytest.approx(0.024)}
    for block, (old, new) in enumerate(zip(model_blocks(before), model_blocks(run.model), strict=True)):
        assert np.array_equal(old, new) == (block != 2)


def test_the_run_before_the_noise_is_the_clipped_run_of_the_same_seed():
    solver = WatchedSolver(FEW)
    PublishedOutput(lipschitz=0.05, shares={0: 0.5, -1: 0.5}).run(TRAIN, CP(2), 1.0, solver, seed=10)
    clipped = FEW.solve(TRAIN, CP(2), seed=10, clip_norms=[0.05, math.inf, 0.05])
    assert solver.runs[0].model == clipped.model


def test_shares_over_factors_and_core_divide_the_budget():
    shares = {0: 0.1, 2: 0.2, "core": 0.7}
    family = Tucker((2, 3, 3))
    data = many_rows()
    solver = WatchedSolver(SGD(iterations=2, learning_rate=0.01))
    run = PublishedOutput(0.5, shares).run(data, family, 3.0, solver, seed=11)
    old, new = model_blocks(solver.runs[0].model), model_blocks(run.model)
    assert np.array_equal(old[1], new[1])
    for block in (0, 2, 3):
        assert not np.array_equal(old[block], new[block])
    sensitivity = 2 * 2 * 0.5 * 0.01
    expected = {0: sensitivity / 0.3, 2: sensitivity / 0.6, 3: sensitivity / 2.1}
    assert run.notes["noise_scales"] == pytest.approx(expected)
    assert p_value(np.linalg.norm(new[2] - old[2], axis=1), stats.gamma(3, scale=expected[2])) > 0.001
    assert list(solver.arguments[0]["clip_norms"]) == [0.5, math.inf, 0.5, 0.5]
    assert not any("without noise" in reason for reason in _on_all(family, data).guarantee.reasons)


def _on_all(family, data):
    return PublishedOutput.on_all_blocks(family, data.shape).run(data, family, 1.0, SGD(iterations=1), seed=0)


def test_the_core_is_one_row_of_all_its_cells():
    family, radii = Tucker((2, 2, 2)), []
    for seed in range(300):
        solver = WatchedSolver(SGD(iterations=1, learning_rate=0.01))
        run = PublishedOutput(0.5, {"core": 1.0}).run(TRAIN, family, 1.0, solver, seed=seed)
        radii.append(np.linalg.norm(run.model.core - solver.runs[0].model.core))
    assert p_value(radii, stats.gamma(8, scale=2 * 0.5 * 0.01)) > 0.001


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_on_all_blocks_every_block_has_the_same_share(family):
    number = len(family.block_shapes(TRAIN.shape))
    mechanism = PublishedOutput.on_all_blocks(family, TRAIN.shape, 0.2)
    assert sorted(mechanism.shares.values()) == pytest.approx([1 / number] * number)
    run = mechanism.run(TRAIN, family, 1.0, FEW, seed=0)
    assert sorted(run.notes["noise_scales"]) == list(range(number))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_without_a_lipschitz_constant_the_largest_gradient_seen_is_taken_and_said_so(family, monkeypatch):
    solver = WatchedSolver(SGD(iterations=3, learning_rate=0.01, regularization=0.02, core_regularization=0.03))
    mechanism = PublishedOutput(lipschitz=None, shares={1: 0.5, 2: 0.5})
    run = mechanism.run(TRAIN, family, 2.0, solver, seed=12)
    assert run.notes["lipschitz_from_data"]
    assert any("read from the data" in reason for reason in run.guarantee.reasons)
    slow = _slow_twin(solver, family, seed=12)
    for block in (1, 2):
        assert run.notes["sensitivities"][block] == pytest.approx(2 * 3 * slow.largest_gradient[block] * 0.01)
        assert run.notes["noise_scales"][block] == pytest.approx(run.notes["sensitivities"][block] / 1.0)
    assert np.abs(model_blocks(solver.runs[0].model)[2] - slow.blocks[2]).max() < 1e-10  # not clipped
    beta = max(2 * slow.largest_feature[block] + 2 * 0.02 for block in (1, 2))
    assert run.notes["beta"] == pytest.approx(beta)
    assert run.notes["smoothness_condition_held"] == (2 / beta >= 0.01)
    assert not PublishedOutput().run(TRAIN, family, 2.0, FEW, seed=12).notes["lipschitz_from_data"]


def _slow_twin(solver: WatchedSolver, family, seed: int) -> oracles.SlowRun:
    """The same run by the oracle: start and orders are drawn from the seed, in this order."""
    generator = np.random.default_rng(seed)
    start = UniformStart().model(family, TRAIN.shape, generator)
    orders = [generator.permutation(len(TRAIN)) for _ in range(solver.iterations)]
    return oracles.slow_sgd(
        model_blocks(start), TRAIN.coordinates, TRAIN.values, orders, eta=0.01, penalties=[0.02, 0.02, 0.02, 0.03]
    )


def test_it_says_whether_the_step_was_small_enough_for_the_lemma():
    data = Observations([[0, 0, 0]], [0.5], (1, 1, 1))
    held = PublishedOutput().run(data, CP(3), 1.0, SGD(iterations=1), seed=0).notes
    assert held["smoothness_condition_held"]
    assert held["beta"] <= 2 * 3 + 0.02  # rows in [0, 1]: |phi|^2 is at most the rank
    large = SGD(iterations=1, learning_rate=0.005, start=UniformStart(4, 5))
    broken = PublishedOutput().run(data, CP(3), 1.0, large, seed=0).notes
    assert broken["beta"] >= 2 * 3 * 4**4
    assert not broken["smoothness_condition_held"]


def test_a_start_of_zeros_without_penalty_is_perfectly_smooth():
    class Zeros(Start):
        def draw(self, shape, generator):
            return np.zeros(shape)

    solver = SGD(iterations=1, regularization=0, start=Zeros())
    notes = PublishedOutput().run(TRAIN, CP(2), 1.0, solver, seed=0).notes
    assert notes["beta"] == 0.0
    assert notes["smoothness_condition_held"]


@pytest.mark.parametrize(
    "shares, message",
    [
        ({0: 0.5}, "add up to 1"),
        ({0: 0.7, 1: 0.7}, "add up to 1"),
        ({}, "add up to 1"),
        ({0: 1.5, 1: -0.5}, "shares"),
        ({0: 1.0, 1: 0.0}, "shares"),
        ({0: math.nan}, "shares"),
        ({0: "1"}, "shares"),
    ],
)
def test_shares_are_positive_and_add_up_to_one(shares, message):
    with pytest.raises(InputError, match=message):
        PublishedOutput(shares=shares)


@pytest.mark.parametrize(
    "shares, message",
    [
        ({"core": 1.0}, "'core' for CP"),
        ({3: 1.0}, "mode must be"),
        ({"factor": 1.0}, "mode must be"),
        ({2: 0.5, -1: 0.5}, "every block once"),
        ({True: 1.0}, "mode must be"),
    ],
)
def test_shares_name_blocks_of_the_model_once(shares, message):
    with pytest.raises(InputError, match=message):
        PublishedOutput(shares=shares).run(TRAIN, CP(2), 1.0, oracles.UncalledSolver())


def test_a_mechanism_does_not_change_when_the_callers_shares_do():
    shares = {0: 0.5, 1: 0.5}
    mechanism = PublishedOutput(shares=shares)
    shares[0] = 100.0
    scales = mechanism.run(TRAIN, CP(2), 1.0, FEW, seed=0).notes["noise_scales"]
    assert scales[0] == pytest.approx(scales[1])
