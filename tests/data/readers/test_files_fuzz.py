"""Whatever bytes and arguments come, the readers give observations or a clear error: nothing else, no warning."""

import io
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.data.readers.files import coordinates_of, read, read_table
from tensorveil.data.readers.sources import FORMATS
from tensorveil.errors import TensorveilError

NAMES = ["user", "film", "stars", "time"]
KNOWN = {"modes": ["user", "film"], "value": "stars"}


def _written(save) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def _examples() -> dict[str, list[bytes]]:
    """Good files of every format, to be damaged."""
    users = ["ann", "bob", "ann", "cy", "døs"]
    columns = {
        "user": users,
        "film": [7, 9, 9, -11, 0],
        "stars": [4.0, 2.5, 1.0, 3.0, 0.1],
        "time": [0, 86_400, 951_782_400, -1, 10**9],
    }
    table = pa.table(columns)
    times = ["2000-02-29", "1999-12-31T23:59:59Z", "2021-01-03 01:00:00+05:30", "1970-01-01", "0001-01-01"]
    rows = list(zip(*columns.values(), strict=True))
    csv = "\n".join([",".join(NAMES), *(",".join(map(str, row)) for row in rows)])
    dense = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, 2.0]])
    where = np.argwhere(~np.isnan(dense))
    values = dense[~np.isnan(dense)]
    sparse = scipy.sparse.coo_array((values, tuple(where.T)), shape=(2, 3))
    return {
        "csv": [
            csv.encode(),
            b"\xef\xbb\xbf" + csv.replace("\n", "\r\n").replace("ann", '"an,n"').encode(),
            "\n".join([",".join(NAMES), *(f"u{n},{n},{n},{time}" for n, time in enumerate(times))]).encode(),
        ],
        "tsv": [csv.replace(",", "\t").encode()],
        "tns": [b"1 1 2 1.5\n2 3 1 -2\n", b"# c\n1\t1  2 1.5 \r\n\n 2 3 1 -2e0"],
        "parquet": [
            _written(lambda buffer: pq.write_table(table, buffer)),
            _written(lambda buffer: pq.write_table(table, buffer, compression="NONE", use_dictionary=False)),
            _written(lambda buffer: pq.write_table(table.set_column(3, "time", pa.array(times)), buffer)),
        ],
        "npz": [
            _written(lambda buffer: np.savez(buffer, tensor=dense)),
            _written(lambda buffer: np.savez_compressed(buffer, coordinates=where, values=values, shape=(2, 3))),
            _written(lambda buffer: scipy.sparse.save_npz(buffer, sparse)),
        ],
        "mat": [
            _written(lambda buffer: scipy.io.savemat(buffer, {"tensor": dense, "rank": 3})),
            _written(lambda buffer: scipy.io.savemat(buffer, {"tensor": dense}, do_compression=True)),
            _written(lambda buffer: scipy.io.savemat(buffer, {"tensor": dense.astype(np.float32), "name": "text"})),
        ],
    }


EXAMPLES = _examples()
CHUNKS = [
    b",",
    b"\t",
    b" ",
    b"\n",
    b"\r",
    b'"',
    b"\x00",
    b"\xff",
    b"#",
    b"-",
    b"nan",
    b"1e999",
    b"9" * 30,
    b"\xef\xbb\xbf",
]


