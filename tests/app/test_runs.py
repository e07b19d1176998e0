"""Runs of the command line by the app: jobs, cancelling, what the ledger says, and what is left on the disk."""

import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tensorveil import TensorveilError
from tensorveil.app.runs import advice_arguments, job_text
from tensorveil.app.workspace import Workspace
from tensorveil.cli import app as cli
from tensorveil.data.readers.sources import column_names
from tensorveil.release.ledger.ledger import Ledger

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(
    st.dictionaries(
        st.sampled_from(["input", "modes", "epsilon", "rank"]),
        TEXTS | st.lists(TEXTS, min_size=1) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**9),
    ),
    st.dictionaries(TEXTS, TEXTS),
)
def test_a_job_reads_back_as_it_was_written(options, bins):
    assert tomllib.loads(job_text({**options, "bin": bins})) == options | ({"bin": bins} if bins else {})


def test_advice_is_asked_for_the_tensor_of_the_job():
    asked = {
        "input": "/data/ratings.csv", "modes": ["user", "film"], "value": "stars", "bounds": [-1, 5], "at_most": 7,
        "unit": "slice:user", "epsilon": 2, "delta": 1e-6, "model": "auto", "rank": "4", "mechanism": "auto",
        "expected_count": None, "duplicates": "keep", "shape": "", "format": "", "columns": "",
        "public_labels": ["film"], "bin": {"film": "day"}, "labels": {"user": "/data/users.txt"},
    }  # fmt: skip
    command = typer.main.get_command(cli.app).commands["advise"]
    found = command.make_context("advise", advice_arguments(asked)[1:]).params
    told = {name: given for name, given in found.items() if given not in (None, [], ())}
    assert told | {"input": str(told["input"])} == {
        "input": "/data/ratings.csv", "modes": "user,film", "value": "stars", "bounds": (-1.0, 5.0), "at_most": 7,
        "unit": "slice:user", "delta": 1e-6, "models": "cp,tucker", "ranks": "4", "mechanism": "auto", "as_json": True,
        "duplicates": "keep", "public_labels": ["film"], "bin": ["film=day"], "labels": ["user=/data/users.txt"],
        "epsilons": found["epsilons"],
    }  # fmt: skip


def test_the_curve_shows_every_signal_and_marks_the_chosen_epsilon():
    page = pytest.importorskip("tensorveil.app.page", reason="shiny is not installed: pip install 'tensorveil[app]'")
    errors = {0.1: (1.0, 1.0, 1.0), 1.0: (0.98, 0.8, 0.6), 10.0: (0.9, 0.6, 0.2)}
    rows = [
        {"model": "CP(rank=2)", "epsilon": epsilon, "errors": dict(zip(page.SIGNALS, found, strict=True))}
        for epsilon, found in errors.items()
    ]
    told = {"rows": rows, "sentences": ["Nothing private was read."]}
    drawn = {epsilon: str(page.shown_advice(told, epsilon)) for epsilon in (1, 10, None)}
    lines = [
        [tuple(map(float, point.split())) for point in path.split(" L ")]
        for path in re.findall(r'd="M ([^"]*) ?" style', drawn[1])
    ]
    assert len(lines) == 3
    for line in lines:
        across, down = zip(*line, strict=True)
        assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)  # decades are equally wide
        assert list(down) == sorted(down)  # a smaller error is further down
    marks = [re.findall(r'class="mark" d="M ([\d.]+)', text) for text in drawn.values()]
    assert [float(mark[0]) for mark in marks[:2]] == [lines[0][1][0], lines[0][2][0]]
    assert marks[2] == []
    assert "0.98 for a weak signal, 0.80 for a middling signal, 0.60 for a strong signal" in drawn[1]


@pytest.fixture
def workspace(tmp_path):
    made = Workspace(tmp_path / "releases")
    yield made
    made.close()


@pytest.fixture
def ratings(tmp_path):
    generator = np.random.default_rng(4)
    path = tmp_path / "ratings.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["user", "film", "rating"])
        lines.writerows([f"u{user}", f"f{film}", generator.integers(1, 6)] for user in range(12) for film in range(9))
    return path


def job(workspace, path, **more):
    common = {"input": str(path), "modes": ["user", "film"], "value": "rating", "bounds": [1, 5], "unit": "value"}
    return {**common, "epsilon": 2, "rank": "2", "out": str(workspace.target("first")), **more}


