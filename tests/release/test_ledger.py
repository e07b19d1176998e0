"""The ledger: what is reserved counts, what was drawn is never given back, and every refusal says why."""

import dataclasses
import json
import os
import pickle
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.privacy.accounting.calibration import calibrate
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.accounting.filters import Charge
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.release.certificate.verification import record_folder
from tensorveil.release.ledger import reservation as ledgers
from tensorveil.release.ledger.chain import Chain
from tensorveil.release.ledger.ledger import Ledger

SHAPE, NAMES = (6, 5, 4), ("user", "film", "day")
DATA = tv.Observations(
    np.argwhere(np.ones(SHAPE)), np.random.default_rng(0).uniform(1, 5, 120), SHAPE, mode_names=NAMES
)


def pure(epsilon, unit="value"):
    return Charge(tv.Unit.of(unit), (PureEvent(epsilon),), epsilon, mode_names=NAMES)


def plan_for(unit="value", epsilon=0.4, delta=0.0, mechanism=None):
    mechanism = mechanism or tv.StatisticPerturbation(sweeps=1)
    return mechanism.plan(tv.CP(rank=2), tv.Bounds(1, 5), unit, epsilon, delta, shape=SHAPE, mode_names=NAMES)


@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "L.sqlite", "films", "value", 1.0)


def states(ledger):
    return [entry["kind"] for entry in ledger.entries()]


# --- reserve, draw, commit, void


def test_reserved_is_spent_whether_or_not_it_is_finished(ledger):
    first = ledger.reserve("films", pure(0.3), note="a study")
    assert ledger.spent("films").epsilon == 0.3
    assert ledger.remaining("films").pure_epsilon == pytest.approx(0.7)
    first.draw()
    first.commit("done")
    ledger.reserve("films", pure(0.7)).draw()  # never committed, as after a crash
    found = ledger.spent("films")
    assert (found.epsilon, found.share, found.drawn, found.unfinished) == (1.0, 1.0, 1, 1)
    assert ledger.remaining("films").pure_epsilon == 0
    with pytest.raises(tv.BudgetError, match="no budget is left"):
        ledger.reserve("films", pure(1e-9))
    assert states(ledger) == ["dataset", "reserve", "draw", "commit", "reserve", "draw"]


def test_ten_tenths_fit_into_one(ledger):
    for _ in range(10):
        ledger.reserve("films", pure(0.1))
    with pytest.raises(tv.BudgetError):
        ledger.reserve("films", pure(0.1))


def test_a_refusal_says_what_is_left_and_that_much_is_admitted(ledger):
    ledger.reserve("films", pure(0.75))
    with pytest.raises(tv.BudgetError, match=r"epsilon up to 0\.25; request less, or raise the budget"):
        ledger.reserve("films", pure(0.5))
    ledger.reserve("films", pure(0.25))


def test_nothing_is_drawn_twice_on_one_reservation(ledger):
    reservation = ledger.reserve("films", pure(0.3))
    reservation.draw()
    with pytest.raises(tv.BudgetError, match="must be reserved to draw, got it drawing"):
        reservation.draw()
    reservation.commit()
    for act in (reservation.draw, reservation.commit, lambda: reservation.void("changed my mind")):
        with pytest.raises(tv.BudgetError, match="got it drawn;"):
            act()
    with pytest.raises(tv.InputError, match="stay in the process"):
        pickle.dumps(reservation)


def test_only_what_was_not_drawn_can_be_void(ledger):
    reservation = ledger.reserve("films", pure(0.6))
    with pytest.raises(tv.BudgetError, match="must be drawing to commit"):
        reservation.commit()
    with pytest.raises(tv.InputError, match="reason"):
        reservation.void(" ")
    reservation.void("a wrong plan")
    assert ledger.spent("films").epsilon == 0
    assert ledger.spent("films").void == 1
    for act in (reservation.draw, lambda: reservation.void("again")):
        with pytest.raises(tv.BudgetError, match="got it void"):
            act()
    drawn = ledger.reserve("films", pure(0.6))
    drawn.draw()
    with pytest.raises(tv.BudgetError, match="got it drawing"):
        drawn.void("too late")
    assert ledger.spent("films").epsilon == 0.6


