"""Files in: every format gives the same observations, and every bad row is named by its line, never by its content."""

import csv
import datetime as dt
import doctest
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse

import tensorveil as tv
from tensorveil.data import array_files, sources, text_files
from tensorveil.data.files import coordinates_of, read, read_table
from tensorveil.data.movielens import load_movielens
from tensorveil.errors import InputError, SizeError, UnprovenError

DAY = 86_400
ROWS = [("ann", 7, 4.0, 0), ("bob", 9, 2.5, DAY + 5), ("ann", 9, 1.0, DAY), ("cy", 11, 3.0, -1)]
NAMES = ["user", "film", "stars", "time"]
MODES = ["user", "film"]


def text(rows, delimiter=",", header=NAMES, end="\n") -> str:
    lines = ([header] if header else []) + [list(map(str, row)) for row in rows]
    return "".join(delimiter.join(line) + end for line in lines)


@pytest.fixture
def write(tmp_path):
    """Writes content to a file and gives its path."""

    def save(content, name="data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return save


def entries(observations) -> set[tuple]:
    """Entries as (label, ..., value)."""
    labels = [
        np.arange(size) if found is None else found
        for found, size in zip(observations.labels, observations.shape, strict=True)
    ]
    return {
        (*(mode[index] for mode, index in zip(labels, where, strict=True)), value)
        for where, value in zip(observations.coordinates.tolist(), observations.values.tolist(), strict=True)
    }


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
        pa.array(["1969-12-31", "2000-02-29T12:00Z", "2021-01-03 23:00:00", "20241230"]),
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


# --- .tns, .npz, .mat


@pytest.mark.parametrize(
    "content",
    [
        "1 1 2 1.5\n2 3 1 -2\n",
        "# comment\n\n1 1 2 1.5\n2 3 1 -2",
        "1 1 2 1.5\r\n# middle\r\n2 3 1 -2\r\n",
        "1\t1  2 1.5 \n  2 3 1 -2e0\n",
        "\ufeff1 1 2 1.5\n2 3 1 -2\n",
    ],
)
def test_tns_counts_from_one(write, content):
    observations = read(write(content, "data.tns"))
    assert observations.coordinates.tolist() == [[0, 0, 1], [1, 2, 0]]
    assert observations.values.tolist() == [1.5, -2]
    assert observations.shape == (2, 3, 2)
    assert observations.inferred_modes == ("mode_0", "mode_1", "mode_2")
    public = read(write(content, "data.tns"), ["a", "b", "c"], "v", shape=(2, 4, 9))
    assert (public.shape, public.inferred_modes, public.mode_names) == ((2, 4, 9), (), ("a", "b", "c"))
    assert public.labels[2].tolist() == list(range(1, 10))
    table = read_table(write(content, "data.tns"))
    known = coordinates_of(table, ["mode_0", "mode_1", "mode_2"], observations.labels)
    assert known.tolist() == observations.coordinates.tolist()


DENSE = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan]])


def _save_npz(path, **arrays):
    np.savez_compressed(path, **arrays)


def test_npz_and_mat_in_every_form(tmp_path):
    known = tv.Observations.from_dense(DENSE)
    where, values = np.argwhere(~np.isnan(DENSE)), DENSE[~np.isnan(DENSE)]
    np.savez(tmp_path / "dense.npz", tensor=DENSE)
    np.savez(tmp_path / "two.npz", tensor=DENSE, other=np.ones(3))
    np.savez(tmp_path / "entries.npz", coordinates=where, values=values, shape=(2, 3))
    scipy.sparse.save_npz(tmp_path / "sparse.npz", scipy.sparse.coo_array((values, tuple(where.T)), shape=(2, 3)))
    scipy.io.savemat(tmp_path / "dense.mat", {"tensor": DENSE, "rank": 3.0, "name": "x"})
    scipy.io.savemat(tmp_path / "small.mat", {"tensor": DENSE}, do_compression=True)
    for name in ("dense.npz", "two.npz", "entries.npz", "sparse.npz", "dense.mat", "small.mat"):
        value = "tensor" if name == "two.npz" else None
        found = read(tmp_path / name, value=value)
        assert found == known, name
        assert found.inferred_modes == (), name
        named = read(tmp_path / name, ["a", "b"], value, labels={"a": ["x", "y"]})
        assert (named.mode_names, named.labels[0].tolist()) == (("a", "b"), ["x", "y"])
    np.savez(tmp_path / "shapeless.npz", coordinates=where, values=values)
    assert read(tmp_path / "shapeless.npz").inferred_modes == ("mode_0", "mode_1")
    with pytest.raises(InputError, match=r"value must name one of the arrays \['other', 'tensor'\]"):
        read(tmp_path / "two.npz")
    with pytest.raises(InputError, match="the size of 'mode_0' must be one number"):
        read(tmp_path / "entries.npz", shape=(3, 3))


