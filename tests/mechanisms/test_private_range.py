"""A range that is bought first: what one value moves, the split of the budget, and that narrow values are found."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from oracles import all_coordinates
from tensorveil.audit.replays import ReplayError, replay
from tensorveil.data.observations import Observations
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms import centred_values, private_range
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.private_range import (
    CELLS,
    EDGE_STEPS,
    NARROWEST,
    SPREADS,
    TAIL,
    Prices,
    mean_sensitivity,
    prices,
    rank_scores,
    rank_sensitivity,
)
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.units import Unit
from tensorveil.release.fitting import fit
from tensorveil.solvers.als import ALS

SHAPE = (12, 10, 10)
BOUNDS = Bounds(-0.5, 1.5)
WAYS = {"range": (20.0, SHAPE), "public bounds": (10.0, (6, 5, 4)), "mean alone": (0.05, SHAPE)}  # where each is taken
QUICK = Posterior(sweeps=8)
FAMILIES = [CP(2), Tucker((2, 2, 1))]


def narrow(seed=0, shape=SHAPE, spread=0.05):
    """Normal values in a small part of the bounds, one beyond them."""
    generator = np.random.default_rng(seed)
    where = all_coordinates(shape)
    values = 0.7 + spread * generator.standard_normal(len(where))
    values[5] = 9.0
    return Observations(where, values, shape)


def with_value(data, place, value):
    numbers = np.array(data.values)
    numbers[place] = value
    return data.with_values(numbers)


def plan_for(epsilon, family=FAMILIES[0], solver=QUICK, shape=SHAPE):
    return InputPerturbation(solver=solver).plan(family, BOUNDS, "value", epsilon, shape=shape)


def kinds(found):
    return [call.kind for call in found.calls if call.kind != "key"]


@pytest.mark.parametrize("solver", [QUICK, ALS(sweeps=2)], ids=["posterior", "als"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_one_value_moves_scores_sum_and_one_symbol_by_no_more_than_is_paid_for(way, family, solver):
    epsilon, shape = WAYS[way]
    plan = plan_for(epsilon, family, solver, shape)
    assert [stage.theorem for stage in plan.stages] == ["input-centred"]
    assert plan.epsilon == epsilon
    low = with_value(narrow(shape=shape), 0, -9.0)
    for value in (9.0, 0.7, 0.62):
        found = replay(low, with_value(low, 0, value), plan)
        calls = {"range": ["choose", "choose", "laplace", "channel"], "public bounds": ["laplace", "channel"]}
        assert kinds(found) == calls.get(way, ["laplace"])
        if value == 9.0:
            assert found.used[-1] == 1.0  # all of the range, or another symbol


def test_quantiles_that_are_read_off_the_data_are_caught(monkeypatch):
    sound = private_range.private_range

    def unpaid(data, paid, noise):
        honest = noise.choose
        monkeypatch.setattr(noise, "choose", lambda scores, **_: int(np.argmax(scores)), raising=False)
        found = sound(data, paid, noise)
        monkeypatch.setattr(noise, "choose", honest, raising=False)
        return found

    monkeypatch.setattr(centred_values, "private_range", unpaid)
    data = narrow()
    order = np.argsort(data.values)
    place = order[int(TAIL * len(data)) - 1]  # a value next to the quantile goes to the other end
    with pytest.raises(ReplayError):
        replay(data, with_value(data, place, 9.0), plan_for(20.0))


def test_half_the_noise_of_the_mean_is_caught(monkeypatch):
    monkeypatch.setattr(private_range, "mean_sensitivity", lambda low, high: (high - low) // 2)
    low = with_value(narrow(), 0, -9.0)
    with pytest.raises(ReplayError, match="laplace"):
        replay(low, with_value(low, 0, 9.0), plan_for(20.0))


def test_symbols_at_the_whole_price_are_caught(monkeypatch):
    def generous(epsilon, count, indices):
        paid = prices(epsilon, count, indices)
        return Prices(paid.quantile, paid.mean, epsilon)

    monkeypatch.setattr(centred_values, "prices", generous)
    low = with_value(narrow(), 0, -9.0)
    with pytest.raises(ReplayError, match="pure epsilon"):
        replay(low, with_value(low, 0, 9.0), plan_for(20.0))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 50), st.integers(0, 10**9), st.integers(2, 10**5))
def test_prices_add_up_to_epsilon_at_most_in_exact_arithmetic(epsilon, count, indices):
    paid = prices(epsilon, count, indices)
    total = 2 * Fraction(paid.quantile) + Fraction(paid.mean) + Fraction(paid.symbols)
    assert total <= Fraction(epsilon)
    assert total >= Fraction(epsilon) * Fraction(1 - 1e-12)
    assert paid.mean > 0


def test_what_is_bought_where():
    assert prices(5.0, 400_000, 300) == Prices(0.001, pytest.approx(0.0168, rel=0.01), pytest.approx(4.981, abs=1e-3))
    assert prices(0.1, 3200, 60) == Prices(0.0, 0.1, 0.0)
    assert prices(10.0, 120, 12).quantile == 0
    assert prices(10.0, 120, 12).symbols == pytest.approx(9.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-VALUE_STEPS, VALUE_STEPS), min_size=1, max_size=30), st.integers(-VALUE_STEPS, VALUE_STEPS)
)
def test_scores_of_neighbours_differ_by_one_at_most(steps, other):
    mine, theirs = rank_scores(np.array(steps)), rank_scores(np.array([other, *steps[1:]]))
    for one, two in zip(mine, theirs, strict=True):
        assert one.shape == (CELLS + 1,)
        assert np.abs(one - two).max() <= rank_sensitivity()
        np.testing.assert_array_equal(one, np.rint(one))


def test_scores_count_the_values_below_an_edge():
    generator = np.random.default_rng(0)
    steps = generator.integers(-VALUE_STEPS, VALUE_STEPS + 1, 500)
    low, high = rank_scores(steps)
    for cell in (0, 1, 700, 9000, CELLS):
        below = sum(step < -VALUE_STEPS + EDGE_STEPS * cell for step in steps.tolist())
        assert low[cell] == -abs(below - 50)
        assert high[cell] == -abs(below - 450)


def test_quantiles_are_chosen_by_the_law_of_the_exponential_mechanism():
    data = clip(narrow(), BOUNDS, Unit.of("value"), bytes(32))
    paid = Prices(0.05, 1e6, 1.0)
    scores = rank_scores(data.steps)
    chances = [np.exp((score - score.max()) * paid.quantile / 2) for score in scores]
    source, draws = NoiseSource(7), 200
    lows = []
    for _ in range(draws):
        found = private_range.private_range(data, paid, source)
        assert found.high - found.low >= NARROWEST
        assert -VALUE_STEPS <= found.low < found.high <= VALUE_STEPS
        lows.append(found.spread * (found.high - found.low) / 2 * SPREADS / EDGE_STEPS)  # distance of both edges
    generator = np.random.default_rng(0)
    ends = [generator.choice(CELLS + 1, 4000, p=chance / chance.sum()) for chance in chances]
    expected = np.maximum(np.abs(ends[1] - ends[0]), 1)
    assert stats.ks_2samp(lows, expected).pvalue > 1e-6


@pytest.mark.parametrize("at", [-0.5, 0.7, 1.5])
def test_values_that_are_all_equal_leave_a_range_that_holds_them(at):
    data = Observations(all_coordinates(SHAPE), np.full(1200, at), SHAPE)
    found = private_range.private_range(
        clip(data, BOUNDS, Unit.of("value"), bytes(32)), Prices(2.0, 2.0, 2.0), NoiseSource(0)
    )
    assert found.high - found.low >= NARROWEST
    assert -VALUE_STEPS <= found.low < found.high <= VALUE_STEPS
    assert mean_sensitivity(found.low, found.high) == found.high - found.low
    middle = (found.low + found.high) / 2 + found.mean * (found.high - found.low) / 2
    assert BOUNDS.uncentred(middle / VALUE_STEPS) == pytest.approx(at, abs=0.01)


def test_the_range_the_mean_and_the_spread_are_those_of_the_values():
    data = clip(narrow(), BOUNDS, Unit.of("value"), bytes(32))
    found = private_range.private_range(data, Prices(5.0, 5.0, 5.0), NoiseSource(1))
    half = (found.high - found.low) / 2 / VALUE_STEPS
    assert found.spread * half == pytest.approx(0.05, rel=0.1)
    assert half == pytest.approx(2.63 * 0.05, rel=0.1)
    middle = (found.low + found.high) / 2 / VALUE_STEPS
    assert middle + half * found.mean == pytest.approx(0.2, abs=0.01)  # 0.7 on the centred scale of the bounds


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_predictions_and_intervals_are_the_same_on_the_scale_of_the_bounds(family):
    data = narrow()
    seen = []

    original = private_range.PrivateRange.on_bounds

    def spy(self, completion, bounds):
        seen.append((self, completion))
        return original(self, completion, bounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_range.PrivateRange, "on_bounds", spy)
        model = fit(data, plan_for(20.0, family), seed=0).model
    ((found, inner),) = seen
    cells = all_coordinates(SHAPE)
    middle, half = (found.low + found.high) / 2 / VALUE_STEPS, (found.high - found.low) / 2 / VALUE_STEPS
    np.testing.assert_allclose(model.centred(cells), middle + half * inner.centred(cells), atol=1e-6)
    assert (model.low, model.high) == (BOUNDS.low, BOUNDS.high)
    for mine, theirs in zip(
        model.draws.interval(cells, model.offsets, 0.9), inner.draws.interval(cells, inner.offsets, 0.9), strict=True
    ):
        np.testing.assert_allclose(mine, middle + half * theirs, atol=1e-6)
    offsets_and_factors = model.offsets.at(cells) + model.factors.predict(cells)
    np.testing.assert_allclose(
        offsets_and_factors, middle + half * (inner.offsets.at(cells) + inner.factors.predict(cells)), atol=1e-9
    )


def test_a_mean_that_noise_drowns_is_the_middle_of_the_bounds():
    data = clip(narrow(), BOUNDS, Unit.of("value"), bytes(32))
    found = [private_range.private_range(data, Prices(0.0, 1e-5, 0.0), NoiseSource(seed)).mean for seed in range(5)]
    assert np.abs(found).max() < 0.01


def test_symbols_that_keep_all_tell_the_mean_better_than_a_noisy_one():
    values = np.random.default_rng(0).normal(0.3, 0.2, 5000)
    noisy = private_range.PrivateRange(-VALUE_STEPS, VALUE_STEPS, 0.5, 0.1, 0.2)
    assert noisy.told_by(values, 0.99).mean == pytest.approx(0.3, abs=0.01)
    assert noisy.told_by(values, 0.99).mean_std < 0.01
    sure = private_range.PrivateRange(-VALUE_STEPS, VALUE_STEPS, 0.3, 1e-4, 0.2)
    drowned = values + 5 * np.random.default_rng(1).standard_normal(5000)
    assert sure.told_by(drowned + 0.1, 0.01).mean == pytest.approx(0.3, abs=1e-3)


def test_the_mean_alone_has_intervals():
    model = fit(narrow(), plan_for(0.05), seed=0).model
    low, high = model.interval(all_coordinates(SHAPE), 0.9)
    assert (low < model.predict(all_coordinates(SHAPE))).all()
    assert (high > low).all()
    assert np.ptp(model.predict(all_coordinates(SHAPE))) == 0
