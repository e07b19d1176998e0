"""predict, evaluate, verify, inspect and compare: what they print, write and exit with."""

import csv
import json
import struct
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from saved_releases import CELLS, LABELS, NAMES, SHAPE, copy_of, made, observations, saved
from tensorveil.cli import app as cli

ROWS = np.random.default_rng(6).permutation(len(CELLS))[:25]


def run(*arguments):
    """The command's result; an error of ours is raised as it is."""
    result = CliRunner().invoke(cli.app, [str(part) for part in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def write(path, columns):
    """A CSV file of these columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cells(rows=ROWS, **more):
    return {**{name: LABELS[mode][CELLS[rows, mode]].tolist() for mode, name in enumerate(NAMES)}, **more}


@pytest.mark.parametrize("command", ["predict", "evaluate", "verify", "inspect", "compare"])
def test_help_has_an_example(command):
    text = run(command, "--help").output
    assert f"tensorveil {command} DIR" in text
    assert "--json" in text


def test_predictions_are_written_beside_the_labels(tmp_path):
    release, folder = saved("gaussian")
    source = write(tmp_path / "cells.csv", cells(note=range(25)))
    result = run("predict", folder, source, "--out", tmp_path / "out.csv")
    assert result.exit_code == 0
    assert "25 rows" in result.output
    found = rows_of(tmp_path / "out.csv")
    assert list(found[0]) == ["user", "film", "day", "note", "prediction"]
    assert [float(row["prediction"]) for row in found] == release.predict(CELLS[ROWS]).tolist()
    assert [row["user"] for row in found] == cells()["user"]
    told = json.loads(run("predict", folder, source, "--out", tmp_path / "out.parquet", "--json").stdout)
    assert told["rows"] == 25
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table["prediction"].to_pylist() == release.predict(CELLS[ROWS]).tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cells.csv", "out.csv", "out.parquet"]


def test_files_without_a_header_and_unknown_labels(tmp_path):
    _, folder = saved("gaussian")
    source = tmp_path / "cells.txt"
    source.write_text("ann\t10\t889228800\nzoe\t10\t889228800\n")  # 1998-03-07
    options = ("--format", "tsv", "--columns", "user,film,day", "--out", tmp_path / "out.csv")
    with pytest.raises(tv.InputError, match=r"1 of user.*or pass --unknown offsets"):
        run("predict", folder, source, *options)
    assert not (tmp_path / "out.csv").exists()
    result = run("predict", folder, source, *options, "--unknown", "offsets")
    assert "1 row with labels that the release does not know" in result.output
    assert len(rows_of(tmp_path / "out.csv")) == 2


def test_the_best_of_a_mode_for_each_row(tmp_path):
    release, folder = saved("gaussian")
    source = write(tmp_path / "users.csv", {"user": ["cyd", "ann"]})
    run("predict", folder, source, "--top", 2, "--mode", "film", "--out", tmp_path / "best.csv")
    found = rows_of(tmp_path / "best.csv")
    best = release.predict(CELLS).reshape(SHAPE).max(axis=2)
    for place, user in enumerate((2, 0)):
        expected = LABELS[1][np.argsort(-best[user])[:2]].tolist()
        assert [int(row["film"]) for row in found[2 * place : 2 * place + 2]] == expected
    assert [row["rank"] for row in found] == ["1", "2", "1", "2"]


def test_an_owner_predicts_for_itself_alone_and_the_file_says_so(tmp_path):
    release, folder = saved("joint")
    mine = observations().take(observations().coordinates[:, 0] == 3)
    labelled = {name: LABELS[mode][mine.coordinates[:, mode]].tolist() for mode, name in enumerate(NAMES)}
    own = write(tmp_path / "own.csv", {**labelled, "rating": mine.values.tolist()})
    source = write(tmp_path / "cells.csv", {"film": [10, 20], "day": ["1998-03-07", "1998-03-08"]})
    result = run("predict", folder, source, "--own", own, "--out", tmp_path / "out.csv")
    assert "for user dée alone" in result.output
    found = rows_of(tmp_path / "out.csv")
    expected = release.personalize(mine).predict([[3, 0, 0], [3, 1, 1]])
    np.testing.assert_allclose([float(row["prediction"]) for row in found], expected, rtol=1e-12)
    assert {row["for_whom"] for row in found} == {"user dée alone"}
    others = write(tmp_path / "others.csv", {"user": ["ann"], "film": [10], "day": ["1998-03-07"]})
    with pytest.raises(tv.InputError, match="each owner can predict only for itself"):
        run("predict", folder, others, "--own", own, "--out", tmp_path / "stolen.csv")
    days = write(tmp_path / "days.csv", {"user": ["ann"], "day": ["1998-03-07"]})
    with pytest.raises(tv.InputError, match="COORDS must contain only the user of"):
        run("predict", folder, days, "--own", own, "--top", 2, "--out", tmp_path / "stolen.csv")
    with pytest.raises(tv.InputError, match="--own must be given for a joint release"):
        run("predict", folder, others, "--out", tmp_path / "stolen.csv")
    everybody = write(tmp_path / "all.csv", {**cells(range(120)), "rating": observations().values.tolist()})
    with pytest.raises(tv.InputError, match="rows of one user only, got 6; keep only your own rows"):
        run("predict", folder, source, "--own", everybody, "--out", tmp_path / "stolen.csv")
    assert not (tmp_path / "stolen.csv").exists()
    with pytest.raises(tv.InputError, match="--person must name the mode"):
        run("predict", saved("pure")[1], source, "--own", own, "--out", tmp_path / "stolen.csv")


def test_somebody_whom_the_release_does_not_know_predicts_by_own_rows(tmp_path):
    folder = saved("pure")[1]
    films = {"film": [10, 20, 30], "day": ["1998-03-07"] * 3}
    source = write(tmp_path / "cells.csv", {name: part[:2] for name, part in films.items()})
    predictions = {}
    for stars in (1.0, 5.0):
        own = write(tmp_path / "mine.csv", {**films, "rating": [stars] * 3})
        out = tmp_path / f"out{stars}.csv"
        result = run("predict", folder, source, "--own", own, "--out", out)
        assert "for you alone" in result.output
        predictions[stars] = np.array([float(row["prediction"]) for row in rows_of(out)])
    assert (predictions[5.0] > predictions[1.0]).all()
    several = {"user": ["new", "new", "zoe"], **films, "rating": [5.0, 5.0, 1.0]}
    own = write(tmp_path / "ours.csv", several)
    theirs = write(tmp_path / "theirs.csv", {"user": ["zoe", "new"], "film": [10, 10], "day": ["1998-03-07"] * 2})
    run("predict", folder, theirs, "--own", own, "--person", "user", "--out", tmp_path / "out.csv")
    found = rows_of(tmp_path / "out.csv")
    assert [row["for_whom"] for row in found] == ["user zoe alone", "user new alone"]
    assert float(found[0]["prediction"]) < float(found[1]["prediction"])
    with pytest.raises(tv.InputError, match="must have a column 'user'"):
        run("predict", folder, source, "--own", own, "--person", "user", "--out", tmp_path / "none.csv")


def test_evaluate_gives_errors_beside_the_floor_and_warns(tmp_path):
    release, folder = saved("gaussian")
    truth = observations(8).values
    source = write(tmp_path / "test.csv", {**cells(range(120)), "rating": truth.tolist()})
    told = json.loads(run("evaluate", folder, source, "--json").stdout)
    assert told["rmse"] == pytest.approx(tv.rmse(truth, release.predict(CELLS)))
    assert (told["rows"], told["unknown_rows"]) == (120, 0)
    assert "do not publish them" in told["warning"]
    text = run("evaluate", folder, source).output
    assert f"{told['rmse']:.4f}" in text
    assert f"{told['release_mean_rmse']:.4f}" in text
    assert "do not publish them" in " ".join(text.split())  # the caption is wrapped
    renamed = write(tmp_path / "renamed.csv", {**cells(range(120)), "stars": truth.tolist()})
    with pytest.raises(tv.InputError, match="rating"):
        run("evaluate", folder, renamed)
    assert json.loads(run("evaluate", folder, renamed, "--value", "stars", "--json").stdout)["rmse"] == told["rmse"]


def test_evaluate_counts_days_that_the_release_does_not_know(tmp_path):
    _, folder = saved("gaussian")
    source = tmp_path / "test.txt"
    source.write_text("ann\t10\t4\t889228800\nbob\t20\t3\t10\nzoe\t30\t2\t889228800\n")
    told = json.loads(
        run("evaluate", folder, source, "--format", "tsv", "--columns", "user,film,rating,day", "--json").stdout
    )
    assert (told["rows"], told["unknown_rows"], told["unknown"]) == (3, 2, {"user": 1, "day": 1})


def test_a_joint_release_is_evaluated_with_everybodys_rows(tmp_path):
    _, folder = saved("joint")
    source = write(tmp_path / "all.csv", {**cells(range(120)), "rating": observations().values.tolist()})
    alone = json.loads(run("evaluate", folder, source, "--json").stdout)
    personal = json.loads(run("evaluate", folder, source, "--own", source, "--json").stdout)
    assert "without personal rows" in alone["personal"]
    assert personal["rmse"] < alone["rmse"]


def test_verify_exits_with_1_on_any_doubt(tmp_path):
    result = run("verify", saved("gaussian")[1])
    assert result.exit_code == 0
    assert "Verified: every check passed." in result.output
    shown = run("verify", saved("pure")[1]).output.splitlines()
    assert [line.split("│")[2].strip() for line in shown if "second accountant" in line] == ["not run"]
    folder = copy_of("gaussian", tmp_path)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-8:] = struct.pack("<d", 5.0)  # the mean, centred: all predictions are then at the upper bound
    (folder / "model.safetensors").write_bytes(bytes(data))
    result = run("verify", folder)
    assert result.exit_code == 1
    assert "DOUBT" in result.output
    result = run("verify", folder, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not told["verified"]
    doubted = {check["name"] for check in told["checks"] if check["state"] == "doubt"}
    # the page is made anew from the model, and predictions no longer vary as stated
    assert doubted == {"hash of model.safetensors", "model", "report", "drawings"}
    assert run("verify", saved("seeded")[1]).exit_code == 1


def test_inspect_tells_the_guarantee_the_stages_and_the_files():
    release, folder = saved("gaussian")
    text = run("inspect", folder).output
    assert " ".join(str(release.guarantee).split()) in " ".join(text.split())
    for stage in release.guarantee.stages:
        assert stage.name in text
    for name in ("model.safetensors", "labels.json", "report.html", "rating", "4 day (by day)"):
        assert name in text
    told = json.loads(run("inspect", folder, "--json").stdout)
    assert told["certificate"] == json.loads((folder / "certificate.json").read_text())
    assert told["statement"] == str(release.guarantee)
    assert "not for publication" in run("inspect", saved("claimed")[1]).output


def test_inspect_drafts_a_registry_record():
    result = run("inspect", saved("joint")[1], "--registry")
    record = json.loads(result.stdout)
    assert record["deployment"]["dp_variant"]["variant_name"] == "Approximate DP"
    assert "data_curators" in result.stderr
    with pytest.raises(tv.InputError, match="publishable"):
        run("inspect", saved("seeded")[1], "--registry")


def test_compare_warns_when_units_differ():
    first, second = saved("gaussian")[1], saved("pure")[1]
    told = json.loads(run("compare", first, second, "--json").stdout)
    expected = tv.rmse(made("gaussian").predict(CELLS), made("pure").predict(CELLS))
    assert told["difference"]["rms"] == pytest.approx(expected)
    assert told["unit"] == ["entry", "value"]
    assert any("units differ" in warning for warning in told["warnings"])
    text = run("compare", first, second).output
    assert "cannot be compared" in text
    assert "statistic perturbation" in text
    assert "warning" not in run("compare", first, first).output
    assert "at least one release is not for publication" in run("compare", second, saved("seeded")[1]).output


@pytest.mark.parametrize(
    "arguments, rule",
    [
        (("predict", "DIR", "none.csv", "--out", "x.csv"), "the input must"),
        (("predict", "DIR", "cells.csv", "--out", "x.txt"), r"\.csv or \.parquet"),
        (("predict", "DIR", "cells.csv", "--out", "no/such/folder/x.csv"), "writable folder"),
        (("predict", "DIR", "cells.csv", "--mode", "film", "--out", "x.csv"), "--top"),
        (("predict", "DIR", "cells.csv", "--top", "0", "--out", "x.csv"), "--top must be at least 1"),
        (("predict", "DIR", "cells.csv", "--top", "3", "--out", "x.csv"), "must leave out one of the modes"),
        (("predict", "DIR", "cells.csv", "--unknown", "guess", "--out", "x.csv"), "^--unknown must be"),
        (("predict", "none", "cells.csv", "--out", "x.csv"), "must be a folder"),
        (("evaluate", "DIR", "cells.csv"), "rating"),
        (("evaluate", "DIR", "cells.csv", "--average", "day", "--top", "3"), "--average must be used without --top"),
        (("inspect", "none"), "must be a folder"),
        (("verify", "none"), "must be a folder"),
        (("compare", "DIR", "none"), "must be a folder"),
    ],
)
def test_wrong_input_is_one_clear_error_and_nothing_is_written(tmp_path, monkeypatch, arguments, rule):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "cells.csv", cells())
    folder = str(saved("gaussian")[1])
    with pytest.raises(tv.InputError, match=rule):
        run(*(folder if part == "DIR" else part for part in arguments))
    assert [path.name for path in tmp_path.iterdir()] == ["cells.csv"]


def test_the_program_itself_prints_one_line_and_exits_with_2(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "tensorveil", "inspect", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stdout == ""
    assert len(found.stderr.strip().splitlines()) == 1
    assert found.stderr.startswith("error: a release must be a folder")
