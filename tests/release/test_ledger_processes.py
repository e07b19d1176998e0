"""Many processes on one ledger, and processes that die at any moment."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time

import pytest

import tensorveil as tv
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.accounting.filters import Charge
from tensorveil.release.ledger.ledger import Ledger

PROCESSES = 8
FORK = multiprocessing.get_context("fork")


def charge(epsilon):
    return Charge(tv.Unit("value"), (PureEvent(epsilon),), epsilon)


def note(path, *facts):
    """One line, on the disk before anything else happens; lines of several processes do not mix."""
    line = json.dumps(facts) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, line.encode())
    os.close(handle)


def noted(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def spend(ledger, side, seed, prices):
    """Reserve and draw again and again; what was drawn is noted just before it would be drawn."""
    rng = random.Random(seed)
    for _ in range(prices):
        epsilon = rng.choice([0.05, 0.1, 0.17, 0.3])
        try:
            reservation = ledger.reserve("films", charge(epsilon))
        except tv.BudgetError:
            note(side, "refused", epsilon)
            continue
        reservation.draw()
        note(side, "drawn", reservation.id, epsilon)
        reservation.commit()


def warm_up(folder):
    """Import in the parent what every child would import anew."""
    ledger = Ledger.create(folder / "warm.sqlite", "films", "value", 0.1)
    with pytest.raises(tv.BudgetError):
        ledger.reserve("films", charge(0.2))
    return ledger


def spend_at_once(folder, rounds):
    warm_up(folder)
    for round_ in range(rounds):
        ledger = Ledger.create(folder / f"{round_}.sqlite", "films", "value", 1.0)
        side = folder / f"{round_}.txt"
        given = [(ledger, side, f"{round_} {child}", 2) for child in range(PROCESSES)]
        children = [FORK.Process(target=spend, args=one) for one in given]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        facts = noted(side)
        drawn = {fact[1]: fact[2] for fact in facts if fact[0] == "drawn"}
        assert len(facts) == 2 * PROCESSES
        assert len(drawn) == sum(fact[0] == "drawn" for fact in facts)
        total = round(sum(drawn.values()), 9)
        assert total <= 1.0
        assert total > 0.7  # what is refused did not fit
        found = ledger.spent("films")
        assert (round(found.epsilon, 9), found.drawn, found.unfinished) == (total, len(drawn), 0)
        kinds = [entry["kind"] for entry in ledger.entries()]
        assert [kinds.count(kind) for kind in ("reserve", "draw", "commit")] == [len(drawn)] * 3


def test_processes_that_spend_at_once_never_overspend_and_lose_no_entry(tmp_path):
    spend_at_once(tmp_path, 4)


@pytest.mark.slow
def test_two_hundred_rounds_of_processes_that_spend_at_once(tmp_path):
    spend_at_once(tmp_path, 200)


def kill_at_random(folder, rounds):
    warm_up(folder)
    rng = random.Random(0)
    ledger = Ledger.create(folder / "L.sqlite", "films", "value", 1000.0)
    side = folder / "side.txt"
    died_inside = 0
    for round_ in range(rounds):
        children = [FORK.Process(target=spend, args=(ledger, side, f"{round_} {child}", 1000)) for child in range(2)]
        for child in children:
            child.start()
        time.sleep(rng.uniform(0, 0.15))
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        for child in children:
            child.join()
            assert child.exitcode == -signal.SIGKILL
        spent = ledger.spent("films")  # the chain is whole
        drawn = {fact[1]: fact[2] for fact in noted(side)}
        assert spent.epsilon >= sum(drawn.values()) - 1e-9
        kinds = {"reserve": set(), "draw": set(), "commit": set()}
        for entry in ledger.entries()[1:]:
            kinds[entry["kind"]].add(entry.get("reservation", entry["number"]))
        assert set(drawn) <= kinds["draw"] <= kinds["reserve"]
        died_inside += len(kinds["reserve"]) > len(kinds["commit"])
    # the next one works
    reservation = ledger.reserve("films", charge(0.1))
    reservation.draw()
    reservation.commit()
    assert spent.unfinished > 0
    assert died_inside > 0
    assert len(drawn) > 0


def test_sudden_death_at_any_moment_leaves_everything_drawn_spent(tmp_path):
    kill_at_random(tmp_path, 6)


@pytest.mark.slow
def test_sudden_death_at_a_hundred_moments(tmp_path):
    kill_at_random(tmp_path, 100)


def use(reservation, answers):
    try:
        reservation.draw()
    except tv.BudgetError as error:
        answers.put(str(error))


def test_a_child_cannot_draw_on_its_parents_reservation(tmp_path):
    ledger = Ledger.create(tmp_path / "L.sqlite", "films", "value", 1.0)
    reservation, answers = ledger.reserve("films", charge(0.5)), FORK.Queue()
    child = FORK.Process(target=use, args=(reservation, answers))
    child.start()
    assert "the process that made it" in answers.get(timeout=60)
    child.join()
    reservation.draw()
    reservation.commit()
    assert ledger.spent("films").drawn == 1


def reserve_and_answer(ledger, answers):
    answers.put(ledger.reserve("films", charge(0.25)).id)


def test_a_fork_waits_for_another_threads_transaction(tmp_path):
    ledger = Ledger.create(tmp_path / "L.sqlite", "films", "value", 1.0)
    answers, inside, done = FORK.Queue(), threading.Event(), []

    def slow_decision(entries):
        inside.set()
        time.sleep(0.3)
        done.append("decided")
        return entries[0].body | {"dataset": "books"}

    thread = threading.Thread(target=ledger._chain.append, args=(slow_decision,))
    thread.start()
    inside.wait()
    child = FORK.Process(target=reserve_and_answer, args=(ledger, answers))
    child.start()
    assert done == ["decided"]  # the fork came after it
    assert answers.get(timeout=60) == 3
    child.join()
    thread.join()
    assert ledger.datasets() == ("films", "books")


def create(path, name, answers):
    try:
        Ledger.create(path, name, "value", 1.0)
        answers.put("made")
    except tv.InputError:
        answers.put("refused")


def test_processes_that_create_one_file_at_once_all_succeed(tmp_path):
    answers = FORK.Queue()
    names = ["a", "b", "c", "d", "same", "same"]
    children = [FORK.Process(target=create, args=(tmp_path / "L.sqlite", name, answers)) for name in names]
    for child in children:
        child.start()
    told = sorted(answers.get(timeout=60) for _ in children)
    for child in children:
        child.join()
    assert told == ["made"] * 5 + ["refused"]
    assert set(Ledger(tmp_path / "L.sqlite").datasets()) == set(names)
