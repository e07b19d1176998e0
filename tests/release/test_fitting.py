"""`fit` and `complete`: one door, which checks what comes in and says nothing private when it refuses."""

import dataclasses
import json
import math
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.mechanisms.auto import choose
from tensorveil.mechanisms.base import Mechanism
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.release import fitting

SHAPE = (5, 4, 3)
BOUNDS = tv.Bounds(1, 5)
RNG = np.random.default_rng(0)
OBSERVATIONS = tv.Observations(
    np.argwhere(np.ones(SHAPE)), RNG.uniform(1, 5, 60), SHAPE, mode_names=("user", "film", "day")
)


def plan_for(unit="value", delta=1e-6, shape=SHAPE, **options):
    names = ("user", "film", "day")
    return tv.StatisticPerturbation(sweeps=1).plan(
        tv.CP(rank=2), BOUNDS, unit, 1.0, delta, shape=shape, mode_names=names, **options
    )


def test_observations_of_another_shape_are_refused_before_noise(monkeypatch):
    monkeypatch.setattr(fitting, "NoiseSource", None)
    with pytest.raises(tv.InputError, match="plan's shape"):
        tv.fit(OBSERVATIONS, plan_for(shape=(5, 4, 4)))


@pytest.mark.parametrize("wrong", [None, 1.0, "plan", tv.StatisticPerturbation()])
def test_a_plan_must_be_a_plan(wrong):
    with pytest.raises(tv.InputError, match="plan must be made"):
        tv.fit(OBSERVATIONS, wrong)


def test_a_plan_that_was_changed_is_refused_however_cheap_its_stages_look():
    plan = tv.InputPerturbation().plan(tv.CP(2), BOUNDS, "value", 1.0, shape=SHAPE)
    weaker = replace(plan, request=replace(plan.request, epsilon=100.0))  # its channel would be drawn at 100
    for changed in (weaker, replace(plan, delta=0.0), replace(plan, gaussian_coordinates=0)):
        assert changed.events == plan.events
        with pytest.raises(tv.InputError, match="must not be changed"):
            tv.fit(OBSERVATIONS, changed)


def test_a_plan_stays_whole_through_pickle_and_through_a_release():
    plan = tv.StatisticPerturbation(sweeps=1).plan(tv.CP(2), BOUNDS, "value", 1.0, shape=SHAPE)
    release = tv.fit(OBSERVATIONS, pickle.loads(pickle.dumps(plan)))
    assert release.plan.request.mode_names == OBSERVATIONS.mode_names  # the plan had none of its own
    assert tv.fit(OBSERVATIONS, release.plan).guarantee.publishable


@pytest.mark.parametrize("wrong", [None, [[0, 0, 0]], np.ones(SHAPE)])
def test_observations_must_be_observations(wrong):
    with pytest.raises(tv.InputError, match="must be Observations"):
        tv.fit(wrong, plan_for())
    with pytest.raises(tv.InputError, match="must be Observations"):
        tv.complete(wrong, tv.CP(rank=2), BOUNDS, "value", 1.0, mechanism=tv.StatisticPerturbation())


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1"])
def test_a_seed_must_be_a_whole_number(seed):
    with pytest.raises(tv.InputError, match="seed"):
        tv.fit(OBSERVATIONS, plan_for(), seed=seed)


@pytest.mark.parametrize("unit", ["entry", "slice:user"])
def test_an_error_with_data_in_hand_tells_no_count(unit):
    names = OBSERVATIONS.mode_names
    merged = tv.Observations(OBSERVATIONS.coordinates, OBSERVATIONS.values, SHAPE, mode_names=names, duplicates="mean")
    with pytest.raises(tv.UnprovenError) as caught:
        tv.fit(merged, plan_for(unit))
    numbers = {int(number) for number in re.findall(r"\d+", str(caught.value))}
    assert 60 not in numbers
    assert numbers <= {0}  # the unit's mode


def test_only_a_secret_source_of_noise_makes_a_release_publishable():
    class Audited(NoiseSource):
        """Any other source, however secret."""

    assert tv.fit(OBSERVATIONS, plan_for()).guarantee.publishable
    assert tv.fit(OBSERVATIONS, plan_for(), noise=NoiseSource()).guarantee.publishable
    assert not tv.fit(OBSERVATIONS, plan_for(), seed=0).guarantee.publishable
    assert not tv.fit(OBSERVATIONS, plan_for(), noise=NoiseSource(seed=0)).guarantee.publishable
    assert not tv.fit(OBSERVATIONS, plan_for(), noise=Audited()).guarantee.publishable


