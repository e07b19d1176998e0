"""Observations from tables: Arrow, pandas and polars, with labels of every kind."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from tensorveil.data.observations import Observations
from tensorveil.data.readers.files import read
from tensorveil.errors import InputError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

USERS = ["cy", "ann", "bob", "ann", "cy"]
DAYS = [dt.date(2024, 3, day) for day in (5, 1, 1, 2, 1)]
TIMES = [dt.datetime(2024, 3, day, hour) for day, hour in ((5, 1), (1, 0), (1, 0), (2, 7), (1, 0))]
NUMBERS = [40, -7, 40, 0, 3]
STARS = [5.0, 1.0, 2.5, 4.0, 3.0]

MAKERS = {"arrow": pa.table, "pandas": pd.DataFrame, "polars": pl.DataFrame, "dict": dict}
COLUMNS = {"texts": USERS, "dates": DAYS, "timestamps": TIMES, "whole numbers": NUMBERS}


def plain(label):
    """A label as a Python object, whatever array it lay in."""
    return label.astype("datetime64[us]").item() if isinstance(label, np.datetime64) else label


def as_rows(observations: Observations) -> list[tuple]:
    """Entries as (label, ..., value) again."""
    rows = []
    for where, value in zip(observations.coordinates.tolist(), observations.values.tolist(), strict=True):
        labels = [plain(mode[index]) for mode, index in zip(observations.labels, where, strict=True)]
        rows.append((*labels, value))
    return rows


def expected_rows(*columns) -> list[tuple]:
    """The same from the lists, with dates at midnight."""

    def clock(label):
        return dt.datetime(label.year, label.month, label.day) if type(label) is dt.date else label

    return [tuple(map(clock, row)) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("maker", MAKERS)
def test_labels_of_each_kind_come_back_from_each_kind_of_table(maker, kind):
    other = [f"film {number}" for number in range(5)]
    table = MAKERS[maker]({"film": other, "label": COLUMNS[kind], "stars": STARS})
    observations = Observations.from_table(table, modes=["label", "film"], value="stars")
    assert observations.mode_names == ("label", "film")
    assert observations.shape == (len(set(COLUMNS[kind])), 5)
    assert as_rows(observations) == expected_rows(COLUMNS[kind], other, STARS)
    labels = [plain(label) for label in observations.labels[0]]
    assert labels == sorted(labels)


CATEGORIES = {
    "arrow": pa.table({"user": pa.array(USERS).dictionary_encode(), "day": pa.array(DAYS).dictionary_encode()}),
    "pandas": pd.DataFrame({"user": pd.Categorical(USERS, categories=["unused", *set(USERS)]), "day": DAYS}),
    "polars": pl.DataFrame({"user": pl.Series(USERS, dtype=pl.Categorical), "day": DAYS}),
    "polars enum": pl.DataFrame({"user": pl.Series(USERS, dtype=pl.Enum(sorted(set(USERS)))), "day": DAYS}),
}


@pytest.mark.parametrize("maker", CATEGORIES)
def test_categories_are_texts(maker):
    table = pa.table(CATEGORIES[maker]).append_column("stars", pa.array(STARS))
    observations = Observations.from_table(table, ["user", "day"], "stars")
    assert observations.labels[0].tolist() == ["ann", "bob", "cy"]
    assert as_rows(observations) == expected_rows(USERS, DAYS, STARS)


def test_categories_that_differ_from_chunk_to_chunk_are_joined():
    parts = [{"user": pa.array(users).dictionary_encode(), "day": DAYS[:2]} for users in (["b", "a"], ["c", "b"])]
    table = pa.concat_tables([pa.table({**part, "stars": STARS[:2]}) for part in parts])
    observations = Observations.from_table(table, ["user", "day"], "stars", duplicates="keep")
    assert [row[0] for row in as_rows(observations)] == ["b", "a", "c", "b"]


@pytest.mark.parametrize("maker", MAKERS)
def test_given_labels_keep_their_order_and_state_a_public_shape(maker):
    table = MAKERS[maker]({"user": USERS, "day": DAYS, "stars": STARS})
    order = ["zoe", "cy", "bob", "ann", "abe"]
    calendar = np.arange("2024-03-01", "2024-03-11", dtype="datetime64[D]")
    observations = Observations.from_table(table, ["user", "day"], "stars", labels={"user": order, "day": calendar})
    assert observations.shape == (5, 10)
    assert observations.labels[0].tolist() == order
    assert observations.coordinates[:, 0].tolist() == [order.index(user) for user in USERS]
    assert observations.coordinates[:, 1].tolist() == [day.day - 1 for day in DAYS]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("column_unit", ["s", "ms", "us", "ns"])
def test_given_timestamps_of_any_unit_mean_the_same_moments(unit, column_unit):
    table = pa.table({"user": USERS, "time": pa.array(TIMES, pa.timestamp(column_unit)), "stars": STARS})
    moments = sorted(set(TIMES), reverse=True)
    given = np.array(moments, dtype=f"datetime64[{unit}]")
    observations = Observations.from_table(table, ["user", "time"], "stars", labels={"time": given})
    assert observations.coordinates[:, 1].tolist() == [moments.index(time) for time in TIMES]


@pytest.mark.parametrize("kind", COLUMNS)
def test_labels_of_one_table_are_good_for_the_next(kind):
    table = pa.table({"user": USERS, "label": COLUMNS[kind], "stars": STARS})
    first = Observations.from_table(table, ["user", "label"], "stars", duplicates="keep")
    labels = dict(zip(("user", "label"), first.labels, strict=True))
    rows = table.slice(0, 2)
    second = Observations.from_table(rows, ["user", "label"], "stars", labels=labels, duplicates="keep")
    assert second == first.take([0, 1])


def test_duplicates_in_a_table_are_treated_as_asked():
    table = pa.table({"user": ["a", "a", "b"], "film": [1, 1, 1], "stars": [2, 4, 5]})
    with pytest.raises(InputError, match="every cell must occur once"):
        Observations.from_table(table, ["user", "film"], "stars")
    assert len(Observations.from_table(table, ["user", "film"], "stars", duplicates="keep")) == 3
    mean = Observations.from_table(table, ["user", "film"], "stars", duplicates="mean")
    assert as_rows(mean) == [("a", 1, 3.0), ("b", 1, 5.0)]


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_tables_of_any_order(order):
    names = [f"column {number}" for number in range(order)]
    generator = np.random.default_rng(order)
    columns = {name: generator.integers(-5, 5, 40) for name in names}
    table = pa.table({**columns, "value": np.arange(40.0)})
    observations = Observations.from_table(table, names, "value", duplicates="keep")
    assert as_rows(observations) == expected_rows(*columns.values(), np.arange(40.0).tolist())


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.float32(), pa.decimal128(21, 2)])
def test_values_may_be_numbers_of_any_kind(kind):
    table = pa.table({"user": USERS, "day": DAYS, "stars": pa.array([1, 2, 3, 4, 5]).cast(kind)})
    assert Observations.from_table(table, ["user", "day"], "stars").values.tolist() == [1, 2, 3, 4, 5]


GOOD = {"user": USERS, "day": DAYS, "stars": STARS}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"user": [1.5, 2.5, 1.5, 2.0, 1.0]}, "the column 'user' must hold texts, whole numbers or dates, got double"),
        ({"user": [[1], [2], [3], [4], [5]]}, "the column 'user' must hold texts, whole numbers or dates"),
        ({"user": pa.nulls(5)}, "the column 'user' must have no empty cells, got 5"),
        ({"user": ["ann", None, "bob", None, "cy"]}, "the column 'user' must have no empty cells, got 2"),
        ({"day": [*DAYS[:4], None]}, "the column 'day' must have no empty cells, got 1"),
        ({"stars": [1.0, None, 2.0, None, 3.0]}, "the value column 'stars' must have no empty cells, got 2"),
        ({"stars": [1.0, float("nan"), 2.0, 1.0, 3.0]}, "values must be finite"),
        ({"stars": [1.0, float("inf"), 2.0, 1.0, 3.0]}, "values must be finite"),
        ({"stars": ["1", "2", "3", "4", "5"]}, "the value column 'stars' must hold numbers, got string"),
        ({"stars": [True, False, True, True, True]}, "the value column 'stars' must hold numbers, got bool"),
    ],
)
def test_columns_that_are_no_labels_or_no_values_are_refused(changed, message):
    with pytest.raises(InputError, match=message):
        Observations.from_table(pa.table({**GOOD, **changed}), ["user", "day"], "stars")


def test_a_null_hidden_in_a_dictionary_is_an_empty_cell_too():
    users = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0, 1]), pa.array(["ann", None, "bob"]))
    with pytest.raises(InputError, match="no empty cells"):
        Observations.from_table(pa.table({**GOOD, "user": users}), ["user", "day"], "stars", duplicates="keep")


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_missing_values_of_a_data_frame_are_refused(frame):
    for changed in ({"user": ["ann", None, "bob", "ann", "cy"]}, {"stars": [1.0, None, 2.0, 3.0, 4.0]}):
        with pytest.raises(InputError, match="no empty cells, got 1"):
            Observations.from_table(frame({**GOOD, **changed}), ["user", "day"], "stars")


def test_values_beyond_the_whole_numbers_of_a_float_are_refused_in_our_words():
    with pytest.raises(InputError, match="stars"):
        Observations.from_table(pa.table({**GOOD, "stars": [2**53 + 1, 2, 3, 4, 5]}), ["user", "day"], "stars")


def test_columns_of_different_length_are_refused_in_our_words():
    with pytest.raises(InputError):
        Observations.from_table({**GOOD, "stars": [1.0]}, ["user", "day"], "stars")


@pytest.mark.parametrize(
    "labels, message",
    [
        ({"user": ["ann", "bob"]}, "every label of 'user' must be among the 2 given, got 2 rows with others"),
        ({"user": [1, 2, 3]}, "labels of 'user' must be of the column's type"),
        ({"user": ["ann", "bob", "cy", "ann"]}, "labels of mode 0 must be different"),
        ({"user": ["ann", "bob", "cy", None]}, "label"),
        ({"number": [40.5, -7.0, 0.0, 3.0]}, "labels of 'number'"),
        ({"number": ["40", "-7", "0", "3"]}, "labels of 'number' must be of the column's type"),
        ({"number": [40, -7, 0, 3, None]}, "label"),
        ({"nobody": ["ann"]}, "labels must name columns of the data, got 'nobody'"),
        ({"stars": [1, 2]}, "labels must be for modes, got labels of 'stars'"),
    ],
)
def test_given_labels_that_do_not_fit_are_refused(labels, message):
    table = pa.table({**GOOD, "number": NUMBERS})
    with pytest.raises(InputError, match=message):
        Observations.from_table(table, ["user", "number"], "stars", labels=labels)


@pytest.mark.parametrize(
    "modes, value, message",
    [
        (["user", "nobody"], "stars", "modes must name columns of the data, got 'nobody'"),
        (["user", "day"], "nothing", "value must name columns of the data, got 'nothing'"),
        ("user", "stars", "modes must be a list of column names"),
        (["user"], "stars", "2 to 6 modes, got 1"),
        (["user"] * 7, "stars", "2 to 6 modes, got 7"),
        (["user", "user"], "stars", "different"),
    ],
)
def test_columns_that_are_not_there_are_named(modes, value, message):
    with pytest.raises(InputError, match=message):
        Observations.from_table(pa.table(GOOD), modes, value)


def test_an_empty_table_is_refused():
    with pytest.raises(InputError, match="at least one row"):
        Observations.from_table(pa.table(GOOD).slice(0, 0), ["user", "day"], "stars")


@pytest.mark.parametrize("thing", [[1, 2, 3], np.ones((3, 3)), "user,day,stars", None])
def test_what_is_no_table_is_refused_by_its_type(thing):
    with pytest.raises(InputError, match=f"table must be .* got {type(thing).__name__}"):
        Observations.from_table(thing, ["user", "day"], "stars")


def test_a_changed_data_frame_does_not_change_the_observations():
    frame = pd.DataFrame({"user": [3, 1, 2], "film": [1, 2, 3], "stars": [1.0, 2.0, 3.0]})
    observations = Observations.from_table(frame, ["user", "film"], "stars")
    frame.loc[:, "stars"] = 9.0
    frame.loc[:, "user"] = 1
    assert as_rows(observations) == [(3, 1, 1.0), (1, 2, 2.0), (2, 3, 3.0)]


def test_the_value_cannot_be_a_mode_and_labels_must_be_named():
    frame = {"a": [1, 2], "b": [1, 1], "v": [1.0, 2.0]}
    with pytest.raises(InputError, match="must not be one of the modes"):
        Observations.from_table(frame, ["a", "v"], "v")
    with pytest.raises(InputError, match="labels must map"):
        Observations.from_table(frame, ["a", "b"], "v", labels=[[1, 2]])


def test_modes_whose_labels_are_read_off_the_data_are_remembered():
    frame = {"a": [1, 2], "b": [1, 1], "v": [1.0, 2.0]}
    assert Observations.from_table(frame, ["a", "b"], "v", labels={"a": [1, 2, 3]}).inferred_modes == ("b",)
    with pytest.raises(InputError, match="array of numbers"):
        Observations.from_dense([["x", "y"]])


RATED = {"userId": ["bob", "ann", "bob"], "movieId": [3, 1, 2], "timestamp": [889228800, 889315200, 889401600]}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_frame_is_read_like_the_file_with_the_same_rows(kind, tmp_path):
    rows = {**RATED, "stars": [5.0, 1.0, 3.0]}
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    how = {
        "modes": {"user": "userId", "film": "movieId", "day": "timestamp", "month": "timestamp"},
        "value": "stars",
        "bins": {"day": "day", "month": "month"},
        "labels": {"user": ["ann", "bob", "cy"]},
        "shape": (None, 4, None, None),
        "public_labels": ["day"],
    }
    found, told = Observations.from_table(MAKERS[kind](rows), **how), read(path, **how)
    assert found == told
    assert (found.mode_names, found.bins) == (("user", "film", "day", "month"), (None, None, "day", "month"))
    assert (
        (found.inferred_modes, found.stated_modes) == (told.inferred_modes, told.stated_modes) == (("month",), ("day",))
    )
    assert [len(labels) if labels is not None else None for labels in found.labels] == [3, None, 3, 1]


@pytest.mark.parametrize(
    "how, message",
    [
        ({"modes": {"user": "nobody", "film": "movieId"}}, "got 'nobody'"),
        ({"modes": {"user": "stars", "film": "movieId"}}, "value must not be one of the modes"),
        ({"modes": {"user": 3, "film": "movieId"}}, "modes must map names to columns"),
        ({"modes": {}}, "modes must map names to columns"),
        ({"modes": ["userId", "movieId"], "bins": {"userId": "day"}}, "3 rows must have a time"),
        ({"modes": ["userId", "movieId"], "bins": {"timestamp": "day"}}, "bins must be for modes, got 'timestamp'"),
        ({"modes": ["movieId", "timestamp"], "shape": (3, None)}, "1 row must have a whole number from 0 to 2"),
        ({"modes": ["movieId", "timestamp"], "shape": (3,)}, "shape must be 2 sizes"),
    ],
)
def test_a_frame_that_breaks_a_rule_of_files_is_refused_in_the_same_words(how, message):
    with pytest.raises(InputError, match=message):
        Observations.from_table(pa.table({**RATED, "stars": [5.0, 1.0, 3.0]}), value="stars", **how)


def test_the_names_of_a_file_without_columns_cannot_be_mapped(tmp_path):
    path = tmp_path / "x.tns"
    path.write_text("1 1 2.5\n2 3 1\n")
    with pytest.raises(InputError, match="modes must be a list of names for a file without columns"):
        read(path, {"user": "a", "film": "b"})
