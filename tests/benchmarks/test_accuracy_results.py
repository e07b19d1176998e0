"""Runs, rows and what the page of benchmarks/accuracy.py says of them."""

import json
from dataclasses import replace

import pytest
from accuracies import grid, halves, measuring, others, page, pictures, running, summary
from accuracies.measuring import DEFAULT, NO_UNIT, OURS, PERMUTED, PRIVATE_MEAN, WIDE, Run

TENTHS = [0.9] * 10


@pytest.fixture
def all_data(monkeypatch, tmp_path):
    """As if the folders of all data were here; grids read no file."""
    monkeypatch.setattr(halves, "folder_of", lambda name: tmp_path)


def row(run, rmse=1.0, **facts):
    return run.facts | {"rmse": rmse, "mae": rmse / 2, "seconds": 1.0, "version": "a"} | facts


def verdicts(rows):
    return {one.aim: one for one in summary.findings(summary.Results(rows))}


def finding(rows, beginning):
    return next(one for aim, one in verdicts(rows).items() if aim.startswith(beginning))


def test_runs_have_different_names_and_keys(all_data):
    found = list(grid.runs(2))
    assert len({str(run) for run in found}) == len({running.key(run.facts) for run in found}) == len(found)


def test_every_target_and_every_variant_is_run(all_data):
    found = {(run.data, run.unit, run.epsilon, run.method) for run in grid.runs(1) if run.variant == DEFAULT}
    for (data, unit, method), wanted in summary.TARGETS.items():
        for split in summary.SPLITS.get(data, (data,)):
            assert {(split, unit, epsilon, method) for epsilon in wanted} <= found
    for (data, unit), wanted in summary.RATIO_TARGETS.items():
        assert {(data, unit, epsilon, OURS) for epsilon in wanted} | {(data, NO_UNIT, None, OURS)} <= found
    assert set(summary.INSENSITIVE) <= {run.variant for run in grid.runs(1)}


def test_the_quick_table_has_movielens_under_value_and_one_row_per_other_data_set(all_data):
    quick = [run for run in grid.selected(grid.runs(1), None, True) if run.method == OURS]
    per_data = {name: sum(run.data == name for run in quick) for name in grid.data_names()}
    assert per_data.pop(grid.LOG_TABLE) == 0
    assert [per_data.pop(name) for name in grid.MOVIELENS] == [1 + len(grid.QUICK_EPSILONS)] * 2
    assert set(per_data.values()) == {1}


def test_only_selects_by_name_and_more_seeds_repeat_only_what_is_random(all_data):
    chosen = grid.selected(grid.runs(3), "^filmtrust (value 5 ours,|none inf mean)", False)
    assert [(run.method, run.seed) for run in chosen if run.variant == DEFAULT] == [
        ("mean", 0),
        (OURS, 0),
        (OURS, 1),
        (OURS, 2),
    ]
    assert all(run.development for run in grid.runs(1, development=True))


def test_a_row_that_is_there_is_not_run_again_but_failed_ones_and_those_of_another_version_are():
    runs = [Run("made tiny", "value", 5.0, PRIVATE_MEAN, seed=seed) for seed in range(4)]
    mine = running.version(runs[0])
    rows = [row(runs[0], version=mine), row(runs[1], version="older"), row(runs[2], version=mine, error="ValueError")]
    assert running.missing(runs, rows, None) == runs[1:]
    assert running.missing(runs, rows, "older") == [runs[0], *runs[2:]]


def test_rows_are_appended_as_they_come_and_read_back(tmp_path):
    path = tmp_path / "rows.jsonl"
    runs = [Run("made tiny", "value", epsilon, PRIVATE_MEAN) for epsilon in (1.0, 5.0)]
    runs.append(Run("made tiny", "value", None, PRIVATE_MEAN))  # no budget: fails, and the others run all the same
    found = list(running.run_all(runs, path, 1, None))
    assert [json.loads(line) for line in path.read_text().splitlines()] == found
    assert sorted("error" in one for one in found) == [False, False, True]
    assert running.missing(runs, running.read_rows(path), None) == runs[2:]
    with path.open("a") as file:
        file.write('{"data": "made ti')  # cut off
    assert len(running.read_rows(path)) == 3


def test_the_latest_row_of_a_run_counts(tmp_path):
    path, run = tmp_path / "rows.jsonl", Run("mimic", "entry", 1.0, OURS)
    running.write_rows(path, [row(run, 2.0), row(run, 3.0)])
    assert [one["rmse"] for one in running.read_rows(path)] == [3.0]


