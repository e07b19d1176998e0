"""The command line: parses, calls, prints."""

import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli


def test_the_version_is_printed():
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, f"tensorveil {tv.__version__}")


def test_help_names_the_commands_and_an_example():
    assert "demo" in CliRunner().invoke(cli.app, ["--help"]).output
    assert "tensorveil demo --out" in CliRunner().invoke(cli.app, ["demo", "--help"]).output


def test_an_error_of_ours_is_one_line_and_exit_status_2(monkeypatch, capsys):
    def broken():
        raise tv.InputError("epsilon must be above 0, got 0; give more")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.strip() == "error: epsilon must be above 0, got 0; give more"
