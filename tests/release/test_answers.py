"""Completion of answers that clients drew: against the central release, and under changes of what it must not read."""

import json
from dataclasses import fields, replace

import jsonschema
import numpy as np
import pytest

import tensorveil as tv
from tensorveil.errors import InputError
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms.local.protocols import design_protocol, expected_of, scale_of_protocol
from tensorveil.privacy.guarantee import Guarantee, LocalFacts
from tensorveil.privacy.local.client import LocalProtocol
from tensorveil.release.certificate.certificate import Certificate

BOUNDS = tv.Bounds(1, 5)
NAMES = ("user", "film")
SHORT = Posterior(sweeps=60, chains=2, threads=1)


def ratings(users=60, films=40, share=0.4, seed=0):
    generator = np.random.default_rng(seed)
    latent = generator.standard_normal((users, 1)) * 0.8 + generator.standard_normal((1, films)) * 0.8
    where = np.argwhere(generator.random((users, films)) < share)
    noisy = 3.2 + latent[tuple(where.T)] + 0.5 * generator.standard_normal(len(where))
    return where, np.clip(np.rint(noisy), 1, 5), np.clip(3.2 + latent, 1, 5)


def answers_of(where, symbols, shape=(60, 40)):
    return tv.Observations(where, symbols.astype(float), shape, mode_names=NAMES)


def completed(answers, protocol, **options):
    mechanism = tv.LocalAnswers(protocol, solver=SHORT, **options)
    return tv.complete(answers, tv.CP(2), BOUNDS, "value", protocol.epsilon, mechanism=mechanism)


def test_the_server_learns_as_much_as_a_central_release_on_the_same_levels():
    where, values, truth = ratings()
    protocol = design_protocol(BOUNDS, 4.0, levels=[1, 2, 3, 4, 5])
    everywhere = np.argwhere(np.ones(truth.shape))
    local, central = [], []
    for seed in range(3):
        symbols = tv.randomize(values, protocol)
        found = completed(answers_of(where, symbols), protocol)
        local.append(np.sqrt(np.mean((found.predict(everywhere) - truth.ravel()) ** 2)))
        mechanism = tv.InputPerturbation(levels=[1, 2, 3, 4, 5], solver=SHORT)
        other = tv.complete(answers_of(where, values), tv.CP(2), BOUNDS, "value", 4.0, mechanism=mechanism, seed=seed)
        central.append(np.sqrt(np.mean((other.predict(everywhere) - truth.ravel()) ** 2)))
    assert np.mean(local) < 1.1 * np.mean(central)
    assert np.mean(local) < 0.6 * truth.std()


class BoldProtocol(LocalProtocol):
    """Somebody else's protocol, which may say anything about its table."""


def test_a_protocol_of_somebody_elses_is_claimed_and_not_publishable():
    where, values, _ = ratings()
    ours = design_protocol(BOUNDS, 3.0)
    theirs = BoldProtocol(**{field.name: getattr(ours, field.name) for field in fields(ours) if field.init})
    told = completed(answers_of(where, tv.randomize(values, ours)), theirs).guarantee
    assert (told.status, told.publishable) == ("claimed", False)
    assert "BoldProtocol is not part of this library" in told.reasons[0]


def test_the_guarantee_says_local_per_value_and_per_person(tmp_path):
    where, values, _ = ratings()
    protocol = design_protocol(BOUNDS, 3.0)
    release = completed(answers_of(where, tv.randomize(values, protocol)), protocol, person="user")
    most = max(np.unique(where[:, 0], return_counts=True)[1])
    told = release.guarantee
    assert (told.status, told.epsilon, told.delta, told.unit, told.seeded) == ("proven", 3.0, 0.0, "value", False)
    assert told.local == LocalFacts(protocol.sha256, "user", most)
    assert told.publishable
    assert "Local:" in str(told)
    assert f"epsilon = {3 * most}" in str(told)
    assert Guarantee.from_json(told.to_json()) == told
    folder = release.save(tmp_path / "release")
    assert [check for check in tv.verify(folder) if check.state == "doubt"] == []
    loaded = tv.Release.load(folder)
    assert loaded.guarantee.local == told.local
    record = Certificate.of(loaded).to_deployment_record()
    assert record["deployment"]["deployment_model"]["model_name"] == "Local"
    schema = Certificate.json_schema()
    jsonschema.validate(json.loads((folder / "certificate.json").read_text()), schema)
    forged = json.loads((folder / "certificate.json").read_text())
    forged["local"] = None
    (folder / "certificate.json").write_text(json.dumps(forged))
    assert any(check.state == "doubt" and check.name == "theorems" for check in tv.verify(folder))


