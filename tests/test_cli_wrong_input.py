"""Wrong input on the command line: one line says what is wrong, what was given and what to do; nothing is spent."""

import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli

GIVEN = {"modes": "user,film", "value": "rating", "bounds": "1 5", "unit": "value", "epsilon": "2"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"u{row % 6},f{row % 5},{1 + row % 4}\n" for row in range(30)]
    (tmp_path / "ratings.csv").write_text("user,film,rating\n" + "".join(rows))
    tv.Ledger.create("budget.sqlite", "ratings", "value", epsilon=10.0)
    return tmp_path


def complete(source="ratings.csv", **changes):
    """The arguments of `complete`, with a ledger that would pay; None leaves an option out."""
    options = {**GIVEN, **changes, "ledger": "budget.sqlite", "dataset": "ratings", "out": "release"}
    words = [part for name, text in options.items() if text is not None for part in (f"--{name}", *text.split(" "))]
    return ["complete", *([] if source is None else [source]), *words]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (complete(modes="usr,film"), "--modes must name columns of the data, got 'usr'; the columns are ['user', "),
        (complete(value="stars"), "--value must name columns of the data, got 'stars'; the columns are ['user', "),
        (complete(format="tsv"), "--modes must name columns of the data, got 'user'; the columns are ['user,film,rati"),
        (
            complete("nowhere.csv"),
            "the input must be an existing file, or a folder of Parquet parts, got 'nowhere.csv'",
        ),
        (complete(None), "INPUT must be given, got none"),
        (complete(epsilon="five"), "--epsilon must be a number, got 'five'"),
        (complete(epsilon="-1"), "--epsilon must be above 0, got -1.0"),
        (complete(bounds="1"), "--bounds must be 2 numbers, got '--unit'"),
        (complete(bounds="5 1"), "--bounds must have low below high, got 5 and 1; swap or widen them"),
        (complete(seed="x"), "--seed must be a whole number, got 'x'"),
        (complete(unit="values"), "--unit must be value, entry, slice:MODE or slice_values:MODE, got 'values'"),
        (complete(unit="slice:usr"), "--unit must name one of the modes ['user', 'film'], got 'usr'; correct it"),
        (complete(labels="user"), "--labels must be MODE=VALUE, at most once per mode, got ['user']"),
        (complete(levels="0,3,9"), "--levels must be within the bounds, 1 to 5, got 0, 9"),
        (complete(model="tucker", rank="4,4,4"), "--rank must be one number per mode, got 3 for a tensor of 2 modes"),
        (["advise", "--unit", "value"], "INPUT must be given, got none"),
        (["advise", "6x5", "--unit", "value", "--epsilons", "a"], "--epsilons must be numbers separated by commas"),
    ],
)
def test_wrong_input_is_one_line_in_terms_of_options(folder, words, told):
    result = CliRunner().invoke(cli.app, words)
    assert isinstance(result.exception, tv.InputError)
    assert str(result.exception).startswith(told)
    assert "\n" not in str(result.exception)
    assert cli.exit_status(result.exception) == cli.WRONG_INPUT
    assert not (folder / "release").exists()
    assert tv.Ledger("budget.sqlite").spent("ratings").epsilon == 0


def test_levels_of_a_coupled_table_are_within_its_bounds():
    people = tv.Observations([[0, 0], [1, 1]], [0.0, 1.0], (2, 2))
    with pytest.raises(tv.InputError, match="levels of the coupled table must be within the bounds, 0 to 1, got 2"):
        tv.Coupled(people, bounds=(0, 1), levels=(0, 1, 2))


@pytest.mark.parametrize("mechanism", [tv.InputPerturbation(levels=[0, 1, 2, 3]), "auto"])
def test_levels_are_within_the_bounds_wherever_they_are_given(folder, mechanism):
    ratings = tv.read("ratings.csv", ["user", "film"], "rating")
    levels = [0, 1, 2, 3] if mechanism == "auto" else None
    with pytest.raises(tv.InputError, match=r"levels must be within the bounds, 1 to 5, got 0;"):
        tv.plan(ratings, "cp", (1, 5), "value", 1.0, mechanism=mechanism, levels=levels)
