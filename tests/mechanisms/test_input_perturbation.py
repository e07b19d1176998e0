"""Input perturbation: what one unit moves, the law of its noise, wrong use, and that little noise costs little."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from oracles import all_coordinates
from tensorveil.audit.replays import replay
from tensorveil.data.datasets.synthetic import cp_tensor, observe
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError, SizeError, UnprovenError
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import symbol_numbers
from tensorveil.inference.values.public_scales import UNKNOWN, even_scale, public_scale
from tensorveil.mechanisms.input import LEVELS_CHOSEN, InputPerturbation
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.mechanisms.with_offsets import WithOffsets
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.local import noisy_values
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.release.fitting import fit
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.solvers.als import ALS

SHAPE = (6, 5, 4)
BOUNDS = Bounds(1, 5)
QUICK = ALS(sweeps=2, regularization=0.5)
FAMILIES = [CP(2), Tucker((2, 2, 1))]
UNLIKELY = 1e-6
STEPS = 2**20


def ratings(seed=0, count=60):
    """Values at and beyond the bounds; the last row of the first mode is empty, one cell is observed twice."""
    generator = np.random.default_rng(seed)
    where = generator.permutation(all_coordinates((SHAPE[0] - 1, *SHAPE[1:])))[:count]
    values = generator.choice([-3.0, 1.0, 2.0, 3.3, 5.0, 9.0], count)
    return Observations(np.vstack([where, where[:1]]), np.append(values, 2.0), SHAPE, duplicates="keep")


def with_values(data, changed, values):
    numbers = np.array(data.values)
    numbers[changed] = values
    return data.with_values(numbers)


def without(data, rows):
    return data.take(np.flatnonzero(~rows))


def plan_for(unit, noise, family=FAMILIES[0], epsilon=1.0, **more):
    delta = 1e-4 if noise == "gaussian" else 0.0
    mechanism = InputPerturbation(noise, solver=QUICK, default=more.pop("default", None))
    return mechanism.plan(family, BOUNDS, unit, epsilon, delta, shape=SHAPE, **more)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("noise", ["laplace", "gaussian", "channel"])
def test_one_value_moves_all_of_its_sensitivity_and_nothing_else(noise, family):
    low = with_values(ratings(), 1, -100.0)
    found = replay(low, with_values(low, 1, 100.0), plan_for("value", noise, family))
    assert found.largest == pytest.approx(1.0, rel=1e-6)
    assert replay(low, with_values(low, 1, 2.0), plan_for("value", noise, family)).largest <= 1
    twice = with_values(ratings(), 0, -100.0)  # one of two values of a cell, which are read in ascending order
    assert 0 < replay(twice, with_values(twice, 0, 100.0), plan_for("value", noise, family)).largest <= 1


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("at_most", [None, 4, 1])
@pytest.mark.parametrize("noise", ["laplace", "gaussian", "channel"])
def test_the_values_of_the_most_active_slice_move_all_of_their_sensitivity(noise, at_most, family):
    data = ratings()
    busiest = np.bincount(data.coordinates[:, 0]).argmax()
    own = data.coordinates[:, 0] == busiest
    low = with_values(data, own, 1.0)
    found = replay(low, with_values(low, own, 5.0), plan_for("slice_values:0", noise, family, at_most=at_most))
    assert found.largest == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("default", [None, 1.0, 4.5])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_an_observation_that_comes_moves_one_cell(noise, default, family):
    data = ratings()
    extreme = with_values(data, len(data) - 1, 5.0 if default != 4.5 else 1.0)
    rows = np.arange(len(data)) == len(data) - 1
    plan = plan_for("entry", noise, family, default=default)
    assert replay(without(extreme, rows), extreme, plan).largest <= 1  # its cell is observed twice
    lonely = Observations(
        np.vstack([data.coordinates[1:-1], [[5, 0, 0]]]), np.append(data.values[1:-1], extreme.values[-1]), SHAPE
    )
    rows = np.arange(len(lonely)) == len(lonely) - 1  # the only observation of the last row
    found = replay(without(lonely, rows), lonely, plan)
    assert found.largest == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("at_most", [1, 3, 10, 1000])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_slice_that_comes_moves_at_most_its_sensitivity(noise, at_most, family):
    data = ratings()
    own = data.coordinates[:, 0] == np.bincount(data.coordinates[:, 0]).argmax()
    high = with_values(data, own, 5.0)
    ordered = high.take(np.argsort(own, kind="stable"))
    plan = plan_for("slice:0", noise, family, at_most=at_most)
    found = replay(ordered.take(np.arange((~own).sum())), ordered, plan)
    kept = min(at_most, len(np.unique(high.coordinates[own], axis=0)))
    most = min(at_most, math.prod(SHAPE[1:]))
    expected = kept / most if noise == "laplace" else math.sqrt(kept / most)
    assert found.largest == pytest.approx(expected, rel=1e-6) or found.largest <= expected


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_replay_on_tensors_that_hypothesis_chooses(data):
    cells = data.draw(st.lists(st.integers(0, 119), min_size=2, max_size=20))
    values = data.draw(st.lists(st.floats(-10, 10), min_size=len(cells), max_size=len(cells)))
    where = np.column_stack(np.unravel_index(cells, SHAPE))
    observations = Observations(where, values, SHAPE, duplicates="keep")
    unit = data.draw(st.sampled_from(["value", "slice_values:1", "entry", "slice:1"]))
    noise = data.draw(st.sampled_from(["laplace", "gaussian"]))
    plan = plan_for(unit, noise, at_most=data.draw(st.integers(1, 5)) if "slice" in unit else None)
    chosen = np.zeros(len(cells), dtype=bool)
    chosen[-1] = True
    if "slice" in unit:
        chosen = where[:, 1] == where[-1, 1]
    if "values" in unit or unit == "value":
        other = with_values(observations, chosen, data.draw(st.floats(-10, 10)))
    elif chosen.all():
        return
    else:
        observations = observations.take(np.argsort(chosen, kind="stable"))
        other = observations.take(np.arange((~chosen).sum()))
    replay(observations, other, plan)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_channel_changes_exactly_one_symbol(epsilon):
    data = with_values(ratings(), 3, 1.0)
    plan = plan_for("value", "channel", epsilon=epsilon)
    first = replay(data, with_values(data, 3, 5.0), plan)
    second = replay(with_values(data, 3, 5.0), data, plan)
    changed = [
        (mine.statistic != theirs.statistic).sum()
        for mine, theirs in zip(first.calls, second.calls, strict=True)
        if mine.kind == "channel"
    ]
    assert sum(changed) == 1
    assert len(changed) == 1
    assert sum(call.statistic.size for call in first.calls if call.kind == "channel") == len(data)
    assert all(call.parameters["channel"].epsilon <= epsilon for call in first.calls if call.kind == "channel")


def recorded(plan, data):
    """The statistic before noise and the noisy output of the only noisy call."""
    return next(call for call in replay(data, data, plan).calls if call.kind != "key")


@pytest.mark.parametrize("epsilon", [0.5, 20.0])
@pytest.mark.parametrize("unit, changes", [("value", 1), ("slice_values:0", 1500), ("entry", 0.5), ("slice:0", 3.5)])
def test_laplace_noise_has_the_scale_of_the_sensitivity_over_epsilon(unit, changes, epsilon):
    shape = (2, 50, 30)
    data = Observations(all_coordinates(shape), np.full(3000, 4.0), shape)
    plan = InputPerturbation("laplace", solver=QUICK).plan(
        CP(1), BOUNDS, unit, epsilon, shape=shape, at_most=7 if unit == "slice:0" else None
    )
    call = recorded(plan, data)
    noise = call.output - call.statistic * call.parameters["grid"]
    assert noise.size == 3000
    assert stats.kstest(noise, stats.laplace(scale=2 * changes / epsilon).cdf).pvalue > UNLIKELY


@pytest.mark.parametrize("unit, norm", [("value", 2.0), ("slice_values:0", 2 * math.sqrt(1500)), ("slice:0", 7**0.5)])
def test_gaussian_noise_has_the_multiple_of_the_norm_that_is_paid_for(unit, norm):
    shape = (2, 50, 30)
    data = Observations(all_coordinates(shape), np.full(3000, 4.0), shape)
    plan = InputPerturbation("gaussian", solver=QUICK).plan(
        CP(1), BOUNDS, unit, 1.0, 1e-5, shape=shape, at_most=7 if unit == "slice:0" else None
    )
    call = recorded(plan, data)
    noise = call.output - call.statistic * call.parameters["grid"]
    std = norm * plan.events[0].noise_multiplier
    assert stats.kstest(noise, stats.norm(scale=std).cdf).pvalue > UNLIKELY


def test_every_cell_of_the_box_gets_noise_empty_rows_too():
    data = Observations([[0, 0, 0]], [5.0], SHAPE)
    call = recorded(plan_for("entry", "laplace"), data)
    assert call.output.shape == (math.prod(SHAPE),)
    assert (call.output != 0).all()
    np.testing.assert_array_equal(np.flatnonzero(call.statistic), [0])


def test_a_cell_holds_the_clipped_sum_of_its_deviations_from_the_default():
    where = [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [2, 0, 0]]
    data = Observations(where, [5.0, 5.0, 1.0, 4.0, 2.0], SHAPE, duplicates="keep")
    cells = recorded(plan_for("entry", "laplace", default=2.0), data).statistic.reshape(SHAPE) / STEPS
    assert cells[0, 0, 0] == 1.5  # 3 + 3 stars, clipped to 5 - 2; a centred unit is two stars
    assert cells[1, 0, 0] == 0.5  # -1 + 2 stars
    assert cells[2, 0, 0] == 0.0
    assert np.count_nonzero(cells) == 2


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("unit", ["value", "slice_values:0", "entry", "slice:0"])
@pytest.mark.parametrize("noise", ["laplace", "gaussian", "channel"])
def test_the_price_is_what_was_asked_for(unit, noise, epsilon):
    if noise == "channel" and unit == "slice:0":
        with pytest.raises(UnprovenError, match="channel"):
            plan_for(unit, noise, at_most=3 if "slice" in unit else None)
        return
    plan = plan_for(unit, noise, epsilon=epsilon, at_most=3 if "slice" in unit else None)
    assert 0.99 * epsilon <= plan.epsilon <= epsilon
    assert plan.delta == (1e-4 if noise == "gaussian" else 0.0)
    release = fit(ratings(), plan)
    assert release.guarantee.status == "proven"
    assert release.guarantee.epsilon <= epsilon
    predictions = release.predict(all_coordinates(SHAPE))
    assert (predictions >= 1).all()
    assert (predictions <= 5).all()


@pytest.mark.parametrize(
    "unit, delta, noise",
    [
        ("value", 0, "channel"),
        ("value", 1e-6, "channel"),
        ("entry", 0, "channel"),
        ("entry", 1e-6, "channel"),
        ("slice_values:0", 0, "laplace"),
        ("slice_values:0", 1e-6, "gaussian"),
    ],
)
def test_the_noise_that_is_chosen_where_none_is_named(unit, delta, noise):
    plan = InputPerturbation().plan(CP(2), BOUNDS, unit, 1.0, delta, shape=SHAPE)
    assert plan.settings.noise == noise
    assert noise in str(plan).lower()


@pytest.mark.parametrize(
    "error, match, options, arguments",
    [
        (InputError, "noise must be one of", {"noise": "uniform"}, {}),
        (InputError, "delta must be above 0", {"noise": "gaussian"}, {}),
        (InputError, "levels and default must be left out", {"levels": [1, 2]}, {"unit": "entry"}),
        (InputError, "levels and default must be left out", {"default": 3.0}, {"unit": "entry"}),
        (UnprovenError, "channel", {"noise": "channel"}, {"unit": "slice:0", "at_most": 2}),
        (InputError, "at_most must be given", {}, {"unit": "slice:0"}),
        (SizeError, "at most 20,000,000 cells", {}, {"unit": "entry", "shape": (1000, 1000, 100)}),
        (InputError, "default must be from 1 to 5", {"default": 7.0, "noise": "laplace"}, {"unit": "entry"}),
        (InputError, "default must be left out", {"default": 3.0}, {}),
        (InputError, "levels must be 2 to 32", {"levels": [1.0]}, {}),
        (InputError, "epsilon", {}, {"epsilon": 0.0}),
        (InputError, "bounds", {}, {"bounds": None}),
        (InputError, "solver must be one of", {"solver": "newton"}, {}),
        (InputError, "must be 'als' for laplace", {"solver": "posterior", "noise": "laplace"}, {"unit": "entry"}),
    ],
)
def test_wrong_use_is_an_error_of_the_plan(error, match, options, arguments):
    asked = {"model": CP(2), "bounds": BOUNDS, "unit": "value", "epsilon": 1.0, "shape": SHAPE} | arguments
    with pytest.raises(error, match=match):
        InputPerturbation(**options).plan(**asked)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_slice_with_more_values_than_planned_is_an_error_before_anything_is_reserved_or_drawn(wrapped, tmp_path):
    class Silent(NoiseSource):
        def laplace(self, *_, **__):
            raise AssertionError("drawn")

    mechanism = InputPerturbation("laplace", solver="als")
    mechanism = WithOffsets(mechanism) if wrapped else mechanism
    plan = mechanism.plan(CP(1), BOUNDS, "slice_values:0", 1.0, shape=SHAPE, expected_count=3)
    with pytest.raises(InputError, match="at most 3 observations"):
        fit(ratings(), plan, noise=Silent())
    ledger = Ledger.create(tmp_path / "L.sqlite", "ratings", "slice_values:mode_0", 2.0)
    with pytest.raises(InputError, match="at most 3 observations"):
        fit(ratings(), plan, ledger=ledger, dataset="ratings")
    assert [entry["kind"] for entry in ledger.entries()] == ["dataset"]


def test_levels_of_the_caller_are_trusted_to_be_chosen_without_the_values():
    asked = {"model": CP(1), "bounds": BOUNDS, "unit": "value", "epsilon": 1.0, "shape": SHAPE}
    assert LEVELS_CHOSEN in InputPerturbation(levels=(1, 3, 5)).plan(**asked).assumptions_trusted
    assert LEVELS_CHOSEN not in InputPerturbation().plan(**asked).assumptions_trusted
    assert LEVELS_CHOSEN not in InputPerturbation("laplace").plan(**asked).assumptions_trusted


def many_of_a_cell():
    """Values between levels, several of them in one cell."""
    generator = np.random.default_rng(3)
    where = np.repeat(generator.permutation(all_coordinates(SHAPE))[:40], 3, axis=0)
    return Observations(where, generator.uniform(0, 6, len(where)), SHAPE, duplicates="keep")


def bits(data, plan):
    model = fit(data, plan, seed=7).model
    arrays = [] if model.draws is None else list(model.draws.arrays().values())
    parts = [np.float64(model.offsets.mean), *model.offsets.modes, model.factors.parameters, *arrays]
    return [None if part is None else np.asarray(part).tobytes() for part in parts]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(0.5, 5.25)], ids=["levels", "continuous"])
@pytest.mark.parametrize("unit", ["value", "slice_values:0", "entry", "slice:0"])
@pytest.mark.parametrize("noise", [None, "laplace", "gaussian"])
@pytest.mark.parametrize("solver", [QUICK, Posterior(sweeps=4)], ids=["als", "posterior"])
def test_the_order_of_rows_changes_no_bit_of_a_release(solver, noise, unit, bounds, family):
    if isinstance(solver, Posterior) and unit in ("entry", "slice:0"):
        pytest.skip("needs public coordinates")
    delta, at_most = 1e-4 if noise == "gaussian" else 0.0, 7 if "slice" in unit else None
    plan = InputPerturbation(noise, solver=solver).plan(family, bounds, unit, 9.0, delta, shape=SHAPE, at_most=at_most)
    data = many_of_a_cell()
    expected = bits(data, plan)
    shuffled = np.random.default_rng(0).permutation(len(data))
    for order in (shuffled, np.argsort(data.values), np.argsort(-data.values)):
        assert bits(data.take(order), plan) == expected


@pytest.mark.parametrize("noise, delta", [(None, 0.0), ("laplace", 0.0), ("gaussian", 1e-4)])
def test_a_solver_sees_several_numbers_of_one_cell_in_ascending_order(noise, delta, monkeypatch):
    seen = []
    solve = ALS.solve

    def listening(self, observations, *rest, **more):
        seen.append(np.array(observations.values).reshape(-1, 3))
        return solve(self, observations, *rest, **more)

    monkeypatch.setattr(ALS, "solve", listening)
    plan = InputPerturbation(noise, solver=QUICK).plan(CP(1), Bounds(0.5, 5.25), "value", 9.0, delta, shape=SHAPE)
    fit(many_of_a_cell(), plan, seed=0)
    assert (np.diff(seen[0], axis=1) >= 0).all()
    assert (np.diff(seen[0], axis=1) > 0).any()


def test_the_solver_is_told_the_variance_of_the_noise(monkeypatch):
    told = []

    def solve(self, observations, family, *, noise_variance, **more):
        told.append((noise_variance, np.array(observations.values)))
        return original(self, observations, family, noise_variance=noise_variance, **more)

    original = ALS.solve
    monkeypatch.setattr(ALS, "solve", solve)
    shape = (40, 50)
    data = Observations(all_coordinates(shape), np.full(2000, 3.0), shape)
    for noise in ("laplace", "gaussian", "channel"):
        mechanism = InputPerturbation(noise, solver=QUICK)
        fit(data, mechanism.plan(CP(1), BOUNDS, "value", 2.0, 1e-5 if noise == "gaussian" else 0.0, shape=shape))
        variance, values = told.pop()
        assert np.var(values) == pytest.approx(variance, rel=0.3 if noise != "channel" else 0.6)


def relative_error(predicted, data):
    return np.sqrt(np.mean((predicted - data.truth.ravel()) ** 2)) / data.truth.std()


@pytest.mark.parametrize("noise", ["channel", "laplace"])
def test_little_noise_costs_little_and_much_noise_leaves_the_mean(noise):
    data = observe(cp_tensor((30, 30, 30), seed=0), snr_kind="variances", seed=1)
    bounds = Bounds(0.2, 0.9)
    free = relative_error(ALS().solve(data.train, CP(3)).predict(all_coordinates((30, 30, 30))), data)
    errors = {}
    for epsilon in (0.1, 20.0):
        mechanism = InputPerturbation(noise, solver=Posterior(sweeps=200 if epsilon > 1 else 60, chains=2))
        plan = mechanism.plan(CP(3), bounds, "value", epsilon, shape=(30, 30, 30))
        errors[epsilon] = [
            relative_error(fit(data.train, plan, seed=seed).predict(all_coordinates((30, 30, 30))), data)
            for seed in range(2)
        ]
    assert max(errors[20.0]) < 2.5 * free
    # the mean itself is noisy at epsilon 0.1: its standard deviation, at most the prior's 1/4, is part of the error
    middle = np.sqrt(np.mean((data.truth - bounds.middle) ** 2)) / data.truth.std()
    assert np.median(errors[0.1]) < 1.05 * max(middle, 1.0) + 0.5


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_at_small_epsilon_a_large_tensor_is_predicted_as_well_as_by_the_mean(unit):
    shape = (60, 60, 20)
    generator = np.random.default_rng(0)
    where = all_coordinates(shape)[generator.random(math.prod(shape)) < 0.7]
    data = Observations(where, np.clip(3.4 + 1.1 * generator.standard_normal(len(where)), 1, 5), shape)
    solver = Posterior(sweeps=100, chains=2) if unit == "value" else None
    plan = InputPerturbation(solver=solver).plan(CP(3), BOUNDS, unit, 0.1, shape=shape, expected_count=len(where))
    errors = [np.sqrt(np.mean((fit(data, plan, seed=s).predict(where) - data.values) ** 2)) for s in range(4)]
    assert np.mean(errors) < 1.05 * data.values.std()  # single runs are from 1.01 to 1.13 times it


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_randomize_by_the_channel_keeps_the_ratio_of_its_frequencies(epsilon):
    count = 40_000
    source = NoiseSource(3)
    shares = []
    channel = design_channel(public_scale(np.linspace(-1, 1, 5), STEPS), epsilon, 1.0)
    for value in (1.0, 5.0):
        mechanism = InputPerturbation(levels=(1, 2, 3, 4, 5))
        found = mechanism.randomize(np.full(count, value), BOUNDS, epsilon, noise=source)
        shares.append(np.bincount(found.symbols, minlength=channel.chances.shape[1]))
        assert found.values.shape == (count,)
    for level, observed in zip((0, 4), shares, strict=True):
        expected = channel.chances[level] * count
        used = expected > 0
        assert stats.chisquare(observed[used], expected[used]).pvalue > UNLIKELY
    low, high = (share / count for share in shares)
    common = (low > 0.01) & (high > 0.01)
    assert np.abs(np.log(low[common] / high[common])).max() < epsilon + 0.15


def test_randomize_by_laplace():
    found = InputPerturbation("laplace").randomize(np.full(20_000, 7.0), BOUNDS, 2.0, noise=NoiseSource(4))
    assert found.symbols is None
    assert stats.kstest(found.values - 5.0, stats.laplace(scale=2.0).cdf).pvalue > UNLIKELY  # clipped to 5 first
    assert found.noise_variance == pytest.approx(8.0)


def test_randomize_is_secure_by_default_and_refuses_what_it_cannot_promise(monkeypatch):
    made = []

    class Watched(NoiseSource):
        def __init__(self, seed=None):
            super().__init__(seed)
            made.append(self.seeded)

    monkeypatch.setattr(noisy_values, "NoiseSource", Watched)
    first, second = (InputPerturbation("laplace").randomize([3.0] * 9, BOUNDS, 1.0).values for _ in range(2))
    assert made == [False, False]
    assert not np.array_equal(first, second)
    with pytest.raises(InputError, match="gaussian"):
        InputPerturbation("gaussian").randomize([3.0], BOUNDS, 1.0)
    with pytest.raises(InputError, match="finite"):
        InputPerturbation().randomize([math.nan], BOUNDS, 1.0)
    with pytest.raises(InputError, match="epsilon"):
        InputPerturbation().randomize([3.0], BOUNDS, -1.0)


@pytest.mark.parametrize("noise", ["laplace", "gaussian", "channel"])
@pytest.mark.parametrize("unit", ["value", "slice_values:0"])
def test_the_posterior_is_sampled_where_coordinates_are_public_and_a_replay_gives_the_same_bits(unit, noise):
    delta = 1e-4 if noise == "gaussian" else 0.0
    plan = InputPerturbation(noise, solver=Posterior(sweeps=8)).plan(CP(2), BOUNDS, unit, 3.0, delta, shape=SHAPE)
    low = with_values(ratings(), 0, -100.0)
    assert replay(low, with_values(low, 0, 100.0), plan).largest > 0
    model = fit(low, plan, seed=0).model
    assert len(model.draws) == 6 * 4  # sweeps that are kept, chains
    ends = model.interval(all_coordinates(SHAPE), 0.9)
    assert (ends[0] <= ends[1]).all()
    assert ends[0].min() >= 1
    assert ends[1].max() <= 5


@pytest.mark.parametrize(
    "unit, sampled", [("value", True), ("slice_values:0", True), ("entry", True), ("slice:0", False)]
)
def test_the_solver_that_is_chosen_where_none_is_named(unit, sampled):
    most = {"at_most": 9} if unit == "slice:0" else {}
    plan = InputPerturbation().plan(CP(1), BOUNDS, unit, 3.0, shape=SHAPE, **most)
    assert (fit(ratings(), plan).model.draws is not None) == sampled
    plan = InputPerturbation(solver="als").plan(CP(1), BOUNDS, unit, 3.0, shape=SHAPE, **most)
    assert fit(ratings(), plan).model.draws is None


def test_the_posterior_is_more_accurate_than_als_on_the_same_symbols():
    data = observe(cp_tensor((20, 20, 20), seed=0), snr_kind="variances", seed=1)
    where = data.test.coordinates
    errors = []
    for solver in ("posterior", "als"):
        plan = InputPerturbation(solver=solver).plan(CP(3), Bounds(0, 1), "value", 4.0, shape=(20, 20, 20))
        predicted = fit(data.train, plan, seed=3).predict(where)
        errors.append(np.sqrt(np.mean((predicted - data.truth_at(where)) ** 2)) / data.truth.std())
    assert errors[0] < 0.95 * errors[1]


def test_progress_is_told():
    calls = []
    plan = plan_for("value", "laplace")
    fit(ratings(), plan, seed=0, progress=lambda *call: calls.append(call))
    assert calls[0] == ("noise", 1, 1)
    assert calls[-1][0] == "sweeps"
    assert all(done <= total for _, done, total in calls)


@pytest.mark.parametrize("epsilon", [2.0, 5.0])
@pytest.mark.parametrize("spread", [0.15, 0.45])
def test_numbers_that_stand_for_symbols_follow_the_values(epsilon, spread):
    generator = np.random.default_rng(0)
    values = np.clip(0.1 + spread * generator.standard_normal(200_000), -1, 1)
    scale = even_scale(10, STEPS)
    channel = design_channel(scale, epsilon, 30.0)
    symbols = NoiseSource(1).channel(np.searchsorted(scale.edges, values * STEPS, side="right"), channel)
    stands = symbol_numbers(Released(symbols, channel.chances, scale, UNKNOWN)).values
    assert np.cov(stands, values)[0, 1] / values.var() == pytest.approx(1.0, abs=0.15)
    assert stands.mean() == pytest.approx(values.mean(), abs=0.05)


def test_the_marginal_is_bought_first_unless_levels_are_public():
    asked = {"model": CP(1), "bounds": BOUNDS, "unit": "value", "epsilon": 1.0, "shape": SHAPE}
    stages = InputPerturbation().plan(**asked).stages
    assert [stage.theorem for stage in stages] == ["histogram"] * 3 + ["input-values"]
    assert [stage.theorem for stage in InputPerturbation(levels=(1, 5)).plan(**asked).stages] == ["input-values"]
    with pytest.raises(InputError, match="levels must increase"):
        InputPerturbation(levels=(1, 1))