def test_only_the_holder_of_the_token_can_use_a_reservation(ledger, monkeypatch):
    reservation = ledger.reserve("films", pure(0.6))
    assert reservation._token not in ledger.path.read_bytes().decode("latin-1")
    stranger = ledgers.Reservation(ledger._chain, ledger._chain.read()[-1], "0" * 32)
    with pytest.raises(tv.BudgetError, match="must be in the ledger"):
        stranger.void("not mine")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for act in (reservation.draw, reservation.commit, lambda: reservation.void("a child's")):
        with pytest.raises(tv.BudgetError, match="the process that made it"):
            act()


# --- modes


def gaussian(epsilon, delta=1e-6):
    from tensorveil.mechanisms.base import ideal_budget

    ideal = ideal_budget(epsilon, delta, 10)
    multiplier = calibrate(lambda z: [GaussianEvent(z)], *ideal)
    return Charge(tv.Unit("value"), (GaussianEvent(multiplier),), epsilon, delta, 10)


def test_the_first_release_fixes_how_the_budget_is_kept(tmp_path):
    ledger = Ledger.create(tmp_path / "L.sqlite", "a", "value", 1.0, 1e-6)
    for name in ("b", "c"):
        Ledger.create(ledger.path, name, "value", 1.0, 1e-6)
    half, whole = gaussian(0.5), gaussian(1.0)
    for _ in range(3):  # by squares: three halves of one
        assert ledger.reserve("a", half).mode == "classes"
    with pytest.raises(tv.BudgetError, match="Gaussian one of up to epsilon 0"):
        ledger.reserve("a", half)
    assert ledger.reserve("b", whole).mode == "added"
    with pytest.raises(tv.BudgetError, match="no budget is left"):
        ledger.reserve("b", pure(0.01))
    assert ledger.spent("b").share == 1.0
    # a void first reservation leaves no trace in the mode, but only while nothing else counts
    first = ledger.reserve("c", whole)
    first.void("a smaller one will do")
    assert ledger.spent("c").mode is None
    second = ledger.reserve("c", half)
    third = ledger.reserve("c", half)
    second.void("the other one will do")
    assert ledger.spent("c").mode == third.mode == "classes"
    with pytest.raises(tv.BudgetError):
        ledger.reserve("c", whole)


def test_a_stated_price_below_the_cost_is_refused(tmp_path):
    ledger = Ledger.create(tmp_path / "L.sqlite", "a", "value", 1.0, 1e-6)
    cheat = Charge(tv.Unit("value"), (GaussianEvent(1.0),), 0.1, 1e-6, 10)
    with pytest.raises(tv.InputError, match="must be at least the cost of the events"):
        ledger.reserve("a", cheat)
    with pytest.raises(tv.InputError, match="must be at least the cost of the events"):
        ledger.reserve("a", Charge(tv.Unit("value"), (PureEvent(0.2), PureEvent(0.2)), 0.3))
    assert states(ledger) == ["dataset"]


# --- raising


def test_a_raised_budget_admits_more_and_keeps_its_reason(ledger):
    ledger.reserve("films", pure(1.0))
    with pytest.raises(tv.InputError, match="above the old one"):
        ledger.raise_budget("films", 0.5, why="less")
    with pytest.raises(tv.InputError, match="why"):
        ledger.raise_budget("films", 2.0, why="")
    ledger.raise_budget("films", 1.5, why="the board agreed")
    assert ledger.budget("films") == (tv.Unit("value"), 1.5, 0.0)
    assert ledger.entries()[-1]["reason"] == "the board agreed"
    ledger.reserve("films", pure(0.5))
    with pytest.raises(tv.BudgetError):
        ledger.reserve("films", pure(0.01))
    ledger.raise_budget("films", 1.5, 1e-6, why="Gaussian noise from now on")
    assert ledger.budget("films")[1:] == (1.5, 1e-6)


