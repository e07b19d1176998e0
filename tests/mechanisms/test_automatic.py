"""The choice of a mechanism: from public facts, never one without a theorem."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.mechanisms.automatic import NAMES, choose

UNITS = ("value", "entry", "slice:user", "slice_values:user")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("family", [tv.CP(2), tv.Tucker(2)], ids=["cp", "tucker"])
def test_what_auto_chooses_has_a_theorem_and_a_price_within_the_budget(unit, delta, family):
    if unit == "slice:user" and delta == 0:
        with pytest.raises(tv.InputError, match="delta must be above 0"):
            choose("auto", unit, delta)
        return
    choice = choose("auto", unit, delta)
    at_most = 4 if unit.startswith("slice") else None
    plan = choice.mechanism.plan(
        family, tv.Bounds(1, 5), unit, 1.0, delta, shape=(6, 5, 4), mode_names=("user", "film", "day"), at_most=at_most
    )
    assert 0 < plan.epsilon <= 1
    assert choice.reason


def test_a_named_mechanism_is_taken_as_it_is():
    assert {choose(name, "value").mechanism.name for name in NAMES[1:]} == set(NAMES[1:])


def test_an_unknown_name_is_refused():
    with pytest.raises(tv.InputError, match="mechanism"):
        choose("magic", "value")


def test_complete_takes_auto_and_names():
    data = tv.Observations(np.argwhere(np.ones((6, 5))), np.linspace(1, 5, 30), (6, 5))
    for mechanism, name in (("auto", "input"), ("statistic", "statistic")):
        release = tv.complete(data, tv.CP(1), tv.Bounds(1, 5), "value", 1.0, mechanism=mechanism)
        assert release.plan.mechanism.name == name
