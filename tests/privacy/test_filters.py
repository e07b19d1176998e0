"""The composition filter: what it admits keeps the budget, whoever chooses the releases, and however."""

import functools
import math

import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tensorveil as tv
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.accounting import filters, remaining
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.divergences import renyi, renyi_limit, squared_mu, squared_mu_limit
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.accounting.filters import ADDED, CLASSES, Charge, Costs
from tensorveil.privacy.units import Unit

VALUE, ENTRY = Unit("value"), Unit("entry")
BUDGETS = [(0.1, 1e-6), (1.0, 1e-6), (1.0, 1e-3), (3.0, 1e-8), (8.0, 1e-5)]


def limits(epsilon, delta):
    return filters.limits(epsilon, delta, filters.orders_for(epsilon, delta))


def charge(*events, epsilon=None, delta=None, unit=VALUE, coordinates=None):
    pure = all(isinstance(event, PureEvent) for event in events)
    stated = sum(event.epsilon * event.count for event in events) if pure else epsilon
    return Charge(unit, events, epsilon or stated or 1e9, delta or (0.0 if pure else 0.5), coordinates or 1 - pure)


def admitted(charges, within, mode=None, unit=VALUE):
    parts = [filters.costs(one, unit, within.orders) for one in charges]
    return filters.admitted_mode(filters.total(parts, within.orders), within, mode)


# --- what one event costs, against other methods


@pytest.mark.parametrize("order", [2, 3, 7, 27, 54, 300])
@pytest.mark.parametrize("q, z", [(0.001, 1.0), (0.01, 0.8), (0.1, 3.0), (0.5, 20.0)])
def test_the_divergence_of_a_sampled_gaussian_is_that_of_dp_accounting(order, q, z):
    accountant = rdp_privacy_accountant.RdpAccountant([order])
    accountant.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z)))
    ours = renyi(SampledGaussianEvent(z, q, 1, False), 1, order)
    assert ours == pytest.approx(min(accountant.rdp[0], order / (2 * z * z)), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("order", [2, 27, 300])
def test_the_divergence_of_a_pure_event_is_that_of_randomized_response(epsilon, order):
    relation = privacy_accountant.NeighboringRelation.REPLACE_ONE
    accountant = rdp_privacy_accountant.RdpAccountant([order], relation)
    accountant.compose(dp_event.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2))
    assert renyi(PureEvent(epsilon), 1, order) == pytest.approx(accountant.rdp[0], rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.3, 30.0, 900.0])
@pytest.mark.parametrize("order", [2, 27, 300])
def test_the_divergence_of_a_pure_event_keeps_its_digits(epsilon, order):
    largest = min(epsilon, order * epsilon**2 / 2)
    assert 0.35 * largest <= renyi(PureEvent(epsilon), 1, order) <= largest * (1 + 1e-12)


def divergence(order, p, q, z):
    """D_order of two mixtures of normals, by a fine sum; p and q are lists of (weight, mean)."""
    x = np.linspace(-60 * z, 60 * z, 400_001)
    log_p, log_q = (
        np.logaddexp.reduce([math.log(w) + stats.norm.logpdf(x, mean, z) for w, mean in parts], axis=0)
        for parts in (p, q)
    )
    return (np.logaddexp.reduce(order * log_p + (1 - order) * log_q) + math.log(x[1] - x[0])) / (order - 1)


@pytest.mark.parametrize("order, q, z", [(2, 0.3, 1.0), (5, 0.1, 2.0), (19, 0.01, 5.0), (27, 0.5, 12.0)])
def test_the_replaced_pair_is_within_its_bound_and_close_to_it(order, q, z):
    event = SampledGaussianEvent(z, q, 1, True)
    true = divergence(order, [(1 - q, 0), (q, 1)], [(1 - q, 0), (q, -1)], z)
    assert true <= renyi(event, 1, order)
    assert order < 5 or renyi(event, 1, order) <= 1.6 * true
    # a unit that is removed and added again under add/remove is the same pair
    assert renyi(SampledGaussianEvent(z, q, 1, False), 2, order) == renyi(event, 1, order)
    # without sampling credit it is the Gaussian at distance 2
    assert renyi(SampledGaussianEvent(z, 1.0, 1, True), 1, order) == pytest.approx(order * 2 / z**2)


