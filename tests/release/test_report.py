"""The report tells what the certificate tells, in words that hold, on a page that runs and fetches nothing."""

import dataclasses
import re

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

import tensorveil as tv
from reported import NAMES, Page, release_of
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.report import gains, meaning, pictures, report
from tensorveil.release.report.report import report_html


def published():
    guarantee = Guarantee(1.0, 0.0, "value", "claimed", "a paper", reasons=("the noise is too small",))
    factors = tv.CPModel([np.random.default_rng(0).normal(size=(size, 1)) for size in (4, 3, 2)])
    return tv.Release(Completion.unclipped(factors), guarantee)


def without_privacy():
    return dataclasses.replace(published(), guarantee=Guarantee(1.0, 0.0, "value", "none", "nobody"))


RELEASES = {
    "proven": release_of(),
    "pure": release_of(delta=0.0),
    "joint": release_of(unit="slice:user", joint=True),
    "entries": release_of(unit="entry", family=tv.Tucker(ranks=(2, 1, 2))),
    "seeded": release_of(seeded=True),
    "claimed": published(),
    "none": without_privacy(),
    "order 2": release_of((30, 4)),
    "order 5": release_of((3, 4, 5, 2, 3), tv.Tucker(ranks=(1, 2, 1, 2, 1))),
}
CERTIFICATES = {name: Certificate.of(release) for name, release in RELEASES.items()}
PAGES = {name: report_html(release, CERTIFICATES[name]) for name, release in RELEASES.items()}
CASES = pytest.mark.parametrize("name", PAGES)


PARSED = {name: Page(text) for name, text in PAGES.items()}


@CASES
def test_nothing_runs_and_nothing_is_fetched(name):
    page = PARSED[name]
    tags = {tag for tag, _, _ in page.tags}
    assert not tags & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "img",
        "image",
        "base",
        "form",
        "a",
        "video",
        "audio",
    }
    for _, attributes, _ in page.tags:
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "srcset", "action")]
        assert attributes.get("href", "#").startswith("#")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", PAGES[name])
    [policy] = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert {"default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"} <= set(policy.split("; "))


@CASES
def test_the_banner_is_there_exactly_where_nothing_may_be_published(name):
    page, allowed = PARSED[name], CERTIFICATES[name].publishable
    banners = [attributes for attributes in page.all("div") if attributes.get("class") == "banner"]
    assert bool(banners) is not allowed
    assert ("May be published" in page.text) is allowed
    assert ("Not for publication" in page.text) is not allowed
    assert ("NOT FOR PUBLICATION" in PAGES[name]) is not allowed  # in the title, and on every printed page
    assert allowed is (name not in ("seeded", "claimed", "none"))


def test_the_banner_says_why():
    assert "came from a seed" in PARSED["seeded"].text
    assert "claimed by a publication and not proven" in PARSED["claimed"].text
    assert "The noise is too small" in PARSED["claimed"].text
    assert "without privacy" in PARSED["none"].text


