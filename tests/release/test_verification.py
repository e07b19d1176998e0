"""Verify finds nothing to doubt in what `fit` made, and doubts whatever was changed, resealed or not."""

import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from scipy.integrate import quad
from scipy.stats import norm

import tensorveil as tv
from saved_releases import NAMES, SHAPE, copy_of, observations, reseal, saved
from tensorveil.data.datasets.synthetic import cp_tensor, observe
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.composition import epsilon_of
from tensorveil.privacy.accounting.events import PureEvent, shares
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.plan import Request
from tensorveil.privacy.stages import Stage
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.release.certificate import statements, verification
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.certificate.curve import curve_of
from tensorveil.release.certificate.prices import gaussian_delta
from tensorveil.release.certificate.verification import verify
from tensorveil.release.report import report

SLOW = pytest.param("sampled", marks=pytest.mark.slow)  # composing sampled steps takes seconds
COUNTS = [{"mode": name, "largest": 2, "median": 1.0} for name in NAMES]
FILES = ("model.safetensors", "labels.json", "report.html", "certificate.json")


def doubts(folder):
    return {check.name for check in verify(folder) if check.state == "doubt"}


def the_same_page(monkeypatch, folder):
    """Take the page as it is for the one made anew, where many folders differ in other things: drawing takes long."""
    page = (folder / "report.html").read_text()
    monkeypatch.setattr(report, "report_html", lambda release, certificate: page)


@pytest.mark.parametrize("kind", ["pure", "gaussian", "joint", "mixed", "drawn", SLOW])
def test_there_is_no_doubt_about_a_release_as_it_was_made(kind):
    checks = verify(saved(kind)[1])
    assert [check for check in checks if check.state == "doubt"] == []
    assert len({check.name for check in checks}) == len(checks) >= 20
    found = {check.name: f"{check.state}: {check.found}" for check in checks}
    closed = {"pure": "ok: .* add up", "drawn": "ok: .* add up"} | dict.fromkeys(("gaussian", "joint"), "ok: Gaussian")
    assert re.match(closed.get(kind, "not run: there is no"), found["closed form"])
    second = {"pure": "not run: pure", "drawn": "not run: pure", "gaussian": "ok: exact", "joint": "ok: exact"}
    assert found["second accountant"].startswith(second.get(kind, "ok: RDP"))
    assert {check.name for check in checks if check.state == "not run"} <= {"closed form", "second accountant"}


@pytest.mark.parametrize("kind", ["seeded", "claimed"])
def test_what_is_not_for_publication_is_in_doubt(kind):
    assert "status" in doubts(saved(kind)[1])


@pytest.mark.parametrize("name", FILES)
def test_any_changed_byte_is_found(tmp_path, monkeypatch, name):
    folder = copy_of("pure", tmp_path)
    the_same_page(monkeypatch, folder)
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


def test_any_changed_number_of_the_certificate_is_found(tmp_path, monkeypatch):
    folder = copy_of("pure", tmp_path)
    the_same_page(monkeypatch, folder)
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
        ("pure", edit("contributions", 0, "mode", value="film"), {"unit"}),
        ("pure", edit("variation", "predictions", value=lambda x: x / 2 + 1), {"model"}),
        ("drawn", edit("variation", "values", value=lambda x: x / 2), {"model"}),
        ("pure", edit("variation", "nearly_constant", value=lambda x: not x), {"model"}),
        ("joint", edit("variation", value={"predictions": 1.0, "values": None, "nearly_constant": False}), {"model"}),
        ("gaussian", edit("contributions", value=COUNTS), {"unit"}),
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
def test_a_lie_is_found_though_digest_and_hashes_were_made_right_again(tmp_path, monkeypatch, kind, change, found):
    folder = reseal(copy_of(kind, tmp_path), change)
    the_same_page(monkeypatch, folder)
    assert found <= doubts(folder)
    assert "digest" not in doubts(folder)


def test_rows_of_owners_are_found_in_a_joint_release(tmp_path):
    arrays = safetensors.numpy.load((saved("joint")[1] / "model.safetensors").read_bytes())
    arrays["factors.0"] = np.ones_like(arrays["factors.0"])
    forged = {"model.safetensors": safetensors.numpy.save(arrays)}
    assert doubts(reseal(copy_of("joint", tmp_path), files=forged)) == {"model", "report", "drawings"}


