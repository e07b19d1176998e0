"""The commands of local privacy, as in their documentation."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.__main__ import main
from tensorveil.cli.app import app


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the program in a folder of its own; returns exit status, output and errors."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    where = np.argwhere(generator.random((30, 20)) < 0.5)
    rows = [f"{user + 1},f{film},{generator.integers(1, 6)},secret" for user, film in where]
    generator.shuffle(rows)
    (tmp_path / "base.csv").write_text("\n".join(["user,film,rating,note", *rows]) + "\n")

    def program(*arguments):
        monkeypatch.setattr("sys.argv", ["tensorveil", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        told = capsys.readouterr()
        return status, told.out, told.err

    return program


def ask(run, out, *more):
    fixed = ("--modes", "user,film", "--value", "rating", "--protocol", "p.json")
    return run("randomize", "base.csv", *fixed, "--out", out, *more)


def test_errors_of_usage_name_the_command(run):
    status, _, told = run("randomize", "base.csv", "--modes", "user,film", "--value", "rating", "--protocl", "p.json")
    assert status == 2
    assert told.startswith("usage: tensorveil randomize ")


def test_from_protocol_to_release(run, tmp_path):
    status, told, _ = run("protocol", "--bounds", 1, 5, "--epsilon", 5, "--out", "p.json")
    assert status == 0
    assert "expected error" in told
    assert "levels: 1, 2, 3, 4, 5" in told
    assert ask(run, "r.parquet")[0] == 0
    table = pq.read_table("r.parquet")
    assert table.column_names == ["user", "film", "rating_symbol"]
    assert str(table.schema.field("user").type) == "int64"
    cells = list(zip(map(str, table["user"].to_pylist()), table["film"].to_pylist(), strict=True))
    assert cells == sorted(cells)  # not in the order of the file
    first = table.to_pylist()
    status, told, _ = ask(run, "r.parquet", "--json")
    assert status == 0
    assert json.loads(told)["new"] == 0
    assert pq.read_table("r.parquet").to_pylist() == first
    status, told, error = run(
        "complete", "r.parquet", "--modes", "user,film", "--protocol", "p.json", "--person", "user", "--out", "DIR"
    )
    assert status == 0, error
    assert "Local:" in told
    assert "expected error" in told
    release = tv.Release.load("DIR")
    assert release.value_name == "rating"
    assert release.guarantee.local.person == "user"
    assert run("verify", "DIR")[0] == 0
    status, told, _ = run("evaluate", "DIR", "base.csv", "--json")
    assert status == 0
    assert json.loads(told)["rows"] == table.num_rows


def test_csv_in_and_out_and_parquet_in(run):
    run("protocol", "--bounds", 1, 5, "--epsilon", 2, "--out", "p.json", "--json")
    assert ask(run, "a.csv")[0] == 0
    assert ask(run, "b.parquet", "--memory", "a.csv.memory.json")[0] == 0
    symbols = [line.rsplit(",", 1)[1] for line in Path("a.csv").read_text().splitlines()[1:]]
    assert list(map(int, symbols)) == pq.read_table("b.parquet")["rating_symbol"].to_pylist()
    pq.write_table(pq.read_table("b.parquet").rename_columns(["user", "film", "rating"]), "values.parquet")
    status, told, error = run(
        "randomize", "values.parquet", "--modes", "user,film", "--value", "rating", "--protocol", "p.json",
        "--out", "c.csv", "--forget", "--json",
    )  # fmt: skip
    assert status == 0, error
    assert json.loads(told)["memory"] is None


def test_a_cell_is_remembered_whichever_kind_of_file_asks(run):
    """Whole numbers that a file has as floats, times for days and padded texts: else each would be answered twice."""
    run("protocol", "--bounds", 1, 5, "--epsilon", 2, "--out", "p.json", "--json")
    days = [f"2024-05-{day:02}" for day in range(1, 10)]
    Path("v.csv").write_text("\n".join(["user,film,day,rating", *(f"{day[-1]},f,{day},3" for day in days)]))
    times = pa.array(days).cast(pa.timestamp("us"))
    columns = {"user": [float(day[-1]) for day in days], "film": ["f "] * 9, "day": times, "rating": [3] * 9}
    pq.write_table(pa.table(columns), "v.parquet")
    fixed = ("--modes", "user,film,day", "--value", "rating", "--protocol", "p.json", "--memory", "m.json", "--json")
    for file, new in (("v.csv", 9), ("v.parquet", 0)):
        status, told, error = run("randomize", file, *fixed, "--out", "r.csv")
        assert status == 0, error
        assert json.loads(told)["new"] == new


def test_a_frame_that_is_asked_about_in_any_kind_of_file_is_answered_once(run):
    """Each file as pandas writes it from one frame, with all kinds of labels."""
    run("protocol", "--bounds", 1, 5, "--epsilon", 0.5, "--out", "p.json", "--json")
    count = 60
    frame = pd.DataFrame({
        "user": np.arange(count, dtype=float),
        "share": np.linspace(0, 1, count, dtype=np.float32),
        "time": pd.date_range("2024-05-03", periods=count, freq="12h", tz="Europe/Vienna"),
        "old": np.arange(count) % 2 == 0,
        "rating": 3.0,
    })  # fmt: skip
    frame.to_parquet("v.parquet")
    frame.to_csv("v.csv", index=False)
    double = frame.assign(
        user=frame.user.astype(int), share=frame.share.astype(float), time=frame.time.dt.tz_convert("UTC")
    )
    double.to_csv("double.csv", index=False)
    double.to_parquet("double.parquet")
    modes = (
        "--modes",
        "user,share,time,old",
        "--value",
        "rating",
        "--protocol",
        "p.json",
        "--memory",
        "m.json",
        "--json",
    )
    found = {}
    for file in ("v.parquet", "v.csv", "double.csv", "double.parquet"):
        status, told, error = run("randomize", file, *modes, "--out", "r.csv")
        assert status == 0, error
        answers = pd.read_csv("r.csv").sort_values("user")
        found[file] = json.loads(told)["new"], answers.rating_symbol.tolist()
    first = found["v.parquet"][1]
    assert found == {file: (count if file == "v.parquet" else 0, first) for file in found}


def test_labels_that_text_files_spell_otherwise_are_refused(run):
    run("protocol", "--bounds", 1, 5, "--epsilon", 2, "--out", "p.json", "--json")
    for wrong in ([b"ann"], [float("nan")], [[1, 2]], np.float32([2e8])):
        pq.write_table(pa.table({"user": wrong, "film": ["f"], "rating": [3]}), "v.parquet")
        status, _, error = run(
            "randomize",
            "v.parquet",
            "--modes",
            "user,film",
            "--value",
            "rating",
            "--protocol",
            "p.json",
            "--out",
            "r.csv",
        )
        assert status == 2
        assert "labels must be texts" in error


def test_wrong_tables_wrong_files_and_contradictions_are_refused(run, tmp_path):
    run("protocol", "--bounds", 1, 5, "--epsilon", 2, "--out", "p.json")
    ask(run, "r.parquet")
    run("protocol", "--bounds", 1, 5, "--epsilon", 3, "--out", "other.json")
    status, _, error = run("complete", "r.parquet", "--modes", "user,film", "--protocol", "other.json", "--out", "D")
    assert status == 2
    assert "another" in error
    for more in (["--epsilon", 1], ["--unit", "value"], ["--bounds", 1, 5], ["--seed", 1]):
        status, _, error = run(
            "complete", "r.parquet", "--modes", "user,film", "--protocol", "p.json", "--out", "D", *more
        )
        assert status == 2
        assert "must be left out" in error
    status, _, error = run("complete", "base.csv", "--modes", "user,film", "--protocol", "p.json", "--out", "D")
    assert status == 2
    assert "_symbol" in error
    facts = json.loads((tmp_path / "p.json").read_text())
    facts["epsilon"] = 1.0
    (tmp_path / "p.json").write_text(json.dumps(facts))
    status, _, error = ask(run, "x.parquet")
    assert status == 2
    assert "keep within epsilon" in error
    assert not (tmp_path / "x.parquet").exists()
    assert ask(run, "x.csv", "--columns", "a,b")[0] == 2
    assert run("protocol", "--bounds", 1, 5, "--epsilon", 2, "--levels", "a,b", "--out", "p.json")[0] == 2


def test_help_lists_the_client(run):
    assert "randomize" in CliRunner().invoke(app, ["--help"]).output
    status, told, _ = run("randomize", "--help")
    assert status == 0
    assert "--memory" in told
    assert "--memory" in CliRunner().invoke(app, ["randomize", "--help"]).output
