"""The command line: parses, calls, prints."""

import signal

import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli
from tensorveil.cli.console import counted, progress_bar


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


def test_the_list_of_commands_is_not_cut_short():
    output = CliRunner().invoke(cli.app, ["--help"]).output
    assert "..." not in output.split("Commands:")[1]


@pytest.mark.parametrize("becomes", [KeyboardInterrupt, ImportError])
def test_an_interrupt_has_status_130_even_where_an_import_hides_it(monkeypatch, capsys, becomes):
    """SciPy's extensions turn Ctrl-C into "ImportError: initialization failed"."""

    def interrupted():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemExit(130) if becomes is KeyboardInterrupt else becomes("initialization failed") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert (stopped.value.code, capsys.readouterr().err) == (130, "interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_nobody_interrupted_stays_one(monkeypatch):
    def broken():
        raise ImportError("no such module")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(ImportError):
        cli.main()


def test_off_a_terminal_progress_leaves_nothing_in_the_log(capsys):
    with progress_bar() as progress:
        progress("reading", 0, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2000, "2,000 rows")])
def test_things_are_counted(number, text):
    assert counted(number, "row") == text


def test_the_demonstration_removes_no_release_of_somebody_else(tmp_path):
    precious = tmp_path / "release" / "certificate.json"
    precious.parent.mkdir()
    precious.write_text("{}")
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert isinstance(result.exception, tv.InputError)
    assert [path.name for path in tmp_path.iterdir()] == ["release"]
    assert precious.read_text() == "{}"