def cheapened(plain):
    """Epsilon 8 becomes 0.1 wherever a number counts: price, stages, what was asked for, curve."""
    parts = shares(0.1, [stage["event"]["epsilon"] for stage in plain["stages"]])
    for stage, part in zip(plain["stages"], parts, strict=True):
        stage["event"]["epsilon"] = part
    events = tuple(PureEvent(part) for part in parts)
    plain["asked"]["epsilon"], plain["epsilon"] = 0.1, epsilon_of(events, 0.0)
    request = Request.checked(
        tv.CP(2), tv.Bounds(1, 5), "value", 0.1, 0.0, SHAPE, NAMES, plain["asked"]["expected_count"], None
    )
    plain["curve"] = curve_of(events, request, 0)


@pytest.fixture(scope="module")
def at_eight(tmp_path_factory):
    plan = tv.InputPerturbation(solver="als").plan(
        tv.CP(2), tv.Bounds(1, 5), "value", 8.0, shape=SHAPE, mode_names=NAMES
    )
    return tv.fit(observations(), plan).save(tmp_path_factory.mktemp("eight") / "release")


def test_a_price_that_was_lowered_everywhere_but_in_words_and_report_is_found(tmp_path, at_eight):
    folder = reseal(shutil.copytree(at_eight, tmp_path / "release"), cheapened)
    assert doubts(folder) == {"stages", "report"}  # pure: there is no curve to draw
    found = {check.name: check.found for check in verify(folder)}
    assert "ε = 8" in found["report"]
    assert re.search(r"'marginal, 16 cells' pays for .* of scale 400', but .* of scale 5'", found["stages"])


def test_a_report_that_was_edited_is_found(tmp_path, at_eight):
    for number, (before, after) in enumerate(
        [("ε = 8", "ε = 0.1"), ("May be published", "Must be published"), ("</svg>", "<text>ε = 0.1</text></svg>")]
    ):
        folder = shutil.copytree(at_eight, tmp_path / str(number))
        page = (folder / "report.html").read_text()
        assert before in page
        reseal(folder, files={"report.html": page.replace(before, after, 1).encode()})
        assert doubts(folder) == ({"drawings"} if "svg" in before else {"report"})


def test_drawings_of_another_matplotlib_are_not_compared_and_that_is_said(tmp_path, monkeypatch, at_eight):
    """Its words are: an honest release must not be in doubt for how its pictures were drawn."""
    mine = dict(verification.software_versions()) | {"matplotlib": "9.9"}
    monkeypatch.setattr(verification, "software_versions", lambda: tuple(mine.items()))
    assert doubts(at_eight) == set()
    folder = shutil.copytree(at_eight, tmp_path / "release")
    page = (folder / "report.html").read_text()
    reseal(folder, files={"report.html": page.replace("<path ", "<path  ", 1).encode()})
    assert [(check.name, check.state) for check in verify(folder) if check.name in ("report", "drawings")] == [
        ("report", "ok"),
        ("drawings", "not run"),
    ]
    added = page.replace("</h1>", "</h1><svg ><text>ε = 0.1</text></svg>", 1)
    assert "report" in doubts(reseal(folder, files={"report.html": added.encode()}))


every_mechanism = pytest.mark.parametrize(
    "mechanism, unit, delta",
    [
        (tv.InputPerturbation(), "value", 0.0),
        (tv.InputPerturbation(noise="gaussian"), "slice_values:user", 1e-6),
        (tv.InputPerturbation(), "slice_values:user", 0.0),
        (tv.InputPerturbation(noise="channel"), "slice_values:user", 0.0),
        (tv.InputPerturbation(), "entry", 0.0),
        (tv.InputPerturbation(), "entry", 1e-6),
        (tv.GradientPerturbation(), "value", 0.0),
        (tv.GradientPerturbation(), "entry", 0.0),
        (tv.GradientPerturbation(), "slice:user", 1e-6),
        (tv.GradientPerturbation(steps=3, sampling_probability=0.5), "value", 1e-6),
        (tv.OutputPerturbation(), "value", 0.0),
        (tv.OutputPerturbation(), "value", 1e-6),
        (tv.OutputPerturbation(perturbed="objective"), "value", 0.0),
        (tv.StatisticPerturbation(), "slice:user", 1e-6),
        (tv.SumPerturbation(), "value", 0.0),
        (tv.SumPerturbation(), "slice_values:user", 1e-6),
        (tv.SumPerturbation(), "entry", 1e-6),
        (tv.SumPerturbation(), "slice:user", 0.0),
        (tv.SumPerturbation(), "slice:user", 1e-6),
        (tv.WithOffsets(), "entry", 1e-6),
        (tv.WithOffsets(tv.InputPerturbation(solver="als")), "value", 0.0),
    ],
    ids=str,
)


