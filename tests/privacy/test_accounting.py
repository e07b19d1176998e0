"""Accounting against dp-accounting called directly, numerical integration, and an FFT of our own: never a copy."""

import itertools
import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import dp_event, pld, rdp
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from tensorveil.errors import InputError
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.composition import AccountingError, curve, delta_of, epsilon_of, second_opinion
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, SampledGaussianEvent, event_from_json, shares

DELTA = 1e-5
ADD_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def direct_pld(event, delta, relation=ADD_REMOVE):
    return pld.PLDAccountant(relation, 1e-4).compose(event).get_epsilon(delta)


def direct_rdp(event, delta, relation=ADD_REMOVE):
    return rdp.RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(delta)


def sampled_event(noise, probability, count):
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(probability, dp_event.GaussianDpEvent(noise)), count
    )


def density(noise, probability, side):
    """(1-q) N(0) + q N(side), all of std `noise`, for numbers and arrays alike."""
    height = 1 / (noise * math.sqrt(2 * math.pi))

    def at(x):
        centred, shifted = np.exp(-0.5 * (x / noise) ** 2), np.exp(-0.5 * ((x - side) / noise) ** 2)
        return height * ((1 - probability) * centred + probability * shifted)

    return at


def integrated_delta(upper, lower, epsilon, noise):
    """The hockey-stick divergence of two densities on the line by quadrature."""
    points = np.linspace(-12 * noise - 1, 12 * noise + 1, 41)
    pieces = itertools.pairwise(points)
    scale = math.exp(epsilon)
    return math.fsum(
        integrate.quad(lambda x: max(0.0, upper(x) - scale * lower(x)), a, b, epsabs=1e-14, limit=200)[0]
        for a, b in pieces
    )


def transformed_epsilon(noise, probability, count, side, delta):
    """An estimate, not a bound: losses of a fine grid of outcomes, binned to nearest, composed by FFT."""
    x = np.linspace(-12 * noise - 1, 12 * noise + 1, 2_000_001)
    upper, lower = density(noise, probability, 1)(x), density(noise, probability, side)(x)
    interval, size = 1e-4, 2**19
    bins = np.rint(np.log(upper / lower) / interval).astype(int)
    masses = np.bincount(bins - bins.min(), weights=upper * (x[1] - x[0]), minlength=size)
    composed = np.fft.irfft(np.fft.rfft(masses / masses.sum()) ** count, size)
    shift = count * int(bins.min())
    places = np.arange(size)  # the circle is cut opposite the mean
    mean = round(count * float(np.dot(bins, upper) / upper.sum()))
    losses = ((places + shift - mean + size // 2) % size + mean - size // 2) * interval
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        over = losses > middle
        spent = float(np.dot(composed[over], -np.expm1(middle - losses[over])))
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


# ---- golden figures


def test_figures_of_the_theory():
    """The figures of the theory, by dp-accounting directly and by us."""
    gaussian = dp_event.GaussianDpEvent(5.0)
    assert direct_rdp(gaussian, DELTA, REPLACE) == pytest.approx(0.795, abs=5e-4)
    assert direct_pld(gaussian, DELTA, REPLACE) == pytest.approx(1.555, abs=5e-4)
    assert epsilon_of([GaussianEvent(5.0 / 2)], DELTA) == pytest.approx(1.555, abs=5e-4)
    assert epsilon_of([SampledGaussianEvent(2.0, 0.01, 1000, True)], DELTA) == pytest.approx(1.21, abs=5e-3)
    assert epsilon_of([GaussianEvent(2.0 / 2, 1000)], DELTA) == pytest.approx(634, abs=0.5)
    with pytest.raises(UnsupportedEventError):
        direct_rdp(sampled_event(2.0, 0.01, 1000), DELTA, REPLACE)
    assert pld.PLDAccountant().compose(dp_event.LaplaceDpEvent(1.0)).get_epsilon(0.0) == math.inf
    assert epsilon_of([PureEvent(1.0)], 0.0) == 1.0


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("noise, count", [(0.3, 1), (1.0, 1), (5.0, 20), (60.0, 1000)])
def test_gaussians_against_the_direct_accountant(noise, count, delta):
    direct = direct_pld(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), count), delta)
    assert epsilon_of([GaussianEvent(noise, count)], delta) == pytest.approx(direct, rel=1e-3)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "noise, probability, count", [(1.0, 0.01, 100), (2.0, 0.01, 1000), (5.0, 0.3, 200), (0.6, 0.05, 30)]
)
def test_sampled_gaussians_against_the_direct_accountant(noise, probability, count, replace):
    direct = direct_pld(sampled_event(noise, probability, count), DELTA, REPLACE if replace else ADD_REMOVE)
    event = SampledGaussianEvent(noise, probability, count, replace)
    assert epsilon_of([event], DELTA) == pytest.approx(direct, rel=2e-3)


