"""A certificate keeps to its schema, tells public facts only, and states what the accountants give."""

import functools
import hashlib
import json
import math
import re
from pathlib import Path

import jsonschema
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

import tensorveil as tv
from saved_releases import NAMES, SHAPE, made, observations, saved
from tensorveil.release.certificate.certificate import Certificate

SLOW = pytest.param("sampled", marks=pytest.mark.slow)  # composing sampled steps takes seconds
KINDS = ("pure", "gaussian", "joint", "mixed", "drawn", "seeded", "claimed", SLOW)
SCHEMA = Path(__file__).parents[2] / "docs" / "certificate.schema.json"


@functools.cache
def certificate_of(kind):
    return Certificate.of(made(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_certificates_keep_to_the_published_schema_and_come_back_the_same(kind):
    certificate = certificate_of(kind)
    plain = json.loads(certificate.to_json())
    jsonschema.validate(plain, json.loads(SCHEMA.read_text()))
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert Certificate.from_json(certificate.to_json()).to_json() == certificate.to_json()
    assert {"epsilon", "delta", "unit", "status"} <= set(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_is_that_of_the_canonical_json_of_everything_else(kind):
    plain = json.loads(certificate_of(kind).to_json())
    stated = plain.pop("digest")
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == stated


@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_tells_what_the_release_is(kind):
    release, certificate = made(kind), certificate_of(kind)
    told = release.guarantee
    assert (certificate.epsilon, certificate.delta, certificate.unit) == (told.epsilon, told.delta, told.unit)
    assert (certificate.status, certificate.seeded) == (told.status, told.seeded)
    assert certificate.publishable == told.publishable == (kind not in ("seeded", "claimed"))
    assert (certificate.shape, certificate.mode_names, certificate.value_name) == (SHAPE, NAMES, "rating")
    assert len(certificate.stages) == len(told.stages)
    assert str(certificate.guarantee) == str(told)
    assert (certificate.personalize is not None) == (kind == "joint")
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", certificate.created)
    if not certificate.publishable:
        assert certificate.may_be_released == "nothing"
        assert "the model itself" in certificate.must_not_be_released[0]


def test_neither_seed_nor_data_nor_their_number_are_told():
    """Under `entry` nothing is public: other data, and another number of them, give the same certificate.

    Only what follows from the released model differs: how far its predictions vary.
    """
    plan = tv.WithOffsets(tv.GradientPerturbation(steps=3)).plan(
        tv.CP(2), tv.Bounds(1, 5), "entry", 4.0, 1e-6, shape=SHAPE, mode_names=NAMES
    )
    made = [Certificate.of(tv.fit(data, plan)) for data in (observations(0), observations(1, rows=range(50)))]
    first, second = (one.model_dump(exclude={"created", "time", "variation", "digest"}) for one in made)
    assert first == second
    assert first["contributions"] is None
    seeded = tv.fit(observations(), plan, seed=987654321)
    assert "987654321" not in Certificate.of(seeded).to_json()


def test_the_curve_of_gaussian_stages_is_at_least_the_exact_one_and_close_to_it():
    certificate = certificate_of("gaussian")
    distance = math.sqrt(sum(stage.event.count / stage.event.noise_multiplier**2 for stage in certificate.stages))
    assert (certificate.delta, pytest.approx(certificate.epsilon, rel=1e-5)) in certificate.curve
    deltas = [delta for delta, _ in certificate.curve]
    assert deltas == sorted(deltas)
    assert len(deltas) >= 5
    for delta, epsilon in certificate.curve:
        exact = get_epsilon_gaussian(1 / distance, delta)
        assert exact <= epsilon <= exact * 1.01


def test_the_curve_of_pure_stages_is_that_of_randomized_response():
    """Two answers, told truly with chance e^p / (1 + e^p): the worst case of pure privacy p, by brute force."""
    certificate = certificate_of("pure")
    lie = 1 / (1 + math.exp(certificate.epsilon))
    assert certificate.curve[0] == (0.0, pytest.approx(certificate.epsilon))
    for delta, epsilon in certificate.curve:
        true = max(0.0, (1 - lie) - math.exp(epsilon) * lie)
        assert true <= delta + 1e-15
        assert delta == pytest.approx(true, rel=1e-4, abs=1e-4)


def test_a_curve_never_states_less_than_the_accountant_when_its_noise_is_finite():
    """At a delta that barely pays for the precision of the noise, the point is dearer or left out."""
    plan = tv.GradientPerturbation(steps=40).plan(tv.CP(2), tv.Bounds(1, 5), "entry", 8.0, 1e-9, shape=SHAPE)
    certificate = Certificate.of(tv.fit(observations(), plan))
    from tensorveil.privacy.accounting.composition import epsilon_of

    for delta, epsilon in certificate.curve:
        assert epsilon >= epsilon_of(certificate.events, delta)


def broken(**changes):
    return json.loads(certificate_of("gaussian").to_json()) | changes


@pytest.mark.parametrize(
    "plain",
    [
        broken(extra=1),
        broken(schema_version=2),
        broken(epsilon="4"),
        broken(epsilon=-4.0),
        broken(delta=1.0),
        broken(seeded=0),
        broken(shape=[6, 5]),
        broken(shape=[6, 5, 0]),
        broken(mode_names=["user", "user", "day"]),
        broken(publishable=False),
        broken(status="certain"),
        broken(created="yesterday"),
        broken(created="2026-13-01"),
        broken(digest="abc"),
        broken(bounds={"low": 5.0, "high": 1.0}),
        broken(files={"model.safetensors": "no hash"}),
        broken(stages=[{"name": "x"}]),
        broken(ledger={"dataset": "x"}),
        {key: part for key, part in broken().items() if key != "unit"},
        [],
        "text",
        None,
    ],
)
def test_what_breaks_the_schema_is_one_clear_error(plain):
    with pytest.raises(tv.InputError, match="a certificate must"):
        Certificate.from_json(json.dumps(plain))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_must_be_finite(number):
    text = re.sub(r'"epsilon": [^,]+,', f'"epsilon": {number},', certificate_of("pure").to_json(), count=1)
    with pytest.raises(tv.InputError, match="a certificate must"):
        Certificate.from_json(text)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe", "[" * 100_000, '{"epsilon": 1, "epsilon": 2}'])
def test_what_is_no_json_is_one_clear_error(text):
    with pytest.raises(tv.InputError, match="a certificate must"):
        Certificate.from_json(text)


def test_a_key_that_comes_twice_is_an_error_though_json_takes_the_last():
    text = certificate_of("pure").to_json().replace('"status"', '"epsilon": 0.1,\n "status"', 1)
    with pytest.raises(tv.InputError, match="a key twice"):
        Certificate.from_json(text)


def test_the_ledger_entry_is_told():
    record = {"dataset": "clinic", "reservation": "7", "entry_hash": "a" * 64}
    release = made("pure")
    release = tv.Release(
        release.model, release.guarantee, release.plan, mode_names=NAMES, value_name="rating", ledger=record
    )
    assert json.loads(Certificate.of(release).to_json())["ledger"] == record


@pytest.mark.parametrize("kind", ["pure", "gaussian", "joint"])
def test_a_registry_record_has_the_registrys_words_and_leaves_out_what_nobody_knows(kind):
    certificate = certificate_of(kind)
    record = certificate.to_deployment_record()
    deployment = record["deployment"]
    assert list(record) == ["url_slug", "deployment"]
    assert deployment["dp_variant"]["variant_name"] == ("Pure DP" if kind == "pure" else "Approximate DP")
    told = deployment["privacy_loss"]["privacy_parameters"]
    assert told["epsilon"] == certificate.epsilon
    assert told.get("delta", 0.0) == certificate.delta
    assert deployment["basic"]["data_product_type"] == "Machine learning model"
    assert (deployment["basic"]["name"], deployment["basic"]["data_curators"]) == ("", [])
    assert ("one user" in deployment["privacy_loss"]["privacy_unit"]) == (kind == "joint")
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("kind", ["seeded", "claimed"])
def test_what_is_not_to_be_published_has_no_registry_record(kind):
    with pytest.raises(tv.InputError, match="publishable"):
        certificate_of(kind).to_deployment_record()


def test_a_loaded_release_keeps_its_certificate():
    release, folder = saved("gaussian")
    loaded = tv.Release.load(folder)
    assert Certificate.of(loaded).to_json() == (folder / "certificate.json").read_text()
    assert Certificate.of(loaded).epsilon == release.guarantee.epsilon


@pytest.mark.parametrize(
    "mechanism, told",
    [
        (tv.InputPerturbation(levels=(1, 3, 5), solver="als"), True),
        (tv.WithOffsets(tv.InputPerturbation(levels=(1, 3, 5), solver="als")), True),
        (tv.InputPerturbation(solver="als"), False),  # they are bought
        (tv.InputPerturbation(levels=(1, 3, 5), noise="laplace", solver="als"), False),  # unused
    ],
    ids=str,
)
def test_levels_that_the_caller_chose_are_an_assumption_that_the_caller_is_trusted_with(mechanism, told):
    plan = mechanism.plan(tv.CP(1), tv.Bounds(1, 5), "value", 2.0, shape=SHAPE, mode_names=NAMES)
    trusted = Certificate.of(tv.fit(observations(), plan)).assumptions_trusted
    assert ("the levels of the channel were chosen without looking at the values" in trusted) == told