def test_the_server_reads_nothing_but_cells_and_symbols():
    """Replay: other values behind the same answers, and another order of the rows, give the same bits."""
    where, values, _ = ratings()
    protocol = design_protocol(BOUNDS, 2.0)
    symbols = tv.randomize(values, protocol)
    order = np.random.default_rng(1).permutation(len(where))
    first = completed(answers_of(where, symbols), protocol)
    again = completed(answers_of(where[order], symbols[order]), protocol)
    assert first.model == again.model


def test_what_does_not_fit_the_protocol_is_refused():
    where, values, _ = ratings()
    protocol = design_protocol(BOUNDS, 2.0)
    symbols = tv.randomize(values, protocol)
    answers = answers_of(where, symbols)
    for wrong in (symbols + 1000, symbols + 0.5, symbols - 1000):
        with pytest.raises(InputError, match="whole numbers"):
            completed(answers_of(where, wrong), protocol)
    mechanism = tv.LocalAnswers(protocol)
    for bounds, epsilon in ((tv.Bounds(1, 6), 2.0), (BOUNDS, 1.0)):
        with pytest.raises(InputError, match="those of the protocol"):
            tv.complete(answers, tv.CP(2), bounds, "value", epsilon, mechanism=mechanism)
    with pytest.raises(InputError, match="person"):
        completed(answers, protocol, person="people")
    with pytest.raises(InputError, match="unit"):
        tv.complete(answers, tv.CP(2), BOUNDS, "entry", 2.0, mechanism=mechanism)
    with pytest.raises(InputError, match="left out"):
        tv.complete(answers, tv.CP(2), BOUNDS, "value", 2.0, mechanism=mechanism, seed=1)
    with pytest.raises(InputError, match="vault"):
        mechanism.run(None, None)


def test_levels_follow_from_bounds_where_none_are_given():
    assert design_protocol(tv.Bounds(1, 5), 1.0).levels == (1, 2, 3, 4, 5)
    assert design_protocol(tv.Bounds(0.5, 5), 1.0).levels == tuple(np.arange(0.5, 5.1, 0.5))
    assert design_protocol(tv.Bounds(0, 1), 1.0).levels is None
    cells = design_protocol(tv.Bounds(0, 1000), 1.0)
    assert cells.levels is None
    assert len(cells.counts) == 32
    for wrong in ([1, 2, 7], [3, 2], [1], list(np.linspace(1, 5, 33))):
        with pytest.raises(InputError, match="levels must"):
            design_protocol(BOUNDS, 1.0, levels=wrong)


def test_the_expected_error_is_that_of_many_answers():
    """The noise of an answer, against the error of an unbiased estimate of a mean by simulation."""
    protocol = design_protocol(BOUNDS, 1.0)
    expected = expected_of(protocol)
    chances = np.array(protocol.counts) / 2**62
    levels, shares = np.array(protocol.levels), np.full(5, 0.2)
    joint = shares[:, None] * chances
    stands = (levels - 3) @ joint / joint.sum(axis=0)
    slope = (shares * (levels - 3)) @ (chances @ stands) / (shares @ (levels - 3) ** 2)
    generator = np.random.default_rng(0)
    values = generator.choice(levels, 100_000)
    symbols = tv.randomize(values, protocol)
    noise = stands[symbols] / slope - (values - 3)
    assert expected.noise_std == pytest.approx(noise.std(), rel=0.02)
    assert "nobody can add" in str(replace(expected, kept=0.1))
    assert "nobody can add" not in str(replace(expected, kept=0.9))
    assert len(scale_of_protocol(protocol).low) == 5


def test_merged_answers_are_refused_as_they_would_hide_what_a_person_spent():
    protocol = tv.design_protocol(tv.Bounds(1, 5), 2.0, levels=[1, 2, 3, 4, 5])
    where = np.array([[0, 0], [0, 0], [1, 1]])
    merged = tv.Observations(where, [1.0, 1.0, 0.0], (2, 2), mode_names=("user", "film"), duplicates="mean")
    with pytest.raises(tv.InputError, match="must not be merged"):
        completed(merged, protocol)
