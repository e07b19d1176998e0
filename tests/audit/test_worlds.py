"""Worlds that audit the mechanisms: neighbours by their unit, through the one door, and what they show."""

import pickle

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.worlds import MECHANISMS, PROVEN, PUBLISHED, audit_mechanism, released_numbers, two_worlds
from tensorveil.privacy.accounting.events import GaussianEvent
from tensorveil.privacy.queries.base import Change
from tensorveil.privacy.queries.contributions import CONTRIBUTION_GRID
from tensorveil.privacy.queries.sums.row_sums import RowSums
from tensorveil.privacy.stages import Norm

MODELS = ("cp", "tucker")
UNITS = ("value", "slice_values:user", "entry", "slice:user")
CASES = [
    (mechanism, model, unit)
    for mechanism in PROVEN
    for model in MODELS
    for unit in UNITS
    if mechanism not in ("output", "objective") or unit == "value"
]
CASES += [("statistic", "cp", "slice:item"), ("gradient", "cp", "slice_values:2")]
EPSILONS = (0.5, 1.0, 4.0)
ERROR = 0.001 / (len(CASES) * len(EPSILONS))  # of each audit, so that all together err with chance 0.001 at most


def rows(observations):
    return sorted(zip(map(tuple, observations.coordinates.tolist()), observations.values.tolist(), strict=True))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_worlds_are_neighbours_under_their_unit(case):
    worlds = two_worlds(*case, 1.0)
    assert worlds[0].plan is worlds[1].plan
    kind, _, mode = case[2].partition(":")
    first, second = (rows(world.observations) for world in worlds)
    axis = {"": None, "user": 0, "item": 1, "2": 2}[mode]
    if kind in ("value", "slice_values"):
        changed = [one for one, other in zip(first, second, strict=True) if one != other]
        assert [where for where, _ in first] == [where for where, _ in second]
        assert {abs(one[1] - other[1]) for one, other in zip(first, second, strict=True)} == {0.0, 1.0}
    else:
        changed = [row for row in second if row not in first]
        assert rows(worlds[0].observations) == [row for row in second if row not in changed]
    assert len(changed) == (1 if axis is None else 2)
    for mode_number in range(3) if axis is None else [axis]:  # alone in its row, and all there is of its slice
        at_zero = [row for row in second if row[0][mode_number] == 0]
        assert len(at_zero) == len(changed)


def test_modes_go_by_number_too():
    by_name, by_number = (two_worlds("statistic", "cp", unit, 1.0)[1] for unit in ("slice:item", "slice:1"))
    assert rows(by_name.observations) == rows(by_number.observations)
    assert audit_mechanism("statistic", "cp", "slice:1", epsilon=1.0, runs=16, workers=1).unit == "slice:item"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_call_is_a_release_with_fresh_noise_and_all_of_it_is_read(mechanism):
    world = two_worlds(mechanism, "cp", "value", 1.0)[1]
    again = pickle.loads(pickle.dumps(world))
    first, second, third = world(), world(), again()
    assert np.isfinite(first).all()
    assert first.shape == second.shape == third.shape
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, third)


def test_every_number_of_a_small_completion_is_read():
    world = two_worlds("statistic", "tucker", "value", 1.0)[1]
    model = tv.fit(world.observations, world.plan).model
    numbers = released_numbers(model, world.canary)
    whole = [model.factors.parameters, *(part for part in model.offsets.modes if part is not None)]
    assert np.isin(np.concatenate([[model.offsets.mean], *whole]), numbers).all()
    assert numbers[0] == pytest.approx(float(model.centred(np.zeros((1, 3), dtype=np.uint32))[0]))


def test_what_a_joint_release_withholds_is_not_read():
    world = two_worlds("statistic", "cp", "slice:user", 1.0)[1]
    model = tv.fit(world.observations, world.plan).model
    assert model.withheld_mode == 0
    assert not model.factors.factors[0].any()
    assert model.offsets.modes[0] is None or not model.offsets.modes[0].any()
    assert np.isfinite(world()).all()