def test_a_mixture_against_the_direct_accountant():
    direct = direct_pld(
        dp_event.ComposedDpEvent(
            [sampled_event(1.5, 0.02, 100), dp_event.GaussianDpEvent(3.0), sampled_event(4, 0.5, 3)]
        ),
        DELTA,
    )
    events = [SampledGaussianEvent(1.5, 0.02, 100, False), GaussianEvent(3.0), SampledGaussianEvent(4.0, 0.5, 3, False)]
    assert epsilon_of(events, DELTA) == pytest.approx(direct, rel=2e-3)


def test_pure_with_gaussian_against_randomized_response():
    """Randomized response is the worst pure mechanism: its composition is what we must state."""
    lie = 2 / (1 + math.exp(0.2))
    fine = privacy_loss_distribution.from_randomized_response(lie, 2, value_discretization_interval=1e-5)
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(4.0, value_discretization_interval=1e-5)
    direct = fine.self_compose(3).compose(gaussian).get_epsilon_for_delta(DELTA)
    stated = epsilon_of([PureEvent(0.2, 3), GaussianEvent(4.0)], DELTA)
    assert stated == pytest.approx(direct, rel=3e-3)
    assert stated < 0.6 + epsilon_of([GaussianEvent(4.0)], DELTA)


def test_many_or_large_pure_events_are_added():
    gaussian = epsilon_of([GaussianEvent(4.0)], DELTA)
    assert epsilon_of([PureEvent(40.0), GaussianEvent(4.0)], DELTA) == pytest.approx(40 + gaussian, rel=1e-12)
    assert epsilon_of([PureEvent(1e-5, 2000), GaussianEvent(4.0)], DELTA) == pytest.approx(0.02 + gaussian, rel=1e-12)


# ---- other methods


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
def test_gaussian_delta_is_the_integral(noise, epsilon):
    truth = integrated_delta(density(noise, 1.0, 0.0), density(noise, 1.0, 1.0), epsilon, noise)
    stated = delta_of([GaussianEvent(noise)], epsilon)
    assert truth - 1e-13 <= stated <= 1.005 * truth + 1e-12


@pytest.mark.parametrize("probability", [1e-6, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.5])
def test_one_sampled_replacement_is_the_integral(noise, probability, epsilon):
    truth = integrated_delta(density(noise, probability, 1.0), density(noise, probability, -1.0), epsilon, noise)
    stated = delta_of([SampledGaussianEvent(noise, probability, 1, True)], epsilon)
    assert truth - 1e-13 <= stated <= 1.01 * truth + 1e-12


@pytest.mark.parametrize("probability", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.5])
def test_one_sampled_addition_is_the_larger_integral(noise, probability, epsilon):
    mixed, plain = density(noise, probability, 1.0), density(noise, probability, 0.0)
    truth = max(integrated_delta(mixed, plain, epsilon, noise), integrated_delta(plain, mixed, epsilon, noise))
    stated = delta_of([SampledGaussianEvent(noise, probability, 1, False)], epsilon)
    assert truth - 1e-13 <= stated <= 1.01 * truth + 1e-12