# --- units


def test_a_release_under_another_unit_is_converted_or_refused(tmp_path):
    path = tmp_path / "L.sqlite"
    ledger = Ledger.create(path, "by value", "value", 1.0, 1e-5)
    Ledger.create(path, "by entry", "entry", 1.0)
    Ledger.create(path, "by user", "slice:user", 1.0, at_most=20)
    ledger.reserve("by value", plan_for("entry", 0.2, mechanism=tv.InputPerturbation()))
    assert ledger.spent("by value").epsilon == pytest.approx(0.4)
    assert ledger.entries()[-1]["steps"] == 2
    ledger.reserve("by value", plan_for("slice:user", 0.1, 1e-7))
    assert ledger.spent("by value").epsilon == pytest.approx(0.6, rel=1e-2)
    assert ledger.spent("by value").delta == pytest.approx(2.1e-7, rel=1e-2)
    with pytest.raises(tv.BudgetError, match="'entry' or one that a theorem converts, got 'value'"):
        ledger.reserve("by entry", plan_for("value"))
    ledger.reserve("by user", pure(0.05, "entry"))
    assert ledger.spent("by user").epsilon == 1.0


# --- fit


def test_a_mode_by_number_stays_the_same_mode(tmp_path):
    """Else a release of another table, whose first mode is of films, would be charged for films and not for people."""
    ledger = Ledger.create(tmp_path / "L.sqlite", "people", "slice_values:0", 100.0, at_most=5)
    unnamed = dataclasses.replace(pure(1.0), mode_names=())
    for charge in (unnamed, pure(1.0), unnamed, pure(1.0, "slice_values:user")):
        ledger.reserve("people", charge)
    with pytest.raises(tv.BudgetError, match="must be 'user', as in earlier releases, got 'film'"):
        ledger.reserve("people", dataclasses.replace(pure(1.0), mode_names=("film", "user")))
    assert ledger.spent("people").epsilon == 16.0


def test_fit_pays_before_it_draws_and_the_release_knows_who_paid(ledger, monkeypatch):
    seen = []
    run = tv.StatisticPerturbation.run
    monkeypatch.setattr(tv.StatisticPerturbation, "run", lambda *given: (seen.append(states(ledger)), run(*given))[1])
    release = tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    assert seen == [["dataset", "reserve", "draw"]]
    assert states(ledger) == ["dataset", "reserve", "draw", "commit"]
    assert release.ledger == {"dataset": "films", "reservation": "2", "entry_hash": ledger._chain.read()[1].hash}
    tv.complete(
        DATA, tv.CP(2), tv.Bounds(1, 5), "value", 0.6, mechanism=tv.OutputPerturbation(), ledger=ledger, dataset="films"
    )
    with pytest.raises(tv.BudgetError, match="no budget is left"):
        tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    assert states(ledger).count("reserve") == 2


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.4, 0.7, 1.0, 4.1])
def test_the_price_is_that_of_all_stages_and_at_most_what_was_asked_for(epsilon):
    plan = plan_for(epsilon=epsilon)
    stages = sum(Fraction(event.epsilon) * event.count for event in plan.events)
    assert (1 - 1e-12) * epsilon <= stages <= Fraction(plan.epsilon) <= Fraction(epsilon)


def test_a_run_that_fails_after_drawing_is_spent_and_says_so(ledger, monkeypatch):
    def broken(*_):
        raise ArithmeticError("noise went wrong")

    monkeypatch.setattr(tv.StatisticPerturbation, "run", broken)
    spent = "reservation 2 of data set 'films' counts as spent"
    with pytest.raises(tv.SpentError, match=f"{spent}: noise went wrong") as caught:
        tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert isinstance(caught.value, tv.TensorveilError)
    assert ledger.spent("films").epsilon == plan_for().epsilon
    assert ledger.spent("films").unfinished == 1


