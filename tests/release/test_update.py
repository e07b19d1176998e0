"""Updates: later data with a budget of their own, or from the ledger; what the certificate says of both parts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.audit.replays import replay
from tensorveil.cli.app import app
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.release.updates.update import earlier_rows, read_later, update

NAMES = ("user", "film", "day")
SOLVER = tv.InputPerturbation(solver=Posterior(sweeps=24, chains=2, threads=1))


def month(days, seed=0, users=12):
    generator = np.random.default_rng(seed)
    where = np.argwhere(generator.random((users, 8, len(days))) < 0.6)
    levels = np.random.default_rng(9).standard_normal(users)
    values = np.clip(3 + levels[where[:, 0]] + 0.3 * generator.standard_normal(len(where)), 1, 5)
    labels = [[f"u{user}" for user in range(users)], [f"f{film}" for film in range(8)], days]
    return tv.Observations(where, values, (users, 8, len(days)), mode_names=NAMES, labels=labels)


MAY, JUNE, JULY = ["05-01", "05-02"], ["06-01", "06-02", "06-03"], ["07-01"]


@pytest.fixture(scope="module")
def may(tmp_path_factory):
    release = tv.complete(month(MAY), tv.CP(2), tv.Bounds(1, 5), "value", 2.0, mechanism=SOLVER)
    return tv.Release.load(release.save(tmp_path_factory.mktemp("may") / "release"))


def test_each_month_has_its_own_budget_and_the_certificate_names_both(may, tmp_path):
    june = update(may, month(JUNE, 1), 3.0, time="day", mechanism=SOLVER)
    told = june.guarantee
    assert told.epsilon == 3.0
    assert told.with_earlier == (3.0, 0.0)
    assert told.earlier.digest == may.certificate.digest
    assert "no unit is in both" in str(told)
    folder = june.save(tmp_path / "june")
    assert [check for check in tv.verify(folder) if check.state == "doubt"] == []
    loaded = tv.Release.load(folder)
    july = update(loaded, month(JULY, 2), 1.0, time="day", mechanism=SOLVER)
    assert july.guarantee.with_earlier == (3.0, 0.0)
    assert set(july.guarantee.earlier.spans) == {*MAY, *JUNE}
    with pytest.raises(tv.InputError, match="costs add up"):
        update(loaded, month(["05-02"], 3), 1.0, time="day", mechanism=SOLVER)  # May again, two releases later


def test_a_forged_split_is_doubted(may, tmp_path):
    june = update(may, month(JUNE, 1), 1.0, time="day", mechanism=SOLVER)
    told = june.guarantee
    forged = replace(told, earlier=replace(told.earlier, spans=("06-02",)))
    folder = replace(june, guarantee=forged).save(tmp_path / "forged")
    assert [check.name for check in tv.verify(folder) if check.state == "doubt"] == ["earlier release"]


def test_costs_add_up_where_a_unit_can_be_in_both(tmp_path):
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "people", "slice_values:user", 5.0)
    mechanism = tv.SumPerturbation()
    options = {"mechanism": mechanism, "ledger": ledger, "dataset": "people"}
    first = tv.complete(month(MAY), tv.CP(2), tv.Bounds(1, 5), "slice_values:user", 2.0, **options)
    first = tv.Release.load(first.save(tmp_path / "first"))
    with pytest.raises(tv.InputError, match="those that paid"):
        update(first, month(JUNE, 1), 1.5, time="day", mechanism=mechanism)
    second = update(first, month(JUNE, 1), 1.5, time="day", **options)
    epsilon = second.guarantee.with_earlier[0]
    assert epsilon == pytest.approx(first.guarantee.epsilon + second.guarantee.epsilon)
    assert "costs add up" in str(second.guarantee)
    assert ledger.remaining("people").pure_epsilon == pytest.approx(5.0 - epsilon)
    with pytest.raises(tv.BudgetError):
        update(first, month(JULY, 1), 3.0, time="day", **options)


def test_a_changed_unit_of_one_part_leaves_the_answers_of_the_other_as_they_are(may):
    """Replay: under fixed released numbers of May, June's answers change with June's values and with nothing else."""
    june = month(JUNE, 1)
    changed = tv.Observations(
        june.coordinates, np.where(np.arange(len(june)) == 0, 5.0, june.values), june.shape, mode_names=NAMES,
        labels=june.labels,
    )  # fmt: skip
    rows = earlier_rows(may, june, 2, "0" * 64)
    plan = tv.plan(june, tv.CP(2), tv.Bounds(1, 5), "value", 2.0, mechanism=SOLVER, features=rows)
    found = replay(june, changed, plan)  # it raises where anything but the paid answers differs
    assert found.calls
    again = earlier_rows(may, changed, 2, "0" * 64)
    assert all((again[name].matrix == part.matrix).all() for name, part in rows.items())


def test_rows_of_the_earlier_release_are_matched_by_label(may):
    june = month(JUNE, 1)
    shuffled = tv.Observations(
        june.coordinates, june.values, june.shape, mode_names=NAMES, labels=[june.labels[0][::-1], *june.labels[1:]]
    )
    one, other = earlier_rows(may, june, 2, "0" * 64)["user"], earlier_rows(may, shuffled, 2, "0" * 64)["user"]
    np.testing.assert_array_equal(one.matrix, other.matrix[::-1])
    new = [[f"new{place}" for place in range(12)], *june.labels[1:]]
    unknown = tv.Observations(june.coordinates, june.values, june.shape, mode_names=NAMES, labels=new)
    assert "user" not in earlier_rows(may, unknown, 2, "0" * 64)


def test_from_files(tmp_path):
    def write(path, data, user="user"):
        rows = [
            ",".join([*(data.labels[mode][index] for mode, index in enumerate(cell)), f"{value:.3f}"])
            for cell, value in zip(data.coordinates, data.values, strict=True)
        ]
        path.write_text("\n".join([f"{user},film,day,rating", *rows]) + "\n")
        return path

    run = CliRunner().invoke
    first = write(tmp_path / "may.csv", month(MAY))
    asked = ["--modes", "user,film,day", "--value", "rating", "--bounds", "1", "5", "--unit", "value", "--rank", "2"]
    assert run(app, ["complete", str(first), *asked, "--epsilon", "2", "--out", str(tmp_path / "MAY")]).exit_code == 0
    second = write(tmp_path / "june.csv", month(JUNE, 1, users=14), "name")  # two more users
    folder = tmp_path / "JUNE"
    renamed = ["--modes", "user=name,film,day"]
    options = ["--epsilon", "3", "--time", "day", "--out", str(folder), "--json", *renamed, "--title", "Films in June"]
    result = run(app, ["update", str(tmp_path / "MAY"), str(second), *options])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["together"] == {"epsilon": 3.0, "delta": 0.0}
    assert told["apart"]
    release = tv.Release.load(folder)
    assert release.shape[0] == 14
    assert run(app, ["verify", str(folder)]).exit_code == 0
    assert "<h1>Films in June</h1>" in (folder / "report.html").read_text()
    later = read_later(
        tv.Release.load(tmp_path / "MAY"), second, 2, modes={"user": "name", "film": "film", "day": "day"}
    )
    assert later.labels[0].tolist()[:12] == tv.Release.load(tmp_path / "MAY").labels[0].tolist()
    result = run(app, ["update", str(tmp_path / "MAY"), str(second), "--epsilon", "3", "--out", str(tmp_path / "X")])
    assert isinstance(result.exception, tv.InputError)
    assert "time must name the mode" in str(result.exception)
    swapped = ["--modes", "film,user=name,day", "--time", "day", "--epsilon", "3", "--out", str(tmp_path / "X")]
    result = run(app, ["update", str(tmp_path / "MAY"), str(second), *swapped])
    assert "modes must be ['user', 'film', 'day'], as in the release" in str(result.exception)


def films(chosen, days, seed=0):
    generator = np.random.default_rng(seed)
    where = np.argwhere(generator.random((12, len(chosen), len(days))) < 0.7)
    labels = [[f"u{user}" for user in range(12)], chosen, days]
    values = generator.uniform(1, 5, len(where))
    return tv.Observations(where, values, (12, len(chosen), len(days)), mode_names=NAMES, labels=labels)


def test_a_chain_is_split_by_one_mode(may, tmp_path):
    june = update(may, films(["f0", "f9"], JUNE, 1), 2.0, time="day", mechanism=SOLVER)
    loaded = tv.Release.load(june.save(tmp_path / "june"))
    with pytest.raises(tv.InputError, match="time must be 'day'"):  # these are cells of May once more
        update(loaded, films(["f1", "f2"], MAY, 2), 2.0, time="film", mechanism=SOLVER)


def test_labels_of_another_kind_are_not_taken_for_other_times(may):
    unlabelled = tv.Observations(month(MAY).coordinates, month(MAY).values, (12, 8, 2), mode_names=NAMES)
    with pytest.raises(tv.InputError, match="labels of the kind of the release"):
        update(may, unlabelled, 2.0, time="day", mechanism=SOLVER)


def test_a_day_and_its_midnight_are_one_time(tmp_path):
    first = tv.complete(month(["2024-05-03"]), tv.CP(2), tv.Bounds(1, 5), "value", 2.0, mechanism=SOLVER)
    first = tv.Release.load(first.save(tmp_path / "first"))
    with pytest.raises(tv.InputError, match="those that paid"):
        update(first, month(["2024-05-03 00:00:00"]), 2.0, time="day", mechanism=SOLVER)


DAY = "2024-05-03"


@pytest.mark.parametrize(
    "same",
    [
        [f"{DAY}T00:00:00"],
        [f"{DAY}T00:00:00Z"],
        [f"{DAY} 02:00:00+02:00"],
        *(np.array([DAY], f"datetime64[{unit}]") for unit in ("s", "ns")),
    ],
)
def test_a_day_is_one_time_in_every_unit_and_form(same, tmp_path):
    """Nanoseconds, which pandas writes, are whole numbers as plain values; taken for other days, they cost nothing."""
    for place, (one, other) in enumerate([([DAY], same), (same, [DAY])]):
        first = tv.complete(month(one), tv.CP(2), tv.Bounds(1, 5), "value", 2.0, mechanism=SOLVER)
        first = tv.Release.load(first.save(tmp_path / str(place)))
        with pytest.raises(tv.InputError, match="those that paid"):
            update(first, month(other), 2.0, time="day", mechanism=SOLVER)
    later = update(first, month(["2024-05-04"]), 2.0, time="day", mechanism=SOLVER)
    assert later.guarantee.earlier.apart
    assert later.guarantee.earlier.spans == (DAY,)
    forged = replace(later, labels=(*later.labels[:2], np.array([DAY], "datetime64[ns]")))
    states = {check.name: check.state for check in tv.verify(forged.save(tmp_path / "forged"))}
    assert states["earlier release"] == "doubt"


def test_another_ledger_with_a_data_set_of_the_same_name_does_not_pay(tmp_path):
    one, other = (tv.Ledger.create(tmp_path / name, "people", "slice_values:user", 2.0) for name in ("1.db", "2.db"))
    mechanism = tv.SumPerturbation()
    paid = {"mechanism": mechanism, "ledger": one, "dataset": "people"}
    first = tv.complete(month(MAY), tv.CP(2), tv.Bounds(1, 5), "slice_values:user", 2.0, **paid)
    first = tv.Release.load(first.save(tmp_path / "first"))
    with pytest.raises(tv.BudgetError, match="must contain reservation"):
        update(first, month(JUNE, 1), 2.0, time="day", mechanism=mechanism, ledger=other, dataset="people")
    assert other.remaining("people").pure_epsilon == pytest.approx(2.0)


def test_a_data_set_that_protects_people_pays_for_both_months(tmp_path):
    ledger = tv.Ledger.create(tmp_path / "L.db", "may", "slice_values:user", 50.0, at_most=4)
    tv.Ledger.create(tmp_path / "L.db", "june", "slice_values:user", 50.0, at_most=4)
    paid = {"mechanism": SOLVER, "ledger": ledger}
    sparse = month(MAY).split(0.1, seed=0)[0]
    first = tv.complete(sparse, tv.CP(2), tv.Bounds(1, 5), "value", 2.0, dataset="may", **paid)
    first = tv.Release.load(first.save(tmp_path / "first"))
    with pytest.raises(tv.InputError, match="those that paid"):
        update(first, month(JUNE, 1).split(0.05, seed=0)[0], 2.0, time="day", dataset="june", **paid)


def test_verify_takes_a_day_and_its_midnight_for_one_time(may, tmp_path):
    june = update(may, month(["2024-06-01 00:00:00"], 1), 1.0, time="day", mechanism=SOLVER)
    told = june.guarantee
    forged = replace(told, earlier=replace(told.earlier, spans=("2024-06-01",)))
    folder = replace(june, guarantee=forged).save(tmp_path / "forged")
    assert [check.name for check in tv.verify(folder) if check.state == "doubt"] == ["earlier release"]


def test_data_of_a_part_further_back_are_not_charged_to_the_last_account(tmp_path):
    ledger = tv.Ledger.create(tmp_path / "L.db", "may", "value", 2.0)
    tv.Ledger.create(tmp_path / "L.db", "june", "value", 9.0)
    paid = {"mechanism": SOLVER, "ledger": ledger}
    first = tv.complete(month(MAY), tv.CP(2), tv.Bounds(1, 5), "value", 2.0, dataset="may", **paid)
    first = tv.Release.load(first.save(tmp_path / "first"))
    second = update(first, month(JUNE, 1), 2.0, time="day", dataset="june", **paid)
    second = tv.Release.load(second.save(tmp_path / "second"))
    with pytest.raises(tv.InputError, match="releases before the earlier one"):
        update(second, month(MAY, 2), 2.0, time="day", dataset="june", **paid)
    assert ledger.remaining("june").pure_epsilon == pytest.approx(7.0)
