"""Predictions by label are those by index, in every kind of frame, and unknown labels are counted, not guessed."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.stats import norm

import tensorveil as tv
from saved_releases import CELLS, LABELS, NAMES, SHAPE, made, observations
from tensorveil.release.cells.top import top_table
from tensorveil.release.evaluation import evaluate_table
from tensorveil.release.predictions import everybody, predict_rows

ROWS = np.random.default_rng(4).permutation(len(CELLS))[:30]


def columns(rows=ROWS, **changes):
    """Labels of some cells."""
    found = {name: LABELS[mode][CELLS[rows, mode]].tolist() for mode, name in enumerate(NAMES)}
    return {**found, **changes}


def test_labels_give_the_predictions_of_their_indices_in_every_kind_of_frame():
    release = made("gaussian")
    expected = release.predict(CELLS[ROWS])
    frame = pd.DataFrame(columns()).set_index(pd.Index(range(100, 130)))
    found = release.predict_table(frame)
    assert isinstance(found, pd.DataFrame)
    assert found.index.equals(frame.index)
    assert found["prediction"].to_numpy().tobytes() == expected.tobytes()
    assert "prediction" not in frame
    polars = release.predict_table(pl.DataFrame(columns()))
    assert isinstance(polars, pl.DataFrame)
    assert polars["prediction"].to_list() == expected.tolist()
    arrow = release.predict_table(pa.table(columns()))
    assert isinstance(arrow, pa.Table)
    assert arrow["prediction"].to_pylist() == expected.tolist()
    plain = release.predict_table(columns())
    assert plain["prediction"].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "day",
    [
        [f"{label}T17:30:00" for label in LABELS[2][CELLS[ROWS, 2]]],
        [int(np.datetime64(label, "s").astype(int)) + 3600 for label in LABELS[2][CELLS[ROWS, 2]]],
        [np.datetime64(label, "s").item() for label in LABELS[2][CELLS[ROWS, 2]]],
        [np.datetime64(label, "D").item() for label in LABELS[2][CELLS[ROWS, 2]]],
    ],
    ids=["texts", "seconds", "timestamps", "dates"],
)
def test_times_are_binned_as_in_the_release(day):
    release = made("gaussian")
    found = predict_rows(release, columns(day=day))
    assert found.values.tobytes() == release.predict(CELLS[ROWS]).tobytes()
    assert found.known.all()


def test_unknown_labels_are_an_error_with_their_number_and_without_the_labels():
    table = columns(user=["zoe", "zac", *columns()["user"][2:]], film=[99, *columns()["film"][1:]])
    with pytest.raises(tv.InputError, match="2 of user, 1 of film") as caught:
        made("gaussian").predict_table(table)
    assert "zoe" not in str(caught.value)


def test_unknown_labels_are_predicted_by_the_offsets_of_the_known_ones():
    release = made("gaussian")
    table = columns(user=["zoe", "zac", *columns()["user"][2:]], film=[99, *columns()["film"][1:]])
    found = predict_rows(release, table, "offsets")
    offsets = release.model.offsets
    day = offsets.modes[2][CELLS[ROWS[0], 2]]
    film_and_day = offsets.modes[1][CELLS[ROWS[1], 1]] + offsets.modes[2][CELLS[ROWS[1], 2]]
    by_hand = np.clip([3 + 2 * (offsets.mean + day), 3 + 2 * (offsets.mean + film_and_day)], 1, 5)
    np.testing.assert_allclose(found.values[:2], by_hand)
    assert found.values[2:].tobytes() == release.predict(CELLS[ROWS[2:]]).tobytes()
    assert found.known.tolist() == [False, False] + [True] * 28
    assert found.unknown == {"user": 2, "film": 1}
    with pytest.raises(tv.InputError, match="has none"):
        predict_rows(made("claimed"), table, "offsets")
    with pytest.raises(tv.InputError, match="unknown must be"):
        release.predict_table(table, unknown="guess")


def test_with_draws_an_unknown_label_leaves_out_the_factors_of_every_draw():
    release = made("drawn")
    draws, offsets = release.model.draws, release.model.offsets
    found = predict_rows(release, columns(user=["zoe"] * 30), "offsets").values
    film, day = CELLS[ROWS, 1], CELLS[ROWS, 2]
    latent = (
        offsets.mean
        + (0.0 if offsets.modes[1] is None else offsets.modes[1][film])
        + (0.0 if offsets.modes[2] is None else offsets.modes[2][day])
        + draws.offsets[:, :1].astype(float)
        + draws.offsets[:, 1 + SHAPE[0] + film]
        + draws.offsets[:, 1 + SHAPE[0] + SHAPE[1] + day]
    )
    spread, cuts = draws.sigmas[:, None], draws.knots[:, 1:-1]
    chances = [norm.cdf((cuts[:, [cut]] - latent) / spread).mean(axis=0) for cut in range(cuts.shape[1])]
    masses = np.diff(np.vstack([np.zeros(30), *chances, np.ones(30)]), axis=0)
    np.testing.assert_allclose(found, np.clip(3 + 2 * (draws.low @ masses), 1, 5), rtol=1e-3)  # a table


def test_a_table_that_does_not_fit_is_one_clear_error():
    release = made("gaussian")
    with pytest.raises(tv.InputError, match="must have the columns"):
        release.predict_table({"user": ["ann"], "film": [10]})
    with pytest.raises(tv.InputError, match="must not have a column 'prediction'"):
        release.predict_table(columns(prediction=[0.0] * 30))
    with pytest.raises(tv.InputError, match="table must be"):
        release.predict_table([1, 2, 3])
    with pytest.raises(tv.InputError, match="personalize"):
        made("joint").predict_table(columns())


def test_indices_stand_for_themselves_where_there_are_no_labels():
    plan = tv.StatisticPerturbation(sweeps=1).plan(tv.CP(1), tv.Bounds(1, 5), "value", 4.0, shape=SHAPE)
    release = tv.fit(tv.Observations(CELLS, observations().values, SHAPE), plan)
    table = {f"mode_{mode}": CELLS[ROWS, mode] for mode in range(3)}
    assert release.predict_table(table)["prediction"].tobytes() == release.predict(CELLS[ROWS]).tobytes()
    outside = {**table, "mode_0": np.full(30, SHAPE[0])}
    with pytest.raises(tv.InputError, match="30 of mode_0"):
        release.predict_table(outside)
    assert release.to_frame("arrow", CELLS[:2]).to_pylist()[1]["mode_2"] == 1


def test_the_best_cells_are_those_of_the_whole_tensor_sorted():
    release = made("gaussian")
    dense = release.predict(CELLS).reshape(SHAPE)
    found = release.top({"user": "cyd"}, k=7, frame="pandas")
    expected = np.sort(dense[2].ravel())[::-1][:7]
    np.testing.assert_array_equal(found["prediction"], expected)
    assert found["rank"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert release.predict_table(found.drop(columns="prediction"))["prediction"].tolist() == expected.tolist()


def test_the_best_of_a_mode_name_each_index_once_at_its_best_cell():
    release = made("gaussian")
    dense = release.predict(CELLS).reshape(SHAPE)
    found = top_table(release, {"user": ["cyd", "ann"]}, 3, distinct="film").to_pydict()
    for place, user in enumerate((2, 0)):
        best = dense[user].max(axis=1)
        order = np.argsort(-best)[:3]
        assert found["film"][3 * place : 3 * place + 3] == LABELS[1][order].tolist()
        np.testing.assert_array_equal(found["prediction"][3 * place : 3 * place + 3], best[order])
    assert found["user"] == ["cyd"] * 3 + ["ann"] * 3
    assert len(top_table(release, {"user": ["cyd"]}, 100, distinct="film")) == SHAPE[1]


def test_what_is_asked_of_the_best_must_make_sense():
    release = made("gaussian")
    for known, options, rule in (
        (columns(), {}, "must leave out one of the modes"),
        ({"user": ["cyd"]}, {"distinct": "user"}, "must not have a column of the ranked mode"),
        ({"user": ["zoe"]}, {}, "must be known"),
        ({"user": ["cyd"]}, {"distinct": "cinema"}, "mode must be"),
    ):
        with pytest.raises(tv.InputError, match=rule):
            top_table(release, known, 3, **options)
    with pytest.raises(tv.InputError, match="k must be"):
        release.top({"user": "cyd"}, k=0)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_the_whole_completion_comes_as_a_frame(kind):
    release = made("gaussian")
    frame = release.to_frame(kind)
    rows = frame.to_pylist() if kind == "arrow" else frame.to_dict("records") if kind == "pandas" else frame.to_dicts()
    assert [row["prediction"] for row in rows] == release.predict(CELLS).tolist()
    assert [(row["user"], row["film"], row["day"]) for row in rows[:2]] == [
        ("ann", 10, "1998-03-07"),
        ("ann", 10, "1998-03-08"),
    ]
    with pytest.raises(tv.InputError, match="kind must be"):
        release.to_frame("excel")


def test_everybodys_rows_are_those_that_each_owner_computes_alone():
    release, data = made("joint"), observations()
    together = everybody(release, data)
    for owner in range(SHAPE[0]):
        alone = release.personalize(data.take(data.coordinates[:, 0] == owner))
        cells = CELLS[CELLS[:, 0] == owner]
        np.testing.assert_allclose(together.predict(cells), alone.predict(cells), rtol=1e-12)
    with pytest.raises(tv.InputError, match="joint release"):
        everybody(made("pure"), data)


def test_a_first_row_that_was_taken_for_a_header_is_not_told():
    """A file without a header: what stands in place of the names are private values."""
    row = {"ann": ["bob"], "10": ["20"], "4": ["3"]}
    with pytest.raises(tv.InputError, match=r"must have the columns .* without a header") as refused:
        made("gaussian").predict_table(pa.table(row))
    assert "ann" not in str(refused.value)
    with pytest.raises(tv.InputError, match="must have a column") as refused:
        evaluate_table(made("gaussian"), pa.table(row))
    assert "ann" not in str(refused.value)