def test_an_interrupted_run_is_spent_and_stays_an_interrupt(ledger, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tv.StatisticPerturbation, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    assert caught.value.__notes__ == ["reservation 2 of data set 'films' counts as spent"]
    assert ledger.spent("films").unfinished == 1


def test_a_reservation_that_cannot_be_drawn_on_is_spent_and_says_so(ledger, monkeypatch):
    def busy(*_):
        raise tv.BudgetError("the ledger must be free")

    monkeypatch.setattr(ledgers.Reservation, "draw", busy)
    with pytest.raises(tv.SpentError, match="must be free"):  # a BudgetError would say that nothing is spent
        tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    assert ledger.spent("films").epsilon == plan_for().epsilon


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": 1}, "secret noise"),
        ({"noise": NoiseSource(3)}, "secret noise"),
        ({"dataset": "books"}, "one of the data sets in the ledger"),
        ({"dataset": None}, "given together"),
        ({"ledger": None}, "given together"),
        ({"ledger": "L.sqlite"}, "given together"),
    ],
)
def test_what_cannot_be_charged_is_refused_before_anything_is_spent(ledger, options, message):
    with pytest.raises(tv.InputError, match=message):
        tv.fit(DATA, plan_for(), **{"ledger": ledger, "dataset": "films"} | options)
    assert states(ledger) == ["dataset"]


@pytest.mark.parametrize("one", ["ledger", "dataset"])
def test_no_privacy_is_never_charged_as_a_release(ledger, one):
    both = {"ledger": ledger, "dataset": "films"}
    for paying in (both, {one: both[one]}):
        with pytest.raises(tv.InputError, match="finite epsilon"):
            tv.complete(DATA, tv.CP(2), tv.Bounds(1, 5), "value", np.inf, **paying)
    assert states(ledger) == ["dataset"]


def test_wrong_data_and_published_algorithms_spend_nothing(ledger):
    other = tv.Observations(DATA.coordinates, DATA.values, (6, 5, 5), mode_names=NAMES)
    with pytest.raises(tv.InputError, match="plan's shape"):
        tv.fit(other, plan_for(), ledger=ledger, dataset="films")
    published = tv.published.PublishedInput().plan(tv.CP(2), 1.0, tv.SGD(iterations=1))
    with pytest.raises(tv.UnprovenError, match="proven price"):
        tv.fit(DATA, published, ledger=ledger, dataset="films")
    assert states(ledger) == ["dataset"]


def test_a_price_that_rests_on_the_size_of_slices_is_checked_against_the_data(tmp_path):
    ledger = Ledger.create(tmp_path / "L.sqlite", "films", "slice:user", 10.0, at_most=19)  # a user has 20
    plan = plan_for("entry", 0.2, mechanism=tv.InputPerturbation())
    with pytest.raises(tv.InputError, match="at most 19 observations"):
        tv.fit(DATA, plan, ledger=ledger, dataset="films")
    assert states(ledger) == ["dataset"]
    Ledger.create(ledger.path, "true", "slice:user", 10.0, at_most=20)
    tv.fit(DATA, plan, ledger=ledger, dataset="true")
    assert ledger.spent("true").epsilon == 4.0


# --- folders


def test_the_ledger_knows_a_folder_only_once_it_was_saved(ledger, tmp_path):
    release = tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    assert (ledger.spent("films").drawn, ledger.spent("films").saved) == (1, 0)
    assert [one["reservation"] for one in ledger.export()["datasets"]["films"]["without_folder"]] == [2]
    with pytest.raises(tv.InputError, match="must not exist yet"):
        release.save(tmp_path)
    assert states(ledger)[-1] == "commit"
    folder = release.save(tmp_path / "one")
    assert ledger.entries()[-1]["digest"] == json.loads((folder / "certificate.json").read_text())["digest"]
    found = ledger.spent("films")
    assert (found.drawn, found.saved, found.epsilon) == (0, 1, release.plan.epsilon)
    assert ledger.export()["datasets"]["films"]["without_folder"] == []
    pickle.loads(pickle.dumps(release)).save(tmp_path / "copy")
    assert states(ledger).count("save") == 1  # the same folder again
    assert tv.Release.load(tmp_path / "copy").paid_by is None