@pytest.mark.parametrize("order, q, z", [(2, 0.3, 1.0), (5, 0.9, 0.7), (19, 0.01, 2.0), (27, 0.5, 12.0)])
def test_a_sampled_gaussian_is_no_farther_apart_the_other_way(order, q, z):
    mixture, base = [(1 - q, 0), (q, 1)], [(1.0, 0)]
    charged = renyi(SampledGaussianEvent(z, q, 1, False), 1, order)
    assert (
        divergence(order, base, mixture, z) <= divergence(order, mixture, base, z) == pytest.approx(charged, rel=1e-4)
    )


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 4.0])
def test_a_pure_event_is_dominated_by_the_gaussian_it_is_charged_as(epsilon):
    mu = math.sqrt(squared_mu(PureEvent(epsilon), 1))
    p = 1 / (1 + math.exp(-epsilon))
    gaps = []
    for gamma in np.linspace(-epsilon, epsilon, 41):
        shown = sum(max(0.0, a - math.exp(gamma) * b) for a, b in ((p, 1 - p), (1 - p, p)))
        gaussian = stats.norm.cdf(mu / 2 - gamma / mu) - math.exp(gamma) * stats.norm.cdf(-mu / 2 - gamma / mu)
        gaps.append(gaussian - shown)
    assert min(gaps) >= -1e-12
    assert min(gaps) <= 1e-3 * epsilon  # and no smaller one would do


@pytest.mark.parametrize("q, steps", [(1.0, 1), (0.2, 1), (0.2, 3)])
def test_a_sampled_event_is_dominated_by_the_gaussian_it_is_charged_as(q, steps):
    event = SampledGaussianEvent(1.5, q, 7, False)
    mu = math.sqrt(squared_mu(event, steps))
    assert mu == pytest.approx(steps / 1.5)
    if steps == 1:
        for epsilon in (0.0, 0.5, 2.0):
            together = accounting.delta_of([SampledGaussianEvent(1.5, q, 1, False)], epsilon)
            assert together <= accounting.delta_of([GaussianEvent(1 / mu)], epsilon) * 1.01 + 1e-12


# --- the limits, against accountants


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_each_limit_keeps_its_share_of_the_budget(epsilon, delta):
    found = limits(epsilon, delta)
    assert found.gaussian > 0
    mu = math.sqrt(found.gaussian)
    at_limit = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert 0.999 * delta * 15 / 32 <= at_limit <= delta * 15 / 32
    usable = [(order, limit) for order, limit in zip(found.orders, found.renyi, strict=True) if limit > 0]
    assert usable
    for order, limit in usable:
        converted, _ = rdp_privacy_accountant.compute_epsilon([order], [limit], delta * 15 / 32 / len(found.orders))
        assert 0.99 * epsilon <= converted <= epsilon


def test_a_first_gaussian_release_may_take_nearly_the_whole_budget_by_classes():
    found = limits(1.0, 1e-6)
    assert accounting.epsilon_of([GaussianEvent(found.gaussian**-0.5)], 1e-6) > 0.95


def test_the_two_conversions_themselves():
    assert renyi_limit(1.0, 1e-6, 27) > 0 == renyi_limit(1.0, 1e-6, 5)
    assert squared_mu_limit(1.0, 1e-6) > squared_mu_limit(1.0, 1e-7)
    assert squared_mu_limit(1e-300, 1e-300) == 0.0  # what cannot be computed admits nothing


