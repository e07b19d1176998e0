"""Verify finds nothing to doubt in what `fit` made, and doubts whatever was changed, resealed or not."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from scipy.integrate import quad
from scipy.stats import norm

import tensorveil as tv
from saved_releases import copy_of, reseal, saved
from tensorveil.data.datasets.synthetic import cp_tensor, observe
from tensorveil.release.certificate.verification import gaussian_delta, verify

SLOW = pytest.param("sampled", marks=pytest.mark.slow)  # composing sampled steps takes seconds
FILES = ("model.safetensors", "labels.json", "report.html", "certificate.json")


def doubts(folder):
    return {check.name for check in verify(folder) if not check.passed}


@pytest.mark.parametrize("kind", ["pure", "gaussian", "joint", "mixed", "drawn", SLOW])
def test_there_is_no_doubt_about_a_release_as_it_was_made(kind):
    checks = verify(saved(kind)[1])
    assert [check for check in checks if not check.passed] == []
    assert len({check.name for check in checks}) == len(checks) >= 17
    found = {check.name: check.found for check in checks}
    closed = {"pure": "add up", "drawn": "add up", "gaussian": "Gaussian formula", "joint": "Gaussian formula"}
    assert closed.get(kind, "none for these") in found["closed form"]
    second = {"pure": "none", "drawn": "none", "gaussian": "exact", "joint": "exact", "mixed": "RDP", "sampled": "RDP"}
    assert second[kind] in found["second accountant"]


@pytest.mark.parametrize("kind", ["seeded", "claimed"])
def test_what_is_not_for_publication_is_in_doubt(kind):
    assert "status" in doubts(saved(kind)[1])


@pytest.mark.parametrize("name", FILES)
def test_any_changed_byte_is_found(tmp_path, name):
    folder = copy_of("pure", tmp_path)
    data = (folder / name).read_bytes()
    places = np.random.default_rng(2).integers(0, len(data), 40)
    for place, bit in zip(places, np.random.default_rng(3).integers(0, 8, 40), strict=True):
        changed = bytearray(data)
        changed[place] ^= 1 << int(bit)
        (folder / name).write_bytes(bytes(changed))
        assert doubts(folder), (place, bit)
    (folder / name).write_bytes(data + b"\n")
    assert doubts(folder)
    (folder / name).write_bytes(data[:-1])
    assert doubts(folder)
    (folder / name).write_bytes(data)
    assert not doubts(folder)


def test_any_changed_number_of_the_certificate_is_found(tmp_path):
    folder = copy_of("pure", tmp_path)
    text = (folder / "certificate.json").read_text()
    numbers = list(re.finditer(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])", text))
    assert len(numbers) > 60
    for match in numbers:
        number = match.group()
        last = max(place for place, sign in enumerate(number.split("e")[0]) if sign.isdigit())
        other = number[:last] + str((int(number[last]) + 1) % 10) + number[last + 1 :]
        (folder / "certificate.json").write_text(text[: match.start()] + other + text[match.end() :])
        assert doubts(folder), (number, other)


def edit(*path, value):
    """A change of one field of the certificate."""

    def change(plain):
        for step in path[:-1]:
            plain = plain[step]
        plain[path[-1]] = value(plain[path[-1]]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    "kind, change, found",
    [
        ("pure", edit("epsilon", value=lambda x: 0.99 * x), {"epsilon", "closed form"}),
        ("pure", edit("epsilon", value=lambda x: 1.01 * x), {"epsilon"}),
        ("pure", edit("delta", value=1e-9), {"delta"}),
        ("pure", edit("stages", 1, "event", "epsilon", value=lambda x: x / 2), {"epsilon", "curve"}),
        ("pure", edit("stages", 1, "event", "epsilon", value=lambda x: 2 * x), {"epsilon", "closed form"}),
        ("pure", edit("stages", 1, "event", "count", value=2), {"epsilon", "closed form"}),
        ("pure", edit("curve", 2, 0, value=lambda x: x / 2), {"curve"}),
        ("pure", edit("stages", 0, "theorem", value="made-up"), {"theorems"}),
        ("pure", edit("unit", value="entry"), {"unit", "theorems"}),
        ("pure", edit("neighbours", value="nobody"), {"unit"}),
        ("pure", edit("shape", 0, value=7), {"model", "labels"}),
        ("pure", edit("model", "ranks", value=[3, 3, 3]), {"model"}),
        ("pure", edit("mode_names", 0, value="person"), {"labels"}),
        ("pure", edit("randomness", "key_source", value="a guess"), {"randomness"}),
        ("pure", edit("randomness", "generator", value="dice"), {"randomness"}),
        ("pure", edit("randomness", "gaussian_delta_each", value=0.0), {"randomness"}),
        ("pure", edit("theorems", 0, "statement", value="All is well."), {"theorems"}),
        ("gaussian", edit("epsilon", value=lambda x: 0.999 * x), {"epsilon", "closed form", "second accountant"}),
        ("gaussian", edit("delta", value=lambda x: x / 2), {"delta"}),
        ("gaussian", edit("asked", "delta", value=lambda x: x / 2), {"delta", "epsilon", "curve"}),
        ("gaussian", edit("stages", 0, "event", "noise_multiplier", value=lambda x: 2 * x), {"epsilon", "curve"}),
        ("gaussian", edit("stages", 0, "event", "noise_multiplier", value=lambda x: x / 2), {"epsilon", "closed form"}),
        ("gaussian", edit("randomness", "gaussian_coordinates", value=0), {"randomness"}),
        ("gaussian", edit("curve", value=lambda curve: curve[1:]), {"curve"}),
        ("joint", edit("personalize", value=None), {"theorems"}),
        ("joint", edit("unit", value="slice:film"), {"unit", "theorems"}),
        ("joint", edit("personalize", "mode_name", value="film"), {"theorems"}),
        ("joint", edit("asked", "delta", value=0.5), {"unit", "epsilon", "delta"}),
        pytest.param(
            *("sampled", edit("stages", -1, "event", "sampling_probability", value=0.25), {"epsilon"}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("sampled", edit("stages", -1, "event", "replace", value=True), {"unit"}), marks=pytest.mark.slow
        ),
        ("seeded", lambda plain: plain.update(seeded=False, publishable=True), {"randomness"}),
        ("claimed", lambda plain: plain.update(unit="entry"), {"status", "epsilon"}),
    ],
)
def test_a_lie_is_found_though_digest_and_hashes_were_made_right_again(tmp_path, kind, change, found):
    folder = reseal(copy_of(kind, tmp_path), change)
    assert found <= doubts(folder)
    assert "digest" not in doubts(folder)


def test_rows_of_owners_are_found_in_a_joint_release(tmp_path):
    arrays = safetensors.numpy.load((saved("joint")[1] / "model.safetensors").read_bytes())
    arrays["factors.0"] = np.ones_like(arrays["factors.0"])
    forged = {"model.safetensors": safetensors.numpy.save(arrays)}
    assert doubts(reseal(copy_of("joint", tmp_path), files=forged)) == {"model"}


def test_a_key_that_comes_twice_and_a_number_written_otherwise_are_found(tmp_path):
    folder = copy_of("pure", tmp_path)
    text = (folder / "certificate.json").read_text()
    for changed in (
        text.replace('"status"', '"epsilon": 0.1,\n "status"', 1),
        text.replace('"high": 5.0', '"high": 5.00'),
        json.dumps(json.loads(text)),
    ):
        (folder / "certificate.json").write_text(changed)
        assert doubts(folder) == {"schema"}


def test_extra_missing_and_unreadable_folders_are_in_doubt(tmp_path):
    folder = copy_of("pure", tmp_path)
    (folder / "run.py").write_text("print(1)")
    assert doubts(folder) == {"folder"}
    (folder / "run.py").unlink()
    (folder / "report.html").unlink()
    assert doubts(folder) == {"folder"}
    assert doubts(tmp_path / "nowhere") == {"folder"}


@pytest.mark.parametrize("distance, epsilon", [(0.1, 0.05), (1.0, 0.5), (1.0, 3.0), (3.0, 1.0), (0.5, 0.0)])
def test_the_gaussian_formula_is_the_integral_that_it_stands_for(distance, epsilon):
    """Delta is the mass by which N(d, 1) exceeds e^epsilon N(0, 1), integrated over the half-line where it does."""
    start = epsilon / distance + distance / 2
    exact, _ = quad(lambda x: norm.pdf(x, distance) - math.exp(epsilon) * norm.pdf(x), start, start + 40, epsabs=1e-14)
    assert gaussian_delta(distance, epsilon) == pytest.approx(exact, rel=1e-7, abs=1e-13)


def test_the_ledger_is_asked_whether_it_was_charged(tmp_path):
    data = observe(cp_tensor((6, 5, 4), seed=1), seed=2).train
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "clinic", "value", epsilon=3.0)
    plan = tv.StatisticPerturbation().plan(tv.CP(2), tv.Bounds(-1, 2), "value", 1.0, shape=data.shape)
    tv.fit(data, plan, ledger=ledger, dataset="clinic").save(tmp_path / "paid")
    assert {check.name: check.passed for check in verify(tmp_path / "paid", ledger.path)}["ledger"]
    assert not [check for check in verify(tmp_path / "paid", ledger.path) if not check.passed]

    other = tv.Ledger.create(tmp_path / "other.sqlite", "clinic", "value", epsilon=3.0)
    other.reserve("clinic", plan)
    assert [check.name for check in verify(tmp_path / "paid", other.path) if not check.passed] == ["ledger"]
    assert [check.name for check in verify(tmp_path / "paid", tmp_path / "none") if not check.passed] == ["ledger"]
    tv.fit(data, plan).save(tmp_path / "unpaid")
    found = [check for check in verify(tmp_path / "unpaid", ledger.path) if not check.passed]
    assert [check.name for check in found] == ["ledger"]
    assert "names no ledger" in found[0].found


def test_a_release_that_names_a_reservation_of_another_price_is_in_doubt(tmp_path):
    data = observe(cp_tensor((6, 5, 4), seed=1), seed=2).train
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "clinic", "value", epsilon=3.0)
    plans = [
        tv.StatisticPerturbation().plan(tv.CP(2), tv.Bounds(-1, 2), "value", epsilon, shape=data.shape)
        for epsilon in (0.5, 1.0)
    ]
    cheap, dear = (tv.fit(data, plan, ledger=ledger, dataset="clinic") for plan in plans)
    replace(dear, ledger=cheap.ledger).save(tmp_path / "dear")
    found = [check for check in verify(tmp_path / "dear", ledger.path) if not check.passed]
    assert [check.name for check in found] == ["ledger"]
    assert "another price" in found[0].found
