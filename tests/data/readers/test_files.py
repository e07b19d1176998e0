"""Files in: every format gives the same observations."""

import csv
import datetime as dt
import doctest
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorveil as tv
from tensorveil.data.datasets.movielens import load_movielens
from tensorveil.data.readers.files import coordinates_of, read, read_table
from tensorveil.errors import InputError, UnprovenError
from written_rows import DAY, MODES, NAMES, ROWS, entries, text

PLAIN = {(user, film, stars) for user, film, stars, _ in ROWS}


@pytest.mark.parametrize(
    "content",
    [
        text(ROWS),
        text(ROWS, end="\r\n"),
        text(ROWS, end="\r"),
        text(ROWS).rstrip("\n"),
        "\ufeff" + text(ROWS),
        "\n\n" + text(ROWS).replace("\n", "\n\n"),
        text(ROWS).replace("ann", '"ann"').replace("user", '"user"'),
        text(ROWS).replace("2.5", "+2.5"),
        text(ROWS).replace("2.5", " 25e-1"),
    ],
    ids=["plain", "crlf", "cr", "no last newline", "bom", "empty lines", "quotes", "plus", "exponent"],
)
def test_a_csv_file_in_all_its_spellings(write, content):
    observations = read(write(content), MODES, "stars")
    assert entries(observations) == PLAIN
    assert observations.labels[1].tolist() == [7, 9, 11]
    assert (observations.value_name, observations.bins, observations.mode_names) == (
        "stars",
        (None, None),
        tuple(MODES),
    )
    assert (observations.inferred_modes, observations.stated_modes) == (("user", "film"), ())


def _parquet(path, table=None):
    pq.write_table(pa.table(dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))), path)


def _parts(path):
    path.mkdir()
    for number, rows in enumerate((ROWS[:1], ROWS[1:])):
        table = pa.table(dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, path / f"part-{number}.parquet")
    (path / "_SUCCESS").write_text("")
    (path / "notes.txt").write_text("not data")


def _hive(path):
    for user in ("ann", "bob", "cy"):
        rows = [row for row in ROWS if row[0] == user]
        (path / f"user={user}").mkdir(parents=True)
        columns = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
        del columns["user"]
        pq.write_table(pa.table(columns), path / f"user={user}" / "part.parquet")


@pytest.mark.parametrize("maker", [_parquet, _parts, _hive])
def test_parquet_files_and_folders_of_parts(tmp_path, maker):
    maker(tmp_path / "data.parquet")
    assert entries(read(tmp_path / "data.parquet", MODES, "stars")) == PLAIN
    assert set(read_table(tmp_path / "data.parquet").column_names) == set(NAMES)


def test_files_without_a_header_take_names_and_a_format(write):
    path = write(text(ROWS, "\t", header=None), "ua.base")
    with pytest.raises(InputError, match=r"format must be given .* got 'ua.base'"):
        read(path, MODES, "stars", columns=NAMES)
    assert entries(read(path, MODES, "stars", columns=NAMES, format="tsv")) == PLAIN
    assert entries(read(os.fspath(path), MODES, "stars", columns=NAMES, format="tsv")) == PLAIN


def test_labels_that_look_like_numbers(write):
    rows = "user,film,zip,stars\n1,7,02139,1\n2,x,10001,2\n-3,8,00501,3\n"
    observations = read(write(rows), ["user", "film", "zip"], "stars")
    assert [found.tolist() for found in observations.labels] == [
        [-3, 1, 2],
        ["7", "8", "x"],
        ["00501", "02139", "10001"],
    ]
    huge = read(write(f"user,film,stars\n{2**70},1,1\n{2**70 + 1},2,2\n"), MODES, "stars")
    assert huge.labels[0].tolist() == [str(2**70), str(2**70 + 1)]
    assert read(write(f"user,film,stars\n{2**63 - 1},1,1\n1,2,2\n"), MODES, "stars").labels[0].tolist() == [
        1,
        2**63 - 1,
    ]


