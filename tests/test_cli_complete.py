"""`tensorveil complete`: from a file to a release, whole or not at all, and never more than the budget."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli
from tensorveil.release import saving
from tensorveil.release.ledger.ledger import Ledger

FILES = {"model.safetensors", "labels.json", "certificate.json", "report.html"}


def run(*arguments):
    """The command line as a shell sees it: status, standard output, standard error."""
    result = CliRunner().invoke(cli.app, [str(part) for part in arguments])
    error = result.exception
    if isinstance(error, tv.TensorveilError):  # what main() turns into a line and a status
        return cli.exit_status(error), result.stdout, f"{result.stderr}error: {error}"
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def ratings(tmp_path):
    generator = np.random.default_rng(4)
    path = tmp_path / "ratings.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["user", "film", "day", "rating"])
        for user in range(12):
            for film in range(8):
                for day in range(3):
                    if generator.random() < 0.6:
                        lines.writerow([f"u{user}", f"f{film}", f"2026-01-0{day + 1}", generator.integers(1, 6)])
    return path


def options(path, out, *more, epsilon=2):
    common = ["--modes", "user,film,day", "--value", "rating", "--bounds", 1, 5, "--unit", "value", "--rank", 2]
    return ["complete", path, *common, "--epsilon", epsilon, "--out", out, *more]


def test_a_file_becomes_a_folder_that_verifies_and_predicts(ratings, tmp_path):
    status, output, _ = run(*options(ratings, tmp_path / "out"))
    assert status == 0
    most = max(Counter(line.split(",")[0] for line in ratings.read_text().splitlines()[1:]).values())
    whole = f"Epsilon adds up over several values: to {2 * most} for the user with the most ({most}), to "
    for text in ("price: epsilon 2", "why this mechanism", "Proven with epsilon = 2", whole, "report.html"):
        assert text in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert run("verify", tmp_path / "out")[0] == 0
    cells = tmp_path / "cells.csv"
    cells.write_text("user,film,day\nu0,f1,2026-01-02\nu3,f7,2026-01-01\n")
    assert run("predict", tmp_path / "out", cells, "--out", tmp_path / "predicted.csv")[0] == 0
    predicted = [
        float(row["prediction"]) for row in csv.DictReader((tmp_path / "predicted.csv").read_text().splitlines())
    ]
    assert len(predicted) == 2
    assert all(1 <= number <= 5 for number in predicted)
    assert run("evaluate", tmp_path / "out", ratings)[0] == 0


def test_with_json_standard_output_is_json_alone(ratings, tmp_path):
    status, output, _ = run(*options(ratings, tmp_path / "out", "--json"))
    found = json.loads(output)
    assert (status, found["epsilon"], found["unit"], found["status"], found["publishable"]) == (
        (0, 2.0, "value", "proven", True)
    )
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["epsilon"] == found["epsilon"]
    assert certificate["mechanism"].startswith(found["mechanism"])


def test_plan_only_writes_and_spends_nothing(ratings, tmp_path):
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 2.0)
    more = ("--ledger", tmp_path / "L.sqlite", "--dataset", "films", "--plan-only")
    status, output, _ = run(*options(ratings, tmp_path / "out", *more))
    assert (status, (tmp_path / "out").exists()) == (0, False)
    assert "price: epsilon 2" in output
    assert Ledger(tmp_path / "L.sqlite").spent("films").epsilon == 0


def test_a_configuration_file_is_read_and_options_win_over_it(ratings, tmp_path):
    config = tmp_path / "job.toml"
    config.write_text(
        f'input = "{ratings}"\nmodes = ["user", "film", "day"]\nvalue = "rating"\nbounds = [1, 5]\nunit = "value"\n'
        "epsilon = 1\nrank = 2\n"
    )
    status, output, _ = run("complete", "--config", config, "--epsilon", 3, "--plan-only", "--json")
    assert (status, json.loads(output)["asked"]["epsilon"], json.loads(output)["model"]) == (0, 3.0, "CP(rank=2)")
    config.write_text("epsilno = 1\n")
    assert run("complete", "--config", config)[::2] == (
        (2, f"error: the names in {config} must be options of complete, got epsilno; remove them")
    )


RENAMED = ["--modes", "person=user,film,month=day,when=day", "--bin", "month=month", "--bin", "when=day"]


def test_modes_may_have_other_names_than_their_columns(ratings, tmp_path):
    out = tmp_path / "out"
    assert run(*options(ratings, out, *RENAMED, "--mechanism", "statistic"))[0] == 0
    release = tv.Release.load(out)
    assert (release.mode_names, release.shape) == (("person", "film", "month", "when"), (12, 8, 1, 3))
    assert (release.bins, release.labels[2].tolist()) == ((None, None, "month", "day"), ["2026-01"])
    cells = tmp_path / "cells.csv"
    cells.write_text("user,film,month,when\nu0,f1,2026-01,2026-01-02\n")
    predicted = tmp_path / "predicted.csv"
    assert run("predict", out, cells, "--modes", "person=user", "--out", predicted)[0] == 0
    assert predicted.read_text().splitlines()[0] == '"person","film","month","when","prediction"'
    before = predicted.read_bytes()
    status, _, error = run("predict", out, cells, "--modes", "person=user", "--out", predicted)
    assert (status, predicted.read_bytes() == before) == (2, True)
    assert "--out must be a new file" in error
    assert "twice" in run("predict", out, cells, "--modes", "film=user", "--out", tmp_path / "x.csv")[2]


def test_public_levels_cost_nothing_to_find(ratings, tmp_path):
    status, output, _ = run(*options(ratings, tmp_path / "out", "--levels", "1,2,3,4,5", "--plan-only", "--json"))
    found = json.loads(output)
    assert (status, [stage["name"] for stage in found["stages"]]) == (0, ["values"])


def test_an_infinite_epsilon_gives_a_model_that_is_marked_as_not_private(ratings, tmp_path):
    status, output, _ = run(*options(ratings, tmp_path / "out", "--title", "Films of a club", epsilon="inf"))
    assert status == 0
    assert "Films of a club" in (tmp_path / "out" / "report.html").read_text()
    assert "No privacy" in output
    assert "NOT private" in output
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert (certificate["epsilon"], certificate["status"], certificate["publishable"]) == (None, "none", False)
    assert run("evaluate", tmp_path / "out", ratings)[0] == 0
    assert run("verify", tmp_path / "out")[0] == 1
    compared = json.loads(run("compare", tmp_path / "out", tmp_path / "out", "--json")[1])
    assert compared["epsilon"] == [None, None]
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 2.0)
    more = ("--ledger", tmp_path / "L.sqlite", "--dataset", "films")
    status, _, error = run(*options(ratings, tmp_path / "other", *more, epsilon="inf"))
    assert (status, (tmp_path / "other").exists()) == (2, False)
    assert "finite epsilon" in error


@pytest.mark.parametrize(
    "changed, word",
    [
        (["--levels", "a,b"], "levels must be numbers"),
        (["--levels", "1,2,3", "--mechanism", "sums"], "--levels must be for input perturbation"),
        (["--modes", "user=,film"], "modes must be"),
        (["--modes", "user=user,user=film"], "each name once"),
        (["--rank", "2,2"], "rank must be one number for cp"),
        (["--model", "hosvd"], "model must be one of"),
        (["--mechanism", "magic"], "mechanism must be one of"),
        (["--unit", "person"], "unit"),
        (["--epsilon", "0"], "epsilon must be"),
        (["--epsilon", "nan"], "epsilon must be"),
        (["--epsilon", "inf", "--seed", "3"], "--seed and --levels must be left out"),
        (["--delta", "2"], "delta must be"),
        (["--bounds", "5", "1"], "low below high"),
        (["--bin", "day"], "--bin must be MODE=VALUE"),
        (["--shape", "a,b"], "shape must be whole numbers"),
        (["--ledger", "L.sqlite"], "--ledger and --dataset"),
        (["--ledger", "L.sqlite", "--dataset", "x"], "create it with tensorveil ledger create"),
        (["--value", "stars"], "stars"),
        (["--columns", "user"], "columns"),
    ],
)
def test_wrong_input_is_one_clear_error_and_no_folder(ratings, tmp_path, changed, word):
    status, _, error = run(*options(ratings, tmp_path / "out", *changed))
    assert status == 2
    assert word in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left_out", ["--modes", "--value", "--unit", "--epsilon", "--bounds"])
def test_what_is_needed_is_named(ratings, tmp_path, left_out):
    given_options = options(ratings, tmp_path / "out")
    place = given_options.index(left_out)
    del given_options[place : place + (3 if left_out == "--bounds" else 2)]
    status, _, error = run(*given_options)
    assert (status, f"{left_out} must be given" in error) == (2, True)


def test_the_ledger_pays_until_it_refuses(ratings, tmp_path):
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 5.0)
    more = ("--ledger", tmp_path / "L.sqlite", "--dataset", "films")
    assert run(*options(ratings, tmp_path / "a", *more))[0] == 0
    assert run(*options(ratings, tmp_path / "b", *more))[0] == 0
    status, _, error = run(*options(ratings, tmp_path / "c", *more))
    assert (status, (tmp_path / "c").exists()) == (3, False)
    assert "films" in error
    assert Ledger(tmp_path / "L.sqlite").spent("films").epsilon == 4
    assert json.loads((tmp_path / "a" / "certificate.json").read_text())["ledger"]["dataset"] == "films"
    assert run("verify", tmp_path / "a")[0] == 0


def test_a_folder_that_exists_is_refused_before_anything_is_spent(ratings, tmp_path):
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 5.0)
    (tmp_path / "out").mkdir()
    more = ("--ledger", tmp_path / "L.sqlite", "--dataset", "films")
    assert run(*options(ratings, tmp_path / "out", *more))[0] == 2
    assert Ledger(tmp_path / "L.sqlite").spent("films").epsilon == 0


def test_a_run_that_fails_after_its_reservation_has_spent_it(ratings, tmp_path, monkeypatch):
    def fail(*_):
        raise tv.DivergenceError("left the finite numbers", 1)

    monkeypatch.setattr(tv.InputPerturbation, "run", fail)
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 5.0)
    more = ("--ledger", tmp_path / "L.sqlite", "--dataset", "films")
    status, _, error = run(*options(ratings, tmp_path / "out", *more))
    assert (status, (tmp_path / "out").exists()) == (4, False)
    assert "counts as spent" in error
    assert Ledger(tmp_path / "L.sqlite").spent("films").epsilon == 2


def test_labels_read_off_the_data_need_a_word_of_the_caller_where_existence_is_private(ratings, tmp_path):
    private = ["--unit", "entry", "--delta", "1e-6", "--expected-count", "170"]
    status, _, error = run(*options(ratings, tmp_path / "out", *private))
    assert (status, "label" in error) == (2, True)
    status, told, error = run(*options(ratings, tmp_path / "out", *private, "--plan-only"))
    assert (status, told, "label" in error) == (2, "", True)  # a plan would show a shape that is not public
    stated = [part for mode in ("user", "film", "day") for part in ("--public-labels", mode)]
    assert run(*options(ratings, tmp_path / "out", *private, *stated))[0] == 0
    with_commas = ["--public-labels", "user", "--public-labels", "film,day"]
    assert run(*options(ratings, tmp_path / "none", *private, *with_commas, "--plan-only"))[0] == 0
    trusted = json.loads((tmp_path / "out" / "certificate.json").read_text())["assumptions_trusted"]
    assert sum("stated by the caller" in text for text in trusted) == 3


def test_a_seeded_release_says_that_it_is_not_for_publication(ratings, tmp_path):
    status, output, _ = run(*options(ratings, tmp_path / "out", "--seed", 1))
    assert (status, "Not for publication" in output) == (0, True)
    assert run("verify", tmp_path / "out")[0] == 1


OPTIONS = (
    "--modes --value --bounds --unit --epsilon --delta --at-most --model --rank --mechanism --format --columns "
    "--bin --labels --public-labels --shape --first-index --duplicates --config --plan-only --json"
)
WORTH = (
    "user,film,day user rating 1 5 0 -1 nan inf 1e-6 value entry slice:user slice_values:film slice:9 cp tucker 2,2,2 "
    "auto input statistic day=day film= csv npz keep mean"
)
WORDS = st.one_of(st.sampled_from(f"{OPTIONS} {WORTH}".split()), st.text(max_size=8))


def check_the_command_line(folder, words):
    """Whatever is typed up to the run itself: a status, no traceback, nothing spent, nothing written."""
    ledger, out = folder / "L.sqlite", folder / "out"
    if not ledger.exists():
        Ledger.create(ledger, "films", "value", 1e9)
    before = ledger.read_bytes()
    given_options = options(folder / "ratings.csv", out, "--ledger", ledger, "--dataset", "films", "--plan-only")
    status, _, _ = run(*given_options, *words)
    assert status in (0, 2, 3)
    assert ledger.read_bytes() == before
    assert not out.exists()


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=60, **QUIET)
@given(words=st.lists(WORDS, max_size=6))
def test_any_words_on_the_command_line_are_answered_clearly(ratings, tmp_path, words):
    check_the_command_line(ratings.parent, words)


@pytest.mark.slow
@settings(max_examples=10_000, **QUIET)
@given(words=st.lists(WORDS, max_size=6))
def test_ten_thousand_command_lines_are_answered_clearly(ratings, tmp_path, words):
    check_the_command_line(ratings.parent, words)


SUDDEN_DEATH = """
import os, signal, sys
from tensorveil.__main__ import main
from tensorveil.cli import app, complete
from tensorveil.mechanisms.statistic import StatisticPerturbation
from tensorveil.release import saving
from tensorveil.release.ledger.ledger import Ledger

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the caller made of it
signal.signal(signal.SIGTERM, signal.SIG_DFL)
numbers = {"killed": signal.SIGKILL, "interrupted": signal.SIGINT, "terminated": signal.SIGTERM}
number = numbers[sys.argv[1]]
owner, name, after = {
    "reserved": (Ledger, "reserve", True),
    "drawing": (StatisticPerturbation, "run", False),
    "made": (saving, "save_release", False),
    "writing": (saving, "_sync_folder", False),
    "written": (Ledger, "saved", False),
    "recorded": (Ledger, "saved", True),
}[sys.argv[2]]
do = getattr(owner, name)