def test_a_version_reads_code_and_neither_comments_nor_docstrings(tmp_path):
    texts = ["def f():\n    return 1\n", '"""Page."""\n\n\ndef f():  # why\n    """Text."""\n    return 1\n']
    texts.append("def f():\n    return 2\n")
    digests = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        digests.append(running._digest((path,)))
    assert digests[0] == digests[1] != digests[2]


def test_versions_differ_where_other_sources_count():
    ours, floor = Run("filmtrust", "value", 5.0, OURS), Run("filmtrust", "value", 5.0, PRIVATE_MEAN)
    assert running.version(ours) != running.version(floor)
    assert running.version(ours) == running.version(replace(ours, data="mimic", seed=3))


def test_a_run_worse_than_the_private_mean_is_found():
    run, floor = Run("mimic", "entry", 1.0, OURS), Run("mimic", "entry", 1.0, PRIVATE_MEAN)
    rows = [row(replace(floor, seed=seed), 1.0) for seed in range(2)]
    rows += [row(run, 0.9), row(replace(run, seed=1), 1.06)]
    assert finding(rows, "mean ratio").met is True
    assert finding(rows, "no run above").met is False
    assert "seed 1" in finding(rows, "no run above").numbers


@pytest.mark.parametrize(
    "second, met", [((0.8, 0.82, 0.81), True), ((1.1, 1.12, 1.13), False), ((0.9, 1.2, 1.0), True)]
)
def test_an_error_that_rises_with_epsilon_is_found_if_seeds_agree(second, met):
    rows = []
    for epsilon, errors in ((1.0, (1.0, 1.01, 1.02)), (2.0, second)):
        rows += [row(Run("mimic", "value", epsilon, OURS, seed=seed), error) for seed, error in enumerate(errors)]
    assert finding(rows, "monotone").met is met
    assert finding(rows[::3], "monotone").met is None  # one seed decides nothing


def test_without_privacy_must_be_best_and_value_must_not_lose_to_entry():
    rows = [
        row(Run("mimic", unit, 20.0, OURS, seed=seed), error + seed / 100)
        for seed in (0, 1)
        for unit, error in (("value", 0.7), ("entry", 0.6))
    ]
    assert finding(rows, "`value`").met is False
    assert finding([*rows, row(Run("mimic", NO_UNIT, None, OURS), 0.5)], "monotone").met is True
    assert finding([*rows, row(Run("mimic", NO_UNIT, None, OURS), 0.9)], "monotone").met is False


@pytest.mark.parametrize("variant, error, met", [(WIDE, 1.02, True), (WIDE, 1.04, False), (PERMUTED, 1.001, False)])
def test_variants_are_compared_with_the_defaults(variant, error, met):
    run = Run("mimic", "value", 5.0, OURS)
    assert finding([row(run), row(replace(run, variant=variant), error)], variant).met is met


def test_coverage_and_mixing_are_judged():
    run = Run("mimic", "value", 5.0, OURS)
    good = row(run, tenths=TENTHS, coverage=0.9, rhat=1.01, draws=160)
    bad = row(replace(run, epsilon=1.0), tenths=[0.5, *TENTHS[1:]], coverage=0.86, rhat=1.2, draws=160)
    for beginning in ("coverage of", "coverage in", "R-hat", "all units have"):
        assert finding([good], beginning).met is True
    for beginning in ("coverage of", "coverage in", "R-hat"):
        assert finding([good, bad], beginning).met is False
    assert finding([good, row(replace(run, unit="entry"))], "all units have").met is False
    few = row(
        replace(run, epsilon=2.0), tenths=TENTHS, coverage=0.9, rhat=1.2, draws=30
    )  # as independent draws may have
    assert finding([few], "R-hat").met is None
    assert "1 cells keep fewer" in finding([good, few], "R-hat").numbers


