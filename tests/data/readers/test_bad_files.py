"""Bad files: every bad row is named by its line, never by its content, and what does not fit is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorveil.data.readers import text as text_files
from tensorveil.data.readers.files import coordinates_of, read
from tensorveil.errors import InputError
from written_rows import MODES, NAMES, ROWS, text

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
            "2 rows must have 4 fields, one per column, got more or fewer in lines {3}, {6};",
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
        (  # a number is never a date, whatever the other rows are
            ["a,1,2,1999-01-01", "b,1,2,19990202", "c,1,2,1999-01-03"],
            {"modes": ["user", "time"], "bins": {"time": "day"}},
            "1 row must have a time of the years 1 to 9999 in column 'time', got none in line {2};",
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
        ("1 1 1\n#c\n1 2\n", "1 row must have 3 fields, one per column, got more or fewer in line 3;"),
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
        (
            "user;film;stars\n1;2;3\n",
            r"modes must name columns of the data, got 'user'; the columns are \['user;film;stars'\]",
        ),
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
        ({"modes": ["user", "nobody"]}, "modes must name columns of the data, got 'nobody'; the columns are"),
        ({"modes": None}, "modes and value must name columns of the file, got None; its columns are"),
        ({"value": None}, "modes and value must name columns"),
        ({"value": "film"}, "must not be one of the modes"),
        ({"value": 3}, "value must be the name"),
        ({"format": "xls"}, "format must be one of"),
        ({"bins": {"film": "minute"}}, "the bin of 'film' must be one of"),
        ({"bins": {"time": "day"}}, "bins must be for modes, got 'time'"),
        ({"bins": ["day"]}, "bins must map"),
        ({"bins": {"film": "day"}, "shape": (2, 3)}, "a binned mode must hold times and have no size"),
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
        ({"columns": ["a", "b"]}, r"modes must name columns of the data, got 'user'; the columns are \['a', 'b'\]"),
        ({"columns": ["user", "film", "stars"]}, "5 rows must have 3 fields"),
        ({"columns": "user"}, "columns must be a list of names"),
        ({"path": "/nowhere.csv"}, "the input must be an existing file"),
        ({"path": "a\0b.csv"}, "the input must be an existing file"),
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
    with pytest.raises(InputError, match="the input must be a file for the format 'csv'"):
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
    with pytest.raises(InputError, match="must be 2, one per mode"):
        coordinates_of(pq.read_table(path), MODES, [["a"]])