def stop(*given):
    found = do(*given) if after else None
    os.kill(os.getpid(), number)
    return found

setattr(owner, name, stop)
sys.argv[1:] = sys.argv[3:]
main()
"""


@pytest.fixture
def stopped(ratings, tmp_path):
    """Runs of `complete`, each in a process of its own with a ledger of its own, that end at points of their way."""

    def run_all(how, points):
        started = {}
        for point in points:
            Ledger.create(tmp_path / f"{point}.sqlite", "films", "value", 5.0)
            paying = ("--ledger", tmp_path / f"{point}.sqlite", "--dataset", "films", "--mechanism", "statistic")
            words = [how, point, *options(ratings, tmp_path / point, *paying)]
            started[point] = subprocess.Popen(
                [sys.executable, "-c", SUDDEN_DEATH, *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        return {point: (process.communicate(timeout=300)[1], process.returncode) for point, process in started.items()}

    return run_all


def test_killed_at_every_step_the_ledger_tells_the_truth(stopped, tmp_path):
    states = {
        "reserved": ("reserved", False),
        "drawing": ("drawing", False),
        "made": ("drawn", False),
        "writing": ("drawn", False),
        "written": ("drawn", True),
        "recorded": ("saved", True),
    }
    for point, (_, status) in stopped("killed", states).items():
        state, whole = states[point]
        assert (point, status) == (point, -signal.SIGKILL)
        path, out = tmp_path / f"{point}.sqlite", tmp_path / point
        assert (point, out.exists()) == (point, whole)
        assert Ledger(path).spent("films").epsilon == pytest.approx(2)
        missing = json.loads(run("ledger", "show", path, "--json")[1])["datasets"]["films"]["without_folder"]
        assert [one["state"] for one in missing] == ([] if state == "saved" else [state])
        shown = run("ledger", "show", path)[1]
        assert ("no folder  reservation 2" in shown) == (state != "saved")
        if whole:
            assert run("verify", out, "--ledger", path)[0] == 0
            assert run("ledger", "record", path, out)[0] == 0
            assert Ledger(path).spent("films").saved == 1


@pytest.mark.parametrize("how, number", [("interrupted", 130), ("terminated", 143)])
def test_stopped_at_a_step_that_was_paid_the_program_says_what_is_spent(stopped, tmp_path, how, number):
    for point, (told, status) in stopped(how, ("drawing", "made", "writing")).items():
        assert (point, status) == (point, number)
        assert "reservation 2 of data set 'films' counts as spent" in told
        assert told.endswith(f"{how}\n")
        assert "Traceback" not in told
        assert not list(tmp_path.glob(".*.part")), "nothing is left behind"
        assert not (tmp_path / point).exists()
        assert Ledger(tmp_path / f"{point}.sqlite").spent("films").epsilon == pytest.approx(2)


def test_a_full_disk_is_found_before_anything_is_spent(ratings, tmp_path, monkeypatch):
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 5.0)
    monkeypatch.setattr("tensorveil.release.memory.needed_space", lambda plan, labels: 2**60)
    status, _, error = run(*options(ratings, tmp_path / "out", "--ledger", tmp_path / "L.sqlite", "--dataset", "films"))
    assert (status, (tmp_path / "out").exists()) == (2, False)
    assert "nothing was spent" in error
    assert Ledger(tmp_path / "L.sqlite").spent("films").epsilon == 0


def test_a_release_that_cannot_be_saved_has_spent_its_budget(ratings, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "_sync_folder", full)
    Ledger.create(tmp_path / "L.sqlite", "films", "value", 5.0)
    status, _, error = run(*options(ratings, tmp_path / "out", "--ledger", tmp_path / "L.sqlite", "--dataset", "films"))
    assert (status, (tmp_path / "out").exists()) == (4, False)
    assert "reservation 2 of data set 'films' counts as spent" in error
    assert "No space left" in error
    assert Ledger(tmp_path / "L.sqlite").spent("films").drawn == 1
    assert run(*options(ratings, tmp_path / "unpaid"))[::2][0] == 4


@pytest.mark.slow
def test_killed_at_any_moment_the_folder_is_whole_or_absent_and_what_was_drawn_is_spent(ratings, tmp_path):
    ledger = tmp_path / "L.sqlite"
    Ledger.create(ledger, "films", "value", 1e6)
    arguments = lambda out: [str(part) for part in options(ratings, out, "--ledger", ledger, "--dataset", "films")]  # noqa: E731
    program = [sys.executable, "-m", "tensorveil"]
    started = time.monotonic()
    subprocess.run([*program, *arguments(tmp_path / "whole")], check=True, capture_output=True)
    usual = time.monotonic() - started
    chance = random.Random(3)
    for number in range(50):
        out = tmp_path / f"out{number}"
        process = subprocess.Popen([*program, *arguments(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 1.1 * usual))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        made = [folder for folder in tmp_path.glob("out*") if (folder / "certificate.json").exists()]
        if out.exists():
            assert {path.name for path in out.iterdir()} == FILES
        spent = Ledger(ledger).spent("films")
        assert spent.epsilon >= 2 * (1 + len(made))
        assert spent.saved <= 1 + len(made) <= spent.saved + spent.drawn  # a folder may be there before it is recorded
    subprocess.run([*program, *arguments(tmp_path / "after")], check=True, capture_output=True)
    assert run("verify", tmp_path / "after")[0] == 0


@pytest.mark.parametrize(
    ("more", "model"),
    [
        (["--unit", "value"], "CP(rank=8)"),  # no more than the second largest mode
        (["--unit", "value", "--mechanism", "statistic"], "CP(rank=5)"),
        (["--unit", "entry", "--public-labels", "user,film,day"], "CP(rank=8)"),  # symbols of all cells may be bought
        (["--unit", "entry", "--public-labels", "user,film,day", "--mechanism", "sums"], "CP(rank=5)"),
        (["--unit", "value", "--model", "tucker"], "Tucker(ranks=(5, 5, 3))"),
        (["--unit", "value", "--rank", 3], "CP(rank=3)"),
    ],
)
def test_the_rank_follows_a_rule_where_none_is_given(ratings, more, model):
    common = ["--modes", "user,film,day", "--value", "rating", "--bounds", 1, 5, "--epsilon", 2]
    status, output, error = run("complete", ratings, *common, *more, "--plan-only", "--json")
    assert status == 0, error
    assert json.loads(output)["model"] == model