def test_targets_take_the_mean_of_splits_and_the_best_delta():
    rows = [row(Run(split, "value", 5.0, OURS), error) for split, error in (("ml-100k ua", 0.9), ("ml-100k ub", 0.91))]
    rows += [
        row(Run(measuring.CUBE, "value", 2.0, OURS, delta=delta), error) for delta, error in ((0, 0.1), (1e-6, 0.07))
    ]
    rows += [row(Run("nyc-taxi", "value", 5.0, OURS), 5.5), row(Run("nyc-taxi", NO_UNIT, None, OURS), 5.0)]
    found = {one.name: one for one in summary.targets(summary.Results(rows))}
    assert found["ml-100k, value, epsilon 5"].reached == pytest.approx(0.905)
    assert found["100^3, value, epsilon 2"].met is True
    taxi = found["nyc-taxi, value, epsilon 5, ratio to no privacy"]
    assert (taxi.reached, taxi.met) == (pytest.approx(1.1), False)
    assert found["filmtrust, value, epsilon 5"].met is None
    assert summary.targets(summary.Results(rows[1:]))[0].met is None  # one split is not the mean of both


def test_page_and_pictures_are_made_from_the_rows_alone(tmp_path):
    run = Run("made tiny", "value", 5.0, OURS)
    rows = [row(run, 0.5, tenths=TENTHS, coverage=0.9, rhat=1.0, draws=160, sweeps=300, mechanism="input")]
    rows += [
        row(Run("made tiny", NO_UNIT, None, "mean")),
        run.facts | {"seed": 1, "version": "a", "error": "KeyError: x"},
    ]
    text = page.page(rows, "rows")
    assert "| 5 | ours | 0.5 | 0.25 | 0.9 | 0.9 | 0.9 | 1 | 160 | 300 | input | 1 | 1 |" in text
    assert "KeyError: x" in text
    assert "(rows.svg)" in text
    for draw in (pictures.draw_errors, pictures.draw_coverage):
        path = tmp_path / f"{draw.__name__}.svg"
        draw(rows, path)
        first = path.read_bytes()
        draw(rows, path)
        assert path.read_bytes() == first


def test_methods_of_others_run_only_if_asked_for(all_data):
    plain, asked = list(grid.runs(2)), list(grid.runs(2, peers=True))
    assert not {run.method for run in plain} & set(others.METHODS)
    added = [run for run in asked if run.method in others.METHODS]
    assert [run for run in asked if run not in added] == plain
    assert {run.method for run in added} == set(others.METHODS)
    assert {run.data for run in added if run.unit == NO_UNIT} == set(others.TRAFFIC)
    assert len({str(run) for run in asked}) == len({running.key(run.facts) for run in asked}) == len(asked)
    assert {run.seed for run in added if run.method == "HaLRTC"} == {0}
    assert {run.seed for run in added if run.method == "BGCP"} == {0, 1}


def test_a_row_of_a_method_of_others_depends_on_its_own_sources_alone():
    runs = [Run("nyc-taxi", NO_UNIT, None, method) for method in (*others.WITHOUT_PRIVACY, OURS, "mean")]
    assert len({running.version(run) for run in runs}) == len(runs)
    assert running.version(runs[0]) == running.version(replace(runs[0], data="birmingham"))


def test_methods_of_others_get_the_train_half_and_fail_in_their_row(tmp_path):
    budget = {"unit": "slice:0", "epsilon": 5.0, "delta": 1e-5, "method": others.PRIVATE_ALS}
    runs = [Run("made tiny", NO_UNIT, None, "HaLRTC"), Run("made tiny", NO_UNIT, None, "TRMF")]
    runs += [Run("made tiny", "value", 5.0, others.NOISY_VALUES), Run("filmtrust at sea", **budget)]
    rows = {row["data"] + row["method"]: row for row in running.run_all(runs, tmp_path / "rows.jsonl", 1, None)}
    assert rows["made tinyHaLRTC"]["rmse"] > 0
    assert 0 < rows[f"made tiny{others.NOISY_VALUES}"]["rmse"] < 5
    assert "KeyError" in rows["made tinyTRMF"]["error"]  # nobody said which of its modes is time
    assert "KeyError" in rows[f"filmtrust at sea{others.PRIVATE_ALS}"]["error"]


@pytest.mark.parametrize("theirs, words", [(0.9, "**BGCP (0.9) has** a smaller error"), (1.1, "none of them has a")])
def test_the_page_says_who_has_the_smaller_error_without_privacy(theirs, words):
    rows = [row(Run("mimic", NO_UNIT, None, method), error) for method, error in (("BGCP", theirs), (OURS, 1.0))]
    text = page.page(rows, "rows")
    assert words in text
    assert f"| mimic | BGCP | {theirs:g} |" in text
    assert "Methods of others" not in page.page(rows[1:], "rows")
    assert "On mimic, ours was not run without privacy" in page.page(rows[:1], "rows")