@pytest.mark.parametrize(
    "noise, probability, count, replace", [(2.0, 0.01, 1000, True), (1.0, 0.05, 50, True), (2.0, 0.01, 1000, False)]
)
def test_sampled_steps_by_another_transform(noise, probability, count, replace):
    estimate = transformed_epsilon(noise, probability, count, -1.0 if replace else 0.0, DELTA)
    stated = epsilon_of([SampledGaussianEvent(noise, probability, count, replace)], DELTA)
    assert 0.999 * estimate <= stated <= 1.005 * estimate


@pytest.mark.slow
@pytest.mark.parametrize("noise, probability, count", [(1.0, 0.01, 100), (2.0, 0.01, 1000), (5.0, 0.3, 200)])
@pytest.mark.parametrize("replace", [False, True])
def test_never_below_the_optimistic_distribution(noise, probability, count, replace):
    """dp-accounting's estimate rounded the other way is a lower bound of the truth."""
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=False,
        value_discretization_interval=1e-5,
        sampling_prob=probability,
        use_connect_dots=False,
        neighboring_relation=REPLACE if replace else ADD_REMOVE,
    ).self_compose(count)
    below = optimistic.get_epsilon_for_delta(DELTA)
    assert below <= epsilon_of([SampledGaussianEvent(noise, probability, count, replace)], DELTA)


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
@pytest.mark.parametrize("noise", [2.0, 8.0])
def test_replacement_of_everybody_is_addition_at_half_the_noise(noise, delta):
    sampled = epsilon_of([SampledGaussianEvent(noise, 1.0, 5, True)], delta)
    assert sampled == pytest.approx(epsilon_of([GaussianEvent(noise / 2, 5)], delta), rel=1e-3)
    assert sampled == pytest.approx(epsilon_of([SampledGaussianEvent(noise / 2, 1.0, 5, False)], delta), rel=1e-3)


def test_gaussians_join_by_inverse_squares():
    """g and H together: 1/z^2 = 1/z_g^2 + 1/z_H^2, against dp-accounting composing the two."""
    direct = direct_pld(dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(3.0), dp_event.GaussianDpEvent(4.0)]), DELTA)
    assert epsilon_of([GaussianEvent(3.0), GaussianEvent(4.0)], DELTA) == pytest.approx(direct, rel=1e-3)
    assert epsilon_of([GaussianEvent(2.4)], DELTA) == pytest.approx(direct, rel=1e-3)  # 1/9 + 1/16 = 1/2.4^2


GRID = [
    *[[GaussianEvent(noise, count)] for noise in (0.5, 1.0, 5.0, 50.0) for count in (1, 30, 1000)],
    *[
        [SampledGaussianEvent(noise, probability, count, False)]
        for noise in (0.7, 1.0, 2.0, 10.0)
        for probability in (1e-3, 0.01, 0.2, 1.0)
        for count in (1, 100, 1000)
    ],
    [GaussianEvent(6.0), SampledGaussianEvent(1.0, 0.01, 300, False)],
]


@pytest.mark.parametrize("events", GRID, ids=str)
def test_renyi_is_never_below(events):
    accountant = rdp.RdpAccountant()
    for event in events:
        step = dp_event.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event, SampledGaussianEvent):
            step = dp_event.PoissonSampledDpEvent(event.sampling_probability, step)
        accountant.compose(step, event.count)
    stated = epsilon_of(events, DELTA)
    assert accountant.get_epsilon(DELTA) >= stated - 1e-6
    opinion = second_opinion(events, DELTA)
    assert opinion is not None
    if all(isinstance(event, GaussianEvent) for event in events):
        assert opinion <= stated <= 1.005 * opinion  # the closed form is the truth
    else:
        assert opinion >= stated - 1e-6