def test_quoted_labels_may_hold_delimiters_quotes_and_line_ends(write):
    path = write('user,film,stars\n"a,""b""",1,3\n"c\nd",2,4\nNA,3,5\n')
    assert set(read(path, MODES, "stars").labels[0]) == {'a,"b"', "c\nd", "NA"}
    path = write('user,film,stars\n"c\nd",2,4\n\ne,3,five\n')
    with pytest.raises(InputError, match=r"got none in line 5;"):
        read(path, MODES, "stars")


# --- times


MOMENTS = [
    dt.datetime(1969, 12, 31, 23, 59, 59),
    dt.datetime(2000, 2, 29, 12),
    dt.datetime(2021, 1, 3, 23),
    dt.datetime(2024, 12, 30),
]
FORMATS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m", "year": "%Y"}
SPELLINGS = {
    "epoch": lambda moment: str(int(moment.replace(tzinfo=dt.UTC).timestamp())),
    "fractions": lambda moment: f"{moment.replace(tzinfo=dt.UTC).timestamp() + 0.75:.2f}",
    "iso": lambda moment: moment.isoformat(),
    "blank": lambda moment: moment.isoformat(" "),
    "zulu": lambda moment: moment.isoformat() + "Z",
    "zone": lambda moment: (moment + dt.timedelta(hours=5, minutes=30)).isoformat() + "+05:30",
    "microseconds": lambda moment: moment.isoformat() + ".123456",
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_times_are_binned_as_python_s_calendar_does(write, kind, spelling):
    lines = [f"u{number},{SPELLINGS[spelling](moment)},1" for number, moment in enumerate(MOMENTS)]
    path = write("user,when,stars\n" + "\n".join(lines))
    observations = read(path, ["user", "when"], "stars", bins={"when": kind})
    texts = [observations.labels[1][index] for index in observations.coordinates[:, 1]]
    assert texts == [moment.strftime(FORMATS[kind]) for moment in MOMENTS]
    assert list(observations.labels[1]) == sorted(texts)
    assert observations.bins == (None, kind)
    given = read(path, ["user", "when"], "stars", bins={"when": kind}, labels={"when": texts[::-1]})
    assert given.coordinates[:, 1].tolist() == [3, 2, 1, 0]
    assert (given.inferred_modes, given.bins) == (("user",), (None, kind))


@pytest.mark.parametrize("kind", FORMATS)
def test_bins_of_a_thousand_random_days_are_those_of_python_s_calendar(write, kind):
    seconds = np.random.default_rng(1).integers(-62_135_596_800, 253_402_300_799, 1000).tolist()
    path = write("user,when,stars\n" + "".join(f"{row},{second},1\n" for row, second in enumerate(seconds)))
    observations = read(path, ["user", "when"], "stars", bins={"when": kind})
    texts = [observations.labels[1][index] for index in observations.coordinates[:, 1]]
    for second, found in zip(seconds, texts, strict=True):
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=second)
        year, week, _ = moment.isocalendar()
        wanted = {"week": f"{year:04d}-W{week:02d}", "year": f"{moment.year:04d}"}
        assert found == wanted.get(kind, moment.isoformat()[: {"hour": 13, "day": 10, "month": 7}.get(kind)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(MOMENTS, pa.timestamp("s")),
        pa.array(MOMENTS, pa.timestamp("ns")),
        pa.array([moment.replace(tzinfo=dt.UTC) for moment in MOMENTS], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([moment.date() for moment in MOMENTS]),
        pa.array([moment.date() for moment in MOMENTS], pa.date64()),
        pa.array([moment.isoformat() for moment in MOMENTS]),
        pa.array([moment.isoformat() for moment in MOMENTS]).dictionary_encode(),
        pa.array(["1969-12-31", "2000-02-29T12:00Z", "2021-01-03 23:00:00", "2024-12-30"]),
        pa.array([int(moment.replace(tzinfo=dt.UTC).timestamp()) for moment in MOMENTS], pa.float64()),
    ],
    ids=str,
)
def test_times_of_parquet(tmp_path, column):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"user": [1, 2, 3, 4], "when": column, "stars": [1, 2, 3, 4]}), path)
    observations = read(path, ["user", "when"], "stars", bins={"when": "day"})
    assert observations.labels[1].tolist() == ["1969-12-31", "2000-02-29", "2021-01-03", "2024-12-30"]
    known = coordinates_of(pq.read_table(path), ["user", "when"], observations.labels, observations.bins)
    assert known.tolist() == observations.coordinates.tolist()