def test_a_ledger_that_is_gone_does_not_keep_a_release_from_being_saved(ledger, tmp_path):
    release = tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    moved = ledger.path.rename(tmp_path / "moved.sqlite")
    folder = release.save(tmp_path / "out")
    assert Ledger(moved).spent("films").drawn == 1
    assert record_folder(moved, folder).ledger.reservation == "2"
    assert Ledger(moved).spent("films").saved == 1


def test_a_ledger_that_cannot_be_told_is_an_error_and_the_folder_stays(ledger, tmp_path, monkeypatch):
    release = tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")

    def busy(*_):
        raise tv.BudgetError("the ledger must be free")

    monkeypatch.setattr(Ledger, "saved", busy)
    with pytest.raises(tv.SpentError, match=r"was written completely.*must be free.*ledger record"):
        release.save(tmp_path / "out")
    assert (tmp_path / "out" / "certificate.json").exists()


def test_a_folder_of_another_price_is_not_recorded(ledger, tmp_path):
    cheap, dear = (tv.fit(DATA, plan_for(epsilon=one), ledger=ledger, dataset="films") for one in (0.1, 0.4))
    with pytest.raises(tv.SpentError, match="another cost"):
        dataclasses.replace(dear, ledger=cheap.ledger).save(tmp_path / "forged")
    unpaid = tv.fit(DATA, plan_for()).save(tmp_path / "unpaid")
    with pytest.raises(tv.InputError, match="no budget was charged"):
        record_folder(ledger.path, unpaid)
    assert ledger.spent("films").saved == 0


def test_a_ledger_from_before_folders_were_recorded_still_opens(tmp_path):
    """What such a ledger calls committed was made; whether it was saved, nobody knows."""
    entries = json.loads((Path(__file__).parent / "ledger_without_saved.json").read_text())
    chain = Chain(tmp_path / "L.sqlite")
    chain.create()
    with closing(sqlite3.connect(chain.path)) as file, file:
        for entry in entries:
            row = [entry[name] for name in ("number", "previous", "text", "hash")]
            file.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
    ledger = Ledger(chain.path)
    found = ledger.spent("films")
    assert (found.saved, found.drawn, found.unfinished, found.void) == (0, 1, 1, 1)
    assert found.epsilon == pytest.approx(0.75, rel=1e-3)
    ledger.reserve("films", pure(0.01, "slice:user")).draw()
    assert ledger.spent("films").unfinished == 2


# --- the file


def test_every_noisy_number_that_can_differ_pays_for_the_samplers_precision(tmp_path):
    # a one-shot release states how many numbers one change of its own unit touches; the data set's unit is larger
    class Recorder(NoiseSource):
        def gaussian(self, statistic, **parameters):
            self.seen = statistic.copy()
            return super().gaussian(statistic, **parameters)

    plan = plan_for("value", 0.4, 1e-6, tv.InputPerturbation(noise="gaussian", solver="als"))
    mine = DATA.coordinates[:, 0] == 2
    other = DATA.with_values(np.where(mine, 6.0 - DATA.values, DATA.values))  # all values of one user replaced
    first, second = Recorder(), Recorder()
    tv.fit(DATA, plan, noise=first)
    tv.fit(other, plan, noise=second)
    ledger = tv.Ledger.create(tmp_path / "L", "films", "slice_values:user", 50.0, 0.9, at_most=int(mine.sum()))
    ledger.reserve("films", plan)
    assert ledger.entries()[-1]["costs"]["coordinates"] >= (first.seen != second.seen).sum() > 1


