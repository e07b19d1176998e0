"""A second table through the whole library: matching, certificate, ledger, report, command line, order of rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli import app as cli
from tensorveil.release.report.meaning import second_table

QUICK = tv.InputPerturbation(solver=tv.Posterior(sweeps=8))
USERS = [f"user {number:02}" for number in range(20)]
ABOUT = ["age", "income", "travel"]


def rows(seed=0, users=(*USERS[5:], "user 30", "user 31")):
    """Rows of both tables, as columns: ratings of 20 users, facts about 15 of these and two others."""
    rng = np.random.default_rng(seed)
    rated = np.argwhere(rng.random((20, 12)) < 0.5)
    ratings = {
        "user": [USERS[user] for user, _ in rated],
        "film": [f"film {film}" for _, film in rated],
        "stars": rng.integers(1, 6, len(rated)).astype(float),
    }
    facts = {
        "user": np.repeat(users, len(ABOUT)).tolist(),
        "about": ABOUT * len(users),
        "share": rng.random(len(users) * len(ABOUT)).round(2),
    }
    return ratings, facts


def permuted(table, seed):
    order = np.random.default_rng(seed).permutation(len(table["user"]))
    return {name: [column[place] for place in order] for name, column in table.items()}


def coupled(facts, **options):
    return tv.Coupled(facts, (0, 1), modes=["user", "about"], value="share", **options)


def read(ratings):
    return tv.Observations.from_table(ratings, ["user", "film"], "stars")


def released(ratings, facts, seed=1, **options):
    given = {"mechanism": QUICK, "coupled": coupled(facts), "seed": seed} | options
    return tv.complete(read(ratings), tv.CP(2), (1, 5), "value", 4.0, **given)


def numbers(release):
    model = release.model
    parts = [*model.offsets.modes, model.factors.parameters, *model.draws.arrays().values()]
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def test_permuted_rows_of_both_tables_give_the_same_bits():
    ratings, facts = rows()
    expected = numbers(released(ratings, facts))
    for seed in (1, 2):
        assert numbers(released(permuted(ratings, seed), permuted(facts, seed + 5))) == expected
    by_value = np.argsort(facts["share"])
    in_order = {name: [column[place] for place in by_value] for name, column in facts.items()}
    assert numbers(released(ratings, in_order)) == expected


def test_indices_are_matched_by_their_labels():
    """Against a loop over all rows of the second table."""
    ratings, facts = rows()
    first, table = read(ratings), coupled(facts)
    joined = table.joined(first)
    labels = [*first.labels[0].tolist(), "user 30", "user 31"]
    assert joined.shape == (22, 3)
    assert table.facts(first).joint_size == 22
    found = {
        (labels[user], sorted(ABOUT)[about]): value
        for (user, about), value in zip(joined.coordinates.tolist(), joined.values.tolist(), strict=True)
    }
    told = zip(facts["user"], facts["about"], facts["share"], strict=True)
    assert found == {(user, about): value for user, about, value in told}


def test_an_index_of_one_table_alone_gets_a_row_that_the_release_does_not_have():
    ratings, facts = rows()
    release = released(ratings, facts)
    assert release.shape == (20, 12)
    assert np.isfinite(release.predict([[user, 3] for user in range(20)])).all()


def test_unlabelled_indices_are_matched_by_number():
    first = tv.Observations([[0, 0], [2, 1]], [1.0, 2.0], (3, 2), mode_names=["user", "film"])
    second = tv.Observations([[0, 0], [4, 1]], [0.1, 0.2], (5, 2), mode_names=["about", "user"][::-1])
    table = tv.Coupled(second, (0, 1))
    assert table.facts(first).joint_size == 5
    assert table.joined(first).coordinates.tolist() == [[0, 0], [4, 1]]


@pytest.mark.parametrize(
    "change, rule",
    [
        ({"rename": ("user", "person")}, "one mode of the same name"),
        ({"rename": ("about", "film")}, "one mode of the same name"),
        ({"users": ["nobody", "anybody"]}, "labels of 'user' in common"),
        ({"shared": "film"}, "only 'film' in common"),
        ({"bounds": None}, "bounds must be"),
        ({"levels": (0.5,)}, "levels must be"),
    ],
)
def test_tables_that_do_not_fit_are_refused(change, rule):
    ratings, facts = rows(users=change.get("users", USERS[5:]))
    old, new = change.get("rename", ("", ""))
    facts = {new if name == old else name: column for name, column in facts.items()}
    modes = [name for name in facts if name != "share"]
    bounds, shared, levels = change.get("bounds", (0, 1)), change.get("shared"), change.get("levels")

    def planned():
        table = tv.Coupled(facts, bounds, shared, levels=levels, modes=modes, value="share")
        return tv.plan(read(ratings), tv.CP(2), (1, 5), "value", 1.0, coupled=table)

    with pytest.raises(tv.InputError, match=rule):
        planned()


def test_a_table_with_more_modes_than_the_first_one_is_refused():
    where = np.argwhere(np.ones((20, 2, 2)))
    table = tv.Observations(where, np.zeros(80), (20, 2, 2), mode_names=["user", "a", "b"], labels=[USERS, None, None])
    with pytest.raises(tv.InputError, match="2 to 2 modes"):
        tv.plan(read(rows()[0]), tv.CP(2), (1, 5), "value", 1.0, coupled=tv.Coupled(table, (0, 1)))


def test_tucker_and_non_negative_models_and_infinite_budgets_are_refused():
    ratings, facts = rows()
    for model in ("tucker", tv.CP(2, nonnegative=True)):
        with pytest.raises(tv.InputError, match="must be a free CP model"):
            tv.plan(read(ratings), model, (1, 5), "value", 1.0, coupled=coupled(facts))
    with pytest.raises(tv.InputError, match="infinite epsilon"):
        tv.complete(read(ratings), "cp", (1, 5), "value", np.inf, coupled=coupled(facts))


@pytest.fixture
def folder(tmp_path):
    ratings, facts = rows()
    release = released(ratings, facts, seed=None)
    release.save(tmp_path / "release")
    return tmp_path / "release"


def test_the_certificate_names_both_tables_and_is_verified(folder):
    told = json.loads((folder / "certificate.json").read_text())
    assert told["coupled"] == {
        "mode_names": ["user", "about"],
        "shape": [17, 3],
        "shared": "user",
        "joint_size": 22,
        "bounds": {"low": 0.0, "high": 1.0},
        "value_name": "share",
        "count": 51,
        "levels": None,
    }
    assert [one["name"] for one in told["theorems"]] == ["histogram", "input-values", "coupled-tables"]
    assert "one of the two tables" in told["neighbours"]
    assert any("copy of a value of the other one" in text for text in told["assumptions_trusted"])
    assert {check.state for check in tv.verify(folder)} <= {"ok", "not run"}
    loaded = tv.Release.load(folder)
    assert loaded.certificate.second.joint_shape == (22, 3)
    assert tv.Certificate.from_json(loaded.certificate.to_json()) == loaded.certificate
    page = (folder / "report.html").read_text()
    assert "51 of share, clipped to [0, 1]" in page
    assert "15 of its indices are in both tables" in page


@pytest.mark.parametrize(
    "change, check",
    [
        ({"coupled": None}, {"unit", "theorems"}),
        ({"neighbours": "one observed value is replaced by any other; which cells are observed is public"}, {"unit"}),
        ({"mechanism": "statistic perturbation"}, {"words"}),
    ],
)
def test_a_certificate_that_leaves_out_the_second_table_is_doubted(folder, change, check):
    certificate = tv.Certificate.from_json((folder / "certificate.json").read_text())
    facts = certificate.model_dump(exclude={"digest"}) | change
    (folder / "certificate.json").write_text(tv.Certificate._sealed(facts).to_json())
    doubts = {one.name for one in tv.verify(folder) if one.state == "doubt"}
    assert check <= doubts


def test_values_of_both_tables_count_for_a_person(tmp_path):
    """In the certificate, and where a ledger protects whole people: against counts of the rows."""
    ratings, facts = rows()
    release = released(ratings, facts)
    names, times = np.unique(ratings["user"] + facts["user"], return_counts=True)
    assert len(names) == 22
    user, film = release.contributions
    assert (user["largest"], user["median"]) == (times.max(), np.median(times))
    assert film["largest"] == np.unique(ratings["film"], return_counts=True)[1].max()
    alone = np.unique(ratings["user"], return_counts=True)[1].max()
    assert alone < times.max()
    path = tmp_path / "ledger.sqlite"
    tv.Ledger.create(path, "few", "slice_values:user", 1000.0, at_most=int(alone))
    ledger = tv.Ledger.create(path, "enough", "slice_values:user", 1000.0, at_most=int(times.max()))
    with pytest.raises(tv.InputError, match="at most"):
        released(ratings, facts, seed=None, ledger=ledger, dataset="few")
    assert released(ratings, facts, seed=None, ledger=ledger, dataset="enough").ledger is not None
    assert ledger.spent("enough").epsilon == pytest.approx(4.0 * times.max())


def test_public_levels_of_both_tables_save_the_marginals():
    ratings, facts = rows()
    facts["share"] = (facts["share"] > 0.5).astype(float)
    table = coupled(facts, levels=(0, 1))
    stars = replace(QUICK, noise="channel", levels=(1, 2, 3, 4, 5))

    def stages(mechanism, table):
        planned = tv.plan(read(ratings), tv.CP(2), (1, 5), "value", 4.0, mechanism=mechanism, coupled=table)
        return [stage.name for stage in planned.stages]

    assert stages(stars, table) == ["values"]
    assert len(stages(stars, coupled(facts))) == len(stages(QUICK, table)) == 4
    assert tv.complete(read(ratings), tv.CP(2), (1, 5), "value", 4.0, mechanism=stars, coupled=table, seed=2)


def write(path, table):
    lines = zip(*table.values(), strict=True)
    path.write_text("\n".join([",".join(table), *(",".join(map(str, line)) for line in lines)]) + "\n")
    return str(path)


def test_on_the_command_line(tmp_path):
    ratings, facts = rows()
    first, second = write(tmp_path / "ratings.csv", ratings), write(tmp_path / "facts.csv", facts)
    common = ["complete", first, "--modes", "user,film", "--value", "stars", "--bounds", "1", "5", "--unit", "value"]
    common += ["--epsilon", "3", "--rank", "2"]
    more = ["--coupled", second, "--coupled-modes", "user,about", "--coupled-value", "share"]
    out = tmp_path / "out"
    found = CliRunner().invoke(cli.app, [*common, *more, "--coupled-bounds", "0", "1", "--out", str(out), "--json"])
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["coupled"]["shared"] == "user"
    assert "coupled by user: 51 values of share" in found.stderr
    assert second_table(tv.Release.load(out).certificate)
    for arguments, rule in (
        (more, "--coupled-bounds must be given with --coupled"),
        (["--coupled-value", "share"], "must be used together with --coupled"),
        ([*more, "--coupled-bounds", "1", "0"], "low below high"),
        ([*more, "--coupled-bounds", "0", "1", "--epsilon", "inf"], "--coupled must be left out"),
    ):
        found = CliRunner().invoke(cli.app, [*common, *arguments, "--plan-only"])
        assert isinstance(found.exception, tv.InputError)
        assert rule in str(found.exception)