@given(
    st.floats(0.05, 12), st.floats(0, 12), st.sampled_from([0.0, 1e-9, 1e-6, 1e-4]), st.sampled_from([1e-9, 1e-6, 1e-4])
)
@settings(max_examples=30, deadline=None)
def test_limits_rise_with_the_budget(epsilon, more, delta, other):
    before = limits(epsilon, delta)
    new = (epsilon + more, max(delta, other))
    if new == (epsilon, delta):
        return
    spent = filters.total([], before.orders)
    after = filters.raised_limits(before, spent, *new)
    assert after.gaussian >= before.gaussian
    assert all(a >= b for a, b in zip(after.renyi, before.renyi, strict=True))
    assert (after.epsilon, after.delta, after.orders) == (*new, before.orders)


def test_a_budget_is_only_raised_and_not_past_what_precision_allows():
    within = limits(1.0, 1e-6)
    nothing = filters.total([], within.orders)
    for wrong in ((1.0, 1e-6), (0.9, 1e-6), (2.0, 1e-7), (math.inf, 1e-6), (1.0, 1.0)):
        with pytest.raises(tv.InputError):
            filters.raised_limits(within, nothing, *wrong)
    many = filters.total([Costs(None, 0.01, (0.01,) * len(within.orders), 10**8, 0.5, 1e-7)], within.orders)
    filters.raised_limits(within, many, 2.0, 1e-6)
    with pytest.raises(tv.BudgetError, match="precision"):
        filters.raised_limits(within, many, 10.0, 1e-6)


# --- what is admitted


def test_ten_tenths_are_one():
    within = limits(1.0, 0.0)
    assert admitted([charge(PureEvent(0.1))] * 10, within) == CLASSES
    assert admitted([charge(PureEvent(0.1))] * 10 + [charge(PureEvent(1e-12))], within) is None


@pytest.mark.parametrize("epsilon, delta", BUDGETS)
def test_one_release_priced_at_the_whole_budget_is_admitted(epsilon, delta):
    within = limits(epsilon, delta)
    multiplier = calibrate(lambda z: [GaussianEvent(z)], epsilon, delta)
    whole = charge(GaussianEvent(multiplier), epsilon=epsilon, delta=delta)
    assert admitted([whole], within) == ADDED
    assert admitted([whole, whole], within) is None
    assert admitted([charge(PureEvent(epsilon))], within) == CLASSES
    assert admitted([charge(PureEvent(math.nextafter(epsilon, 9)))], limits(epsilon, 0.0)) is None


def test_modes_do_not_mix():
    within = limits(1.0, 1e-6)
    small = charge(GaussianEvent(30.0), epsilon=0.2, delta=1e-7)
    assert admitted([small], within, CLASSES) == CLASSES
    assert admitted([small], within, ADDED) == ADDED
    exact = charge(GaussianEvent(calibrate(lambda z: [GaussianEvent(z)], 1.0, 1e-6)), epsilon=1.0, delta=1e-6)
    assert admitted([exact], within, CLASSES) is None


def test_without_delta_nothing_but_pure_is_admitted():
    within = limits(5.0, 0.0)
    assert admitted([charge(GaussianEvent(1000.0), epsilon=0.01, delta=1e-9)], within) is None
    assert admitted([charge(PureEvent(5.0))], within) == CLASSES


def test_more_noisy_numbers_than_the_precision_allows_are_only_added_up():
    within = limits(1.0, 1e-6)
    many = charge(GaussianEvent(100.0), epsilon=0.3, delta=1e-6, coordinates=within.coordinates + 1)
    assert admitted([many], within) == ADDED
    assert admitted([many], within, CLASSES) is None


def test_four_half_releases_fit_into_a_budget_of_one():
    within = limits(1.0, 1e-6)
    half = charge(GaussianEvent(calibrate(lambda z: [GaussianEvent(z)], 0.5, 1e-6)), epsilon=0.5, delta=1e-6)
    assert admitted([half] * 3, within) == CLASSES  # 3 * 0.5 > 1: by squares, not by sums
    assert admitted([half] * 4, within) is None