def test_two_fits_are_two_releases():
    plan = plan_for()
    assert tv.fit(OBSERVATIONS, plan).model != tv.fit(OBSERVATIONS, plan).model
    assert tv.fit(OBSERVATIONS, plan, seed=5).model == tv.fit(OBSERVATIONS, plan, seed=5).model


def test_complete_is_plan_and_fit_in_one():
    release = tv.complete(
        OBSERVATIONS,
        tv.CP(rank=2),
        BOUNDS,
        "slice:user",
        1.0,
        1e-6,
        mechanism=tv.StatisticPerturbation(sweeps=1),
        seed=3,
    )
    apart = tv.fit(OBSERVATIONS, plan_for("slice:user"), seed=3)
    assert release.model == apart.model
    assert release.guarantee == apart.guarantee
    assert "user" in release.guarantee.neighbours


def test_a_plan_for_observations_says_why_and_fit_takes_it():
    planned = tv.plan(OBSERVATIONS, tv.CP(2), BOUNDS, "entry", 1.0, 1e-6, expected_count=60)
    assert planned.reason == choose("auto", planned.request).reason
    assert str(planned).endswith(f"why this mechanism: {planned.reason}")
    options = {"expected_count": 60, "seed": 3}
    assert tv.fit(OBSERVATIONS, planned, seed=3).model == (
        tv.complete(OBSERVATIONS, tv.CP(2), BOUNDS, "entry", 1.0, 1e-6, **options).model
    )
    own = tv.StatisticPerturbation(sweeps=1)
    assert tv.plan(OBSERVATIONS, tv.CP(2), BOUNDS, "value", 1.0, mechanism=own).mechanism == own
    assert tv.plan(OBSERVATIONS, "cp", BOUNDS, "value", 1.0).request.family == tv.CP(4)  # the second largest mode
    with pytest.raises(tv.InputError, match="add the parentheses"):
        tv.plan(OBSERVATIONS, tv.CP(2), BOUNDS, "value", 1.0, mechanism=tv.StatisticPerturbation)


def test_a_plan_does_not_tell_a_shape_that_is_private():
    table = {"user": ["a", "b"], "film": [1, 2], "stars": [1.0, 2.0]}
    read_off = tv.Observations.from_table(table, modes=["user", "film"], value="stars")
    with pytest.raises(tv.UnprovenError, match="labels must be public"):
        tv.plan(read_off, tv.CP(1), BOUNDS, "entry", 1.0, 1e-6, mechanism=tv.StatisticPerturbation())


def test_complete_hands_on_at_most_and_expected_count():
    release = tv.complete(
        OBSERVATIONS,
        tv.CP(rank=2),
        BOUNDS,
        "slice:film",
        1.0,
        1e-6,
        mechanism=tv.StatisticPerturbation(sweeps=1),
        at_most=2,
        expected_count=77,
        seed=1,
    )
    assert release.plan.request.unit == tv.Unit("slice", 1, 2)
    assert release.plan.request.expected_count == 77
    with pytest.raises(tv.InputError, match="below 1/50"):
        tv.complete(
            OBSERVATIONS,
            tv.CP(rank=2),
            BOUNDS,
            "entry",
            1.0,
            0.02,
            mechanism=tv.StatisticPerturbation(),
            expected_count=50,
        )


def test_progress_tells_public_numbers_only():
    """Under entry the calls are the same for one observation and for sixty."""
    heard = []
    for observations in (OBSERVATIONS, OBSERVATIONS.take([0])):
        calls = []
        tv.fit(observations, plan_for("entry"), seed=0, progress=lambda *call, calls=calls: calls.append(call))
        heard.append(calls)
    assert heard[0] == heard[1]
    assert heard[0]