def certified(mechanism, unit, delta):
    """The plan of a mechanism, and the certificate of a release by it that nobody computed."""
    plan = mechanism.plan(
        tv.CP(2), tv.Bounds(1, 5), unit, 3.7, delta, shape=SHAPE, mode_names=NAMES, at_most=7 if ":" in unit else None
    )
    guarantee = Guarantee.of_run(plan, (), seeded=False, joint=False)
    model = Completion(Offsets.none(3), tv.CPModel([np.ones((size, 2)) for size in SHAPE]), 1.0, 5.0)
    return plan, Certificate.of(tv.Release(model, guarantee, plan, mode_names=NAMES))


@every_mechanism
def test_every_stage_of_every_mechanism_says_what_noise_it_pays_for(mechanism, unit, delta):
    plan, certificate = certified(mechanism, unit, delta)
    statements.stages(certificate)
    for place in range(len(plan.stages)):
        plain = json.loads(certificate.to_json())
        event = plain["stages"][place]["event"]
        event["epsilon" if event["kind"] == "pure" else "noise_multiplier"] *= 1.37
        with pytest.raises(tv.InputError, match="but its noise reads"):
            statements.stages(Certificate.from_json(json.dumps(plain)))


@every_mechanism
def test_every_stage_rests_on_a_theorem_of_its_mechanism_and_on_no_other(mechanism, unit, delta):
    _, certificate = certified(mechanism, unit, delta)
    assert statements.words(certificate)
    plain = json.loads(certificate.to_json())
    for stage in plain["stages"]:
        told = stage["theorem"]
        for other in THEOREMS.keys() - set(statements.theorems_of(mechanism.title)):
            stage["theorem"] = other
            with pytest.raises(tv.InputError, match=f"'{other}' is not one of {mechanism.title}"):
                statements.words(Certificate.from_json(json.dumps(plain)))
        stage["theorem"] = told


@every_mechanism
def test_a_theorem_about_another_kind_of_stage_is_doubted(mechanism, unit, delta):
    """Every stage with every theorem of its mechanism for this unit: its own one alone is believed."""
    plan, certificate = certified(mechanism, unit, delta)
    plain = json.loads(certificate.to_json())
    kind = plan.request.unit.kind
    for stage in plain["stages"]:
        told = stage["theorem"]
        for other in statements.theorems_of(mechanism.title):
            stage["theorem"] = other
            found = Certificate.from_json(json.dumps(plain))
            if other == told:
                statements.stages(found)
            elif kind in THEOREMS[other].units and {other, told} != {"sums-pairs", "sums-lengths"}:  # of the same sums
                with pytest.raises(tv.InputError, match="the stage"):
                    statements.stages(found)
        stage["theorem"] = told


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (-1, {"instead": "histogram"}),
        (-1, {"theorem": "input-cells", "instead": "sums-pairs"}),
        (-1, {"law": "channel"}),
        (-1, {"law": "discrete Gaussian noise"}),
        (0, {"instead": "input-cells"}),
        (0, {"law": "channel"}),
    ],
)
def test_a_stage_that_no_vault_would_answer_is_doubted(place, change):
    """The text of its noise is made anew, so that nothing but the facts contradict each other."""
    _, certificate = certified(tv.SumPerturbation(cells=True), "entry", 0.0)
    assert statements.stages(certificate)
    assert certificate.stages[-1].instead == "input-cells"
    plain = json.loads(certificate.to_json())
    plain["stages"][place] |= change
    plain["stages"][place]["noise"] = Stage.from_json(plain["stages"][place]).noise
    with pytest.raises(tv.InputError, match="the stage"):
        statements.stages(Certificate.from_json(json.dumps(plain)))


