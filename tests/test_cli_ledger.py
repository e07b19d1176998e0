"""`tensorveil ledger`: what it prints, and with which exit status."""

import json
import re
import sqlite3
import sys
from contextlib import closing

import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.accounting.filters import Charge

FILMS = ("--dataset", "films", "--unit", "value", "--epsilon", "1", "--delta", "1e-6")


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the program as the shell does; returns exit status, standard output and standard error."""

    def main(*words):
        monkeypatch.setattr(sys, "argv", ["tensorveil", "ledger", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        told = capsys.readouterr()
        return caught.value.code or 0, told.out, told.err

    return main


@pytest.fixture
def path(tmp_path, run):
    assert run("create", tmp_path / "L.sqlite", *FILMS)[0] == 0
    return tmp_path / "L.sqlite"


def spend(path, epsilon):
    reservation = tv.Ledger(path).reserve("films", Charge(tv.Unit("value"), (PureEvent(epsilon),), epsilon))
    reservation.draw()
    return reservation


def test_a_budget_from_its_creation_to_its_end(run, path):
    spend(path, 0.25).commit()
    spend(path, 0.5)
    status, out, _ = run("show", path)
    assert status == 0
    counted = "1 drawn without a known folder, 1 unfinished"
    for words in ("films", "unit       value", "epsilon 1, delta 1e-06", counted, "chain verified"):
        assert words in out
    assert re.search("no folder  reservation 2 of .*: drawn, epsilon 0.25", out)
    assert re.search("no folder  reservation 5 of .*: drawing, epsilon 0.5", out)
    status, out, _ = run("show", path, "--json")
    told = json.loads(out)["datasets"]["films"]
    assert (status, told["spent"]["epsilon"], told["spent"]["mode"]) == (0, 0.75, "classes")
    assert [(one["reservation"], one["state"]) for one in told["without_folder"]] == [(2, "drawn"), (5, "drawing")]
    assert told["remaining"]["pure_epsilon"] >= 0.25
    status, out, _ = run("raise", path, "--dataset", "films", "--epsilon", "1.5", "--why", "the board agreed")
    assert status == 0
    assert "was epsilon 1, delta 1e-06; it is now epsilon 1.5, delta 1e-06 in all" in out
    assert tv.Ledger(path).budget("films") == (tv.Unit("value"), 1.5, 1e-6)


def test_export_is_everything_with_hashes(run, path):
    spend(path, 0.25)
    status, out, _ = run("export", path)
    found = json.loads(out)
    assert (status, found["verified"]) == (0, True)
    assert [json.loads(entry["text"])["kind"] for entry in found["entries"]] == ["dataset", "reserve", "draw"]


def test_a_broken_chain_is_exported_with_status_1_and_refused_with_status_3(run, path):
    spend(path, 0.25)
    with closing(sqlite3.connect(path)) as connection:
        name = "entries_are_not_changed"
        (trigger,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE entries SET body = replace(body, '0.25', '0.05') WHERE number = 2")
        connection.execute(trigger)
        connection.commit()
    status, out, err = run("export", path)
    found = json.loads(out)
    assert (status, found["verified"]) == (1, False)
    assert "entry 2" in found["fault"]
    assert "entry 2" in err
    status, out, err = run("show", path)
    assert (status, out) == (3, "")
    assert "got entry 2" in err


def test_two_data_sets_in_one_file(run, path):
    options = ("--dataset", "visits", "--unit", "slice:patient", "--epsilon", "2", "--at-most", "20")
    assert run("create", path, *options)[0] == 0
    assert "slice:patient of at most 20 observations" in run("show", path)[1]
    status, _, err = run("create", path, *options)
    assert (status, "raise its budget" in err) == (2, True)


@pytest.mark.parametrize(
    "words, message",
    [
        (("show", "none.sqlite"), "create it with tensorveil ledger create"),
        (("export", "none.sqlite"), "existing file"),
        (("create", "L.sqlite", "--dataset", "x", "--unit", "person", "--epsilon", "1"), "unit"),
        (("create", "L.sqlite", "--dataset", "x", "--unit", "value", "--epsilon", "-1"), "epsilon"),
        (("create", "L.sqlite", "--dataset", "x", "--unit", "value", "--epsilon", "1", "--delta", "1"), "delta"),
        (("create", "L.sqlite", "--dataset", "x", "--unit", "value"), "--epsilon"),
        (
            ("raise", "PATH", "--dataset", "books", "--epsilon", "3", "--why", "more"),
            "one of the data sets in the ledger",
        ),
        (("raise", "PATH", "--dataset", "films", "--epsilon", "0.5", "--why", "less"), "new total"),
        (("raise", "PATH", "--dataset", "films", "--epsilon", "3", "--why", ""), "why"),
    ],
)
def test_wrong_input_is_one_error_with_status_2(run, path, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    before = path.read_bytes()
    status, out, err = run(*(path if word == "PATH" else word for word in words))
    assert (status, out) == (2, "")
    assert message in err
    assert path.read_bytes() == before


def test_a_refusal_of_the_ledger_has_status_3(monkeypatch, capsys):
    def refusing():
        raise tv.BudgetError("the budget must cover the release, got more; request less")

    monkeypatch.setattr(cli, "app", refusing)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    assert "request less" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["create", "show", "raise", "record", "export"])
def test_every_command_has_an_example(command):
    told = CliRunner().invoke(cli.app, ["ledger", command, "--help"])
    assert told.exit_code == 0
    assert f"Example: tensorveil ledger {command} L.sqlite" in " ".join(told.output.split())
