"""MovieLens 100K: the real data where they are at hand, a tiny stand-in everywhere."""

import datetime as dt
import hashlib
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tensorveil.data.datasets import movielens
from tensorveil.data.datasets.movielens import download_movielens, find_movielens, load_movielens
from tensorveil.errors import DownloadError, InputError

CHECKOUT = Path(__file__).resolve().parents[3]
DAY = 86_400
LINES = {  # user, film, rating, timestamp
    "ua.base": [(1, 1, 5, 10 * DAY + 5), (943, 2, 3, 12 * DAY), (2, 1682, 1, 10 * DAY + DAY - 1)],
    "ua.test": [(1, 2, 4, 11 * DAY), (1, 1, 2, 12 * DAY + 7)],
    "ub.base": [(3, 3, 3, 0), (3, 4, 4, DAY)],
    "ub.test": [(4, 4, 4, DAY - 1)],
}


def as_text(rows) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "ml-100k"
    target.mkdir()
    for name, rows in LINES.items():
        (target / name).write_text(as_text(rows))
    return target


@pytest.fixture(scope="module")
def real():
    """The folder of the real data."""
    given = os.environ.get("TENSORVEIL_DATA")
    for place in filter(None, (given, CHECKOUT.parent / "shared" / "data")):
        if (Path(place) / "ml-100k" / "ua.base").is_file():
            return Path(place) / "ml-100k"
    pytest.skip("MovieLens 100K is not here: set TENSORVEIL_DATA to the folder that holds ml-100k/")