def test_second_opinions():
    mixed = [PureEvent(0.2, 3), GaussianEvent(4.0)]
    opinion = second_opinion(mixed, DELTA)
    assert opinion is not None
    assert epsilon_of(mixed, DELTA) < opinion < 0.6 + 1.2
    assert second_opinion([PureEvent(1.0)], DELTA) is None
    assert second_opinion([SampledGaussianEvent(2.0, 0.1, 10, True)], DELTA) is None


# ---- laws


def test_pure_epsilon_is_added_exactly():
    events = [PureEvent(0.1, 3), PureEvent(0.7)]
    exact = 3 * Fraction(0.1) + Fraction(0.7)
    stated = epsilon_of(events, 0.0)
    assert Fraction(math.nextafter(stated, 0)) < exact <= Fraction(stated)
    assert epsilon_of(events, 1e-3) == stated


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=8))
def test_a_sum_is_never_rounded_down(epsilons):
    stated = epsilon_of([PureEvent(epsilon) for epsilon in epsilons], 0.0)
    assert Fraction(math.nextafter(stated, 0)) < sum(map(Fraction, epsilons)) <= Fraction(stated)


def test_delta_of_pure_events():
    assert delta_of([PureEvent(1.0)], 1.0) == 0.0
    lie = 2 / (1 + math.e)
    fine = privacy_loss_distribution.from_randomized_response(lie, 2, value_discretization_interval=1e-5)
    assert delta_of([PureEvent(1.0)], 0.3) == pytest.approx(fine.get_delta_for_epsilon(0.3), rel=1e-4)
    assert delta_of([PureEvent(0.5, 2)], 0.3) == delta_of([PureEvent(1.0)], 0.3)


@pytest.mark.parametrize(
    "events",
    [
        [GaussianEvent(3.0)],
        [SampledGaussianEvent(1.0, 0.02, 100, True)],
        [SampledGaussianEvent(1.0, 0.02, 100, False)],
        [PureEvent(0.3), GaussianEvent(3.0)],
    ],
    ids=str,
)
def test_more_costs_more(events):
    stated = epsilon_of(events, DELTA)
    for extra in (PureEvent(0.01), GaussianEvent(100.0), GaussianEvent(2.0), *events):
        assert epsilon_of([*events, extra], DELTA) >= stated * (1 - 1e-3)
    assert epsilon_of([*events, *events], DELTA) > 1.2 * stated
    deltas = (1e-8, 1e-6, 1e-4, 1e-2)
    pairs = curve(events, deltas)
    assert tuple(delta for delta, _ in pairs) == deltas
    assert all(first > second for (_, first), (_, second) in itertools.pairwise(pairs))
    assert pairs[1][1] == epsilon_of(events, 1e-6)
    for delta, epsilon in pairs:
        assert delta_of(events, epsilon) == pytest.approx(delta, rel=0.03)
    assert delta_of(events, 0.5) > delta_of(events, 1.0)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.3, 50), st.floats(1.01, 3), st.integers(1, 500), st.floats(-9, -2))
def test_less_noise_never_costs_less(noise, factor, count, exponent):
    def cost(multiplier):
        try:
            return epsilon_of([GaussianEvent(multiplier, count)], 10.0**exponent)
        except AccountingError:  # an epsilon of hundreds overflows, and is refused
            return math.inf

    assert cost(noise) >= cost(noise * factor)
    assert cost(noise * factor) < math.inf or count / noise**2 > 1000


def test_gaussian_delta_never_vanishes():
    assert 0 < delta_of([GaussianEvent(50.0)], 30.0) < 1e-15
    assert 0 < delta_of([GaussianEvent(1e9)], 1.0) < 1e-15
    assert delta_of([GaussianEvent(0.001)], 1.0) == 1.0


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-6, 1e3), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30))
def test_shares_never_exceed_the_budget(epsilon, weights):
    parts = shares(epsilon, weights)
    assert math.fsum(parts) <= epsilon
    assert sum(map(Fraction, parts)) <= Fraction(epsilon)
    assert epsilon_of([PureEvent(part) for part in parts], 0.0) <= epsilon
    assert math.fsum(parts) == pytest.approx(epsilon, rel=1e-12)
    assert [part / parts[0] for part in parts] == pytest.approx([weight / weights[0] for weight in weights], rel=1e-12)


