"""Sum perturbation: every stage is private by replay, offsets are right, it is never worse than the mean."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.inference.sums.index import ROWS as INDEX_ROWS
from tensorveil.mechanisms.sums import checked_features
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.noise.laws import Law
from tensorveil.release.predictions import everybody

BOUNDS = tv.Bounds(-1, 1)


@pytest.mark.parametrize(
    "unit, epsilon, delta, shape",
    [
        ("value", 60.0, 0.0, (12, 30)),
        ("value", 60.0, 1e-5, (12, 30)),
        ("entry", 200.0, 0.0, (12, 30)),
        ("entry", 200.0, 1e-5, (12, 30)),
        ("slice:0", 8.0, 1e-5, (60, 30)),
    ],
)
def test_replay_of_groups_and_second_passes(unit, epsilon, delta, shape):
    """The contract's tensors are too small for these."""
    observations, _, _ = additive(shape, share=0.9)
    plan = tv.SumPerturbation().plan(tv.CP(4), BOUNDS, unit, epsilon, delta, shape=shape, expected_count=4_000)
    assert any("second pass" in stage.name for stage in plan.stages) == (unit == "slice:0")
    used = []
    for pair in neighbours(observations, unit, BOUNDS, 5):
        found = replay(*pair, plan)
        calls = [call for call in found.calls if call.kind != "key"]
        used.append([share for share, call in zip(found.used, found.calls, strict=True) if call.kind != "key"])
        if unit == "slice:0":
            assert len(calls) == len(plan.stages)
        else:  # the total, sums of one mode by at least two groups of the other, and sums by the index at last
            each = 1 if unit == "value" else 2
            *numbers, last = [call.statistic.size // each for call in calls[3:]]
            assert last == INDEX_ROWS
            assert sum(number not in (1, *shape) for number in numbers) == 1
    finer = [1, 2]  # histograms that may split other cells than those of the neighbours
    assert np.delete(np.max(used, axis=0), finer).min() > 0.3  # every other stage is hurt by some neighbour


@pytest.mark.parametrize("declared", [None, 100, 400_000])
def test_a_wrong_guess_of_the_number_of_observations_costs_little_under_entry(declared):
    """Shares for many more observations would buy groups of users and single items that drown in noise."""
    observations, truth, _ = additive((150, 400), noise=0.3, share=0.05)

    def error(count):
        plan = tv.SumPerturbation().plan(tv.CP(4), BOUNDS, "entry", 1.0, shape=(150, 400), expected_count=count)
        found = [tv.fit(observations, plan, seed=seed).predict(observations.coordinates) for seed in range(6)]
        return np.sqrt(np.mean((np.array(found) - truth) ** 2))

    assert error(declared) <= 1.05 * error(len(observations))


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 20.0])
def test_with_few_slices_and_wide_bounds_owners_predict_as_well_as_by_the_mean(epsilon):
    """Sixty slices tell little of a scale from 0 to 300; every owner still knows the mean of the own values."""
    rng = np.random.default_rng(2)
    where = np.argwhere(rng.random((60, 40)) < 0.5)
    values = np.floor(5 * np.exp(rng.normal(size=60)[where[:, 0]] / 2 + rng.normal(size=len(where)) / 2))
    observations = tv.Observations(where, values, (60, 40))
    ratios = []
    for seed in range(4):
        release = tv.complete(observations, "cp", tv.Bounds(0, 300), "slice:0", epsilon, 1e-5, seed=seed)
        predicted = everybody(release, observations).predict(where)
        ratios.append(np.sqrt(np.mean((predicted - values) ** 2)) / values.std())
    assert max(ratios) < 1.05
    assert np.mean(ratios) < 1.0


def additive(shape=(60, 80), noise=0.1, seed=0, share=0.6):
    rng = np.random.default_rng(seed)
    effects = [rng.normal(0, 0.2, size) for size in shape]
    where = np.argwhere(rng.random(shape) < share)
    truth = 0.3 + sum(effect[where[:, mode]] for mode, effect in enumerate(effects))
    values = np.clip(truth + rng.normal(0, noise, len(where)), -1, 1)
    names = tuple(f"mode_{mode}" for mode in range(len(shape)))
    return tv.Observations(where, values, shape, mode_names=names), truth, effects


def planned(unit, epsilon, delta=0.0, shape=(60, 80), model=None, **options):
    return tv.SumPerturbation(**options).plan(
        model or tv.CP(1), BOUNDS, unit, epsilon, delta, shape=shape, expected_count=2000
    )


