"""Smooth modes from the caller to the certificate: which modes they are, who refuses them, and where they are named."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli
from tensorveil.release import saving

BOUNDS = (0.0, 9.0)


def counted(bins="day+hour"):
    """Cars by street and time."""
    rng = np.random.default_rng(2)
    times = np.datetime64("2024-02-26T00:30", "s") + rng.integers(0, 9 * 24, 200) * np.timedelta64(1, "h")
    rows = {"street": rng.choice(["a", "b", "c"], 200), "time": times, "cars": rng.integers(0, 10, 200).astype(float)}
    return tv.Observations.from_table(rows, ["street", "time"], "cars", bins={"time": bins}, duplicates="mean")


def plan(data, mechanism="input", unit="value", epsilon=4.0, **options):
    return tv.plan(data, tv.CP(2), BOUNDS, unit, epsilon, mechanism=mechanism, **options)


def named(planned):
    return {given.mode: given.name for given in planned.public_inputs}


@pytest.mark.parametrize("mechanism", ["input", "sums"])
def test_binned_times_are_smooth_by_default(mechanism):
    assert named(plan(counted(), mechanism)) == {"day": "smooth, ordered", "hour": "smooth, periodic"}
    assert named(plan(counted("week"), mechanism)) == {"time": "smooth, ordered"}
    assert named(plan(counted("weekday"), mechanism)) == {"time": "smooth, periodic"}
    assert named(plan(counted(), mechanism, smooth=[])) == {}
    assert named(plan(counted(), mechanism, smooth=["hour"])) == {"hour": "smooth, periodic"}
    assert named(plan(counted(), mechanism, smooth={"hour": "ordered"})) == {"hour": "smooth, ordered"}


def test_features_and_smooth_modes_are_both_named():
    data = counted()
    given = {"day": np.arange(float(data.shape[1]))}
    assert [(one.mode, one.name) for one in plan(data, features=given).public_inputs] == [
        ("day", "a matrix"),
        ("day", "smooth, ordered"),
        ("hour", "smooth, periodic"),
    ]


@pytest.mark.parametrize(
    ("smooth", "words"),
    [
        (["dya"], r"smooth must be of modes \['street', 'day', 'hour'\], got 'dya'"),
        ({"day": "orderd"}, "smooth of 'day' must be one of 'ordered', 'periodic', got 'orderd'"),
        ("day", "smooth must be a list of modes, or a dictionary, got 'day'"),
        (["street"], "must have an order, got texts that were read off the data for 'street'"),
    ],
)
@pytest.mark.parametrize("epsilon", [4.0, np.inf])
def test_wrong_modes_are_refused_before_anything_is_spent(smooth, words, epsilon):
    with pytest.raises(tv.InputError, match=words):
        tv.complete(counted(), tv.CP(1), BOUNDS, "value", epsilon, mechanism="input", smooth=smooth)


@pytest.mark.parametrize("mechanism", ["gradient", "output", "statistic", tv.InputPerturbation(solver="als")])
def test_a_mechanism_without_a_posterior_refuses_them_only_if_they_are_asked_for(mechanism):
    data = counted()
    assert named(plan(data, mechanism, delta=1e-6)) == {}
    with pytest.raises(tv.InputError, match=r"smooth must be for (a mechanism with a|the) posterior"):
        plan(data, mechanism, delta=1e-6, smooth=["day"])


def test_rows_of_owners_are_not_smooth():
    data = tv.Observations(np.argwhere(np.ones((6, 8))), np.ones(48), (6, 8), mode_names=["patient", "day"])
    assert named(plan(data, "sums", "slice:patient", at_most=8, smooth=["day"])) == {"day": "smooth, ordered"}
    with pytest.raises(tv.InputError, match="other modes than that of the slices, got 'patient'"):
        plan(data, "sums", "slice:patient", at_most=8, smooth=["patient"])


def test_a_saved_release_names_its_smooth_modes_and_predicts_by_hours(tmp_path):
    release = tv.complete(counted(), tv.CP(1), BOUNDS, "value", 4.0, mechanism="sums")
    folder = release.save(tmp_path / "out")
    certificate = json.loads((folder / saving.CERTIFICATE).read_text())
    assert [(one["mode"], one["name"]) for one in certificate["public_inputs"]] == [
        ("day", "smooth, ordered"),
        ("hour", "smooth, periodic"),
    ]
    assert any("features of 'day' (smooth, ordered)" in text for text in certificate["assumptions_trusted"])
    loaded = tv.Release.load(folder)
    assert loaded.bins == (None, "day", "hour_of_day")
    wanted = {"street": ["a"], "day": ["2024-03-01"], "hour": ["2024-03-01T07:59"]}
    by_label = {"street": ["a"], "day": ["2024-03-01"], "hour": ["07"]}
    first, second = (loaded.predict_table(cells) for cells in (wanted, by_label))
    np.testing.assert_array_equal(first["prediction"], second["prediction"])


def test_the_command_line(tmp_path):
    data = counted("hour")
    path = tmp_path / "cars.csv"
    rows = [
        f"{data.labels[0][s]},{data.labels[1][t]}:00,{v}"
        for (s, t), v in zip(data.coordinates, data.values, strict=True)
    ]
    path.write_text("\n".join(["street,time,cars", *rows]) + "\n")
    asked = (
        f"complete {path} --modes street,time --value cars --bounds 0 9 --unit value --epsilon 4 --bin time=day+hour"
    )
    for option, expected in [
        ("", {"day": "smooth, ordered", "hour": "smooth, periodic"}),
        ("--smooth none", {}),
        ("--smooth hour,day:ordered", {"day": "smooth, ordered", "hour": "smooth, periodic"}),
        ("--smooth hour:ordered", {"hour": "smooth, ordered"}),
    ]:
        run = CliRunner().invoke(cli.app, [*asked.split(), *option.split(), "--plan-only", "--json"])
        assert run.exit_code == 0, run.output
        assert {one["mode"]: one["name"] for one in json.loads(run.stdout)["public_inputs"]} == expected
    run = CliRunner().invoke(cli.app, [*asked.split(), "--smooth", "time", "--plan-only"])
    assert run.exit_code != 0
    assert "--smooth must be of modes" in str(run.exception) + run.output
    out = tmp_path / "out"
    asked += f" --mechanism sums --rank 1 --out {out}"
    assert CliRunner().invoke(cli.app, asked.split()).exit_code == 0
    again = f"predict {out} {path} --modes street,day=time,hour=time --out {tmp_path / 'found.csv'}"
    run = CliRunner().invoke(cli.app, again.split())
    assert run.exit_code == 0, run.output
    times = [data.labels[1][t] + ":00" for _, t in data.coordinates]
    cells = {"street": data.labels[0][data.coordinates[:, 0]], "day": times, "hour": times}
    found = np.loadtxt(tmp_path / "found.csv", delimiter=",", skiprows=1, usecols=4)
    np.testing.assert_allclose(found, tv.Release.load(out).predict_table(cells)["prediction"])
