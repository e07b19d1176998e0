"""A folder is whole or absent, gives back the same release to the last bit, and is refused once tampered with."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from saved_releases import CELLS, LABELS, copy_of, made, observations, reseal, saved
from tensorveil.release import saving
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.memory import needed_space

SLOW = pytest.param("sampled", marks=pytest.mark.slow)  # composing sampled steps takes seconds
FILES = {"model.safetensors", "labels.json", "certificate.json", "report.html"}


@pytest.mark.parametrize("kind", ["pure", "gaussian", "mixed", "drawn", "seeded", "claimed", SLOW])
def test_a_loaded_release_predicts_the_same_to_the_last_bit(kind):
    release, folder = saved(kind)
    loaded = tv.Release.load(folder)
    assert loaded.predict(CELLS).tobytes() == release.predict(CELLS).tobytes()
    assert loaded.model == release.model
    assert str(loaded.guarantee) == str(release.guarantee)
    assert (loaded.mode_names, loaded.bins, loaded.value_name) == (release.mode_names, release.bins, "rating")
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_joint_release_personalizes_after_loading_as_before():
    release, folder = saved("joint")
    own = observations().take(observations().coordinates[:, 0] == 3)
    before, after = release.personalize(own), tv.Release.load(folder).personalize(own)
    cells = CELLS[CELLS[:, 0] == 3]
    assert after.predict(cells).tobytes() == before.predict(cells).tobytes()
    with pytest.raises(tv.InputError, match="personalize"):
        tv.Release.load(folder).predict(CELLS)


def test_the_folder_holds_a_real_report_and_can_be_saved_again(tmp_path):
    release = made("pure")
    folder = release.save(tmp_path / "deep" / "er" / "release")
    assert "<html" in (folder / "report.html").read_text()[:200].lower()
    loaded = tv.Release.load(folder)
    again = loaded.save(tmp_path / "again")
    for name in ("model.safetensors", "labels.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    assert tv.Release.load(again).predict(CELLS).tobytes() == release.predict(CELLS).tobytes()


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["a", "ö", "日本", "x y", '"q"', "1"], dtype=object),
        np.array(["a", "bb", "c", "d", "e", "f"]),
        np.arange(6),
        np.arange(6, dtype=np.uint8),
        np.array([-(2**62), 0, 1, 2, 3, 2**62]),
        np.arange(6).astype("datetime64[D]"),
        np.arange(6).astype("datetime64[W]"),
        np.arange(6).astype("datetime64[M]"),
        np.array([0, 1, 2, 3, 4, 10**15 + 1]).astype("datetime64[ns]"),
        None,
    ],
    ids=lambda labels: "none" if labels is None else str(labels.dtype),
)
def test_labels_come_back_with_their_type(labels):
    release = dataclasses.replace(made("pure"), labels=(labels, *LABELS[1:]))
    certificate = Certificate.of(release)
    found, bins = saving.read_labels(saving._labels_bytes(release), certificate)
    assert bins == (None, None, "day")
    if labels is None:
        assert found[0] is None
    else:
        assert found[0].dtype == labels.dtype
        assert found[0].tolist() == labels.tolist()


def test_an_existing_folder_is_an_error_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "empty", "dangling"):
        with pytest.raises(tv.InputError, match="must not exist yet"):
            saving.check_target(tmp_path / name)
        with pytest.raises(tv.InputError, match="must not exist yet"):
            made("pure").save(tmp_path / name)
    with pytest.raises(tv.InputError, match="must be in a writable folder"):
        saving.check_target(tmp_path / "file" / "inside")
    with pytest.raises(tv.InputError, match="name"):
        saving.check_target("missing/..")
    assert saving.check_target(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "empty", "file"]


@pytest.mark.parametrize("where", ["report", "write", "rename"])
def test_a_failure_leaves_nothing_behind(tmp_path, where):
    def fail(*_):
        raise OSError(28, "No space left on device")

    target = {
        "report": "tensorveil.release.report.report.report_html",
        "write": "tensorveil.release.saving.os.fsync",
        "rename": "tensorveil.release.saving.Path.rename",
    }[where]
    page = mock.patch("tensorveil.release.report.report.report_html", return_value="<p></p>")
    with page, mock.patch(target, fail), pytest.raises((OSError, tv.InputError), match="No space left"):
        made("pure").save(tmp_path / "release")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_gets_its_name_last(tmp_path):
    """At every write the target is absent; a process killed at any of them leaves it so."""
    seen = []
    sync = os.fsync

    def watched(handle):
        seen.append((tmp_path / "release").exists())
        sync(handle)

    page = mock.patch("tensorveil.release.report.report.report_html", return_value="<p></p>")
    with page, mock.patch("tensorveil.release.saving.os.fsync", watched):
        made("pure").save(tmp_path / "release")
    assert seen[:5] == [False] * 5  # four files and their folder
    assert [path.name for path in tmp_path.iterdir()] == ["release"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_a_linked_and_an_executable_file_are_refused(tmp_path, name):
    folder = copy_of("pure", tmp_path)
    (folder / name).chmod(0o755)
    with pytest.raises(tv.InputError, match="executable"):
        tv.Release.load(folder)
    data = (folder / name).read_bytes()
    (folder / name).unlink()
    with pytest.raises(tv.InputError, match=f"no {name}"):
        tv.Release.load(folder)
    (tmp_path / "elsewhere").write_bytes(data)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(tv.InputError, match="regular file"):
        tv.Release.load(folder)


def test_anything_more_in_the_folder_is_refused(tmp_path):
    folder = copy_of("pure", tmp_path)
    (folder / "model.pickle").write_bytes(b"")
    with pytest.raises(tv.InputError, match=r"also model\.pickle"):
        tv.Release.load(folder)
    with pytest.raises(tv.InputError, match="must be a folder"):
        tv.Release.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_changed_byte_is_refused(tmp_path, name):
    folder = copy_of("pure", tmp_path)
    data = bytearray((folder / name).read_bytes())
    for place in np.random.default_rng(1).integers(0, len(data), 20):
        changed = bytearray(data)
        changed[place] ^= 1 << int(place % 8)
        (folder / name).write_bytes(bytes(changed))
        if name == "certificate.json" and _same_json(data, changed):
            continue  # white space: nothing that is loaded changed, verify objects all the same
        with pytest.raises(tv.InputError):
            tv.Release.load(folder)


def _same_json(first, second):
    try:
        return json.loads(bytes(first)) == json.loads(bytes(second))
    except ValueError:
        return False


class Payload:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 7,
        b"\xff" * 64,
        (10**9).to_bytes(8, "little") + b"{}",
        pickle.dumps(Payload()),
        safetensors.numpy.save({"other": np.zeros(3)}),
        safetensors.numpy.save({f"factors.{mode}": np.zeros((9, 9)) for mode in range(3)}),
    ],
)
def test_a_malformed_model_is_one_clear_error_though_its_hash_is_right(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = reseal(copy_of("pure", tmp_path), files={"model.safetensors": data})
    with pytest.raises(tv.InputError, match="safetensors"):
        tv.Release.load(folder)
    assert not Path("executed").exists()


def test_a_model_of_other_numbers_than_the_certificate_tells_is_refused(tmp_path):
    arrays = safetensors.numpy.load((saved("pure")[1] / "model.safetensors").read_bytes())
    for name, array in arrays.items():
        for wrong in (array[:-1], array.astype(np.float32), np.full_like(array, np.nan), np.full_like(array, np.inf)):
            folder = reseal(
                copy_of("pure", tmp_path / f"{name}{id(wrong)}"),
                files={"model.safetensors": safetensors.numpy.save({**arrays, name: wrong})},
            )
            with pytest.raises(tv.InputError, match=name):
                tv.Release.load(folder)


def test_rows_that_belong_to_their_owners_are_neither_saved_nor_loaded(tmp_path):
    release, folder = saved("joint")
    own = observations().take(observations().coordinates[:, 0] == 3)
    personal = release.personalize(own)
    with pytest.raises(tv.InputError, match="one owner"):
        dataclasses.replace(release, model=personal).save(tmp_path / "personal")
    hidden = dataclasses.replace(personal, owned_index=None)
    with pytest.raises(tv.InputError, match="must not hold rows"):
        dataclasses.replace(release, model=hidden).save(tmp_path / "personal")
    arrays = safetensors.numpy.load((folder / "model.safetensors").read_bytes())
    for name in ("factors.0", "offsets.0"):
        leaky = {**arrays, name: np.zeros(arrays["factors.0"].shape[: 2 if name == "factors.0" else 1])}
        leaky[name][3] = 0.5
        forged = reseal(copy_of("joint", tmp_path / name), files={"model.safetensors": safetensors.numpy.save(leaky)})
        with pytest.raises(tv.InputError, match="belong to their owners"):
            tv.Release.load(forged)


def test_draws_of_a_joint_release_hold_no_rows_of_owners(tmp_path):
    release, folder = saved("joint sums")
    own = observations().take(observations().coordinates[:, 0] == 3)
    there = own.coordinates
    loaded = tv.Release.load(folder)
    assert len(loaded.model.draws) > 1
    np.testing.assert_array_equal(loaded.personalize(own).predict(there), release.personalize(own).predict(there))
    arrays = safetensors.numpy.load((folder / "model.safetensors").read_bytes())
    first, size = 0, release.shape[0]
    for name, place in (("draws.parameters", first + 1), ("draws.offsets", 1 + size - 1)):
        leaky = {**arrays, name: arrays[name].copy()}
        leaky[name][-1, place] = 0.5
        forged = reseal(
            copy_of("joint sums", tmp_path / name), files={"model.safetensors": safetensors.numpy.save(leaky)}
        )
        with pytest.raises(tv.InputError, match="belong to their owners"):
            tv.Release.load(forged)
        draws = dataclasses.replace(loaded.model.draws, **{name.removeprefix("draws."): leaky[name]})
        with pytest.raises(tv.InputError, match="must not hold rows"):
            dataclasses.replace(loaded, model=dataclasses.replace(loaded.model, draws=draws)).save(tmp_path / "other")


def test_draws_must_be_those_that_the_certificate_tells(tmp_path):
    arrays = safetensors.numpy.load((saved("drawn")[1] / "model.safetensors").read_bytes())
    names = [name for name in arrays if name.startswith("draws.")]
    assert len(names) >= 4
    whole = ("draws.low", "draws.high", "draws.mixing")
    fewer = {name: array[:-1] if name in names and name not in whole else array for name, array in arrays.items()}
    wrong = {
        "fewer": fewer,
        "none": {name: array for name, array in arrays.items() if name not in names},
        "missing": {name: array for name, array in arrays.items() if name != "draws.sigmas"},
        "more": {**arrays, "draws.other": np.zeros(2)},
        "type": {**arrays, "draws.parameters": arrays["draws.parameters"].astype(np.float64)},
        "infinite": {**arrays, "draws.sigmas": np.full_like(arrays["draws.sigmas"], np.inf)},
    }
    for name, found in wrong.items():
        files = {"model.safetensors": safetensors.numpy.save(found)}
        with pytest.raises(tv.InputError, match="draws"):
            tv.Release.load(reseal(copy_of("drawn", tmp_path / name), files=files))


def _labels(**changes):
    plain = json.loads((saved("pure")[1] / "labels.json").read_text())
    plain["modes"][0] |= changes
    return json.dumps(plain).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"schema_version": 1}',
        b"[" * 100_000,
        b"\xff",
        _labels(name="other"),
        _labels(labels=["a"]),
        _labels(labels=["a"] * 6),
        _labels(labels=list(range(6))),
        _labels(labels=[["a"]] * 6),
        _labels(dtype="object"),
        _labels(dtype="|V8"),
        _labels(dtype="<M8[D]"),
        _labels(dtype="<i8", labels=[2**70, 1, 2, 3, 4, 5]),
        _labels(bin="fortnight"),
        _labels(more=1),
    ],
)
def test_malformed_labels_are_one_clear_error_though_their_hash_is_right(tmp_path, data):
    folder = reseal(copy_of("pure", tmp_path), files={"labels.json": data})
    with pytest.raises(tv.InputError, match=r"labels\.json must hold"):
        tv.Release.load(folder)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["model.safetensors", "labels.json"]))
def test_whatever_the_bytes_are_reading_gives_a_clear_error(data, name):
    read = saving.read_labels if name == "labels.json" else saving.read_model
    with pytest.raises(tv.InputError):
        read(data, Certificate.of(made("pure")))


def test_a_disk_that_cannot_take_the_release_is_an_error_before_anything_is_spent(tmp_path):
    with pytest.raises(tv.InputError, match=r"must take about .* MB, got .*; nothing was spent"):
        saving.check_space(tmp_path / "new" / "out", 2**60)
    saving.check_space(tmp_path / "new" / "out", 10**6)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pure", "gaussian", "joint sums"])
def test_the_space_that_is_asked_for_is_enough(kind):
    folder, release = saved(kind)[1], made(kind)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size <= needed_space(release.plan, release.labels) <= size + 3 * 10**6


def test_what_killed_runs_left_is_removed_and_what_others_write_is_kept(tmp_path, caplog):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = saving._machine()
    names = [
        f".out.{mine}-{dead.pid}.abc.part",
        f".out.{mine}-{os.getpid()}.abc.part",
        f".out.cafecafe-{dead.pid}.x.part",
    ]
    for name in (*names, ".other.part", f".out2.{mine}-{dead.pid}.abc.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    saving.check_target(tmp_path / "out")
    assert [name for name in names if not (tmp_path / name).exists()] == names[:1]
    assert len(list(tmp_path.iterdir())) == 4
    assert "another machine" in caplog.text
    assert names[2] in caplog.text


def test_the_folder_on_the_way_is_named_after_the_process_that_writes_it(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(saving, "_sync_folder", lambda folder: seen.append(folder.name))
    made("pure").save(tmp_path / "out")
    assert seen[0].startswith(f".out.{saving._machine()}-{os.getpid()}.")