@pytest.mark.parametrize("split", ["ua", "ub"])
def test_the_real_splits_have_the_known_numbers(real, split):
    data = load_movielens(split, real)
    assert (len(data.train), len(data.test)) == (90_570, 9_430)
    assert data.train.shape == data.test.shape == (943, 1682, 213)
    pairs = [set(map(tuple, part.coordinates[:, :2].tolist())) for part in (data.train, data.test)]
    assert pairs[0].isdisjoint(pairs[1])
    assert len(pairs[0]) + len(pairs[1]) == 100_000
    for part in (data.train, data.test):
        assert set(part.values.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    # ten test ratings of every user
    assert np.bincount(data.test.coordinates[:, 0]).tolist() == [10] * 943


@pytest.mark.parametrize("split", ["ua", "ub"])
def test_the_real_ratings_are_those_of_the_file_read_line_by_line(real, split):
    data = load_movielens(split, real)
    for part, observations in (("base", data.train), ("test", data.test)):
        found = {}
        for (user, film, day), value in zip(observations.coordinates, observations.values, strict=True):
            labels = observations.labels
            found[int(labels[0][user]), int(labels[1][film])] = (value, labels[2][day].item())
        for line in (real / f"{split}.{part}").read_text().splitlines():
            user, film, rating, seconds = map(int, line.split("\t"))
            day = dt.datetime.fromtimestamp(seconds, dt.UTC).date()
            assert found.pop((user, film)) == (rating, day)
        assert found == {}


def test_the_real_files_have_the_checksums_that_a_download_is_held_to(real):
    for name, checksum in movielens.SHA256.items():
        assert hashlib.sha256((real / name).read_bytes()).hexdigest() == checksum


def test_users_films_and_days_of_a_tiny_folder(folder):
    data = load_movielens("ua", folder)
    assert data.split == "ua"
    assert data.train.shape == data.test.shape == (943, 1682, 3)
    assert data.train.mode_names == ("user", "film", "day")
    assert data.train.coordinates.tolist() == [[0, 0, 0], [942, 1, 2], [1, 1681, 0]]
    assert data.test.coordinates.tolist() == [[0, 1, 1], [0, 0, 2]]
    assert data.train.values.tolist() == [5.0, 3.0, 1.0]
    assert data.test.values.tolist() == [4.0, 2.0]
    assert data.train.labels[0][[0, -1]].tolist() == [1, 943]
    assert data.train.labels[1][[0, -1]].tolist() == [1, 1682]
    assert data.train.labels[2].tolist() == [dt.date(1970, 1, day) for day in (11, 12, 13)]


def test_the_other_split_has_days_of_its_own(folder):
    data = load_movielens("ub", folder)
    assert data.train.coordinates.tolist() == [[2, 2, 0], [2, 3, 1]]
    assert data.test.coordinates.tolist() == [[3, 3, 0]]


def test_the_folder_is_found_from_itself_from_above_and_by_the_variable(folder, monkeypatch):
    monkeypatch.delenv("TENSORVEIL_DATA", raising=False)
    assert find_movielens() is None
    assert find_movielens(folder) == find_movielens(str(folder.parent)) == folder
    monkeypatch.setenv("TENSORVEIL_DATA", str(folder.parent))
    assert find_movielens() == folder
    assert load_movielens().train == load_movielens("ua", folder).train
    monkeypatch.setenv("TENSORVEIL_DATA", "")
    assert find_movielens() is None


def test_a_path_goes_before_the_variable(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORVEIL_DATA", str(tmp_path / "nowhere"))
    assert find_movielens(folder) == folder
    with pytest.raises(InputError, match="TENSORVEIL_DATA must be a folder"):
        find_movielens()


def test_a_folder_without_the_data_and_no_folder_at_all_are_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORVEIL_DATA", raising=False)
    with pytest.raises(InputError, match="path must be a folder that holds"):
        load_movielens("ua", tmp_path)
    with pytest.raises(InputError, match="no TENSORVEIL_DATA is set"):
        load_movielens("ua")


def test_an_unknown_split_is_refused(folder):
    with pytest.raises(InputError, match="split must be one of 'ua', 'ub', got 'u1'"):
        load_movielens("u1", folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1,1,5,100\n",
        "1\t1\t5\n",
        "one\t1\t5\t100\n",
        "1\t1\t5\t\n",
        "0\t1\t5\t100\n",
        "944\t1\t5\t1\n",
        "1\t1683\t5\t1\n",
    ],
)
def test_a_file_of_another_kind_is_refused(folder, text):
    (folder / "ua.base").write_text(text)
    with pytest.raises(InputError):
        load_movielens("ua", folder)


def test_a_missing_file_is_named(folder):
    (folder / "ub.test").unlink()
    with pytest.raises(InputError, match=r"ub\.test"):
        load_movielens("ub", folder)


@pytest.fixture
def archive(tmp_path):
    """A zip with every file of the real one, other contents; gives its path and the checksums."""
    contents = {
        name: as_text(LINES.get(name, [(name,)])).encode() * (1 if name in LINES else 500) for name in movielens.SHA256
    }
    path = tmp_path / "ml-100k.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(f"ml-100k/{name}", content)
    return path, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_a_download_that_fits_its_checksums_is_unpacked_whole(archive, tmp_path, monkeypatch):
    path, checksums = archive
    monkeypatch.setattr(movielens, "SHA256", checksums)
    target = download_movielens(tmp_path / "deep" / "data", path.as_uri())
    assert target == tmp_path / "deep" / "data" / "ml-100k"
    assert {file.name for file in target.iterdir()} == set(checksums)
    assert [file.name for file in target.parent.iterdir()] == ["ml-100k"]
    assert load_movielens("ua", target.parent).train.values.tolist() == [5.0, 3.0, 1.0]
    with pytest.raises(InputError, match="must not hold ml-100k yet"):
        download_movielens(target.parent, path.as_uri())


def test_a_download_that_does_not_fit_its_checksums_leaves_nothing_behind(archive, tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    with pytest.raises(DownloadError, match="does not match its checksum"):
        download_movielens(place, archive[0].as_uri())
    assert list(place.iterdir()) == []


def test_one_wrong_file_is_enough_and_is_named(archive, tmp_path, monkeypatch):
    path, checksums = archive
    monkeypatch.setattr(movielens, "SHA256", {**checksums, "u.item": "0" * 64})
    with pytest.raises(DownloadError, match=r"u\.item"):
        download_movielens(tmp_path / "data", path.as_uri())
    assert not (tmp_path / "data").exists()


def test_a_disk_that_fills_up_leaves_nothing_behind(archive, tmp_path, monkeypatch):
    path, checksums = archive
    monkeypatch.setattr(movielens, "SHA256", checksums)

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        download_movielens(tmp_path / "data", path.as_uri())
    assert list((tmp_path / "data").iterdir()) == []


def test_what_is_no_archive_is_a_download_error(tmp_path):
    (tmp_path / "page.html").write_text("<h1>504</h1>")
    for url in ((tmp_path / "page.html").as_uri(), (tmp_path / "nothing.zip").as_uri()):
        with pytest.raises(DownloadError, match="by hand"):
            download_movielens(tmp_path / "data", url)
    assert not (tmp_path / "data").exists()


def test_an_archive_without_a_file_is_a_download_error(tmp_path):
    path = tmp_path / "half.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("ml-100k/ua.base", "")
    with pytest.raises(DownloadError):
        download_movielens(tmp_path / "data", path.as_uri())


@pytest.mark.parametrize("place", [1, 10, 19, 28, 37])
def test_a_damaged_archive_is_a_download_error_wherever_the_damage_is(archive, tmp_path, place):
    path, _ = archive
    with zipfile.ZipFile(path) as file:
        item = file.getinfo("ml-100k/u.item")
        begin = item.header_offset + 30 + len(item.filename)
    data = bytearray(path.read_bytes())
    data[begin + place % item.compress_size] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DownloadError):
        download_movielens(tmp_path / "data", path.as_uri())
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("trouble", [TimeoutError("slow"), ConnectionResetError("gone"), "incomplete"])
def test_a_connection_that_breaks_is_a_download_error(tmp_path, monkeypatch, trouble):
    import http.client

    class Broken:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def read(self):
            raise http.client.IncompleteRead(b"PK", 1000) if trouble == "incomplete" else trouble

    monkeypatch.setattr(movielens.urllib.request, "urlopen", lambda *_, **__: Broken())
    with pytest.raises(DownloadError):
        download_movielens(tmp_path / "data")


def test_others_may_read_the_downloaded_folder_as_the_umask_allows(archive, tmp_path, monkeypatch):
    path, checksums = archive
    monkeypatch.setattr(movielens, "SHA256", checksums)
    target = download_movielens(tmp_path / "data", path.as_uri())
    plain = tmp_path / "plain"
    plain.mkdir()
    assert target.stat().st_mode == plain.stat().st_mode