# ---- calibration

ROLES = {
    "gaussian": lambda noise: [GaussianEvent(noise)],
    "thousand gaussians": lambda noise: [GaussianEvent(noise, 1000)],
    "weighted gaussians": lambda noise: [GaussianEvent(noise), GaussianEvent(3 * noise, 4)],
    "sampled": lambda noise: [SampledGaussianEvent(noise, 0.01, 1000, False)],
    "sampled replacement": lambda noise: [SampledGaussianEvent(noise, 0.01, 1000, True)],
    "after a pure stage": lambda noise: [PureEvent(0.05), GaussianEvent(noise)],
}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("role", ROLES)
def test_calibration_meets_the_budget(role, epsilon):
    noise = calibrate(ROLES[role], epsilon, 1e-6)
    assert 0.99 * epsilon <= epsilon_of(ROLES[role](noise), 1e-6) <= epsilon
    assert epsilon_of(ROLES[role](noise * (1 - 3e-4)), 1e-6) > epsilon  # and not with less noise


def test_calibration_of_one_gaussian_is_the_classical_one():
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    for epsilon in (0.01, 1.0, 20.0):
        exact = get_sigma_gaussian(epsilon, 1e-6)
        assert exact <= calibrate(ROLES["gaussian"], epsilon, 1e-6) <= 1.0005 * exact


def test_calibration_of_pure_noise():
    assert calibrate(lambda noise: [PureEvent(1 / noise, 10)], 2.0, 0.0) == pytest.approx(5.0, rel=2e-4)


def test_impossible_calibrations():
    with pytest.raises(InputError, match="any amount of noise"):
        calibrate(lambda noise: [PureEvent(1.1), GaussianEvent(noise)], 1.0, DELTA)
    with pytest.raises(InputError, match="give less epsilon"):
        calibrate(lambda noise: [GaussianEvent(noise)], 1e9, DELTA)
    with pytest.raises(InputError, match="delta must be above 0"):
        calibrate(lambda noise: [GaussianEvent(noise)], 1.0, 0.0)
    with pytest.raises(AccountingError, match="continuously"):
        calibrate(lambda noise: [GaussianEvent(2.0 if noise < 3 else 20.0)], 1.0, DELTA)


# ---- fails closed


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0, 0.0, None, "1", True])
def test_wrong_parameters_are_refused(wrong):
    for make in (
        lambda: PureEvent(wrong),
        lambda: GaussianEvent(wrong),
        lambda: SampledGaussianEvent(wrong, 0.1, 1, False),
        lambda: SampledGaussianEvent(1.0, 1e-30 if wrong is True else wrong, 1, False),
        lambda: calibrate(ROLES["gaussian"], wrong, DELTA),
        lambda: epsilon_of([GaussianEvent(1.0)], wrong),
        lambda: second_opinion([GaussianEvent(1.0)], wrong),
        lambda: delta_of([GaussianEvent(1.0)], -1.0 if wrong == 0 else wrong),
        lambda: shares(wrong, [1.0]),
        lambda: shares(1.0, [1.0, wrong]),
    ):
        with pytest.raises(InputError, match="; "):
            make()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, 10**7, math.nan])
def test_wrong_counts_are_refused(wrong):
    for make in (
        lambda: PureEvent(1.0, wrong),
        lambda: GaussianEvent(1.0, wrong),
        lambda: SampledGaussianEvent(1.0, 0.1, wrong, False),
    ):
        with pytest.raises(InputError, match="count must be"):
            make()