@pytest.mark.parametrize("unit", ["value", "slice_values:day", "entry", "slice:day"])
def test_a_mode_of_one_index_and_a_single_observation_are_fine(unit):
    shape = (3, 2, 1)
    plan = plan_for(unit, shape=shape)
    single = tv.Observations([[2, 1, 0]], [5.0], shape, mode_names=("user", "film", "day"))
    release = tv.fit(single, plan, seed=0)
    assert np.isfinite(release.model.factors.parameters).all()


def test_a_plan_for_users_is_not_run_on_a_tensor_whose_users_are_another_mode():
    """Where sizes agree the shape cannot tell: films would be protected, and users promised."""
    plan = plan_for("slice:user", shape=(4, 4, 4))
    turned = tv.Observations(
        np.argwhere(np.ones((4, 4, 4))), np.full(64, 3.0), (4, 4, 4), mode_names=("film", "user", "day")
    )
    with pytest.raises(tv.InputError, match="mode_names"):
        tv.fit(turned, plan, seed=0)


@pytest.mark.parametrize("name", ["PublishedInput", "PublishedGradient", "PublishedOutput"])
def test_a_published_algorithm_becomes_a_release_that_says_claimed(name):
    algorithm, sgd = getattr(tv.published, name)(), tv.SGD(iterations=2)
    release = tv.fit(OBSERVATIONS, algorithm.plan(tv.CP(rank=2), 5.0, sgd), seed=3)
    assert (release.guarantee.status, release.guarantee.publishable) == ("claimed", False)
    assert release.model.factors == algorithm.run(OBSERVATIONS, tv.CP(rank=2), 5.0, sgd, seed=3).model
    assert np.isfinite(release.predict(OBSERVATIONS.coordinates)).all()


def test_a_mechanism_without_its_parentheses_is_one_clear_error():
    with pytest.raises(tv.InputError, match="parentheses"):
        tv.complete(OBSERVATIONS, tv.CP(rank=2), BOUNDS, "value", 1.0, mechanism=tv.InputPerturbation)


def test_a_release_prints_in_a_line():
    release = tv.fit(OBSERVATIONS, plan_for())
    assert "proven" in repr(release)
    assert len(repr(release)) < 200


def test_without_privacy_the_same_model_is_fitted_and_says_so(tmp_path):
    data = tv.synthetic.observe(tv.synthetic.cp_tensor((12, 12, 12), 2, seed=1), snr_kind="variances", seed=2)
    few = np.rint(10 * data.train.values) / 10  # a posterior of very many levels takes long
    train = tv.Observations(data.train.coordinates, few, data.train.shape)
    release = tv.complete(train, tv.CP(2), tv.Bounds(-0.5, 1.5), "value", math.inf)
    truth = data.truth_at(data.test.coordinates)
    assert tv.rmse(truth, release.predict(data.test.coordinates)) < 0.6 * truth.std()
    assert (release.guarantee.status, release.guarantee.publishable) == ("none", False)
    assert "No privacy" in str(release.guarantee)
    assert tv.Guarantee.from_json(release.guarantee.to_json()) == release.guarantee
    loaded = tv.Release.load(release.save(tmp_path / "out"))
    assert dataclasses.replace(loaded.guarantee, software=()) == release.guarantee
    np.testing.assert_array_equal(loaded.predict(data.test.coordinates), release.predict(data.test.coordinates))
    assert "NOT FOR PUBLICATION" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["epsilon"] is None
    assert "doubt" in {check.state for check in tv.verify(tmp_path / "out") if check.name == "status"}


def test_a_published_algorithm_reports_its_progress_and_refuses_another_noise():
    plan, seen = tv.published.PublishedGradient().plan(tv.CP(rank=2), 5.0, tv.SGD(iterations=3)), []
    tv.fit(OBSERVATIONS, plan, seed=3, progress=lambda *stage: seen.append(stage))
    assert seen[-1] == ("iterations", 3, 3)
    with pytest.raises(tv.InputError, match="draws its own"):
        tv.fit(OBSERVATIONS, plan, noise=NoiseSource(1))


class WithoutNoise(Mechanism):
    """Somebody else's mechanism: it borrows a plan of ours, and reaches around the vault."""

    name = "sums"

    def design(self, request):
        return tv.SumPerturbation().design(request)

    def run(self, vault, plan, progress=None):
        ours = tv.SumPerturbation().run(vault, plan)
        stolen = float(vault._shards[0].centred.mean())
        return replace(ours, offsets=Offsets(stolen, ours.offsets.modes))


