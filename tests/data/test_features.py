"""Public features: tables are matched by labels, whatever breaks a rule is one clear error."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tensorveil as tv
from tensorveil.data.features import standardised

FILMS = ["Alien", "Big", "Casino"]
RATED = tv.Observations(
    [[0, 0], [1, 1], [2, 2]], [4.0, 2.0, 3.0], (4, 3), mode_names=["user", "film"], labels=[None, FILMS]
)
CSV = "film,year,genre\nCasino,1995,crime\nBig,1988,comedy\nDune,1984,scifi\nAlien,1979,horror\n"


def film_features(given):
    return tv.features_for(RATED, {"film": given})["film"]


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "dict"])
def test_rows_of_a_table_are_put_in_the_order_of_the_labels(kind, tmp_path):
    table = pa.table(
        {
            "film": ["Casino", "Big", "Dune", "Alien"],
            "year": [1995, 1988, 1984, 1979],
            "genre": ["crime", "comedy", "scifi", "horror"],
        }
    )
    given = table.to_pydict()
    path = tmp_path / f"films.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    elif kind != "dict":
        path.write_text(CSV if kind == "csv" else CSV.replace(",", "\t"))
    found = film_features(given if kind == "dict" else path)
    assert found.columns == ("year", "genre=comedy", "genre=crime", "genre=horror")
    np.testing.assert_array_equal(found.matrix, [[1979, 0, 0, 1], [1988, 1, 0, 0], [1995, 0, 1, 0]])
    assert found.name == ("a table" if kind == "dict" else path.name)
    if kind != "dict":
        assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_without_labels_the_column_holds_indices_and_labels_may_be_in_the_first_column():
    found = tv.features_for(RATED, {"user": {"who": [3, 0, 1, 2], "age": [30.5, 20, 41, 12], "paid": [True] * 4}})
    np.testing.assert_array_equal(found["user"].matrix[:, 0], [20, 41, 12, 30.5])
    assert found["user"].columns == ("age", "paid")


def test_a_matrix_is_taken_as_it_is_and_its_hash_is_of_its_numbers():
    matrix = np.arange(6.0).reshape(3, 2)
    found = film_features(matrix)
    assert found.sha256 == hashlib.sha256(matrix.tobytes()).hexdigest()
    np.testing.assert_array_equal(np.asarray(found), matrix)
    assert film_features(found) is found
    with pytest.raises(ValueError, match="read-only"):
        found.matrix[0, 0] = 7


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("film,year\nBig,1988\nCasino,1995\n", "got none for 1 of 3: Alien"),
        (CSV + "Big,1988,comedy\n", "one row"),
        (CSV.replace("1988", ""), "'year' of films.csv must have no empty cells"),
        (CSV.replace("1988", "many"), "numbers alone or names alone, got both, e.g. 'many'"),
        (CSV.replace("1988", "nan"), "got both"),
        (CSV.replace("comedy", ""), "'genre' of films.csv must have no empty cells"),
        ("film\nAlien\nBig\nCasino\n", "column of labels and other columns"),
        ("film,year,year\nAlien,1,2\n", "different names"),
        ("", "films.csv"),
    ],
)
def test_a_table_that_breaks_a_rule_is_one_clear_error(text, rule, tmp_path):
    with pytest.raises(tv.InputError, match=rule):
        film_features(written(tmp_path / "films.csv", text))


def test_names_of_many_things_are_no_categories():
    labels = [f"film {number}" for number in range(200)]
    many = tv.Observations([[0, 0]], [1.0], (1, 200), mode_names=["user", "film"], labels=[None, labels])
    with pytest.raises(tv.InputError, match="at most 100 different texts, got 200"):
        tv.features_for(many, {"film": {"film": labels, "title": [f"title {label}" for label in labels]}})


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"actor": np.ones(3)}, r"must be of modes \['user', 'film'\], got 'actor'"),
        ({"film": np.ones((2, 2))}, "3 rows"),
        ({"film": np.full(3, np.inf)}, "not finite"),
        ({"film": [["a"], ["b"], ["c"]]}, "must be numbers"),
        ({"film": np.ones((3, 1001))}, "at most 1,000 columns"),
        ({"film": "films.txt"}, "must be in a .csv, .tsv or .parquet file"),
        ({"film": "no/such/films.csv"}, "file that can be read"),
        ("films.csv", "must map names of modes"),
    ],
)
def test_what_is_no_features_is_one_clear_error(given, rule):
    with pytest.raises(tv.InputError, match=rule):
        tv.features_for(RATED, given)


def test_standardised_features_have_mean_zero_and_together_mean_square_one():
    rng = np.random.default_rng(0)
    matrix = np.column_stack([rng.normal(5, 100, (50, 3)), np.ones(50)])
    found = standardised({"film": matrix}, ["user", "film"], (9, 50))
    assert list(found) == [1]
    assert found[1].shape == (50, 3)  # a constant tells nothing
    np.testing.assert_allclose(found[1].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.square(found[1]).sum(axis=1).mean(), 1)