plain = st.one_of(
    st.builds(PureEvent, st.floats(0.01, 0.4), st.integers(1, 3)),
    st.builds(GaussianEvent, st.floats(4.0, 80.0), st.integers(1, 3)),
)
counts, shares = st.integers(1, 60), st.floats(0.001, 0.1)
added = st.builds(SampledGaussianEvent, st.floats(1.0, 6.0), shares, counts, st.just(False))
replaced = st.builds(SampledGaussianEvent, st.floats(2.0, 9.0), shares, counts, st.just(True))


def what_is_admitted_costs_no_more_than_the_budget(sequence, budget, unit):
    within, taken = limits(*budget), []
    for event in sequence:
        if admitted([*taken, charge(event, unit=unit)], within, CLASSES, unit):
            taken.append(charge(event, unit=unit))
    if taken:
        together = [event for one in taken for event in one.events]
        assert accounting.epsilon_of(together, budget[1]) <= budget[0]


@given(
    st.lists(st.one_of(plain, added), min_size=1, max_size=8), st.sampled_from([(0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-4)])
)
@settings(max_examples=10, deadline=None)
def test_what_is_admitted_costs_no_more_than_the_budget(sequence, budget):
    what_is_admitted_costs_no_more_than_the_budget(sequence, budget, ENTRY)


@pytest.mark.slow
@given(
    st.lists(st.one_of(plain, replaced), min_size=4, max_size=25),
    st.sampled_from([(0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-4)]),
)
@settings(max_examples=40, deadline=None)
def test_what_is_admitted_costs_no_more_than_the_budget_when_values_are_replaced(sequence, budget):
    what_is_admitted_costs_no_more_than_the_budget(sequence, budget, VALUE)


@pytest.mark.slow
@given(
    st.lists(st.one_of(plain, added), min_size=4, max_size=30), st.sampled_from([(0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-4)])
)
@settings(max_examples=40, deadline=None)
def test_long_sequences_cost_no_more_than_the_budget(sequence, budget):
    what_is_admitted_costs_no_more_than_the_budget(sequence, budget, ENTRY)


# --- the best adaptive adversary, exactly


def best_adversary(menu, within, mode, epsilon):
    """The largest sum over transcripts of (P - e^epsilon Q)_+ that any adaptive choice from the menu reaches.

    A menu item is (charge, chances): outputs as (chance under P, chance under Q). After every output the adversary
    chooses among the items that are still admitted, or stops.
    """
    parts = [filters.costs(one, one.unit, within.orders) for one, _ in menu]

    @functools.cache
    def allowed(counts):
        every = [part for part, count in zip(parts, counts, strict=True) for _ in range(count)]
        return filters.admitted_mode(filters.total(every, within.orders), within, mode) is not None

    @functools.cache
    def value(counts, loss):
        found = max(0.0, 1 - math.exp(epsilon - loss)) if loss < math.inf else 1.0
        if loss == math.inf:
            return found
        for place, (_, chances) in enumerate(menu):
            more = tuple(count + (number == place) for number, count in enumerate(counts))
            if allowed(more):
                reached = sum(
                    p * value(more, round(loss + math.log(p / q), 9) if q > 0 else math.inf)
                    for p, q in chances
                    if p > 0
                )
                found = max(found, reached)
        return found

    return value((0,) * len(menu), 0.0)


def response(epsilon, leak=0.0):
    """Randomized response; with the chance `leak` it tells everything."""
    p = (1 - leak) / (1 + math.exp(-epsilon))
    return [(p, 1 - leak - p), (1 - leak - p, p), *([(leak, 0.0), (0.0, leak)] if leak else [])]


def rounded_gaussian(multiplier):
    """A Gaussian release of which only four ranges are told."""
    edges = np.array([-np.inf, -1, 0.5 / multiplier, 1 + 1 / multiplier, np.inf])
    return list(zip(np.diff(stats.norm.cdf(edges - 1 / multiplier)), np.diff(stats.norm.cdf(edges)), strict=True))


