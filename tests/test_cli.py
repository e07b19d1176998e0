"""The command line: parses, calls, prints."""

import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil import demo
from tensorveil.cli import app as cli


def test_the_version_is_printed():
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, f"tensorveil {tv.__version__}")


def test_help_names_the_commands_and_an_example():
    assert "demo" in CliRunner().invoke(cli.app, ["--help"]).output
    assert "tensorveil demo --out" in CliRunner().invoke(cli.app, ["demo", "--help"]).output


def test_the_demo_shows_floor_baselines_proven_and_claimed_and_saves_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "RUNS", 1)
    monkeypatch.setattr(demo, "EPSILONS", (5.0,))
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "new")], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for text in ("the mean (floor)", "ALS", "proven, epsilon 5", "claimed, epsilon 5", "Proven epsilon", "picture:"):
        assert text in result.output
    assert ET.parse(tmp_path / "new" / "demo.svg").getroot().tag.endswith("svg")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["demo.svg"]


def test_the_demo_counts_its_fits(monkeypatch):
    monkeypatch.setattr(demo, "RUNS", 1)
    monkeypatch.setattr(demo, "EPSILONS", (5.0,))
    advances = []
    _, rows, guarantee = demo.run_demo(lambda: advances.append(1))
    assert len(advances) == demo.number_of_fits()
    assert guarantee.status == "proven"
    assert {row.status for row in rows} == {"none", "proven", "claimed"}


def test_an_error_of_ours_is_one_line_and_exit_status_2(monkeypatch, capsys):
    def broken():
        raise tv.InputError("epsilon must be above 0, got 0; give more")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.strip() == "error: epsilon must be above 0, got 0; give more"