def test_a_mechanism_of_somebody_elses_is_claimed_and_not_publishable():
    plan = WithoutNoise().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=OBSERVATIONS.shape)
    told = tv.fit(OBSERVATIONS, plan).guarantee
    assert (told.status, told.publishable) == ("claimed", False)
    assert "WithoutNoise is not part of this library" in told.reasons[0]
    inside = tv.WithOffsets(WithoutNoise()).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=OBSERVATIONS.shape)
    assert tv.fit(OBSERVATIONS, inside).guarantee.status == "claimed"


class OrthogonalCP(tv.CP):
    """Somebody else's models: they normalise factors, which couples private rows inside a query."""

    def model(self, blocks):
        return super().model([np.linalg.qr(block)[0] if block.shape[0] > block.shape[1] else block for block in blocks])


class WiderBounds(tv.Bounds):
    """Lets values beyond the bounds through."""

    def steps(self, values):
        steps = super().steps(values)
        return steps if len(steps) == 2 else 5 * steps  # two: the check of the bounds themselves


@pytest.mark.parametrize("around", [tv.WithOffsets, lambda inner: tv.OutputPerturbation(first=inner)])
def test_an_attribute_of_an_instance_takes_no_place_of_a_method_inside_another_mechanism(around):
    seen, inner = [], tv.StatisticPerturbation(sweeps=1)
    object.__setattr__(inner, "run", lambda *given: seen.append(given))
    told = tv.fit(OBSERVATIONS, around(inner).plan(tv.CP(2), (1, 5), "value", 5.0, shape=SHAPE)).guarantee
    assert seen == []
    assert (told.status, told.publishable) == ("claimed", False)
    assert "StatisticPerturbation with attributes of its own (run)" in told.reasons[0]


def test_what_stands_before_a_method_of_our_own_makes_a_release_claimed():
    mechanism, bounds, family = tv.OutputPerturbation(), tv.Bounds(1, 5), tv.CP(2)
    real, seen = type(mechanism)._change, []
    for part, name, method in (
        (mechanism, "_change", lambda vault, *rest: seen.append(vault) or real(mechanism, vault, *rest)),
        (bounds, "steps", lambda values: seen.append(values) or tv.Bounds(1, 5).steps(values)),
    ):
        seen.clear()
        object.__setattr__(part, name, method)
        told = tv.fit(OBSERVATIONS, mechanism.plan(family, bounds, "value", 5.0, shape=SHAPE)).guarantee
        assert seen  # it did see what no one may see
        assert (told.status, told.publishable) == ("claimed", False)
        object.__delattr__(part, name)
    assert tv.fit(OBSERVATIONS, mechanism.plan(family, bounds, "value", 5.0, shape=SHAPE)).guarantee.publishable


def test_bounds_of_somebody_elses_are_claimed_and_not_publishable():
    wider = WiderBounds(1, 5)
    told = tv.complete(OBSERVATIONS, tv.CP(rank=1), wider, "entry", 1.0).guarantee
    assert (told.status, told.publishable) == ("claimed", False)
    assert "WiderBounds is not part of this library" in told.reasons[0]


def test_a_model_of_somebody_elses_is_claimed_and_not_publishable():
    plan = tv.StatisticPerturbation().plan(OrthogonalCP(rank=2), BOUNDS, "value", 1.0, shape=OBSERVATIONS.shape)
    told = tv.fit(OBSERVATIONS, plan).guarantee
    assert (told.status, told.publishable) == ("claimed", False)


def test_a_method_on_an_instance_does_not_run():
    mechanism = tv.SumPerturbation()
    object.__setattr__(mechanism, "run", lambda *_: 1 / 0)
    plan = mechanism.plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=OBSERVATIONS.shape)
    assert tv.fit(OBSERVATIONS, plan).guarantee.status == "claimed"


def test_a_plan_that_states_another_delta_is_refused():
    plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, 1e-6, shape=OBSERVATIONS.shape)
    object.__setattr__(plan, "delta", 1e-30)
    with pytest.raises(tv.InputError, match="delta that its stages are priced at"):
        tv.fit(OBSERVATIONS, plan)