ADVERSARIES = {
    "pure": [(charge(PureEvent(e)), response(e)) for e in (0.4, 0.15)],
    "gaussian": [(charge(GaussianEvent(z)), rounded_gaussian(z)) for z in (3.0, 8.0)],
    "mixed": [
        (charge(PureEvent(0.3)), response(0.3)),
        (charge(PureEvent(0.9)), response(0.9)),
        (charge(GaussianEvent(5.0)), rounded_gaussian(5.0)),
    ],
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("epsilon, delta", [(1.0, 0.02), (0.5, 0.1)])
def test_no_adaptive_choice_beats_the_classes(name, epsilon, delta):
    within = limits(epsilon, delta)
    reached = best_adversary(ADVERSARIES[name], within, CLASSES, epsilon)
    assert 0 < reached <= delta


def test_the_adversary_would_notice_limits_that_are_too_wide():
    epsilon, delta = 1.0, 0.02
    wide = limits(1.6, 0.05)
    assert best_adversary(ADVERSARIES["mixed"], wide, CLASSES, epsilon) > delta


@pytest.mark.parametrize("epsilon, delta", [(1.0, 0.02), (0.6, 0.1)])
def test_no_adaptive_choice_beats_adding_up(epsilon, delta):
    menu = []
    for e, d in ((0.2, 0.01), (0.5, 0.0), (0.3, 0.005), (0.1, 0.02)):
        event = PureEvent(e) if d == 0 else GaussianEvent(1.0)  # only the stated price counts in this mode
        menu.append((charge(event, epsilon=e, delta=d), response(e, d)))
    reached = best_adversary(menu, limits(epsilon, delta), ADDED, epsilon)
    assert 0.2 * delta < reached <= delta


# --- units


SLICE = Unit("slice", "user")
NAMES = ("user", "film", "day")


@pytest.mark.parametrize(
    "have, want, steps",
    [
        ("value", "value", 1),
        ("slice_values:user", "value", 1),
        ("slice_values:film", "value", 1),
        ("entry", "value", 2),
        ("slice:user", "value", 2),
        ("slice:film", "entry", 2),
        ("slice:user", "slice_values:user", 2),
        ("slice:0", "slice:user", 1),
        ("slice:user", "slice:0", 1),
        ("entry", Unit("slice", "user", 20), 20),
        ("value", Unit("slice_values", "user", 20), 20),
        ("entry", Unit("slice_values", "user", 20), 40),
        ("slice:user", Unit("slice", "user", 20), 1),
    ],
)
def test_units_are_converted_by_a_theorem(have, want, steps):
    found = Charge(Unit.of(have), (PureEvent(0.1),), 0.1, mode_names=NAMES)
    assert filters.steps_between(found, Unit.of(want)) == steps
    assert filters.costs(found, Unit.of(want), (2,)).pure == pytest.approx(0.1 * steps)


@pytest.mark.parametrize(
    "have, want",
    [
        ("value", "entry"),
        ("value", "slice:user"),
        ("slice_values:user", "entry"),
        ("slice_values:user", "slice:user"),
        ("slice_values:user", "slice_values:film"),
        ("slice:film", "slice:user"),
        ("slice:film", "slice:0"),
        ("slice:film", "slice_values:user"),
        ("entry", "slice:user"),
        ("entry", "slice_values:user"),
        ("value", "slice_values:user"),
    ],
)
def test_other_units_are_refused(have, want):
    found = Charge(Unit.of(have), (PureEvent(0.1),), 0.1, mode_names=NAMES)
    with pytest.raises(tv.BudgetError, match="a theorem converts"):
        filters.steps_between(found, Unit.of(want))


def test_two_steps_cost_at_most_what_is_charged_for_any_three_laws():
    rng = np.random.default_rng(0)

    def hockey_stick(p, q, epsilon):
        return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())

    closest = 0.0
    for _ in range(1500):
        a, b, c = rng.dirichlet(np.full(3, 0.3 + rng.exponential(3)), size=3)
        epsilon = rng.uniform(0.05, 1.5)
        delta = max(hockey_stick(a, b, epsilon), hockey_stick(b, c, epsilon))
        if delta >= 1 or delta == 0:
            continue
        total, chance = filters.added_price(epsilon, delta, 2)
        assert hockey_stick(a, c, total) <= chance
        assert chance == pytest.approx(min(1.0, (1 + math.exp(epsilon)) * delta))
        closest = max(closest, hockey_stick(a, c, total) / chance)
    assert closest > 0.3  # the bound is not idle