def until(condition, seconds=120.0):
    """Wait for a condition; a run on a busy machine may take long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_that_is_cancelled_at_once_spends_nothing(workspace, ratings):
    Ledger.create(workspace.ledger, "films", "value", 5.0)
    workspace.start(job(workspace, ratings, ledger=str(workspace.ledger), dataset="films"))
    with pytest.raises(TensorveilError, match="a run must end before the next one starts"):
        workspace.start(job(workspace, ratings))
    workspace.run.cancel()
    workspace.run.wait()
    outcome = workspace.outcome()
    assert (outcome.good, outcome.title) == (False, "Cancelled")
    assert "Nothing was spent" in outcome.text
    assert Ledger(workspace.ledger).spent("films").epsilon == 0
    assert not workspace.target("first").exists()


def test_a_run_that_is_cancelled_after_its_reservation_says_what_counts_as_spent(workspace, ratings):
    ledger = Ledger.create(workspace.ledger, "films", "value", 5.0)
    workspace.start(job(workspace, ratings, ledger=str(workspace.ledger), dataset="films", rank="8"))
    until(lambda: len(ledger.entries()) >= 3 or not workspace.run.running)  # the data set, the reservation, the draw
    workspace.run.cancel()
    workspace.run.wait()
    outcome, spent = workspace.outcome(), ledger.spent("films")
    assert outcome.title == "Cancelled"
    assert "reservation 2 of data set 'films' (epsilon 2) counts as spent" in outcome.text
    assert spent.epsilon == 2
    assert not workspace.target("first").exists()


@pytest.mark.slow
def test_a_wrong_job_says_what_the_command_line_says(workspace, ratings):
    asked = job(workspace, ratings, bounds=[5, 1])
    workspace.start(asked)
    workspace.run.wait()
    given_options = CliRunner().invoke(cli.app, ["complete", "--config", str(workspace.job_file(asked))])
    assert workspace.run.error == str(given_options.exception)
    assert "low below high" in workspace.run.error
    assert "No ledger was charged" in workspace.outcome().text


@pytest.mark.slow
def test_an_empty_ledger_refuses_in_the_words_of_the_command_line(workspace, ratings):
    Ledger.create(workspace.ledger, "films", "value", 1.0)
    workspace.start(job(workspace, ratings, ledger=str(workspace.ledger), dataset="films"))
    workspace.run.wait()
    outcome = workspace.outcome()
    assert outcome.title == "Refused by the ledger"
    assert re.search(r"the budget of data set 'films' .* must cover the release, got epsilon 2", outcome.text)
    assert "Nothing was spent" in outcome.text


def test_uploads_keep_their_name_and_nothing_remains_at_the_end(workspace, ratings):
    kept = workspace.taken_in(ratings, "../../etc/my ratings.csv")
    assert kept.name == "my ratings.csv"
    assert kept.is_relative_to(workspace.temporary)
    assert workspace.temporary.stat().st_mode & 0o077 == 0
    assert not ratings.exists()
    workspace.forget(kept)
    assert not kept.exists()
    workspace.close()
    assert not workspace.temporary.exists()


def test_uploads_of_an_app_that_was_killed_are_deleted_by_the_next_one_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os, pathlib; from tensorveil.app.workspace import Workspace; w = Workspace(pathlib.Path('r'));"
    code += "(w.temporary / 'upload.csv').write_text('secret'); os._exit(9)"
    died = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert died.returncode == 9
    assert len(list(tmp_path.glob("tensorveil-app-*/upload.csv"))) == 1
    first, second = Workspace(tmp_path / "a"), Workspace(tmp_path / "b")
    assert set(tmp_path.glob("tensorveil-app-*")) == {first.temporary, second.temporary}
    first.close()
    second.close()
    assert list(tmp_path.glob("tensorveil-app-*")) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "a\nb", "x" * 101])
def test_a_release_cannot_be_named_out_of_its_folder(workspace, name):
    with pytest.raises(TensorveilError, match="the name of a release must be"):
        workspace.target(name)


def test_only_the_files_of_releases_are_served(workspace, tmp_path):
    (tmp_path / "report.html").write_text("secret")
    (workspace.folder / "one").mkdir()
    (workspace.folder / "one" / "report.html").write_text("report")
    (workspace.folder / "one" / "notes.txt").write_text("secret")
    (workspace.folder / "two").symlink_to(tmp_path)
    (workspace.folder / "one" / "labels.json").symlink_to(tmp_path / "report.html")
    assert workspace.released_file("one", "report.html").read_text() == "report"
    for name, file in [("..", "report.html"), ("one", "notes.txt"), ("two", "report.html"), ("one", "labels.json")]:
        assert workspace.released_file(name, file) is None
    assert workspace.released_file("one/../..", "report.html") is None
    assert workspace.released_file("", "report.html") is None


def test_names_of_columns_come_from_the_header_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("user,film,rating\nann,7,4\n")
    assert column_names(path) == ("user", "film", "rating")
    path.write_text("196,242,3\n186,302,3\n")
    with pytest.raises(TensorveilError) as caught:
        column_names(path)
    assert "must hold the names of the columns" in str(caught.value)
    assert not any(number in str(caught.value) for number in ("196", "242"))
    assert column_names(path, "tns") is None


def test_without_shiny_the_command_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "shiny", None)
    error = CliRunner().invoke(cli.app, ["app"]).exception
    assert str(error) == "shiny must be installed for the browser app, but is not; run pip install 'tensorveil[app]'"


def test_ctrl_c_is_how_the_app_ends_and_no_failure(tmp_path):
    pytest.importorskip("shiny", reason="shiny is not installed: pip install 'tensorveil[app]'")
    command = [sys.executable, "-u", "-m", "tensorveil", "app", str(tmp_path / "releases"), "--no-browser"]
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **listening) as process:
        address = next(line.strip() for line in process.stdout if "http://" in line)
        page = HTTPConnection(urlsplit(address).netloc)
        page.request("GET", "/")
        page.getresponse()  # of whatever status: the page is served
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate()
    assert (process.returncode, wrong) == (0, "")
    assert "stopped; uploads are deleted" in said
