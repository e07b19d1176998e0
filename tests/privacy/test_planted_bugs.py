"""Every planted bug is caught by a check that the code as it is passes, and the page lists exactly these bugs."""

import re

import pytest

import tensorveil as tv
from privacy import planted_bugs
from privacy.planting import BUGS, PAGE, CaughtError, PlantedBug, page
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.privacy.noise import source as noise

# what an audit must catch: the list that the project set itself; a bug may be planted in more than one place
KINDS = (
    "half the",
    "sensitivity m instead of 2m",
    "noise missing on one block",
    "budget not divided by iterations",
    "clipping after summing",
    "bounds from data",
    "count-weighted regulariser under entry",
    "batch not Poisson",
    "user rows coupled by a QR under slice",
    "rounding after the sum",
    "key reused after fork",
    "channel column off by a hair",
    "empty rows without noise under entry",
)
CASES = [pytest.param(bug, marks=pytest.mark.slow if bug.slow else (), id=bug.name) for bug in BUGS]


@pytest.mark.parametrize("bug", CASES)
def test_the_code_as_it_is_passes_and_the_planted_bug_is_caught(bug: PlantedBug) -> None:
    bug.check()
    assert bug.seconds_to_catch() > 0


def test_a_bug_that_is_not_planted_is_not_caught() -> None:
    bug = next(bug for bug in BUGS if not bug.slow)
    harmless = PlantedBug(bug.name, bug.where, bug.caught_by, lambda patch: None, bug.check, bug.message)
    with pytest.raises(AssertionError, match="not caught"):
        harmless.seconds_to_catch()


def test_a_bug_that_is_caught_for_another_reason_does_not_count() -> None:
    bug = next(bug for bug in BUGS if bug.name == "sensitivity m instead of 2m")
    other = PlantedBug(bug.name, bug.where, bug.caught_by, bug.plant, bug.check, "another reason entirely")
    with pytest.raises(AssertionError, match="for another reason"):
        other.seconds_to_catch()


@pytest.mark.parametrize("plant", [planted_bugs.half_the_noise_drawn, planted_bugs.key_reused_after_fork])
def test_replay_trusts_the_source_of_noise(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page says: what is wrong with the noise itself is not for replay, so other checks must be there."""
    plant(monkeypatch)
    mechanism = tv.InputPerturbation(noise="laplace", solver="als")
    found = planted_bugs.replay_all(mechanism, planted_bugs.spread_values(), "value", 1.0, 0.0)
    assert max(one.largest for one in found) == 1.0


def test_no_channel_can_be_made_of_the_table_that_is_off_by_a_hair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the check in fractions: the planted table had to go past the constructor."""
    planted_bugs.column_off_by_a_hair(monkeypatch)
    off = planted_bugs.input_perturbation.design_channel(public_scale((-1.0, 0.0, 1.0), 2**20), 1.0, 1.0)
    assert 0 < off.ratio() - off.epsilon < 1e-8
    with pytest.raises(tv.InputError, match="keep within epsilon"):
        type(off)(off.epsilon, off.counts)


def test_the_audits_have_power_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth less noise is too little to be sure of; a third less is seen: the margin is not a matter of luck."""
    sound = noise.laplace_law
    monkeypatch.setattr(noise, "laplace_law", lambda scale: sound(scale / 1.5))
    with pytest.raises(CaughtError, match="is refuted"):
        planted_bugs.audit_laplace()


def test_every_kind_of_bug_is_planted() -> None:
    for kind in KINDS:
        assert any(bug.name.startswith(kind) for bug in BUGS), kind
    assert all(any(bug.name.startswith(kind) for kind in KINDS) for bug in BUGS)


def test_the_page_lists_exactly_the_planted_bugs() -> None:
    text = PAGE.read_text()
    seconds = dict(re.findall(r"^\| ([^|]+) \| `[^|]+ \| [^|]+ \| (\d+\.\d\d) \|$", text, re.M))
    assert list(seconds) == [bug.name for bug in BUGS]
    figures = {name: float(value) for name, value in seconds.items()}
    assert page(figures) == text, "run: PYTHONPATH=tests python -m privacy.planted_bugs --write"