def test_other_wrong_use():
    for delta in (1.0, 1.5):
        with pytest.raises(InputError, match=r"delta must be in \[0, 1\)"):
            epsilon_of([PureEvent(1.0)], delta)
    with pytest.raises(InputError, match="sampling_probability must be"):
        SampledGaussianEvent(1.0, 1.01, 1, False)
    with pytest.raises(InputError, match="replace must be True or False"):
        SampledGaussianEvent(1.0, 0.5, 1, 1)
    with pytest.raises(InputError, match="at least one stage"):
        epsilon_of([], DELTA)
    with pytest.raises(InputError, match="at least one stage"):
        shares(1.0, [])
    with pytest.raises(InputError, match="sequence of events"):
        epsilon_of(PureEvent(1.0), DELTA)
    with pytest.raises(InputError, match="event classes"):
        epsilon_of([dp_event.GaussianDpEvent(1.0)], DELTA)
    with pytest.raises(InputError, match="a run has one unit"):
        epsilon_of([SampledGaussianEvent(1.0, 0.1, 1, replace) for replace in (True, False)], DELTA)
    with pytest.raises(InputError, match="delta must be at least"):
        epsilon_of([SampledGaussianEvent(10.0, 0.1, 1000, False)], 1e-13)
    with pytest.raises(InputError, match="finite total"):
        epsilon_of([PureEvent(1e308, 100)], 0.0)


def test_transforms_lose_less_than_is_set_aside():
    """Gaussians composed by FFT, as steps of probability 1 are, against the closed form at the smallest delta."""
    for count in (100, 1000, 10**5):
        noise = 2 * math.sqrt(count / 10)
        smallest = 101 * accounting.TRANSFORM_ERROR * (count + 10)
        exact = second_opinion([GaussianEvent(noise, count)], smallest)
        assert exact is not None
        assert exact <= epsilon_of([SampledGaussianEvent(noise, 1.0, count, False)], smallest) <= 1.01 * exact


@pytest.mark.parametrize("opinion, message", [("_closed_form", "below the closed form"), ("_renyi", "RDP must not be")])
def test_contradiction_is_an_error(monkeypatch, opinion, message):
    factor = 1.01 if opinion == "_closed_form" else 0.8
    truthful = accounting._closed_form
    monkeypatch.setattr(accounting, opinion, lambda events, delta: factor * truthful(events, delta))
    with pytest.raises(AccountingError, match=message):
        epsilon_of([GaussianEvent(2.0)], DELTA)


@pytest.mark.parametrize("answer", [math.inf, math.nan, -1.0])
def test_an_answer_that_is_no_number_is_an_error(monkeypatch, answer):
    kind = privacy_loss_distribution.PrivacyLossDistribution
    monkeypatch.setattr(kind, "get_epsilon_for_delta", lambda *_: answer)
    with pytest.raises(AccountingError):
        epsilon_of([GaussianEvent(2.0)], DELTA)
    if answer != math.inf:
        monkeypatch.setattr(kind, "get_delta_for_epsilon", lambda *_: answer)
        with pytest.raises(AccountingError):
            delta_of([GaussianEvent(2.0)], 1.0)


@pytest.mark.parametrize(
    "event", [PureEvent(0.5, 3), GaussianEvent(2.0, 7), SampledGaussianEvent(2.0, 0.25, 9, True)], ids=str
)
def test_events_survive_json(event):
    plain = json.loads(json.dumps(event.to_json()))
    assert event_from_json(plain) == event
    with pytest.raises(InputError, match="must have the fields"):
        event_from_json({**plain, "more": 1})
    with pytest.raises(InputError, match="kind must be one of"):
        event_from_json({**plain, "kind": "laplace"})


def test_events_hold_plain_numbers():
    event = SampledGaussianEvent(np.float64(2.0), np.float32(0.25), np.int64(3), False)
    assert [type(value) for value in event.to_json().values()] == [str, float, float, int, bool]


def test_import_is_light():
    code = (
        "import sys, tensorveil.privacy.accounting.composition; "
        "print([m for m in ('scipy', 'dp_accounting') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
