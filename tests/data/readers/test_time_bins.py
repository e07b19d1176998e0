"""Bins that come again, and times that become two modes, against the calendar of the standard library."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

import tensorveil as tv
from tensorveil.data.readers.time_bins import BINS, bin_numbers, bin_texts, label_numbers

FORMATS = {"day": "%Y-%m-%d", "hour": "%H", "weekday": "%A", "month": "%m", "week": "%G-W%V", "year": "%Y"}


def moments(count=300, seed=0):
    seconds = np.random.default_rng(seed).integers(-3_000_000_000, 3_000_000_000, count)
    return [dt.datetime(1970, 1, 1) + dt.timedelta(seconds=int(second)) for second in seconds]


@pytest.mark.parametrize(
    "bins", ["day+hour", "day+weekday", "date+weekday", "year+month", "weekday+hour", "week+weekday+hour"]
)
def test_the_parts_of_a_time_become_modes_with_the_labels_of_the_calendar(bins):
    times = moments()
    table = {"shop": ["a", "b"] * 150, "time": [time.isoformat() for time in times], "sold": np.arange(300.0)}
    found = tv.Observations.from_table(table, ["shop", "time"], "sold", bins={"time": bins}, duplicates="keep")
    words = bins.split("+")
    assert found.mode_names == ("shop", *words)
    expected = {}
    for row, time in enumerate(times):
        expected[float(row)] = (
            table["shop"][row],
            *(time.strftime(FORMATS.get(word, FORMATS["day"])) for word in words),
        )
    for where, value in zip(found.coordinates, found.values, strict=True):
        assert tuple(found.labels[mode][index] for mode, index in enumerate(where)) == expected[value]


def test_bins_that_come_again_have_all_their_labels_whatever_the_data():
    table = {"shop": ["a"], "time": ["2024-03-08T13:00"], "sold": [1.0]}
    found = tv.Observations.from_table(table, ["shop", "time"], "sold", bins={"time": "weekday+hour"})
    assert found.shape == (1, 7, 24)
    assert found.inferred_modes == ("shop",)
    assert (found.labels[1][0], found.labels[1][6], found.labels[2][23]) == ("Monday", "Sunday", "23")
    some = tv.Observations.from_table(
        table, ["shop", "time"], "sold", bins={"time": "weekday+hour"}, labels={"hour": ["12", "13"]}
    )
    assert some.shape == (1, 7, 2)
    assert some.coordinates.tolist() == [[0, 4, 1]]


def test_a_file_and_two_modes_of_one_column(tmp_path):
    path = tmp_path / "sold.csv"
    path.write_text("shop,time,sold\na,2024-03-08T13:00,1\nb,2024-03-09T01:00,2\n")
    short = tv.read(path, ["shop", "time"], "sold", bins={"time": "day+hour"})
    modes = {"shop": "shop", "day": "time", "hour": "time"}
    long = tv.read(path, modes, "sold", bins={"day": "day", "hour": "hour_of_day"})
    assert short.mode_names == long.mode_names
    assert short.bins == long.bins == (None, "day", "hour_of_day")
    np.testing.assert_array_equal(short.coordinates, long.coordinates)


@pytest.mark.parametrize("kind", BINS)
def test_numbers_of_labels_are_those_of_their_times(kind):
    numbers, _ = bin_numbers(pa.array(np.array(moments(), dtype="datetime64[s]")), kind, "time")
    np.testing.assert_array_equal(label_numbers(bin_texts(numbers, kind), kind), numbers)


@pytest.mark.parametrize(
    ("bins", "modes", "words"),
    [
        ("day+day", ["shop", "time"], "a later bin of 'time' must be one of"),
        ("hour+minute", ["shop", "time"], "a later bin of 'time' must be one of"),
        ("weekday+weekday", ["shop", "time"], "must be different, got 'weekday\\+weekday'"),
        ("+day", ["shop", "time"], "the bin of 'time' must be one of"),
        ("day+hour", ["day", "time"], "day, hour must be names of no other modes"),
        ("day+hour", ["shop", "hour", "time"], "day, hour must be names of no other modes"),
    ],
)
def test_wrong_parts_are_one_error(bins, modes, words):
    table = {name: ["2024-03-08", "2024-03-09"] for name in modes} | {"sold": [1.0, 2.0]}
    with pytest.raises(tv.InputError, match=words):
        tv.Observations.from_table(table, modes, "sold", bins={"time": bins})