def test_the_ledger_holds_no_data_and_no_paths(ledger, tmp_path):
    tv.fit(DATA, plan_for(), ledger=ledger, dataset="films")
    text = json.dumps(ledger.export())
    assert str(tmp_path) not in text
    assert not any(f"{value:.6g}" in text for value in DATA.values)
    assert "120" not in {str(value) for entry in ledger.entries() for value in entry.values()}


def test_numbers_of_numpy_are_charged_as_plain_ones(tmp_path):
    unit = tv.Unit.slice(np.int64(0), at_most=3)
    ledger = Ledger.create(tmp_path / "L", "films", unit, np.float64(1.0))
    for number in (np.float64(0.125), np.float32(0.125)):
        ledger.reserve("films", Charge(tv.Unit("entry"), (PureEvent(0.125),), number, gaussian_coordinates=np.int64(0)))
    assert ledger.spent("films").epsilon == 2 * 3 * 0.125


def test_everything_is_exported_with_its_hashes(ledger):
    ledger.reserve("films", pure(0.25)).draw()
    found = json.loads(json.dumps(ledger.export()))
    assert (found["verified"], found["fault"], len(found["entries"])) == (True, None, 3)
    assert found["head"] == found["entries"][-1]["hash"]
    assert [entry["previous"] for entry in found["entries"][1:]] == [entry["hash"] for entry in found["entries"][:-1]]
    told = found["datasets"]["films"]
    assert (told["epsilon"], told["spent"]["unfinished"], told["remaining"]["pure_epsilon"]) == (1.0, 1, 0.75)


def test_one_file_holds_several_data_sets(ledger):
    Ledger.create(ledger.path, "books", "slice:user", 2.0, 1e-6)
    assert Ledger(ledger.path).datasets() == ("films", "books")
    ledger.reserve("films", pure(1.0))
    assert ledger.remaining("books").pure_epsilon == 2.0
    with pytest.raises(tv.InputError, match="a new name"):
        Ledger.create(ledger.path, "books", "value", 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dataset": ""},
        {"dataset": 3},
        {"dataset": "x" * 2000},
        {"unit": "person"},
        {"unit": "slice:-1"},
        {"epsilon": 0},
        {"epsilon": float("nan")},
        {"delta": 1.0},
        {"delta": -1e-6},
        {"at_most": 5},
    ],
)
def test_wrong_arguments_make_no_file(tmp_path, wrong):
    path = tmp_path / "L.sqlite"
    with pytest.raises(tv.InputError):
        Ledger.create(path, **{"dataset": "films", "unit": "value", "epsilon": 1.0} | wrong)
    assert not path.exists()


def test_entries_of_another_format_are_refused(ledger):
    ledger._chain.append(lambda _: {"kind": "gift", "dataset": "films"})
    with pytest.raises(tv.BudgetError, match="entry 2 of another"):
        Ledger(ledger.path)


def test_an_impossible_order_of_states_is_refused(ledger):
    reservation = ledger.reserve("films", pure(0.5))
    reservation.draw()
    ledger._chain.append(lambda _: {"kind": "void", "dataset": "films", "reservation": reservation.id, "reason": "x"})
    with pytest.raises(tv.BudgetError, match="entry 4"):
        Ledger(ledger.path)


def test_a_pure_budget_can_be_raised_after_a_pure_release(tmp_path):
    data = tv.Observations(np.argwhere(np.ones((6, 5))), np.linspace(1, 5, 30), (6, 5))
    ledger = Ledger.create(tmp_path / "L.sqlite", "ratings", "value", 2.0)
    tv.complete(data, tv.CP(1), tv.Bounds(1, 5), "value", 1.0, ledger=ledger, dataset="ratings")
    ledger.raise_budget("ratings", 3.0, why="a second study was approved")
    assert ledger.spent("ratings").epsilon == 1
    assert ledger.budget("ratings")[1:] == (3.0, 0.0)