def test_stages_of_one_name_are_refused_while_planning():
    with pytest.raises(tv.InputError, match="different names"):
        tv.OutputPerturbation(blocks=(0, 0)).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=OBSERVATIONS.shape)


FRAME = {"userId": ["ann", "ann", "bob", "cy"], "film": ["Alien", "Big", "Big", "Alien"], "stars": [5, 1, 4, 5]}


def test_a_frame_is_completed_like_its_observations():
    """The plans are equal, and so are seeded releases; bounds may be a pair."""
    modes = {"user": "userId", "film": "film"}
    data = tv.Observations.from_table(FRAME, modes, "stars")
    mechanism = tv.StatisticPerturbation(sweeps=1)
    how = {"unit": "value", "epsilon": 2.0, "mechanism": mechanism, "seed": 1}
    direct = tv.complete(FRAME, tv.CP(1), (1, 5), modes=modes, value="stars", **how)
    assert direct.plan == tv.plan(data, tv.CP(1), tv.Bounds(1, 5), "value", 2.0, mechanism=mechanism)
    assert direct.mode_names == ("user", "film")
    np.testing.assert_array_equal(
        direct.predict([[2, 1]]), tv.complete(data, tv.CP(1), tv.Bounds(1, 5), **how).predict([[2, 1]])
    )


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "without them; name the columns"),
        ({"modes": ["userId", "film"], "value": "stars", "bounds": (5, 1)}, "low below high"),
        ({"modes": ["userId", "film"], "value": "stars", "bounds": (1, 2, 3)}, "a pair \\(low, high\\), got"),
        ({"modes": ["userId", "film"], "value": "stars", "bounds": None}, "bounds must be"),
    ],
)
def test_a_frame_without_names_or_with_wrong_bounds_is_refused(given, message):
    with pytest.raises(tv.InputError, match=message):
        tv.complete(FRAME, **{"bounds": (1, 5), **given}, unit="value", epsilon=1.0)


def test_observations_take_no_names_of_columns():
    with pytest.raises(tv.InputError, match="leave them out"):
        tv.complete(OBSERVATIONS, tv.CP(1), (1, 5), "value", 1.0, modes=["a", "b", "c"])


def test_public_levels_are_not_paid_for():
    plan = tv.plan(OBSERVATIONS, "cp", (1, 5), "value", 2.0, levels=range(1, 6))
    assert [(stage.name, stage.event.epsilon) for stage in plan.stages] == [("values", 2.0)]
    assert plan.mechanism.levels == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert any("levels" in text for text in plan.assumptions_trusted)
    grouped = tv.plan(OBSERVATIONS, "cp", (1, 5), "slice_values:0", 2.0, levels=[1, 3, 5])
    assert grouped.mechanism.noise == "channel"


@pytest.mark.parametrize(
    "unit, mechanism, message",
    [
        ("entry", "auto", "levels must be for the unit value or slice_values"),
        ("value", "sums", "levels must be for input perturbation"),
        ("value", tv.InputPerturbation(levels=[1, 5]), "given once"),
    ],
)
def test_levels_that_nothing_uses_are_refused(unit, mechanism, message):
    with pytest.raises(tv.InputError, match=message):
        tv.plan(OBSERVATIONS, "cp", (1, 5), unit, 2.0, mechanism=mechanism, levels=[1, 2, 3])


@pytest.mark.parametrize("bounds", [(-5e149, 5e149), (0.0, 1e150), (0.0, 1e-200)])
@pytest.mark.parametrize(
    "mechanism, unit",
    [(tv.SumPerturbation(), "entry"), (tv.StatisticPerturbation(), "value"), (tv.InputPerturbation(), "value")],
)
def test_the_widest_and_the_narrowest_bounds_go_all_the_way(bounds, mechanism, unit, tmp_path):
    """To a saved and verified report: what fails after the fit has cost as much as what fails in it."""
    shape = (4, 5, 3)
    data = tv.Observations(np.argwhere(np.ones(shape)), np.linspace(*bounds, 60), shape)
    release = tv.fit(data, mechanism.plan(tv.CP(2), bounds, unit, 4.0, shape=shape))
    assert np.isfinite(release.predict(data.coordinates)).all()
    assert [check for check in tv.verify(release.save(tmp_path / "release")) if check.state == "doubt"] == []