@CASES
def test_every_figure_has_words_and_every_column_a_head(name):
    page = PARSED[name]
    figures = [place for place, (tag, _, _) in enumerate(page.tags) if tag == "figure"]
    assert len(page.all("figcaption")) == len(page.all("svg")) == len(figures) > 0
    for svg in page.all("svg"):
        assert svg["role"] == "img"
        assert len(svg["aria-label"]) > 20
    assert all("scope" in attributes for attributes in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert max(np.diff(levels)) <= 1
    ids = [attributes["id"] for _, attributes, _ in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)


@CASES
def test_the_numbers_are_those_of_the_certificate(name):
    page, certificate = PARSED[name], CERTIFICATES[name]
    assert certificate.digest in page.text
    assert certificate.created in page.text
    if certificate.status != "proven":
        assert "suspicion" not in page.text  # no figure that nobody may rely on
        return
    for number in (certificate.epsilon, certificate.delta, certificate.asked.epsilon):
        assert re.search(rf"(?<![\d.]){re.escape(str(number))}(?![\d.])", page.text)
    telling = [pair for pair in certificate.curve if pair[0] < 1e-3]
    for pair in certificate.curve:  # a delta of one over the number of units promises nothing, so it is not told
        shown = f"{pair[0]} {pair[1]}" in re.sub(r"\s+", " ", " ".join(page.words))
        assert shown == (pair in telling and len(telling) > 1)
    for stage in certificate.paid_stages:
        assert {stage.noise, str(stage.sensitivity), stage.theorem} <= set(page.words)
    told = [*certificate.assumptions_checked, *certificate.assumptions_trusted, *certificate.must_not_be_released]
    told += [certificate.may_be_released, certificate.neighbours, certificate.not_protected, certificate.covers]
    for text in told:
        assert text[1:] in page.text
    boxes = [one for one in page.all("span") if one.get("class") == "box"]
    assert len(boxes) == len(certificate.assumptions_trusted)


@pytest.mark.parametrize("epsilon", [0.99999, 0.12341, 1.00001, 2.71828182, 31.4159])
def test_what_is_rounded_is_never_told_too_small(epsilon, monkeypatch):
    monkeypatch.setattr(report, "mode_groups", lambda release, hidden: [])  # the words are at stake here
    monkeypatch.setattr(report, "slice_group", lambda release, hidden: pictures.Group("", "", ()))
    release = release_of()
    guarantee = dataclasses.replace(release.guarantee, epsilon=epsilon, delta=1.2345e-6)
    release = dataclasses.replace(release, guarantee=guarantee)
    page = Page(report_html(release, Certificate.of(release)))
    stated = re.findall(r"ε = ([\d.]+), δ = ([\d.]+)", page.text)
    assert stated
    for shown_epsilon, shown_delta in stated:
        assert epsilon <= float(shown_epsilon) < epsilon * 1.001
        assert 1.2345e-6 <= float(shown_delta) <= 1.235e-6
    if epsilon < 10:
        [factor] = re.findall(r"by a factor of at most ([\d.]+) \(e to the power", page.text)
        assert np.exp(epsilon) <= float(factor) < np.exp(epsilon) * 1.02
    [chance] = re.findall(r"1 in ([\d,]+)", page.text)
    assert 1.2345e-6 <= 1 / int(chance.replace(",", "")) < 1.23451e-6


def pair_of(epsilon, delta):
    """The two worlds that (epsilon, delta) allows at worst: the truth with chance delta, else randomized response."""
    kept = np.exp(epsilon) / (1 + np.exp(epsilon))
    first = np.array([delta, (1 - delta) * kept, (1 - delta) * (1 - kept), 0])
    return first, first[::-1]


@pytest.mark.parametrize("epsilon, delta", [(0.1, 0.0), (1.0, 0.0), (1.0, 1e-2), (3.0, 1e-6), (6.0, 0.01), (20.0, 0.0)])
def test_the_power_is_that_of_the_best_test_of_the_worst_pair(epsilon, delta):
    innocent, guilty = pair_of(epsilon, delta)
    best = linprog(-guilty, A_ub=[innocent], b_ub=[0.05], bounds=(0, 1))
    assert report.max_power(epsilon, delta) == pytest.approx(-best.fun, rel=1e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("prior", [0.01, 0.5])
def test_a_suspicion_is_that_of_bayes_on_randomized_response(epsilon, prior):
    guilty, innocent = pair_of(epsilon, 0.0)
    after = prior * guilty[1:3] / (prior * guilty[1:3] + (1 - prior) * innocent[1:3])
    assert gains.suspicion(prior, epsilon) == pytest.approx(after.max())


@pytest.mark.parametrize("epsilon, delta", [(0.1, 0.0), (1.0, 0.2), (3.0, 1e-6), (20.0, 0.01)])
def test_a_guess_is_the_best_one_between_the_worst_pair(epsilon, delta):
    first, second = pair_of(epsilon, delta)
    assert gains.best_guess(epsilon, delta) == pytest.approx(np.maximum(first, second).sum() / 2)
    texts = [level["meaning"] for level in meaning.scale(epsilon, delta)]
    for most, text in zip((1.0, 3.0), texts, strict=False):
        told = float(re.findall(r"at most ([\d.]+) %", text)[0])
        assert np.maximum(*pair_of(most, delta)).sum() / 2 <= told / 100 + 1e-12


def test_with_delta_the_report_bounds_tests_and_guesses_and_no_odds():
    """Against the true law of the loss of a Gaussian release, N(mu^2 / 2, mu^2): odds exceed e^epsilon too often."""
    shape = (8, 7, 6)
    data = tv.Observations(np.argwhere(np.ones(shape)), np.linspace(1, 5, 336), shape)
    release = tv.fit(data, tv.StatisticPerturbation(sweeps=1).plan(tv.CP(2), (1, 5), "entry", 0.5, 1e-6, shape=shape))
    stated, events = release.guarantee, [stage.event for stage in release.guarantee.stages]
    mu = np.sqrt(sum(event.count / event.noise_multiplier**2 for event in events))
    assert norm.sf(stated.epsilon, mu**2 / 2, mu) > 10 * stated.delta
    text = Page(report_html(release, Certificate.of(release))).text
    assert not re.search("suspicion|odds of|except with", text)
    assert "these may grow by more than the factor" in text
    powers = re.findall(r"power of a test with ([\d.]+) % false alarms: [\d.]+ % ([\d.]+) %", text)
    assert [level for level, _ in powers] == ["1", "5", "10"]
    for level, power in powers:
        assert norm.sf(norm.isf(float(level) / 100) - mu) <= float(power) / 100
    [guess] = re.findall(r"equally likely situations: 50 % ([\d.]+) %", text)
    assert norm.cdf(mu / 2) <= float(guess) / 100
    pure = Page(PAGES["pure"]).text
    assert "suspicion of 50 %" in pure
    assert "odds of 1 to 1" in pure


def test_numbers_survive_any_epsilon():
    for epsilon in (1e-9, 50.0, 800.0, 1e6):
        assert 0.05 <= report.max_power(epsilon, 0.0) <= 1
        assert gains.suspicion(0.01, epsilon) <= 1
        assert gains.best_guess(epsilon, 0.9) <= 1
        assert report.factor_text(epsilon)
    assert report.factor_text(100.0) == "e to the power 100"
    assert report.percent_up(0.1359140914) == "13.6 %"
    assert report.percent_up(0.99999999) == "100 %"
    assert report.percent_up(0.99951) == "99.951 %"
    assert report.chance_up(1e-12) == "1e-12"


def test_labels_and_names_are_text_whatever_they_hold():
    evil = "<script>alert(1)</script>"
    labels = (
        np.array([evil, "</svg><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "\x00\u202e\ud800"]),
        np.array(["</style>", "&amp;", "日本"]),
        None,
    )
    names = (evil, '" onload="alert(2)', "</title>")
    release = release_of(mode_names=names, labels=labels, value_name="<b>bold</b>")
    page = report_html(release, Certificate.of(release))
    parsed = Page(page)
    assert not {tag for tag, _, _ in parsed.tags} & {"script", "img", "b"}
    assert not [key for _, attributes, _ in parsed.tags for key in attributes if key.startswith("on")]
    assert evil in parsed.text
    assert "&lt;script&gt;" in page
    assert "{{ 7 * 7 }}" in parsed.text
    assert "<b>bold</b>" in parsed.text
    page.encode()  # lone surrogates are gone
    assert "\x00" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize("name", ["proven", "claimed"])
def test_the_same_release_gives_the_same_page(name):
    assert report_html(RELEASES[name], CERTIFICATES[name]) == PAGES[name]


def test_a_large_release_stays_below_a_megabyte():
    shape = (1000, 2000, 200)
    labels = (
        np.array([f"A household with a rather long name, number {number}" for number in range(1000)]),
        None,
        np.datetime64("2024-01-01") + np.arange(200),
    )
    release = release_of(shape, tv.CP(rank=7), labels=labels)
    page = report_html(release, Certificate.of(release))
    assert len(page.encode()) < 1_000_000
    text = Page(page).text
    assert "the 5 strongest of 7 are drawn" in text
    assert "lines over time" in text
    assert "2,000 labels, shown by the 5 highest and the 5 lowest" in text


def test_a_joint_release_shows_no_row_and_no_prediction_of_its_owners():
    labels = (np.array([f"owner {number}" for number in range(4)]), None, None)
    release = release_of(unit="slice:user", joint=True, labels=labels)
    page = report_html(release, Certificate.of(release))
    text = Page(page).text
    assert "owner" not in re.sub("stay with their owners", "", text)
    assert "no row and no offset of any user" in text
    assert "heat map" not in page
    assert "Component 1 of user" not in text
    assert "Component 1 of film" in text
    assert "heat map" in PAGES["proven"]


@pytest.mark.parametrize("unit, words", [("value", "which cells were observed"), ("entry", None), ("slice:user", None)])
def test_what_is_public_under_the_unit_is_said_to_be_so(unit, words):
    release = release_of(unit=unit, joint=unit == "slice:user")
    may_not = " ".join(report.conclusions(Certificate.of(release))[1])
    assert ("which cells were observed" in may_not) is (words is not None)
    assert "k times as large" in may_not


def test_nobody_is_told_that_unproven_or_seeded_data_are_protected():
    for name in ("claimed", "none", "seeded"):
        may, may_not = report.conclusions(CERTIFICATES[name])
        assert may_not[0].startswith("That the data are protected")
        assert not [text for text in may if "promise" in text]


def test_a_certificate_of_another_release_is_refused():
    other = release_of(epsilon=2.0)
    with pytest.raises(tv.InputError, match="certificate must be that of the release"):
        report_html(other, CERTIFICATES["proven"])
    with pytest.raises(tv.InputError, match="certificate must be"):
        report_html(RELEASES["seeded"], CERTIFICATES["proven"])


def test_colours_can_be_told_from_their_ground():
    """WCAG AA for text: a contrast of at least 4.5."""
    named = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", PAGES["seeded"]))

    def light(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    def contrast(one, other):
        bright, dark = sorted((light(one), light(other)), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    grounds = {"ink": ["soft", "yes-soft", "no-soft"], "quiet": ["soft", "yes-soft", "no-soft"], "accent": ["soft"]}
    grounds |= {"yes": ["yes-soft"], "no": ["no-soft"]}
    for text, places in grounds.items():
        for ground in ["#ffffff", *(named[place] for place in places)]:
            assert contrast(named[text], ground) >= 4.5
    assert contrast("#ffffff", named["no"]) >= 4.5


def test_the_first_screen_says_how_much_almost_is():
    """At epsilon 5 readers may learn a lot: the word alone would mislead who signs."""
    first = Page(report_html(release := release_of(epsilon=5.0, delta=0.0), Certificate.of(release))).text
    assert "the probability of any conclusion changes by a factor of at most 149." in first
    assert (
        "the probability of any conclusion changes by a factor of at most 2.72, plus at most δ."
        in Page(PAGES["proven"]).text
    )


PEOPLE = ["Annabel", "Bogumil", "Cydonia", "Désirée"]


def paid_release(tmp_path, **about):
    """A release of all cells that a ledger paid for, after another one."""
    cells = np.argwhere(np.ones((4, 3, 2)))[:-2]
    data = tv.Observations(cells, np.linspace(1, 5, 22), (4, 3, 2), mode_names=NAMES, labels=(PEOPLE, None, None))
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "club", "value", epsilon=12.0)
    plan = tv.StatisticPerturbation(sweeps=1).plan(
        tv.CP(1), tv.Bounds(1, 5), "value", 4.0, shape=(4, 3, 2), mode_names=NAMES
    )
    tv.fit(data, plan, ledger=ledger, dataset="club")
    release = tv.fit(data, plan, ledger=ledger, dataset="club")
    certificate = Certificate.of(release, about)
    return release, certificate, Page(report_html(release, certificate)).text


def test_those_who_sign_read_who_is_responsible_and_what_is_left_of_the_budget(tmp_path):
    about = {"title": "Films of a club", "purpose": "research", "controller": "The Club", "legal_basis": "consent"}
    release, certificate, text = paid_release(tmp_path, **about)
    for words in about.values():
        assert words in text
    assert text.count("Recipients") == 1
    balance = certificate.balance
    assert (balance.budget, balance.before, balance.after) == ((12.0, 0.0), (4.0, 0.0), (8.0, 0.0))
    assert "ε 4 (33.3 % of the budget)" in text
    assert "ε 8 (66.7 % of the budget)" in text
    assert "ε 4 for one more release" in text
    assert [one.epsilon for one in balance.earlier] == [4.0]
    assert f"{certificate.created}, {certificate.time} UTC" in text
    folder = release.save(tmp_path / "folder", about)
    assert [check for check in tv.verify(folder, tmp_path / "L.sqlite") if check.state == "doubt"] == []
    assert tv.Release.load(folder).contributions == release.contributions


def test_the_price_of_a_whole_person_is_that_of_all_values_of_one_index(tmp_path):
    """Users 0 to 3 have 6, 6, 6 and 4 of the 22 values, by hand."""
    _, certificate, text = paid_release(tmp_path, people="user")
    assert [(one.largest, one.median) for one in certificate.contributions] == [(6, 6.0), (8, 8.0), (11, 11.0)]
    assert "user 6 24 6 24 (very weak)" in text
    assert "day 11" not in text  # who is a person is known
    first_screen = text[: text.index("What was released")]
    assert "Epsilon adds up over several values: to 24 for the user with the most (6). See section 2." in first_screen


def test_no_person_is_named(tmp_path):
    release, _, text = paid_release(tmp_path, people="user")
    assert not any(name in text for name in PEOPLE)
    assert PEOPLE[0] in Page(report_html(release, Certificate.of(release))).text
    protected = release_of(unit="slice_values:user", labels=(PEOPLE, None, None))
    page = report_html(protected, Certificate.of(protected))
    assert not any(name in page for name in PEOPLE)


def test_weak_protection_is_called_weak():
    for epsilon, word in ((0.5, "strong"), (1.0, "strong"), (2.5, "moderate"), (8.0, "weak"), (40.0, "very weak")):
        release = release_of(epsilon=epsilon, delta=0.0)
        text = Page(report_html(release, Certificate.of(release))).text
        assert f"is {word} protection of one value" in text
        assert f"{word.capitalize()} (this release)" in text
    assert "2303.00654" in text


def test_a_release_that_says_nothing_says_so_first():
    release = release_of(delta=0.0)
    assert "fills in every cell" in Page(report_html(release, Certificate.of(release))).text
    blocks = [np.zeros_like(factor) for factor in release.factors.factors]
    model = dataclasses.replace(release.model, offsets=Offsets.none(3), factors=tv.CPModel(blocks))
    constant = dataclasses.replace(release, model=model)
    certificate = Certificate.of(constant)
    assert certificate.variation.nearly_constant
    text = Page(report_html(constant, certificate)).text
    assert text.index("nearly the same for all cells") < text.index("What is promised?")
    assert "fills in every cell" not in text