def test_which_theorems_serve_which_heading():
    served = statements.theorems_of
    assert served("sum perturbation") == ("sums-rows", "sums-pairs", "sums-lengths", "histogram")
    assert served("offsets, then input perturbation") == (
        *("histogram", "sums-rows", "sums-pairs"),
        *served("input perturbation"),
    )
    assert not {"histogram", "sums-rows", "input-values"} & set(served("gradient perturbation"))
    assert "sums-lengths" not in (*served("statistic perturbation"), *served("output perturbation"))
    for foreign in ("", "perturbation", "my input perturbation", "offsets, then ", "offsets, then my way"):
        assert served(foreign) == ()


@pytest.mark.parametrize("mechanism", [tv.StatisticPerturbation(), tv.SumPerturbation()], ids=str)
def test_joint_privacy_without_withheld_rows_is_in_doubt(mechanism):
    _, certificate = certified(mechanism, "slice:user", 1e-6)
    with pytest.raises(tv.InputError, match="no rows are withheld"):
        statements.theorems(certificate)
    plain = json.loads(certificate.to_json()) | {"personalize": {"mode": 0, "mode_name": "user"}}
    assert statements.theorems(Certificate.from_json(json.dumps(plain)))


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
    assert {check.name: check.state for check in verify(tmp_path / "paid", ledger.path)}["ledger"] == "ok"
    assert not [check for check in verify(tmp_path / "paid", ledger.path) if check.state == "doubt"]

    other = tv.Ledger.create(tmp_path / "other.sqlite", "clinic", "value", epsilon=3.0)
    other.reserve("clinic", plan)
    assert [check.name for check in verify(tmp_path / "paid", other.path) if check.state == "doubt"] == ["ledger"]
    assert [check.name for check in verify(tmp_path / "paid", tmp_path / "none") if check.state == "doubt"] == [
        "ledger"
    ]
    tv.fit(data, plan).save(tmp_path / "unpaid")
    found = [check for check in verify(tmp_path / "unpaid", ledger.path) if check.state == "doubt"]
    assert [check.name for check in found] == ["ledger"]
    assert "no budget was charged" in found[0].found


def test_a_release_for_slices_is_known_to_the_ledger_that_paid(tmp_path):
    """The ledger counts the mode by its number, the certificate calls it by its name."""
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "films", "slice:user", 2.0, 1e-6)
    options = {"mechanism": tv.StatisticPerturbation(sweeps=1), "ledger": ledger, "dataset": "films"}
    folder = tv.complete(observations(), tv.CP(2), tv.Bounds(1, 5), "slice:user", 1.0, 1e-7, **options).save(
        tmp_path / "out"
    )
    assert [check for check in verify(folder, ledger.path) if check.state == "doubt"] == []


def test_a_folder_that_the_ledger_does_not_know_is_in_doubt_where_it_knows_another(tmp_path):
    data = observe(cp_tensor((6, 5, 4), seed=1), seed=2).train
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "clinic", "value", epsilon=3.0)
    plan = tv.StatisticPerturbation().plan(tv.CP(2), tv.Bounds(-1, 2), "value", 1.0, shape=data.shape)
    folder = tv.fit(data, plan, ledger=ledger, dataset="clinic").save(tmp_path / "paid")
    reseal(folder, edit("created", value="2001-01-01"))
    assert "ledger" in {check.name for check in verify(folder, ledger.path) if check.state == "doubt"}


def test_a_release_that_names_a_reservation_of_another_price_is_in_doubt(tmp_path):
    data = observe(cp_tensor((6, 5, 4), seed=1), seed=2).train
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "clinic", "value", epsilon=3.0)
    plans = [
        tv.StatisticPerturbation().plan(tv.CP(2), tv.Bounds(-1, 2), "value", epsilon, shape=data.shape)
        for epsilon in (0.5, 1.0)
    ]
    cheap, dear = (tv.fit(data, plan, ledger=ledger, dataset="clinic") for plan in plans)
    replace(dear, ledger=cheap.ledger, paid_by=None).save(tmp_path / "dear")
    found = [check for check in verify(tmp_path / "dear", ledger.path) if check.state == "doubt"]
    assert [check.name for check in found] == ["ledger"]
    assert "another cost" in found[0].found