def test_arrays_are_never_unpickled_and_never_absurd(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    path = tmp_path / "data.npz"
    np.savez(path, tensor=np.array([[Bomb(), 1]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="plain arrays"):
        read(path)
    assert not (tmp_path / "exploded").exists()
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**12}, 2), }}".ljust(117).encode()
        + b"\n"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tensor.npy", header + bytes(16))
    with pytest.raises(InputError, match="plain arrays"):
        read(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tensor.npy", bytes(1000))
    declared = bytearray(path.read_bytes())
    at = declared.rindex(b"PK\x01\x02") + 24
    declared[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(bytes(declared))
    with pytest.raises(InputError):
        read(path)
    np.savez_compressed(path, tensor=np.zeros((10_001, 10_000), np.int8))
    with pytest.raises(SizeError, match="at most 100,000,000 cells"):
        read(path)
    scipy.io.savemat(tmp_path / "big.mat", {"tensor": np.zeros((10_001, 10_000), np.int8)}, do_compression=True)
    with pytest.raises(SizeError, match="at most 100,000,000 cells"):
        read(tmp_path / "big.mat")


def test_a_declared_size_beyond_all_measure_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "data.npz", tensor=np.zeros((200, 200)))
    assert len(read(tmp_path / "data.npz")) == 40_000
    with monkeypatch.context() as patch:
        patch.setattr(array_files, "MOST_BYTES", 1000)
        with pytest.raises(SizeError, match="at most 1,000 bytes"):
            read(tmp_path / "data.npz")
    monkeypatch.setattr(array_files, "SUSPECT_BYTES", 1000)
    with pytest.raises(SizeError, match="at most 200 times its compressed size"):
        read(tmp_path / "data.npz")
    zeros = np.zeros(10**5)
    table = pa.table({"user": zeros.astype(int), "film": np.arange(10**5) // 999, "stars": zeros})
    pq.write_table(table, tmp_path / "p.parquet")
    assert (tmp_path / "p.parquet").stat().st_size < 10**4
    monkeypatch.setattr(sources, "SUSPECT_ROWS", 1000)
    monkeypatch.setattr(sources, "SUSPECT_RATIO", 10)
    with pytest.raises(SizeError, match="at most 10 a byte where that is much, this one declares 100,000"):
        read(tmp_path / "p.parquet", MODES, "stars")


@pytest.mark.parametrize("kind", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("shape", [(1, 2), (3, 4), (2, 3, 4), (2, 1, 3, 2), (3, 2, 1, 2, 2)])
@pytest.mark.parametrize("compression", [False, True])
def test_matlab_arrays_are_those_that_scipy_wrote(tmp_path, kind, shape, compression):
    array = np.random.default_rng(1).integers(0, 100, shape).astype(kind)
    others = {"name": "text", "cells": np.array([1, "a"], dtype=object), "complex": np.array([1j, 2]), "one": 1.0}
    scipy.io.savemat(tmp_path / "a.mat", {**others, "long_name_of_an_array": array}, do_compression=compression)
    assert np.array_equal(read(tmp_path / "a.mat").to_dense(), array)


def test_new_matlab_files_are_refused_by_their_version(write):
    with pytest.raises(InputError, match=r"version 7.2 or less, got 7.3; save with '-v7'"):
        read(write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + bytes(600), "data.mat"))


# --- bad rows


SECRET = "s3cret"


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize(
    "lines, extra, message",
    [
        (
            ["a,1,2,0", f"b,1,{SECRET},0", "c,1,,0", "d,1,nan,0"],
            {},
            "3 rows must have a finite number in column 'stars', got none in lines {2}, {3}, {4}; correct "
            "or remove them",
        ),
        (["a,1,2,0", "b,1,inf,0"], {}, "1 row must have a finite number in column 'stars', got none in line {2};"),
        (["a,1,2,0", "b,1,1e999,0"], {}, "1 row must have a finite number in column 'stars', got none in line {2};"),
        (
            ["a,1,2,0", "", f"b,1,{SECRET}", "", "c,1,2,0", f"{SECRET},1,2,0,5"],
            {},
            "2 rows must have 4 fields, one a column, got more or fewer in lines {3}, {6};",
        ),
        (["a,1,2,0", "", ",2,2,0"], {}, "1 row must have a label in column 'user', got none in line {3};"),
        (
            ["a,1,2,0", f"{SECRET},2,2,0"],
            {"labels": {"user": ["a", "b"]}},
            "1 row must have one of the 2 given labels in column 'user', got another or none in line {2};",
        ),
        (
            ["1,1,2,0", "4,1,2,0", f"{SECRET},1,2,0", "1.5,1,1,1", "0,1,1,1", "-1,1,1,1", ",1,1,1", "2,1,1,1"],
            {"shape": (3, None), "first_index": 1},
            "6 rows must have a whole number from 1 to 3 in column 'user', got another "
            "or none in lines {2}, {3}, {4}, {5}, {6} and 1 more;",
        ),
        (
            [
                "a,1,2,99999999999999999999",
                "b,1,2,5",
                "c,1,2,x5",
                "d,1,3,1999-01-01",
                "e,1,1,6",
                "f,1,1,7",
                "g,1,1,1_0",
            ],
            {"modes": ["user", "time"], "bins": {"time": "day"}},
            "4 rows must have a time of the years 1 to 9999 in column 'time', got none in lines {1}, {3}, {4}, {7};",
        ),
        (
            ["a,1,2,1999-01-01", "b,1,2,1999-02-29", "c,1,2,", "d,1,3,1999-01-01T25:00"],
            {"modes": ["user", "time"], "bins": {"time": "day"}},
            "3 rows must have a time of the years 1 to 9999 in column 'time', got none in lines {2}, {3}, {4};",
        ),
        (
            ["a,1,2,1999-01-01", "b,1,2,1999-02-03"],
            {"modes": ["user", "time"], "bins": {"time": "month"}, "labels": {"time": ["1999-02"]}},
            "1 row must have a time of the 1 given labels of column 'time', got another or none in line {1};",
        ),
        (
            [f"{SECRET},1,2,0", "b,1,2,0", f"{SECRET},1,3,0", f"{SECRET},1,4,0"],
            {},
            "every cell must occur once, got 2 again in lines {3}, {4};",
        ),
        (
            [",1,2,0", "b,1,two,0"],
            {},
            "1 row must have a label in column 'user', got none in line {1}; 1 row must have a finite "
            "number in column 'stars', got none in line {2}; correct",
        ),
    ],
)
def test_bad_rows_are_counted_and_named_by_their_lines(write, lines, extra, message, header):
    content = "\n".join([",".join(NAMES), *lines] if header else lines)
    arguments = {"modes": MODES, "value": "stars", **extra, **({} if header else {"columns": NAMES})}
    with pytest.raises(InputError) as caught:
        read(write(content), **arguments)
    numbers = [0] + [number + header for number in range(1, 20)]
    assert message.format(*numbers) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_bad_rows_far_into_a_file_of_many_blocks(write, monkeypatch):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 2**14)
    lines = [f"u{number},{number % 7},1,0" for number in range(90_000)]
    lines[70_000], lines[80_000] = "u,1,x,0", "u,2,NaN,0"
    with pytest.raises(InputError, match=r"2 rows must have a finite number .* in lines 70002, 80002;"):
        read(write(text([]) + "\n".join(lines)), MODES, "stars")
    lines[70_000] = "u,1,1"
    with pytest.raises(InputError, match=r"1 row must have 4 fields.* in line 70002;"):
        read(write(text([]) + "\n".join(lines)), MODES, "stars")


def test_bad_rows_of_other_formats(write, tmp_path):
    for content, message in [
        (
            "# c\n1 1 1\n0 1 2\n1 2 3\n",
            "1 row must have a whole number from 1 on in column 'mode_0', got another or none in line 3;",
        ),
        (
            "1 1 1\n#c\n\n1 x 2\n1 2 y\n",
            "in line 4; 1 row must have a finite number in column 'value', got none in line 5;",
        ),
        ("1 1 1\n#c\n1 2\n", "1 row must have 3 fields, one a column, got more or fewer in line 3;"),
        ("3\n2 3 4\n1 1 1 1\n", "must have 2 to 6 coordinates and a value, got 1 fields; remove header lines"),
    ]:
        with pytest.raises(InputError) as caught:
            read(write(content, "data.tns"))
        assert message in str(caught.value)
    pq.write_table(
        pa.table({"user": ["a", None, ""], "film": [1, 2, None], "stars": [1.0, 2, None]}), tmp_path / "p.parquet"
    )
    with pytest.raises(InputError) as caught:
        read(tmp_path / "p.parquet", MODES, "stars")
    assert str(caught.value) == (
        "2 rows must have a label in column 'user', got none in rows 2, 3; 1 row must have a label in column 'film', "
        "got none in row 3; 1 row must have a finite number in column 'stars', got none in row 3; "
        "correct or remove them"
    )
    np.savez(tmp_path / "a.npz", coordinates=[[0, 0], [1, 5], [-1, 0]], values=[1.0, np.nan, 2.0], shape=[2, 3])
    with pytest.raises(
        InputError, match=r"from 0 to 1 in column 'mode_0'.* in row 3; .* from 0 to 2 .* in row 2; .* in row 2"
    ):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "must hold rows, got an empty file"),
        ("\n\n", "must hold rows, got an empty file"),
        ("\ufeff", "must hold rows, got an empty file"),
        ("user,film,stars\n", "must have at least one row of data, got none"),
        ("user,film,stars", "must have at least one row of data, got none"),
        ("user,film,film,stars\n1,2,3,4\n", r"must have different names, got \['film'\] more than once"),
        ("user;film;stars\n1;2;3\n", r"columns must be among \['user;film;stars'\], got 'user'"),
        ("user,film,stars\nJosé,2,3\n".encode("latin-1"), "must be a text in UTF-8, got other bytes in line 2"),
        ("usér,film,stars\n1,2,3\n".encode("latin-1"), "must be a text in UTF-8, got other bytes in line 1"),
        ("user,film,stars\n1,2,3\n".encode("utf-16"), "must be a text in UTF-8, got other bytes in line 1"),
        ('user,film,stars\n"1,2,3\n', "line 2"),
    ],
)
def test_texts_that_are_no_table_are_refused(write, content, message):
    with pytest.raises(InputError, match=message):
        read(write(content), MODES, "stars")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"modes": "user"}, "modes must be a list of names"),
        ({"modes": ["user", "user"]}, "modes must be different"),
        ({"modes": ["user"]}, "2 to 6 modes, got 1"),
        ({"modes": ["user", "nobody"]}, r"columns must be among .* got 'nobody'"),
        ({"modes": None}, "modes and value must name columns of the file, got None; its columns are"),
        ({"value": None}, "modes and value must name columns"),
        ({"value": "film"}, "must not be one of the modes"),
        ({"value": 3}, "value must be the name"),
        ({"format": "xls"}, "format must be one of"),
        ({"bins": {"film": "minute"}}, "the bin of 'film' must be one of"),
        ({"bins": {"time": "day"}}, "bins must be for modes, got 'time'"),
        ({"bins": ["day"]}, "bins must map"),
        ({"bins": {"film": "day"}, "shape": (2, 3)}, "a binned mode must have times and not a size"),
        ({"labels": {"time": [1]}}, "labels must be for modes, got 'time'"),
        ({"labels": {"user": []}}, "the labels of 'user' must be at least one, got none"),
        ({"labels": {"user": [1.5]}}, "must be texts, whole numbers or dates"),
        ({"labels": {"user": ["a", None]}}, "must be texts, whole numbers or dates"),
        ({"labels": {"user": ["a", "a"]}}, "must be different"),
        ({"labels": {"user": ["a", ""]}}, "must not be empty"),
        ({"labels": {"user": "/nowhere/at/all"}}, "must be a list or a readable file"),
        ({"labels": [["a"]]}, "labels must map"),
        ({"shape": (3,)}, "shape must be 2 sizes"),
        ({"shape": (3, 0)}, "must be a positive whole number"),
        ({"shape": 7}, "shape must be 2 sizes"),
        ({"first_index": 0.5}, "first_index must be a whole number"),
        ({"public_labels": ["time"]}, "public_labels must be among the modes"),
        ({"duplicates": "drop"}, "duplicates must be one of"),
        ({"columns": ["a", "b"]}, r"columns must be among \['a', 'b'\]"),
        ({"columns": ["user", "film", "stars"]}, "5 rows must have 3 fields"),
        ({"columns": "user"}, "columns must be a list of names"),
        ({"path": "/nowhere.csv"}, "path must be an existing file"),
        ({"path": "a\0b.csv"}, "path must be an existing file"),
        ({"path": 3}, "path must be the name of a file, got int"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(write, arguments, message):
    told = {"path": write(text(ROWS)), "modes": MODES, "value": "stars", **arguments}
    with pytest.raises(InputError, match=message):
        read(**told)


def test_a_folder_without_a_name_is_named_in_the_error(tmp_path, monkeypatch):
    (tmp_path / "bad.parquet").write_bytes(b"no Parquet")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^\. must be a Parquet file"):
        read(".", MODES, "stars")


def test_folders_and_other_formats_refuse_what_is_not_theirs(write, tmp_path):
    with pytest.raises(InputError, match=r"must hold files that end in .parquet"):
        read(tmp_path, MODES, "stars")
    with pytest.raises(InputError, match="path must be a file for the format 'csv'"):
        read(tmp_path, MODES, "stars", format="csv")
    with pytest.raises(InputError, match="columns must be given for CSV and TSV only"):
        read(write("1 1 1\n", "a.tns"), columns=["a", "b", "c"])
    with pytest.raises(InputError, match="must be a Parquet file"):
        read(write("no", "a.parquet"), MODES, "stars")
    with pytest.raises(InputError, match="modes must be 2 names"):
        read(write("1 1 1\n", "a.tns"), ["a"])
    with pytest.raises(InputError, match="decompress it first"):
        read(write("1 1 1\n", "a.csv.gz"), MODES, "stars")
    pq.write_table(pa.table({"user": [1.5], "film": [1], "stars": [1]}), tmp_path / "f.parquet")
    with pytest.raises(InputError, match="must hold texts, whole numbers or dates, got double"):
        read(tmp_path / "f.parquet", MODES, "stars")
    pq.write_table(pa.table({"user": [1], "film": [1], "stars": [True]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="must hold numbers, got bool"):
        read(tmp_path / "b.parquet", MODES, "stars")


def test_a_first_row_of_data_taken_for_a_header_is_not_told(write):
    for content in ("17;5;3\n18;5;2\n", "17,17,5\n", "17,18,4321\n"):
        with pytest.raises(InputError) as caught:
            read(write(content), MODES, "stars")
        assert "17" not in str(caught.value)
        assert "give columns" in str(caught.value) or "needs columns" in str(caught.value) or ";" in content


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.bool_(), pa.binary(), pa.time32("s"), pa.decimal128(5, 1)])
def test_columns_of_kinds_that_are_no_labels(tmp_path, kind):
    cells = {pa.list_(pa.int64()): [[1], [2]], pa.bool_(): [True, False], pa.binary(): [b"a", b"b"]}.get(kind, [1, 2])
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"user": pa.array(cells, kind), "film": [1, 2], "stars": [1, 2]}), path)
    for labels in ({}, {"user": ["a", "b"]}):
        with pytest.raises(InputError, match="must hold texts, whole numbers or dates"):
            read(path, MODES, "stars", labels=labels)
    with pytest.raises(InputError, match="must hold texts, whole numbers or dates"):
        coordinates_of(pq.read_table(path), MODES, [["a"], [1]])
    with pytest.raises(InputError, match="must be 2, one a mode"):
        coordinates_of(pq.read_table(path), MODES, [["a"]])


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
    page = Path(__file__).parents[2] / "docs" / "files.md"
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