def test_the_widest_value_of_published_input_moves_the_range_of_the_data():
    first, second = (world.observations.values for world in two_worlds("published-input", "cp", "value", 1.0))
    assert np.ptp(second) > 2 * np.ptp(first)
    assert (first != second).sum() == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("output", "cp", "entry", 1.0), "must have a theorem"),
        (("objective", "cp", "entry", 1.0), "must have a theorem"),
        (("gradient", "cp", "slice:user", 1.0, 0.0), "a unit that a theorem covers"),
        (("published-input", "cp", "entry", 1.0), "whose claim is for nothing else"),
    ],
)
def test_a_combination_without_a_theorem_or_a_claim_is_refused(arguments, message):
    with pytest.raises(tv.UnprovenError, match=message):
        two_worlds(*arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("inputs", "cp", "value", 1.0), "mechanism must be one of"),
        (("input", "parafac", "value", 1.0), "model must be one of"),
        (("input", "cp", "slice:shop", 1.0), "unit must name one of"),
        (("input", "cp", "value", -1.0), "epsilon must be above 0"),
        (("published-output", "cp", "value", -1.0), "epsilon must be above 0"),
        (("published-output", "cp", "value", 1.0, 1e-5), "delta must be 0 for a published algorithm"),
        (("statistic", "cp", "entry", 1.0, 0.0), "delta must be above 0"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(arguments, message):
    with pytest.raises(tv.InputError, match=message):
        two_worlds(*arguments)


def test_the_gaussian_form_goes_with_gaussian_stages_alone():
    for mechanism, unit, delta, form in (
        ("statistic", "value", 1e-5, "gaussian"),
        ("statistic", "value", None, "pure"),
        ("input", "value", 1e-5, "pure"),  # a channel, whatever delta is
        ("statistic", "entry", None, "gaussian"),
    ):
        found = audit_mechanism(mechanism, "cp", unit, epsilon=1.0, delta=delta, runs=16, workers=1)
        assert (found.bound.claim, found.delta) == (form, 1e-5 if form == "gaussian" or delta else 0.0)


def test_a_range_that_is_read_off_the_data_refutes_the_published_claim():
    found = audit_mechanism("published-input", epsilon=0.1, runs=150, confidence=1 - 1e-6)
    assert found.refuted
    assert found.verdict == "refuted"


@pytest.mark.parametrize("stated", [1.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_sums_are_refuted_only_where_their_sensitivity_is_stated_too_low(stated, monkeypatch):
    change = Change(Norm.L1, stated, CONTRIBUTION_GRID)
    monkeypatch.setattr(RowSums, "sensitivity", lambda self, unit: (change,))
    found = audit_mechanism("sums", "cp", "entry", epsilon=1.0, runs=200, confidence=1 - 1e-6, workers=1)
    assert found.refuted == (stated < 1)


@pytest.mark.slow
def test_what_sums_state_is_not_far_above_what_is_shown():
    assert 0.4 < audit_mechanism("sums", "cp", "entry", epsilon=1.0, runs=8000).bound.epsilon <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_no_proven_mechanism_is_refuted(case, epsilon):
    # with Gaussian noise few runs could refute even epsilon 4; without, it takes some hundred
    delta = 1e-5 if epsilon != 1 else None
    gaussian = all(isinstance(event, GaussianEvent) for event in two_worlds(*case, epsilon, delta)[0].plan.events)
    runs = 120 if gaussian or epsilon <= 1 else 400 if case[0] == "sums" else 1500  # a run of sums takes long
    found = audit_mechanism(*case, epsilon=epsilon, delta=delta, runs=runs, confidence=1 - ERROR)
    assert not found.refuted, str(found.bound)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mechanism", PUBLISHED)
def test_published_claims_are_refuted_by_far(mechanism, model):
    assert audit_mechanism(mechanism, model, epsilon=0.1).bound.epsilon > 1.5