@pytest.mark.parametrize("unit, delta", [("value", 0.0), ("value", 1e-5), ("entry", 0.0), ("entry", 1e-5)])
@pytest.mark.parametrize("shape", [(60, 80), (20, 15, 12)])
def test_with_a_large_budget_an_additive_tensor_is_found(unit, delta, shape):
    observations, truth, _ = additive(shape)
    release = tv.fit(observations, planned(unit, 60.0, delta, shape), seed=1)
    left = release.predict(observations.coordinates) - truth
    assert np.sqrt(np.mean(left**2)) < 0.25 * truth.std()


def test_under_slice_owners_predict_well_with_a_large_budget():
    observations, truth, _ = additive((300, 20))
    release = tv.fit(observations, planned("slice:0", 12.0, 1e-5, (300, 20)), seed=1)
    assert release.model.withheld_mode == 0
    own = observations.coordinates[:, 0] == 7
    model = release.personalize(observations.take(own))
    assert np.abs(model.predict(observations.coordinates[own]) - truth[own]).max() < 0.25


def private_mean(observations, unit, epsilon, rng):
    """The mean alone with the whole budget: a sum, or under entry a pair of sums, with Laplace noise."""
    y = observations.values
    if unit == "value":
        return y.mean() + rng.laplace(0, 2 / (len(y) * epsilon))
    high, low = (np.sum((1 + sign * y) / 2) + rng.laplace(0, 1 / epsilon) for sign in (1, -1))
    return (high - low) / max(high + low, 1.0)


@pytest.mark.parametrize("unit", ["value", "entry"])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_it_is_never_much_worse_than_the_private_mean(unit, epsilon):
    observations, truth, _ = additive((150, 120))
    rng = np.random.default_rng(5)
    plan = tv.SumPerturbation().plan(tv.CP(1), BOUNDS, unit, epsilon, shape=(150, 120), expected_count=10_000)
    ours, means = [], []
    for seed in range(4):
        predicted = tv.fit(observations, plan, seed=seed).predict(observations.coordinates)
        ours.append(np.mean((predicted - truth) ** 2))
        means.append(np.mean((np.clip(private_mean(observations, unit, epsilon, rng), -1, 1) - truth) ** 2))
    assert np.sqrt(np.mean(ours)) <= 1.02 * np.sqrt(np.mean(means))


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("shape", [(6, 5), (20, 15), (12, 10, 8)])
def test_under_entry_tiny_data_are_predicted_as_well_as_by_the_private_mean(shape, epsilon):
    observations, truth, _ = additive(shape, noise=0.3)
    count = len(observations)
    plan = tv.SumPerturbation().plan(tv.CP(1), BOUNDS, "entry", epsilon, shape=shape, expected_count=count)
    rng = np.random.default_rng(5)
    ours = [
        np.mean((tv.fit(observations, plan, seed=s).predict(observations.coordinates) - truth) ** 2) for s in range(30)
    ]
    means = [(np.clip(private_mean(observations, "entry", epsilon, rng), -1, 1) - truth) ** 2 for _ in range(300)]
    assert np.sqrt(np.mean(ours)) <= 1.02 * np.sqrt(np.mean(means))


def test_tastes_for_groups_of_items_are_found_under_entry():
    """Users who like the popular and users who like the rest, which offsets cannot tell."""
    rng = np.random.default_rng(4)
    taste, popular = rng.choice([-0.3, 0.3], 60), np.arange(200) < 60
    where = np.argwhere(rng.random((60, 200)) < np.where(popular, 0.9, 0.3))
    truth = taste[where[:, 0]] * np.where(popular[where[:, 1]], 1.0, -1.0)
    values = np.clip(truth + rng.normal(0, 0.2, len(truth)), -1, 1)
    observations = tv.Observations(where, values, (60, 200))
    for model in (tv.CP(4), tv.Tucker(ranks=(4, 4))):
        plan = tv.SumPerturbation().plan(model, BOUNDS, "entry", 20.0, shape=(60, 200), expected_count=len(truth))
        predicted = tv.fit(observations, plan, seed=0).predict(where)
        assert np.corrcoef(predicted, truth)[0, 1] > 0.9


@pytest.mark.parametrize("unit, delta", [("value", 0.0), ("entry", 0.0), ("slice:0", 1e-5)])
@pytest.mark.parametrize("value", [-1.0, 0.3])
def test_declared_sizes_that_are_far_from_true_are_no_trouble(unit, delta, value):
    alone = tv.Observations([[0, 0]], [value], (6, 5))
    plan = tv.SumPerturbation().plan(tv.CP(2), BOUNDS, unit, 5.0, delta, shape=(6, 5), expected_count=100_000)
    release = tv.fit(alone, plan, seed=0)
    model = release.personalize(alone) if unit == "slice:0" else release
    assert np.isfinite(model.predict([[0, 0], [0, 4]])).all()