def test_dates_given_as_labels_of_a_binned_mode(write):
    path = write(text(ROWS))
    calendar = np.arange("1969-12-30", "1970-01-04", dtype="datetime64[D]")
    for given in (calendar, calendar.tolist(), calendar.astype(str).tolist()):
        observations = read(path, ["user", "time"], "stars", bins={"time": "day"}, labels={"time": given})
        assert observations.shape == (3, 5)
        assert observations.coordinates[:, 1].tolist() == [2, 3, 3, 1]
    zone = dt.timezone(dt.timedelta(hours=-2))
    aware = [dt.datetime(1969, 12, 31, 23, tzinfo=zone), dt.datetime(1970, 1, 2, 1, tzinfo=zone)]  # 1 and 2 January
    wanted = coordinates_of({"time": [0, DAY, 2 * DAY]}, ["time"], [aware], ["day"])
    assert wanted.tolist() == [[0], [1], [-1]]
    with pytest.raises(InputError, match=r"binned by day, must be written like 1998-03-08"):
        read(path, ["user", "time"], "stars", bins={"time": "day"}, labels={"time": ["1.1.1970"]})


# --- labels, shape, what is public


def test_given_labels_state_a_public_mode(write, tmp_path):
    path = write(text(ROWS))
    users = ["zoe", "cy", "bob", "ann"]
    write("\n".join(users) + "\n", "users.txt")
    write("film\n7\n9\n11\n13\n", "films.csv")
    pq.write_table(pa.table({"any": [13, 11, 9, 7]}), tmp_path / "films.parquet")
    for given, films in ((users, [7, 9, 11, 13]), (tmp_path / "users.txt", ["7", "9", "11", "13"])):
        observations = read(path, MODES, "stars", labels={"user": given, "film": films})
        assert observations.shape == (4, 4)
        assert observations.inferred_modes == observations.stated_modes == ()
        assert {(user, int(film), stars) for user, film, stars in entries(observations)} == PLAIN
        assert observations.labels[0].tolist() == users
    for name, films in (("films.csv", [7, 9, 11, 13]), ("films.parquet", [13, 11, 9, 7])):
        observations = read(path, MODES, "stars", labels={"film": str(tmp_path / name)})
        assert observations.labels[1].tolist() == films
        assert observations.inferred_modes == ("user",)


def test_a_shape_states_indices(write):
    path = write("user,film,stars\n1,3,5\n2,1,4\n")
    observations = read(path, MODES, "stars", shape=(5, 4), first_index=1)
    assert observations.coordinates.tolist() == [[0, 2], [1, 0]]
    assert observations.shape == (5, 4)
    assert observations.inferred_modes == ()
    assert observations.labels[0].tolist() == [1, 2, 3, 4, 5]  # so that a release knows its own first index
    assert read(path, MODES, "stars", shape=(5, 4)).labels == (None, None)
    partly = read(path, MODES, "stars", shape=(5, None))
    assert (partly.shape, partly.inferred_modes) == ((5, 2), ("film",))
    joined = read(path, MODES, "stars", shape=(5, 3), labels={"film": [3, 2, 1]})
    assert joined.coordinates.tolist() == [[1, 0], [2, 2]]
    with pytest.raises(InputError, match=r"the size of 'film' must be one number"):
        read(path, MODES, "stars", shape=(5, 4), labels={"film": [3, 2, 1]})


