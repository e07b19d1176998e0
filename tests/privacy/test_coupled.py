"""Two tables, one budget: the exact loss of all answers, replays, and what must be refused."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.replays import ReplayError, _Recorder, replay
from tensorveil.errors import UnprovenError, VaultError
from tensorveil.mechanisms import input as input_perturbation
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.coupled import coupled_vaults
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.values.histogram import Histogram
from tensorveil.privacy.units import Unit

EPSILON = 3.0
BOUNDS, SHARES = tv.Bounds(1, 5), tv.Bounds(0, 1)
QUICK = tv.InputPerturbation(solver=tv.Posterior(sweeps=8))
FIVE = (1, 2, 3, 4, 5)


def tables(levels=None):
    """Ratings of 9 users, and three private facts about each of 7 of them and of two others."""
    rng = np.random.default_rng(4)
    users, others = [f"u{n}" for n in range(9)], [f"u{n}" for n in (8, 7, 6, 5, 4, 3, 2, 10, 11)]
    where = np.argwhere(rng.random((9, 8)) < 0.6)
    stars, names = rng.integers(1, 6, len(where)), ["user", "film"]
    ratings = tv.Observations(where, stars, (9, 8), mode_names=names, labels=[users, None])
    where, shares, names = np.argwhere(np.ones((9, 3))), rng.random(27).round(1), ["user", "about"]
    facts = tv.Observations(where, shares, (9, 3), mode_names=names, labels=[others, None])
    return ratings, tv.Coupled(facts, SHARES, levels=levels)


RATINGS, FACTS = tables()


def changed(observations, row, value):
    values = np.array(observations.values)
    values[row] = value
    return tv.Observations(
        observations.coordinates,
        values,
        observations.shape,
        mode_names=observations.mode_names,
        labels=observations.labels,
    )


def changed_facts(coupled, row, value):
    return tv.Coupled(changed(coupled.observations, row, value), coupled.bounds, levels=coupled.levels)


def planned(ratings=RATINGS, coupled=FACTS, mechanism=QUICK, **options):
    return tv.plan(ratings, tv.CP(2), BOUNDS, "value", EPSILON, mechanism=mechanism, coupled=coupled, **options)


def loss(one, other):
    """The largest log ratio of the probabilities of any answer to this call, on the two data sets."""
    if one.kind == "laplace":  # exp(-|k| epsilon / sensitivity): the loss is the L1 change over the scale
        moved = int(np.abs(one.statistic - other.statistic).sum())
        return moved / one.parameters["sensitivity"] * one.parameters["epsilon"]
    if one.kind == "channel":
        counts = one.parameters["channel"].counts.astype(float)
        chances = counts / counts.sum(axis=1, keepdims=True)
        ratios = np.log(chances[one.statistic]) - np.log(chances[other.statistic])
        return float(np.abs(ratios).max(axis=1).sum())
    assert one.kind == "key"
    return 0.0


LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
NEIGHBOURS = [("first", 0, 5.0), ("first", 7, 1.0), ("second", 3, 1.0), ("second", 20, 0.0)]


@pytest.mark.parametrize("table, row, value", NEIGHBOURS)
@pytest.mark.parametrize("levels", [None, LEVELS], ids=["marginal", "levels"])
def test_the_exact_loss_of_both_tables_is_at_most_epsilon(table, row, value, levels):
    """All histograms and symbols of both tables, given the same earlier answers: the worst outcome of each."""
    ratings, facts = tables(levels)
    plan = planned(ratings, facts)
    first = _Recorder(1)
    release = tv.fit(ratings, plan, noise=first, coupled=facts)
    other = (changed(ratings, row, value), facts) if table == "first" else (ratings, changed_facts(facts, row, value))
    second = _Recorder(1, first.calls)
    again = tv.fit(other[0], plan, noise=second, coupled=other[1])
    losses = [loss(*pair) for pair in zip(first.calls, second.calls, strict=True)]
    assert 0 < math.fsum(losses) <= EPSILON * (1 + 1e-12)
    assert np.array_equal(release.model.draws.parameters, again.model.draws.parameters)
    noisy = [call.kind for call in first.calls if call.kind != "key"]
    assert noisy == ["laplace"] * 3 + ["channel"] + (["laplace"] * 3 + ["channel"] if levels is None else ["channel"])


@pytest.mark.parametrize("table, row, value", NEIGHBOURS)
def test_a_replay_finds_one_changed_table_and_no_more(table, row, value):
    other = (changed(RATINGS, row, value), FACTS) if table == "first" else (RATINGS, changed_facts(FACTS, row, value))
    found = replay(RATINGS, other[0], planned(), coupled=(FACTS, other[1]))
    assert found.largest == 1.0
    both = changed(RATINGS, 0, 5.0), changed_facts(FACTS, 3, 1.0)
    with pytest.raises(ReplayError, match="differ for both"):
        replay(RATINGS, both[0], planned(), coupled=(FACTS, both[1]))


def test_a_replay_finds_a_second_table_that_costs_more_than_planned(monkeypatch):
    """A bug: symbols of the second table by a channel of twice the epsilon, which its vault must refuse."""
    sound = input_perturbation.design_channel
    monkeypatch.setattr(
        input_perturbation, "design_channel", lambda scale, budget, rows: sound(scale, 2 * budget, rows)
    )
    with pytest.raises(VaultError, match="symbols at"):
        tv.fit(RATINGS, planned(), seed=1, coupled=FACTS)


def vaults(unit="value"):
    protected = Unit.of(unit).resolved(["user", "film"])
    pairs = ((RATINGS, BOUNDS), (FACTS.joined(RATINGS), SHARES))
    shards = [[clip(table, bounds, protected, bytes(32))] for table, bounds in pairs]
    return coupled_vaults(*shards, planned().stages, 0, NoiseSource(3))


def test_a_stage_answers_once_about_each_table_and_not_twice():
    query = Histogram(np.array([-(2**20)]), np.array([2**20 + 1]), True)
    for vault in vaults():
        vault.answer("marginal, 16 cells", query)
        with pytest.raises(VaultError, match="used up"):
            vault.answer("marginal, 16 cells", query)
        assert [receipt.stage.name for receipt in vault.receipts] == ["marginal, 16 cells"]


def test_a_unit_that_may_be_in_both_tables_has_no_vaults():
    with pytest.raises(UnprovenError, match="under the unit value"):
        vaults("slice_values:user")
    for unit, delta in (("entry", 0.0), ("slice:user", 1e-6), ("slice_values:user", 0.0)):
        at_most = 3 if ":" in unit else None
        with pytest.raises(UnprovenError, match="under the unit value"):
            tv.plan(RATINGS, tv.CP(2), BOUNDS, unit, 1.0, delta, at_most=at_most, coupled=FACTS)


def test_tables_share_no_noise():
    """The same table twice, as the first and as the second one: histograms and symbols must not agree."""
    where = np.argwhere(np.ones((12, 9)))
    values = np.random.default_rng(0).integers(1, 6, len(where))
    first = tv.Observations(where, values, (12, 9), mode_names=["user", "film"])
    second = tv.Observations(where, values, (12, 9), mode_names=["user", "book"])
    twin = tv.Coupled(second, BOUNDS, levels=FIVE)
    mechanism = replace(QUICK, levels=FIVE, noise="channel")
    recorder = _Recorder(2)
    tv.fit(first, planned(first, twin, mechanism), noise=recorder, coupled=twin)
    one, two = (call for call in recorder.calls if call.kind == "channel")
    assert np.array_equal(one.statistic, two.statistic)
    chances = one.parameters["channel"].chances
    same = float((chances[one.statistic] ** 2).sum(axis=1).mean())  # of independent symbols
    assert abs((one.output == two.output).mean() - same) < 4 * math.sqrt(same * (1 - same) / len(where))


@pytest.mark.parametrize(
    "mechanism, rule",
    [
        (tv.StatisticPerturbation(), "can use a second table"),
        (tv.SumPerturbation(), "can use a second table"),
        (tv.InputPerturbation(noise="laplace"), "noise='channel'"),
        (tv.InputPerturbation(solver="als"), "solver='posterior'"),
    ],
)
def test_other_mechanisms_refuse_a_second_table(mechanism, rule):
    with pytest.raises(tv.InputError, match=rule):
        planned(mechanism=mechanism)


def test_the_second_table_is_given_to_plan_and_to_fit():
    alone = tv.plan(RATINGS, tv.CP(2), BOUNDS, "value", EPSILON, mechanism=QUICK)
    run = partial(tv.fit, RATINGS)
    for plan, given in ((alone, FACTS), (planned(), None)):
        with pytest.raises(tv.InputError, match="to plan and to fit"):
            run(plan, coupled=given)
    names, labels = ["user", "about"], [["u1", "u2"], None]
    fewer = tv.Observations([[0, 0], [1, 1]], [0.1, 0.2], (2, 3), mode_names=names, labels=labels)
    with pytest.raises(tv.InputError, match="other facts"):
        run(planned(), coupled=tv.Coupled(fewer, SHARES))
    with pytest.raises(tv.InputError, match="must be Coupled"):
        planned(coupled=FACTS.observations)
