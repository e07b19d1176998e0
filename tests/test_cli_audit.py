"""`tensorveil audit`: what it prints, the JSON, the picture and the exit status."""

import json
import sys
import xml.etree.ElementTree as ET

import pytest

from tensorveil.cli import app as cli

KEYS = ["mechanism", "model", "unit", "stated_epsilon", "delta", "lower_bound", "confidence", "runs", "verdict"]


def run(monkeypatch, capsys, *arguments):
    """Exit status, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["tensorveil", "audit", *arguments])
    monkeypatch.setenv("COLUMNS", "150")
    with pytest.raises(SystemExit) as caught:
        cli.main()
    told = capsys.readouterr()
    return caught.value.code or 0, told.out, told.err


def test_a_false_claim_is_refuted_with_json_alone_on_standard_output(monkeypatch, capsys, tmp_path):
    picture = tmp_path / "new" / "scores.svg"
    status, out, _ = run(
        monkeypatch, capsys, "published-gradient", "--epsilon", "0.1", "--runs", "150", "--confidence", "0.999999",
        "--json", "--picture", str(picture),
    )  # fmt: skip
    told = json.loads(out)
    assert list(told) == KEYS
    assert (status, told["verdict"]) == (1, "refuted")
    assert told["lower_bound"] > told["stated_epsilon"] == 0.1
    assert (told["mechanism"], told["model"], told["unit"]) == ("published-gradient", "cp", "value")
    assert (told["delta"], told["confidence"], told["runs"]) == (0.0, 0.999999, 150)
    text = "".join(ET.parse(picture).getroot().itertext())
    assert "svg" in ET.parse(picture).getroot().tag
    assert [path.name for path in picture.parent.iterdir()] == ["scores.svg"]
    assert text


def test_a_proven_mechanism_is_not_refuted_and_the_table_says_so(monkeypatch, capsys):
    status, out, _ = run(
        monkeypatch, capsys, "statistic", "--model", "tucker", "--unit", "slice:user", "--epsilon", "1", "--runs", "40",
        "--confidence", "0.999999", "--workers", "1",
    )  # fmt: skip
    assert status == 0
    for text in ("stated epsilon", "1, delta 1e-05", "99.9999 %", "slice:user", "not refuted", "does not mean proven"):
        assert text in out


def test_sums_can_be_audited(monkeypatch, capsys):
    status, out, _ = run(
        monkeypatch, capsys, "sums", "--unit", "entry", "--epsilon", "1", "--runs", "100", "--confidence", "0.999999",
        "--workers", "1", "--json",
    )  # fmt: skip
    told = json.loads(out)
    assert (status, told["mechanism"], told["unit"], told["verdict"]) == (0, "sums", "entry", "not refuted")
    assert told["stated_epsilon"] == 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("output", "--unit", "entry", "--epsilon", "1"), "must have a theorem"),
        (("nonsense", "--epsilon", "1"), "mechanism must be one of 'input'"),
        (("statistic", "--unit", "entry", "--delta", "0", "--epsilon", "1"), "delta must be above 0"),
        (("input", "--epsilon", "1", "--runs", "2"), "runs must be at least 16"),
        (("input",), "Missing option '--epsilon'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_status_2(monkeypatch, capsys, arguments, message):
    status, out, err = run(monkeypatch, capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_help_shows_an_example(monkeypatch, capsys):
    status, out, _ = run(monkeypatch, capsys, "--help")
    assert status == 0
    assert "tensorveil audit published-gradient --epsilon 0.1" in out