@st.composite
def damaged(draw) -> tuple[str, bytes]:
    """A format and a file: anything at all, or a good file with some of it cut, changed, repeated or put in."""
    kind = draw(st.sampled_from(FORMATS))
    if draw(st.integers(0, 3)) == 0:
        return kind, draw(st.binary(max_size=200))
    content = bytearray(draw(st.sampled_from(EXAMPLES[kind])))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 12)))
        action = draw(st.sampled_from(["flip", "cut", "put", "end", "repeat"]))
        if action == "flip" and start < len(content):
            content[start] = draw(st.integers(0, 255))
        elif action == "cut":
            del content[start:end]
        elif action == "put":
            content[start:start] = draw(st.sampled_from(CHUNKS) | st.binary(max_size=8))
        elif action == "end":
            del content[start:]
        else:
            content[end:end] = content[start:end]
    return kind, bytes(content)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.none() | st.integers(-1, 9) | st.sampled_from(NAMES) | st.floats(), max_size=4),
    st.dictionaries(
        st.sampled_from(NAMES) | st.integers(), st.none() | st.integers() | st.text(max_size=2), max_size=2
    ),
    st.just(np.ones((2, 2))),
    st.just([[1], [2, 3]]),
)
LABELS = st.lists(st.sampled_from(["ann", "bob", "7", "1970-01-01"]) | st.integers(-11, 9) | st.none(), max_size=6)
MODE = st.sampled_from(NAMES)
ARGUMENTS = {
    "modes": st.lists(MODE, min_size=2, max_size=3, unique=True) | ANYTHING,
    "value": MODE | ANYTHING,
    "columns": st.permutations(NAMES) | ANYTHING,
    "bins": st.dictionaries(MODE, st.sampled_from(["hour", "day", "week", "month", "year"]), max_size=2) | ANYTHING,
    "labels": st.dictionaries(MODE, LABELS | ANYTHING, max_size=2) | ANYTHING,
    "shape": st.lists(st.integers(1, 12) | st.none(), min_size=2, max_size=3) | ANYTHING,
    "first_index": st.integers(-2, 2) | ANYTHING,
    "public_labels": st.lists(MODE, max_size=2) | ANYTHING,
    "duplicates": st.sampled_from(["error", "keep", "mean"]) | ANYTHING,
    "format": st.sampled_from(FORMATS) | ANYTHING,
}


@st.composite
def arguments(draw) -> dict:
    chosen = draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), max_size=3, unique=True))
    return {name: draw(ARGUMENTS[name]) for name in chosen}


def _try(kind: str, content: bytes, told: dict) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        path = Path(folder) / f"data.{kind}"
        path.write_bytes(content)
        own = KNOWN if kind in ("csv", "tsv", "parquet") else {}
        try:
            observations = read(path, **{**own, **told})
        except TensorveilError:
            pass
        else:
            _check(observations, told)
        try:
            table = read_table(path)
        except TensorveilError:
            return
        assert isinstance(table, pa.Table)
        try:
            coordinates = coordinates_of(table, table.column_names, [["ann", "7"]] * table.num_columns)
        except TensorveilError:  # damage may make a column one that holds no labels, e.g. of bytes
            return
        assert coordinates.shape == (table.num_rows, table.num_columns)


def _check(observations: Observations, told: dict) -> None:
    """What was read keeps every promise of Observations, and says whose labels come from the data."""
    again = Observations(
        observations.coordinates,
        observations.values,
        observations.shape,
        mode_names=observations.mode_names,
        labels=observations.labels,
        duplicates=observations.duplicates,
    )
    assert again == observations
    modes = set(observations.mode_names)
    assert set(observations.inferred_modes) | set(observations.stated_modes) <= modes
    for name in told.get("labels") or {}:
        assert name not in observations.inferred_modes + observations.stated_modes


FAST = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FAST
@given(damaged(), arguments())
def test_damaged_files_and_odd_arguments_give_clear_errors(file, told):
    _try(*file, told)


@FAST
@given(st.sampled_from([(kind, content) for kind, files in EXAMPLES.items() for content in files]), arguments())
def test_good_files_with_odd_arguments_give_clear_errors(file, told):
    _try(*file, told)


@pytest.mark.slow
@LONG
@given(damaged(), arguments())
def test_ten_thousand_damaged_files_give_clear_errors(file, told):
    _try(*file, told)


@pytest.mark.parametrize("kind, content", [(kind, content) for kind, files in EXAMPLES.items() for content in files])
def test_the_undamaged_examples_are_good(kind, content, tmp_path):
    path = tmp_path / f"data.{kind}"
    path.write_bytes(content)
    assert len(read(path, **(KNOWN if kind in ("csv", "tsv", "parquet") else {}))) >= 2