def test_many_steps_are_priced_by_the_geometric_sum():
    epsilon, chance = filters.added_price(0.5, 1e-9, 5)
    assert epsilon == 2.5
    assert chance == pytest.approx(1e-9 * sum(math.exp(0.5 * k) for k in range(5)))
    assert filters.added_price(0.1, 0.0, 3) == (0.3, 0.0)
    assert filters.added_price(300.0, 1e-9, 3) == (900.0, 1.0)


# --- what is left


def test_what_is_left_is_admitted_and_more_is_not():
    within = limits(1.0, 1e-6)
    for taken in ([], [charge(PureEvent(0.3))], [charge(GaussianEvent(20.0), epsilon=0.3, delta=1e-6)]):
        sums = filters.total([filters.costs(one, VALUE, within.orders) for one in taken], within.orders)
        mode = CLASSES if taken else None
        left = remaining.largest_pure(sums, within, mode)
        assert admitted([*taken, charge(PureEvent(left))], within, mode)
        assert not admitted([*taken, charge(PureEvent(left * (1 + 1e-5)))], within, mode)
        epsilon, delta = remaining.largest_gaussian(sums, within, mode)
        for factor, fits in ((1 - 1e-4, True), (1 + 1e-3, False)):
            stated = factor * epsilon
            z = calibrate(lambda z: [GaussianEvent(z)], stated, delta)
            found = admitted([*taken, charge(GaussianEvent(z), epsilon=stated, delta=delta)], within, mode)
            assert bool(found) == fits
    assert remaining.share_used(filters.total([], within.orders), within, None) == 0


def test_what_is_left_when_prices_are_added():
    within = limits(1.0, 1e-6)
    sums = filters.total([Costs(None, None, (None,) * len(within.orders), 1, 0.75, 4e-7)], within.orders)
    assert remaining.largest_pure(sums, within, ADDED) == pytest.approx(0.25)
    assert remaining.largest_gaussian(sums, within, ADDED) == pytest.approx((0.25, 6e-7))
    assert remaining.share_used(sums, within, ADDED) == pytest.approx(0.75)


# --- wrong use


def test_a_charge_must_be_whole():
    with pytest.raises(tv.InputError, match="delta must be above 0"):
        Charge(VALUE, (GaussianEvent(1.0),), 1.0, 0.0, 5)
    with pytest.raises(tv.InputError, match="gaussian_coordinates"):
        Charge(VALUE, (GaussianEvent(1.0),), 1.0, 1e-6)
    for number in (1.5, math.nan, True, "3"):
        with pytest.raises(tv.InputError, match="gaussian_coordinates"):
            Charge(VALUE, (GaussianEvent(1.0),), 1.0, 1e-6, number)
    with pytest.raises(tv.InputError, match="unit must be"):
        Charge("value", (PureEvent(1.0),), 1.0)
    for events in ((), [PureEvent(1.0)], PureEvent(1.0), (1.0,)):
        with pytest.raises(tv.InputError, match="events"):
            Charge(VALUE, events, 1.0)
    for unit, replace in ((VALUE, False), (ENTRY, True)):
        with pytest.raises(tv.InputError, match="replace must be"):
            Charge(unit, (SampledGaussianEvent(2.0, 0.1, 5, replace),), 1.0, 1e-6, 5)
    for delta in (1.0, -0.1, math.nan):
        with pytest.raises(tv.InputError, match="delta"):
            filters.limits(1.0, delta, (2,))
