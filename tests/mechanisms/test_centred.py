"""A range that is bought first: what one value moves, the split of the budget, and that narrow values are found."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from oracles import all_coordinates
from tensorveil.audit.replays import ReplayError, replay
from tensorveil.data.datasets.synthetic import cp_tensor, observe
from tensorveil.data.observations import Observations
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values import centred as after_noise
from tensorveil.inference.values.private_range import PrivateRange
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.parts import centred
from tensorveil.mechanisms.parts.centred import NARROWEST, SPREADS, STAGE, TAIL, ask_range
from tensorveil.mechanisms.planning.private_range import Prices, prices
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.choices import CELLS, EDGE_STEPS, Quantile
from tensorveil.privacy.queries.values.values import SumWithin
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Change, Vault, VaultError
from tensorveil.release.fitting import fit
from tensorveil.solvers.als import ALS

SHAPE = (12, 10, 10)
BOUNDS = Bounds(-0.5, 1.5)
WAYS = {"range": (20.0, SHAPE), "public bounds": (10.0, (6, 5, 4)), "mean alone": (0.05, SHAPE)}  # where each is taken
QUICK, SLOW = Posterior(sweeps=8), Posterior(sweeps=40, threads=1)
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


def bought(observations, paid, noise):
    """The range that is bought at these prices."""
    data = clip(observations, BOUNDS, Unit.of("value"), bytes(32))
    event = PureEvent(3 * paid.quantile + paid.mean)
    stage = Stage(STAGE, "input-centred", event, Sensitivity(None, None, "1 value"), Law.SEVERAL, "a range")
    return ask_range(Vault([data], [stage], 0, noise), paid)


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
    def unpaid(self, stage, query, *, epsilon):
        return int(np.argmax(query.scores(query.of(self._shards[0])[0])))

    monkeypatch.setattr(Vault, "choose", unpaid)
    data = narrow()
    order = np.argsort(data.values)
    place = order[int(TAIL * len(data)) - 1]  # a value next to the quantile goes to the other end
    with pytest.raises(ReplayError):
        replay(data, with_value(data, place, 9.0), plan_for(20.0))


def test_half_the_noise_of_the_mean_is_caught(monkeypatch):
    monkeypatch.setattr(
        SumWithin, "sensitivity", lambda self, unit: (Change(Norm.L1, float((self.high - self.low) // 2), 1.0),)
    )
    low = with_value(narrow(), 0, -9.0)
    with pytest.raises(ReplayError, match="laplace"):
        replay(low, with_value(low, 0, 9.0), plan_for(20.0))


def test_symbols_at_the_whole_price_are_refused(monkeypatch):
    def generous(epsilon, count, indices):
        paid = prices(epsilon, count, indices)
        return Prices(paid.quantile, paid.mean, epsilon)

    monkeypatch.setattr(centred, "prices", generous)
    with pytest.raises(VaultError, match="used up"):
        fit(narrow(), plan_for(20.0), seed=0)


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


def test_quantiles_are_chosen_by_the_law_of_the_exponential_mechanism():
    data = clip(narrow(), BOUNDS, Unit.of("value"), bytes(32))
    paid = Prices(0.05, 1e6, 1.0)
    scores = [query.scores(query.of(data)[0]) for query in (Quantile(TAIL), Quantile(1 - TAIL))]
    chances = [np.exp((score - score.max()) * paid.quantile / 2) for score in scores]
    source, draws = NoiseSource(7), 200
    lows = []
    for _ in range(draws):
        found = bought(narrow(), paid, source)
        assert (found.high - found.low) * VALUE_STEPS >= NARROWEST
        assert -1 <= found.low < found.high <= 1
        distance = found.spread * (found.high - found.low) / 2 * SPREADS * VALUE_STEPS / EDGE_STEPS  # of both edges
        lows.append(distance)
    generator = np.random.default_rng(0)
    ends = [generator.choice(CELLS + 1, 4000, p=chance / chance.sum()) for chance in chances]
    expected = np.maximum(np.abs(ends[1] - ends[0]), 1)
    assert stats.ks_2samp(lows, expected).pvalue > 1e-6


@pytest.mark.parametrize("at", [-0.5, 0.7, 1.5])
def test_values_that_are_all_equal_leave_a_range_that_holds_them(at):
    data = Observations(all_coordinates(SHAPE), np.full(1200, at), SHAPE)
    found = bought(data, Prices(2.0, 2.0, 2.0), NoiseSource(0))
    assert (found.high - found.low) * VALUE_STEPS >= NARROWEST
    assert -1 <= found.low < found.high <= 1
    middle = (found.low + found.high) / 2 + found.mean * (found.high - found.low) / 2
    assert BOUNDS.uncentred(middle) == pytest.approx(at, abs=0.01)


def test_the_range_the_mean_and_the_spread_are_those_of_the_values():
    found = bought(narrow(), Prices(5.0, 5.0, 5.0), NoiseSource(1))
    half = (found.high - found.low) / 2
    assert found.spread * half == pytest.approx(0.05, rel=0.1)
    assert half == pytest.approx(2.63 * 0.05, rel=0.1)
    middle = (found.low + found.high) / 2
    assert middle + half * found.mean == pytest.approx(0.2, abs=0.01)  # 0.7 on the centred scale of the bounds


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_predictions_and_intervals_are_the_same_on_the_scale_of_the_bounds(family):
    data = narrow()
    seen = []

    original = PrivateRange.on_bounds

    def spy(self, completion, low, high):
        seen.append((self, completion))
        return original(self, completion, low, high)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateRange, "on_bounds", spy)
        model = fit(data, plan_for(20.0, family), seed=0).model
    ((found, inner),) = seen
    cells = all_coordinates(SHAPE)
    middle, half = (found.low + found.high) / 2, (found.high - found.low) / 2
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
    found = [bought(narrow(), Prices(0.0, 1e-5, 0.0), NoiseSource(seed)).mean for seed in range(5)]
    assert np.abs(found).max() < 0.01


def test_the_mean_alone_has_intervals():
    model = fit(narrow(), plan_for(0.05), seed=0).model
    low, high = model.interval(all_coordinates(SHAPE), 0.9)
    assert (low < model.predict(all_coordinates(SHAPE))).all()
    assert (high > low).all()
    assert np.ptp(model.predict(all_coordinates(SHAPE))) == 0


def signal(share, seed=0):
    """Values of variance 0.38^2, a share of it that of a CP tensor."""
    truth = cp_tensor((12, 12, 12), 1, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(truth.size)
    values = np.sqrt(share) * truth.ravel() / truth.std() + np.sqrt(1 - share) * noise
    return 0.05 + 0.38 * values


def test_what_explains_much_needs_no_second_chain_and_what_explains_little_does(monkeypatch):
    asked = []
    sound = after_noise.believed
    monkeypatch.setattr(after_noise, "believed", lambda *given: asked.append(given) or sound(*given))
    where, bounds = all_coordinates((12, 12, 12)), Bounds(-1.1, 1)
    plan = InputPerturbation(solver=SLOW).plan(CP(1), bounds, "value", 12.0, shape=(12, 12, 12))
    for share, wanted in ((0.7, 0), (0.0, 1)):
        asked.clear()
        release = fit(Observations(where, signal(share), (12, 12, 12)), plan, seed=0)
        assert len(asked) == wanted
        assert (np.ptp(release.predict(where)) == 0) == (share == 0)


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
    errors = relative_errors(data, epsilon, Bounds(-2.25, 3.25), range(3), SLOW)
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