def test_labels_stated_public_are_recorded_in_the_guarantee(write):
    generator = np.random.default_rng(3)
    rows = [(user, film, generator.integers(1, 6)) for user in "abcdef" for film in range(5)]
    path = write("user,film,stars\n" + "".join(f"{user},{film},{stars}\n" for user, film, stars in rows))
    observations = read(path, MODES, "stars", labels={"user": list("abcdef")}, public_labels=["film"])
    assert (observations.inferred_modes, observations.stated_modes) == ((), ("film",))
    plan = tv.StatisticPerturbation().plan(
        tv.CP(rank=1), tv.Bounds(1, 5), "entry", 1.0, 1e-6, shape=(6, 5), mode_names=MODES, expected_count=30
    )
    text = "the labels of mode 'film' are public: stated by the caller"
    assert text in tv.fit(observations, plan).guarantee.assumptions_trusted
    told = read(path, MODES, "stars", labels={"user": list("abcdef"), "film": range(5)})
    assert text not in tv.fit(told, plan).guarantee.assumptions_trusted
    with pytest.raises(UnprovenError, match="film read off the data"):
        tv.fit(read(path, MODES, "stars", labels={"user": list("abcdef")}), plan)


def test_what_is_known_of_the_labels_survives_selection_and_pickling(write):
    path = write(text(ROWS))
    observations = read(path, ["user", "film", "time"], "stars", bins={"time": "week"}, public_labels=["film"])
    others = [
        observations.take([0, 2]),
        observations.with_values([1, 2, 3, 4]),
        *observations.split(0.5, seed=1),
        pickle.loads(pickle.dumps(observations)),
    ]
    for other in others:
        assert other.bins == (None, None, "week")
        assert (other.inferred_modes, other.stated_modes, other.value_name) == (("user", "time"), ("film",), "stars")
    with pytest.raises(AttributeError):
        observations.bins = ()


def test_tables_in_memory_take_public_labels_too():
    frame = {"a": [1, 2], "b": [1, 1], "v": [1.0, 2.0]}
    observations = tv.Observations.from_table(frame, ["a", "b"], "v", public_labels=["a"])
    assert (observations.inferred_modes, observations.stated_modes) == (("b",), ("a",))
    assert (observations.value_name, observations.bins) == ("v", (None, None))
    for wrong in ("a", ["c"], 3):
        with pytest.raises(InputError, match="public_labels must be"):
            tv.Observations.from_table(frame, ["a", "b"], "v", public_labels=wrong)


# --- tables and coordinates for predicting


def test_a_table_keeps_labels_as_they_are(write):
    table = read_table(write("id,zip,x,name,e\n1,02139,1.5,a,\n2,10001,2,7,\n,00501,,b,\n"))
    assert table.to_pydict() == {
        "id": [1, 2, None],
        "zip": ["02139", "10001", "00501"],
        "x": [1.5, 2.0, None],
        "name": ["a", "7", "b"],
        "e": [None, None, None],
    }
    with pytest.raises(InputError, match=r"1 row must have 2 fields.* in line 3"):
        read_table(write("a,b\n1,2\n3\n"))


@pytest.mark.parametrize(
    "column, labels, found",
    [
        ([7, 9, 8], [9, 7], [1, 0, -1]),
        ([7, 9, None], ["9", "7"], [1, 0, -1]),
        (["7", "9", "007"], [9, 7], [1, 0, -1]),
        (["7", "x", ""], ["x", "7"], [1, 0, -1]),
        ([1.5, 2.0, float("nan")], ["2.0", "1.50"], [1, 0, -1]),
        ([dt.date(2020, 1, 2), dt.date(2020, 1, 1), None], np.array(["2020-01-01", "2020-01-02"], "M8[D]"), [1, 0, -1]),
        ([dt.date(2020, 1, 2), dt.date(2020, 1, 1), None], ["2020-01-01", "2020-01-02"], [1, 0, -1]),
        (["2020-01-02", "2020-01-01", "x"], np.array(["2020-01-01", "2020-01-02"], "M8[D]"), [1, 0, -1]),
        (
            [dt.datetime(2020, 1, 2), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 5)],
            ["2020-01-01T00:00:00", "2020-01-02T00:00:00"],
            [1, 0, -1],
        ),
        ([1, 0, -1], None, [1, 0, -1]),
        (["1", "0", "x"], None, [1, 0, -1]),
    ],
)
def test_coordinates_by_known_labels(column, labels, found):
    table = pa.table({"other": ["a"] * 3, "label": column})
    coordinates = coordinates_of(table, ["label", "other"], [labels, ["b", "a"]])
    assert coordinates.dtype == np.int64
    assert coordinates.tolist() == [[index, 1] for index in found]


