"""`tensorveil advise`: sizes or a file give the same advice, and wrong input is one clear error."""

import json
import re

import pytest
from typer.testing import CliRunner

from tensorveil.cli.app import app
from tensorveil.release.advice import advisor


@pytest.fixture
def quick(monkeypatch):
    """Results without runs: what the command passes on is at stake."""
    monkeypatch.setattr(advisor, "_error", lambda planned, signal, spread: 0.9 / planned.request.epsilon**0.1)


def run(*words):
    return CliRunner().invoke(app, ["advise", *words])


def test_sizes_and_a_file_of_the_same_public_facts_give_the_same_advice(tmp_path, quick):
    file = tmp_path / "r.csv"
    file.write_text("user,film,stars\n" + "".join(f"u{u},f{f},{1 + (u + f) % 5}\n" for u in range(9) for f in range(8)))
    options = ["--unit", "value", "--epsilons", "1,2", "--models", "cp,tucker", "--ranks", "2,3", "--wanted", "0.6"]
    sizes = run("9x8", "--modes", "user,film", "--expected-count", "72", "--json", *options)
    read = run(str(file), "--modes", "user,film", "--value", "stars", "--json", *options)
    found = json.loads(read.stdout)
    assert found == json.loads(sizes.stdout)
    assert [row["model"] for row in found["rows"][::2]] == [
        "CP(rank=2)",
        "CP(rank=3)",
        "Tucker(ranks=(2, 2))",
        "Tucker(ranks=(3, 3))",
    ]
    assert (found["count"], found["unit"]) == (72, "value")


@pytest.mark.parametrize(
    "words, message",
    [
        (["9x8"], "--unit must be given"),
        (["9x8", "--unit", "value"], "expected.count must be given"),
        (["9x8", "--unit", "entry", "--value", "stars"], "--value must be left out with sizes"),
        (["9x8", "--unit", "entry", "--ranks", "2.5"], "ranks must be whole numbers"),
        (["9x8", "--unit", "entry", "--epsilons", "1;2"], "epsilons must be numbers"),
        (["nowhere.csv", "--unit", "entry", "--modes", "a,b", "--value", "c"], "nowhere.csv"),
    ],
)
def test_wrong_input_is_one_clear_error(words, message, quick):
    found = run(*words)
    assert found.exit_code != 0
    assert re.search(message, str(found.exception))
