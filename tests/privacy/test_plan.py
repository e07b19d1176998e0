"""Plans: wrong use is refused before anything is read or drawn, the price is right, and nothing changes after."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import dp_event, pld

import tensorveil as tv
from tensorveil.mechanisms import base
from tensorveil.mechanisms.base import ideal_budget, split_budget
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.noise import source as noise
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON
from tensorveil.privacy.plan import Request, rounded_up
from tensorveil.privacy.stages import Norm, Sensitivity, Stage

BOUNDS = tv.Bounds(1, 5)
SHAPE = (20, 10, 5)
MECHANISMS = ("InputPerturbation", "GradientPerturbation", "OutputPerturbation", "StatisticPerturbation")
RIGHT = {
    "model": tv.CP(rank=2),
    "bounds": BOUNDS,
    "unit": "value",
    "epsilon": 1.0,
    "delta": 1e-6,
    "shape": SHAPE,
}


@pytest.fixture
def nothing_drawn(monkeypatch):
    """Any source of noise, and any reading of data, blows up."""

    def explode(*_, **__):
        raise AssertionError("noise must not be drawn, nor data read, by a plan")

    monkeypatch.setattr(noise.NoiseSource, "__init__", explode)
    monkeypatch.setattr(tv.Observations, "__init__", explode)


WRONG = {
    "no bounds": {"bounds": None},
    "bounds as three numbers": {"bounds": (1, 3, 5)},
    "bounds that fall": {"bounds": (5, 1)},
    "bounds as a text": {"bounds": "15"},
    "no unit": {"unit": None},
    "no model": {"model": None},
    "a model's class": {"model": tv.CP},
    "no epsilon": {"epsilon": None},
    "epsilon zero": {"epsilon": 0},
    "epsilon negative": {"epsilon": -1.0},
    "epsilon infinite": {"epsilon": math.inf},
    "epsilon not a number": {"epsilon": math.nan},
    "epsilon beyond floats": {"epsilon": 10**400},
    "epsilon true": {"epsilon": True},
    "epsilon as text": {"epsilon": "1"},
    "delta negative": {"delta": -1e-9},
    "delta one": {"delta": 1.0},
    "delta not a number": {"delta": math.nan},
    "delta infinite": {"delta": math.inf},
    "delta none": {"delta": None},
    "delta true": {"delta": True},
    "delta not below one over the expected count": {"delta": 1e-3, "expected_count": 1000},
    "delta not below one over it under entry": {"delta": 1e-3, "expected_count": 1000, "unit": "entry"},
    "delta not below one over the users": {"delta": 0.05, "unit": "slice:0", "at_most": 3},
    "delta not below one over the users' values": {"delta": 0.05, "unit": "slice_values:0", "at_most": 3},
    "no shape": {"shape": None},
    "a shape of zero": {"shape": (20, 0, 5)},
    "a shape as text": {"shape": "20x10"},
    "a single mode": {"shape": (20,)},
    "seven modes": {"shape": (2,) * 7},
    "expected count zero": {"expected_count": 0},
    "expected count broken": {"expected_count": 10.5},
    "at_most under value": {"at_most": 3},
    "at_most zero": {"unit": "slice:0", "at_most": 0},
    "a unit's mode that is not there": {"unit": "slice:user"},
    "an unknown unit": {"unit": "user"},
    "too few names": {"mode_names": ("user", "film")},
    "a Tucker rank above its mode": {"model": tv.Tucker(ranks=(2, 2, 6))},
    "Tucker ranks of another order": {"model": tv.Tucker(ranks=(2, 2))},
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_wrong_use_is_an_error_before_anything_is_read_or_drawn(name, wrong, nothing_drawn):
    with pytest.raises(tv.InputError) as caught:
        getattr(tv, name)().plan(**(RIGHT | wrong))
    assert "must" in str(caught.value)


def test_gaussian_noise_without_delta_is_an_error(nothing_drawn):
    for mechanism in (tv.InputPerturbation(noise="gaussian"), tv.GradientPerturbation(form="gaussian")):
        with pytest.raises(tv.InputError, match="delta must be above 0"):
            mechanism.plan(**(RIGHT | {"delta": 0.0}))
    for unit in ("entry", "slice:0"):
        with pytest.raises(tv.InputError, match="delta must be above 0"):
            tv.StatisticPerturbation().plan(**(RIGHT | {"delta": 0.0, "unit": unit}))


@pytest.mark.parametrize("delta", [0.0499, 0.001, 1e-6])
def test_delta_just_below_one_over_the_units_is_allowed(delta, nothing_drawn):
    assert tv.StatisticPerturbation().plan(**(RIGHT | {"unit": "slice:0", "delta": delta})).delta == delta


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_stated_epsilon_is_within_one_percent_of_what_was_asked(name, delta, epsilon, nothing_drawn):
    plan = getattr(tv, name)().plan(**(RIGHT | {"delta": delta, "epsilon": epsilon}))
    assert 0.99 * epsilon <= plan.epsilon <= epsilon
    assert plan.delta == (delta if any(isinstance(event, GaussianEvent) for event in plan.events) else 0.0)


@pytest.mark.parametrize("unit", ["value", "slice_values:0", "entry", "slice:0"])
@pytest.mark.parametrize("model", [tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2))])
def test_the_price_agrees_with_dp_accounting_asked_directly(unit, model, nothing_drawn):
    plan = tv.StatisticPerturbation().plan(**(RIGHT | {"unit": unit, "model": model}))
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for event in plan.events:
        accountant.compose(dp_event.GaussianDpEvent(event.noise_multiplier), event.count)
    assert plan.epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=5e-3)


def test_pure_stages_add_up_to_the_price(nothing_drawn):
    for name in ("StatisticPerturbation", "OutputPerturbation", "GradientPerturbation"):
        plan = getattr(tv, name)().plan(**(RIGHT | {"delta": 0.0}))
        assert all(isinstance(event, PureEvent) for event in plan.events)
        assert math.fsum(event.epsilon * event.count for event in plan.events) == pytest.approx(plan.epsilon, rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_plan_is_frozen_and_printable(name, nothing_drawn):
    plan = getattr(tv, name)().plan(**RIGHT)
    for attribute, value in (("epsilon", 0.1), ("stages", ()), ("request", None)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(plan, attribute, value)
    text = str(plan)
    for part in (plan.mechanism.name, "CP(rank=2)", "20 x 10 x 5", "unit value", "[1, 5]", "epsilon", "1e-06"):
        assert part in text
    assert all(stage.name in text and stage.theorem in text for stage in plan.stages)


def test_the_same_request_gives_the_same_plan(nothing_drawn):
    one, other = (tv.StatisticPerturbation().plan(**RIGHT) for _ in range(2))
    assert (one.stages, one.epsilon, one.request) == (other.stages, other.epsilon, other.request)


def test_a_wrong_expected_count_changes_accuracy_only(nothing_drawn):
    few, many = (tv.GradientPerturbation().plan(**(RIGHT | {"expected_count": count})) for count in (10, 10_000))
    assert few.epsilon == pytest.approx(many.epsilon, rel=0.01)


def test_a_stage_must_name_a_theorem():
    with pytest.raises(tv.InputError, match="prove it first"):
        Stage("x", "no such theorem", PureEvent(1.0), Sensitivity(1.0, Norm.L1, ""), Law.LAPLACE, "sums")


def test_a_price_above_the_request_is_refused(monkeypatch):
    monkeypatch.setattr(base, "_composed", lambda events, delta: 1.5)  # whose answers are cached
    with pytest.raises(tv.InputError, match="must cover the cost of all stages"):
        tv.StatisticPerturbation().plan(**(RIGHT | {"delta": 0.0}))


@pytest.mark.parametrize("coordinates", [0, 1, 1000, 10**6])
def test_the_samplers_precision_is_paid_out_of_the_budget(coordinates):
    epsilon, delta = ideal_budget(1.0, 1e-6, coordinates)
    # put back what the sampler costs: it must fit into what was asked for
    assert epsilon + coordinates * GAUSSIAN_EPSILON <= 1.0
    loss = math.exp(coordinates * GAUSSIAN_EPSILON)
    assert loss * delta + (1 + math.exp(1.0)) * coordinates * GAUSSIAN_DELTA <= 1e-6 * (1 + 1e-12)
    assert delta > 0.5e-6


def test_too_many_noisy_numbers_for_a_delta_are_an_error():
    with pytest.raises(tv.InputError, match="finite precision"):
        ideal_budget(1.0, 1e-12, 10**6)


def test_a_delta_too_small_for_a_large_epsilon_spends_less_of_it():
    epsilon, delta = ideal_budget(20.0, 1e-5, 10_000)
    assert 10.0 < epsilon < 20.0
    spent = epsilon + 10_000 * GAUSSIAN_EPSILON  # with the sampler's precision put back
    loss = math.exp(10_000 * GAUSSIAN_EPSILON)
    assert loss * delta + (1 + math.exp(spent)) * 10_000 * GAUSSIAN_DELTA <= 1e-5 * (1 + 1e-12)
    assert delta > 0.49e-5


def test_split_budgets_compose_to_the_whole():
    request = Request.checked(tv.CP(rank=1), BOUNDS, "value", 2.0, 1e-6, SHAPE, None, None, None)
    events = split_budget(request, [0.2, 0.3, 0.5], 100)
    assert 0.999 * 2.0 <= accounting.epsilon_of(events, 1e-6) <= 2.0
    precisions = np.array([event.noise_multiplier**-2 for event in events])
    np.testing.assert_allclose(precisions / precisions.sum(), [0.2, 0.3, 0.5])
    pure = split_budget(dataclasses.replace(request, delta=0.0), [1, 2, 1], 0)
    np.testing.assert_allclose([event.epsilon for event in pure], [0.5, 1.0, 0.5])


def test_the_settings_of_a_plan_cannot_be_changed(nothing_drawn):
    plan = tv.OutputPerturbation().plan(**(RIGHT | {"delta": 0.0}))
    with pytest.raises(TypeError):
        plan.settings["events"] = (PureEvent(1e6),)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_budget_too_small_for_the_noise_source_is_refused_by_the_plan(delta, nothing_drawn):
    with pytest.raises(tv.InputError, match="epsilon"):
        tv.StatisticPerturbation().plan(**(RIGHT | {"delta": delta, "epsilon": 1e-6}))


@pytest.mark.parametrize(
    "number, text",
    [(1e-5, "1e-05"), (5.0, "5"), (0.123449, "0.1235"), (4.998905949, "4.999"), (1.2344e-6, "1.235e-06")],
)
def test_numbers_are_printed_as_written_or_rounded_up(number, text):
    assert rounded_up(number) == text
    assert float(text) >= number