def test_coordinates_by_bins_and_first_index():
    table = {"when": [0, DAY, 5 * DAY], "film": [1, 2, 0]}
    for bins in (("day", None), {"when": "day"}):
        found = coordinates_of(table, ["when", "film"], [["1970-01-02", "1970-01-01"], None], bins, first_index=1)
        assert found.tolist() == [[1, 0], [0, 1], [-1, -1]]
    with pytest.raises(InputError, match="one column for each of the modes"):
        coordinates_of(table, ["when", "user"], [None, None])


def test_the_page_on_files_gives_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "files.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried >= 10) == (0, True)


# --- real data


@pytest.fixture(scope="module")
def data_folder():
    given = os.environ.get("TENSORVEIL_DATA")
    if not given or not (Path(given) / "ml-100k" / "ua.base").is_file():
        pytest.skip("real data are not here: set TENSORVEIL_DATA to the folder that holds ml-100k/")
    return Path(given)


@pytest.mark.parametrize("part", ["base", "test"])
def test_movielens_is_what_its_own_loader_reads(data_folder, part):
    names = ["user", "film", "rating", "time"]
    path = data_folder / "ml-100k" / f"ua.{part}"
    observations = read(path, ["user", "film", "time"], "rating", format="tsv", columns=names, bins={"time": "day"})
    loader = load_movielens("ua", data_folder)
    known = loader.train if part == "base" else loader.test
    wanted = {(user, film, str(day), value) for user, film, day, value in entries(known)}
    assert entries(observations) == wanted
    again = coordinates_of(
        read_table(path, format="tsv", columns=names), names[:2] + names[3:], known.labels, {"time": "day"}
    )
    assert again.tolist() == known.coordinates.tolist()


def test_the_small_movielens_and_taxi_data(data_folder):
    path = data_folder / "ml-latest-small" / "ratings.csv"
    observations = read(path, ["userId", "movieId", "timestamp"], "rating", bins={"timestamp": "year"})
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(observations) == len(rows) == 100_836
    years = {dt.datetime.fromtimestamp(int(row["timestamp"]), dt.UTC).year for row in rows}
    assert observations.labels[2].tolist() == [str(year) for year in sorted(years)]
    taxi = read(data_folder / "nyc-taxi" / "NYC-data-set_tensor.mat", ["from", "to", "hour"])
    assert (taxi.shape, taxi.values.min(), taxi.values.max()) == ((30, 30, 1464), 0, 320)


@pytest.mark.parametrize(
    "first, message",
    [
        ("a,b,v," + "x" * 50_000_000, "first line of long.csv must have at most 1,048,576 bytes"),
        (",".join(f"c{number}" for number in range(1_000_000)), "first line of long.csv must have at most"),
        (",".join(f"c{number}" for number in range(50_000)), "at most 10,000 columns, got 50,000"),
    ],
    ids=["50 MB", "a million columns", "many columns"],
)
def test_a_first_line_that_is_no_header_is_refused_before_it_is_parsed(tmp_path, first, message, monkeypatch):
    path = tmp_path / "long.csv"
    path.write_text(f"{first}\n1,2,3\n")
    monkeypatch.setattr("pyarrow.csv.read_csv", lambda *args, **more: pytest.fail("the file was parsed"))
    for columns in (None, ["a", "b", "v"]) if "bytes" in message else (None,):
        with pytest.raises(tv.InputError, match=message):
            tv.read(path, ["a", "b"], "v", columns=columns)
