"""Folders of shards: what is written is read back, slices are whole, and no part can be lost, doubled or changed."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tensorveil as tv
from tensorveil.data import shards as module
from tensorveil.data.shards import MANIFEST, is_sharded
from tensorveil.privacy.noise.source import NoiseSource

NAMES = ["user", "film"]
BOUNDS = tv.Bounds(1, 5)


def table(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    cells = rng.permutation(40 * 30)[:rows]
    return pa.table({"user": cells // 30, "film": cells % 30, "stars": rng.integers(1, 6, rows).astype(float)})


@pytest.fixture
def folder(tmp_path):
    parquet.write_table(table(), tmp_path / "rated.parquet")
    shards = tv.write_shards(
        tmp_path / "rated.parquet", "user", tmp_path / "shards", NAMES, "stars", shape=(40, 30), rows_per_part=60
    )
    assert len(shards.files) > 2
    return shards.folder


def rows_of(observations):
    return sorted(zip(*observations.coordinates.T.tolist(), observations.values.tolist(), strict=True))


def test_parts_together_hold_the_observations_and_every_slice_is_whole(folder, tmp_path):
    shards = tv.open_shards(folder)
    parts = [part.read() for part in shards.files]
    whole = tv.read(tmp_path / "rated.parquet", NAMES, "stars", shape=(40, 30))
    assert sorted(row for part in parts for row in rows_of(part)) == rows_of(whole)
    assert len(shards) == len(whole) == 300
    users = [set(part.coordinates[:, 0].tolist()) for part in parts]
    assert sum(map(len, users)) == len(set.union(*users))
    assert (shards.shape, shards.mode_names, shards.value_name) == (whole.shape, whole.mode_names, whole.value_name)
    assert is_sharded(folder)
    assert not is_sharded(tmp_path)


def test_files_of_a_folder_are_read_one_by_one_where_all_sizes_are_stated(tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    whole = table()
    for number in range(3):
        parquet.write_table(whole.slice(100 * number, 100), tmp_path / "files" / f"{number}.parquet")
    seen = []
    reading = module.read
    monkeypatch.setattr(
        module, "read", lambda path, *rest, **named: (seen.append(path), reading(path, *rest, **named))[1]
    )
    many = tv.write_shards(
        tmp_path / "files", "film", tmp_path / "out", NAMES, "stars", shape=(40, 30), rows_per_part=99
    )
    assert {path.name for path in seen} == {"0.parquet", "1.parquet", "2.parquet"}
    parquet.write_table(whole, tmp_path / "one.parquet")
    one = tv.read(tmp_path / "one.parquet", NAMES, "stars", shape=(40, 30))
    assert sorted(row for part in many.files for row in rows_of(part.read())) == rows_of(one)
    assert many.by == 1


def test_labels_and_what_is_known_about_them_are_kept(tmp_path):
    lines = ["user,film,stars", *(f"u{number % 7},film {number % 5},{1 + number % 3}" for number in range(30))]
    (tmp_path / "rated.csv").write_text("\n".join(lines))
    named = {"public_labels": ["film"], "duplicates": "keep"}
    shards = tv.write_shards(tmp_path / "rated.csv", "user", tmp_path / "out", NAMES, "stars", rows_per_part=9, **named)
    whole = tv.read(tmp_path / "rated.csv", NAMES, "stars", **named)
    assert [labels.tolist() for labels in shards.labels] == [labels.tolist() for labels in whole.labels]
    assert (
        (shards.inferred_modes, shards.stated_modes)
        == (whole.inferred_modes, whole.stated_modes)
        == (("user",), ("film",))
    )
    with pytest.raises(tv.UnprovenError, match="user"):  # as for observations: labels tell who is in the data
        tv.plan(shards, tv.CP(2), BOUNDS, "entry", 1.0)


def first_part(folder):
    return sorted(folder.glob("part-*.parquet"))[0]


def remove(folder):
    first_part(folder).unlink()


def double(folder):
    shutil.copy(first_part(folder), folder / "part-00099.parquet")


def list_twice(folder):
    told = json.loads((folder / MANIFEST).read_text())
    told["files"].append({**told["files"][0], "number": 98})
    told["rows"] += told["files"][0]["rows"]
    (folder / MANIFEST).write_text(json.dumps(told))


def leave_out(folder):
    told = json.loads((folder / MANIFEST).read_text())
    (folder / told["files"].pop()["file"]).unlink()
    (folder / MANIFEST).write_text(json.dumps(told))


def change(folder):
    part = first_part(folder)
    read = parquet.read_table(part)
    values = read.column("value").to_numpy().copy()
    values[0] = 6 - values[0] + (values[0] == 3)
    parquet.write_table(read.set_column(2, "value", pa.array(values)), part)


def move_a_slice(folder):
    """A user of one part in another, with hashes to match: no slice may be parted."""
    told = json.loads((folder / MANIFEST).read_text())
    one, other = (folder / file["file"] for file in told["files"][:2])
    left, right = parquet.read_table(one), parquet.read_table(other)
    parquet.write_table(pa.concat_tables([right, left.slice(0, 1)]), other)
    parquet.write_table(left.slice(1), one)
    for file, path, rows in zip(told["files"], (one, other), (left.num_rows - 1, right.num_rows + 1), strict=False):
        file |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": rows}
    (folder / MANIFEST).write_text(json.dumps(told))


def no_manifest(folder):
    (folder / MANIFEST).write_text("{}")


@pytest.mark.parametrize("harm", [remove, double, list_twice, leave_out, change, move_a_slice, no_manifest])
def test_a_harmed_folder_is_an_error_before_any_noise_is_drawn(harm, folder):
    plan = tv.SumPerturbation().plan(tv.CP(1), BOUNDS, "entry", 1.0, shape=(40, 30), mode_names=("user", "film"))
    tv.fit(tv.open_shards(folder), plan)
    harm(folder)

    class Silent(NoiseSource):
        def _draw(self, *_, **__):
            raise AssertionError("noise was drawn")

    with pytest.raises(tv.InputError):
        tv.fit(tv.open_shards(folder), plan, noise=Silent(1))


def test_parts_that_hold_a_slice_twice_are_refused(folder, tmp_path):
    """Also where no folder is opened: each part bounds what its own slices contribute."""
    shards = tv.open_shards(folder)
    other = tv.write_shards(tmp_path / "rated.parquet", "user", tmp_path / "o", NAMES, "stars", shape=(40, 30))
    for parts in (shards.files * 2, (*shards.files, *other.files), other.files[:0]):
        with pytest.raises(tv.InputError, match="shard"):
            replace(shards, files=parts)
    with pytest.raises(tv.InputError, match="split by the mode"):
        replace(shards, by=1)


def test_a_repeated_cell_is_an_error_unless_all_are_kept(tmp_path):
    twice = pa.concat_tables([table(), table().slice(0, 1)])
    parquet.write_table(twice, tmp_path / "rated.parquet")
    request = (tmp_path / "rated.parquet", "user", tmp_path / "out", NAMES, "stars")
    with pytest.raises(tv.InputError, match="every cell must occur once"):
        tv.write_shards(*request, shape=(40, 30), rows_per_part=60)
    assert not (tmp_path / "out").exists()
    assert len(tv.write_shards(*request, shape=(40, 30), rows_per_part=60, duplicates="keep")) == 301


def test_shards_by_another_mode_than_the_unit_protects_are_refused(folder):
    plan = tv.SumPerturbation().plan(tv.CP(1), BOUNDS, "slice:film", 1.0, shape=(40, 30), mode_names=("user", "film"))
    with pytest.raises(tv.InputError, match="split by 'user'"):
        tv.fit(tv.open_shards(folder), plan)


def test_complete_takes_a_path(folder, tmp_path):
    request = (tv.CP(1), BOUNDS, "entry", 4.0)
    options = {"mechanism": tv.SumPerturbation(), "seed": 1}
    shards = tv.complete(folder, *request, **options)
    file = tv.complete(str(tmp_path / "rated.parquet"), *request, **options, modes=NAMES, value="stars", shape=(40, 30))
    assert shards.model == file.model
    with pytest.raises(tv.InputError, match="shape must be those of the shards"):
        tv.complete(folder, *request, shape=(40, 31))


@pytest.mark.parametrize(
    "given, told",
    [({"by": "time"}, "by must be"), ({"duplicates": "mean"}, "duplicates"), ({"rows_per_part": 0}, "rows_per_part")],
)
def test_wrong_requests_are_refused(given, told, tmp_path):
    parquet.write_table(table(), tmp_path / "rated.parquet")
    options = {"by": "user", "out": tmp_path / "out", "modes": NAMES, "value": "stars", "shape": (40, 30), **given}
    with pytest.raises(tv.InputError, match=told):
        tv.write_shards(tmp_path / "rated.parquet", **options)
    assert not (tmp_path / "out").exists()
    with pytest.raises(tv.InputError, match="new folder"):
        tv.write_shards(tmp_path / "rated.parquet", "user", tmp_path, NAMES, "stars", shape=(40, 30))
