"""The command line: parses, calls, prints."""

import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil import __main__ as program
from tensorveil.cli import app as cli
from tensorveil.cli.console import counted, progress_bar
from tensorveil.cli.wording import in_options


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


def test_a_failure_after_the_budget_was_reserved_has_status_4(monkeypatch, capsys):
    def broken():
        raise tv.SpentError("reservation 2 of data set 'films' counts as spent: no space left")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 4
    assert "reservation 2" in capsys.readouterr().err


OPTIONS = {"unknown": "--unknown", "at_most": "--at-most", "value": "--value", "modes": "--modes", "bin": "--bin"}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ('pass unknown="offsets" to go on', "pass --unknown offsets to go on"),
        ("unknown must be one of 'error', got 'x'", "--unknown must be one of 'error', got 'x'"),
        ("modes and value must name columns, got None", "--modes and --value must name columns, got None"),
        ("give at_most, or less; use e.g. at_most=20", "give --at-most, or less; use e.g. --at-most 20"),
        ("bins must be for modes, got 'x'", "--bin must be for modes, got 'x'"),
        ("the value column must hold numbers", "the value column must hold numbers"),
        ("--value must be given, got none", "--value must be given, got none"),
        ("epsilon must be above 0, got 0", "epsilon must be above 0, got 0"),  # not one of these options
    ],
)
def test_errors_speak_of_options(message, told):
    assert in_options(message, OPTIONS) == told


def test_the_list_of_commands_is_not_cut_short():
    output = CliRunner().invoke(cli.app, ["--help"]).output
    assert "..." not in output.split("Commands:")[1]


def test_the_shell_can_complete_commands_and_options():
    """What a shell asks the program while somebody types."""
    asked = {"_TENSORVEIL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "tensorveil compl"}
    assert "complete" in CliRunner().invoke(cli.app, [], env=asked, prog_name="tensorveil").output
    asked["_TYPER_COMPLETE_ARGS"] = "tensorveil complete --epsi"
    assert "--epsilon" in CliRunner().invoke(cli.app, [], env=asked, prog_name="tensorveil").output
    assert "--show-completion" in CliRunner().invoke(cli.app, ["--help"]).output


@pytest.fixture
def listening():
    """Both signals stop the program, whatever the caller of the tests made of them: in the background they may not."""
    before = [signal.signal(number, default) for number, default in program.DEFAULTS.items()]
    yield
    for number, handler in zip(program.DEFAULTS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_caller_ignores_stays_ignored(monkeypatch, number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        monkeypatch.setattr(cli, "app", lambda: signal.raise_signal(number))
        program.main()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("becomes", [KeyboardInterrupt, SystemExit, ImportError])
@pytest.mark.parametrize("number, told", [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.usefixtures("listening")
def test_a_signal_has_one_word_and_a_status_even_where_an_import_hides_it(monkeypatch, capsys, becomes, number, told):
    """SciPy's extensions turn Ctrl-C into "ImportError: initialization failed", Typer into an exit."""

    def stopped():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise becomes() from None

    before = signal.getsignal(number)
    monkeypatch.setattr(cli, "app", stopped)
    with pytest.raises(SystemExit) as found:
        program.main()
    assert (found.value.code, capsys.readouterr().err) == (128 + number, f"{told}\n")
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("error", [ImportError("no such module"), SystemExit(2)])
def test_an_error_that_nobody_interrupted_stays_one(monkeypatch, error):
    def broken():
        raise error

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(type(error)) as found:
        program.main()
    assert found.value is error


def test_off_a_terminal_progress_leaves_nothing_in_the_log(capsys):
    with progress_bar() as progress:
        progress("reading", 0, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2000, "2,000 rows")])
def test_things_are_counted(number, text):
    assert counted(number, "row") == text


def test_made_up_ratings_are_the_same_for_everybody_and_overwrite_nothing(tmp_path):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    for path in (first, second):
        assert CliRunner().invoke(cli.app, ["demo", "--data", str(path)]).exit_code == 0
    assert first.read_bytes() == second.read_bytes()
    ratings = tv.read(first, ["user", "film"], "rating")
    assert ratings.shape == (300, 50)
    assert set(ratings.values) == {1.0, 2.0, 3.0, 4.0, 5.0}
    result = CliRunner().invoke(cli.app, ["demo", "--data", str(first)])
    assert isinstance(result.exception, tv.InputError)
    assert "must be a new file" in str(result.exception)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_the_demonstration_removes_no_release_of_somebody_else(tmp_path):
    precious = tmp_path / "release" / "certificate.json"
    precious.parent.mkdir()
    precious.write_text("{}")
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert isinstance(result.exception, tv.InputError)
    assert [path.name for path in tmp_path.iterdir()] == ["release"]
    assert precious.read_text() == "{}"


@pytest.mark.parametrize("megabytes", [200, 500, 700, 900])
def test_too_little_memory_is_one_clear_error(tmp_path, megabytes):
    resource = pytest.importorskip("resource")
    path = tmp_path / "x.csv"
    path.write_text("a,b,v\n" + "".join(f"{row % 7},{row % 5},{row % 4}\n" for row in range(35)))
    words = ["complete", path, "--modes", "a,b", "--value", "v", "--bounds", 0, 5, "--unit", "value", "--epsilon", 1]
    limit = megabytes * 10**6
    found = subprocess.run(
        [sys.executable, "-m", "tensorveil", *map(str, words), "--mechanism", "statistic", "--out", tmp_path / "out"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    if found.returncode == 0:
        pytest.skip("enough here")
    assert (found.returncode, "Traceback" in found.stderr, (tmp_path / "out").exists()) == (2, False, False)
    assert "memory" in found.stderr.splitlines()[-1]


def test_a_missing_file_is_named_however_little_memory_there_is(monkeypatch, capsys):
    def broken():
        raise FileNotFoundError(2, "No such file or directory", "films.csv")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(cli, "address_space", lambda: 10**9)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert (stopped.value.code, capsys.readouterr().err) == (2, "error: No such file or directory: films.csv\n")