def test_public_features_help_where_noise_drowns_single_indices():
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 2, 400) * 2.0 - 1.0
    where = np.argwhere(rng.random((40, 400)) < 0.2)
    truth = 0.3 * kind[where[:, 1]]
    observations = tv.Observations(where, np.clip(truth + rng.normal(0, 0.3, len(truth)), -1, 1), (40, 400))

    def error(**options):
        plan = planned("entry", 1.0, shape=(40, 400), **options)
        return np.mean(
            [np.square(tv.fit(observations, plan, seed=seed).predict(where) - truth).mean() for seed in range(3)]
        )

    assert error(features={"mode_1": kind}) < 0.6 * error()


def test_under_slice_owners_learn_their_taste_by_public_features():
    rng = np.random.default_rng(3)
    kind, taste = rng.choice([-1.0, 1.0], 100), rng.choice([-0.5, 0.5], 60)
    where = np.argwhere(rng.random((60, 100)) < 0.5)
    truth = kind[where[:, 1]] * taste[where[:, 0]]
    observations = tv.Observations(where, truth, (60, 100))
    for model in (tv.CP(3), tv.Tucker(ranks=(3, 3))):
        plan = planned("slice:0", 5.0, 1e-5, (60, 100), model, features={"mode_1": kind})
        release = tv.fit(observations, plan, seed=0)
        own = where[:, 0] == 3
        predicted = release.personalize(observations.take(own)).predict(where[own])
        assert np.corrcoef(predicted, truth[own])[0, 1] > 0.9


def test_features_are_recorded_as_an_assumption_and_checked():
    plan = planned("value", 1.0, features={"mode_1": np.arange(80.0)})
    assert any("features of 'mode_1' (a matrix) are taken as public" in text for text in plan.assumptions_trusted)
    assert not any("features of" in text for text in planned("value", 1.0).assumptions_trusted)
    for features, rule in (
        ({"film": np.ones(80)}, "must be of modes"),
        ({"mode_1": np.ones(79)}, "80 rows"),
        ({"mode_1": np.full(80, np.nan)}, "finite"),
        ({"mode_1": ["a"] * 80}, "must be numbers"),
    ):
        with pytest.raises(tv.InputError, match=rule):
            planned("value", 1.0, features=features)
    assert checked_features({"mode_1": np.ones(80)}, plan.request) == {}  # a constant tells nothing


def test_features_may_move_shares_but_not_the_price():
    observations, _, _ = additive((60, 80))
    plan = planned("slice:0", 2.0, 1e-5, features={"mode_1": np.random.default_rng(0).normal(size=(80, 3))})
    assert plan.epsilon == pytest.approx(planned("slice:0", 2.0, 1e-5).epsilon, rel=1e-3)
    assert plan.epsilon <= 2.0
    for pair in neighbours(observations, "slice:0", BOUNDS, 4):
        assert replay(*pair, plan).largest > 0.5


@pytest.mark.parametrize("unit", ["value", "slice_values:0", "entry", "slice:0"])
def test_the_plan_and_the_certificate_say_that_the_epsilon_of_sums_is_divided(unit, tmp_path):
    """Every answer has more noise than the whole epsilon would buy, unless a single one takes it all."""
    observations, _, _ = additive((60, 80))
    plan = planned(unit, 5.0)
    told = plan.stages[-1].noise
    assert told.startswith("several answers that share this epsilon")
    whole = plan.stages[-1].sensitivity.bound / plan.events[-1].epsilon
    assert told.endswith(
        f"one alone would be {plan.stages[-1].what.split('be ')[1]} with {Law.LAPLACE} of scale {whole:.4g}"
    )
    release = tv.fit(observations, plan)
    release.save(tmp_path / "release")
    assert told in (tmp_path / "release" / "certificate.json").read_text()
    calls = [call for call in replay(observations, observations, plan).calls if call.kind == "laplace"][3:]
    scales = [call.parameters["sensitivity"] * call.parameters["grid"] / call.parameters["epsilon"] for call in calls]
    assert len(scales) > 1 or unit == "slice_values:0"  # where only a mean can be bought
    assert min(scales) > whole if len(scales) > 1 else scales == [whole]


def test_the_noise_that_is_smaller_is_taken_where_delta_allows_both():
    assert isinstance(planned("value", 1.0, 1e-5).events[0], PureEvent)
    few = planned("slice_values:0", 1.0, 1e-5)  # only a mean can be bought, and pure noise on it is smaller
    many = tv.SumPerturbation().plan(
        tv.CP(1), BOUNDS, "slice_values:0", 1.0, 1e-5, shape=(3000, 80), expected_count=60_000
    )
    assert isinstance(few.events[0], PureEvent)
    assert isinstance(many.events[0], GaussianEvent)
    assert isinstance(planned("slice_values:0", 1.0).events[0], PureEvent)
