"""The guarantee: a sentence for people, JSON for programs, and a word that is never too strong."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.guarantee import STATUSES
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.vault import Vault

SHAPE = (5, 4, 3)
OBSERVATIONS = tv.Observations(
    np.argwhere(np.ones(SHAPE)), np.linspace(1, 5, 60), SHAPE, mode_names=("user", "film", "day")
)


def released(unit="value", delta=1e-6, seed=None):
    plan = tv.StatisticPerturbation().plan(
        tv.CP(rank=2), tv.Bounds(1, 5), unit, 1.0, delta, shape=SHAPE, mode_names=("user", "film", "day")
    )
    return tv.fit(OBSERVATIONS, plan, seed=seed).guarantee


@pytest.mark.parametrize("unit", ["value", "slice_values:user", "entry", "slice:user"])
@pytest.mark.parametrize("seed", [None, 3])
def test_json_brings_back_the_same_guarantee(unit, seed):
    guarantee = released(unit, seed=seed)
    text = guarantee.to_json()
    assert tv.Guarantee.from_json(text) == guarantee
    plain = json.loads(text)
    assert plain["publishable"] is (seed is None)
    assert {one.name for one in fields(guarantee)} < set(plain)
    assert len(plain["stages"]) == len(guarantee.stages)


def test_a_forged_publishable_is_ignored():
    plain = json.loads(released(seed=3).to_json())
    plain["publishable"] = True
    assert not tv.Guarantee.from_json(json.dumps(plain)).publishable


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema_version": 99}'])
def test_another_schema_is_refused(text):
    with pytest.raises(tv.InputError, match="schema_version"):
        tv.Guarantee.from_json(text)


@pytest.mark.parametrize("unit, words", [("value", "one observed value is replaced"), ("slice:user", "one user")])
def test_the_sentence_names_budget_unit_and_what_is_released(unit, words):
    text = str(released(unit))
    for part in ("Proven", "epsilon = 0.9", "delta = 1e-06", words, "unit"):
        assert part in text
    assert "not for release" not in text
    assert "\n" not in text
    assert len(text) < 500


def test_a_pure_guarantee_does_not_mention_delta():
    assert "delta" not in str(released(delta=0.0))


def test_a_seeded_guarantee_says_so_everywhere():
    guarantee = released(seed=1)
    assert guarantee.status == "proven"
    assert not guarantee.publishable
    assert "not for release" in str(guarantee)
    assert not any("cryptographic" in text for text in guarantee.assumptions_checked)
    assert any("cryptographic" in text for text in released().assumptions_checked)


def test_joint_privacy_says_what_stays_with_the_owner():
    assert "user's own row" in released("slice:user").released
    assert "whole model" in released("entry").released


@pytest.mark.parametrize("unit, public", [("value", True), ("entry", False)])
def test_what_is_public_is_said(unit, public):
    assert ("all coordinates" in released(unit).not_protected) is public


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("seeded", [True, False])
def test_only_what_is_proven_and_not_seeded_may_be_published(status, seeded):
    guarantee = replace(released(), status=status, seeded=seeded)
    assert guarantee.publishable is (status == "proven" and not seeded)
    if not guarantee.publishable:
        assert "Not for publication" in str(guarantee) or "not for release" in str(guarantee)


def test_an_unknown_status_is_an_error():
    with pytest.raises(tv.InputError, match="status"):
        tv.Guarantee(1.0, 0.0, "value", "certain", "me")


@pytest.mark.parametrize("seed", [None, 1])
def test_a_published_algorithm_is_claimed_and_never_publishable(seed):
    mechanism = tv.published.PublishedInput()
    claimed = mechanism.run(OBSERVATIONS, tv.CP(rank=2), 1.0, tv.SGD(iterations=2), seed=seed).guarantee
    assert claimed.status == "claimed"
    assert not claimed.publishable
    assert "not proven" in str(claimed)
    assert tv.Guarantee.from_json(claimed.to_json()) == claimed


def test_noise_scales_are_not_said_to_be_fixed_where_they_follow_from_answers():
    """Pure sums under entry are paid in parts: one plan, and other parts where more was observed."""
    mechanism, shape = tv.SumPerturbation(), (50, 40)
    plan = mechanism.plan(tv.CP(2), (1, 5), "entry", 20.0, shape=shape, expected_count=1000)
    paid = []
    for count in (20, 2000):
        where = np.argwhere(np.ones(shape))[:: 2000 // count]
        data = tv.Observations(where, np.linspace(1, 5, count), shape)
        vault = Vault([clip(data, plan.request.bounds, plan.request.unit, bytes(32))], plan.stages, 0, NoiseSource(0))
        mechanism.run(vault, plan)
        paid.append([receipt.paid for receipt in vault.receipts])
    assert paid[0] != paid[1]
    [told] = [text for text in plan.assumptions_checked if "noise scales" in text]
    assert told.endswith("noise scales follow from the plan and from earlier answers")
    [told] = [text for text in released().assumptions_checked if "noise scales" in text]
    assert told.endswith("noise scales follow from the plan, from public coordinates and from earlier answers")
